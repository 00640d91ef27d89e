"""Two ranks are one rank with the double batch: the same rollouts, split over ranks that are threads here.

Real processes are in tests/integration/test_ranks.py.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import pgtrain
from pgtrain import build, following
from pgtrain.config import schema
from pgtrain.config.compose import compose
from pgtrain.distributed import Ranks
from pgtrain.envs.actions import ActionAdapter
from pgtrain.envs.masks import MaskLayout
from pgtrain.interrupt import Interrupt
from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.over_ranks import NormalizedOverRanks
from pgtrain.learning.updates import Tally, shuffled
from pgtrain.monitor.monitor import Monitor
from pgtrain.runner import Runner
from pgtrain.types import TrainingError, UserError
from tests.rank_support import Recording, Replay, ThreadRanks, together
from tests.support import Recorder

ENVS = 4
SMALL = [f"num_envs={ENVS}", "total_steps=100000", "eval.episodes=0", "monitor.terminal=none", "monitor.log_every=1",
         "monitor.tensorboard=false", "optim.lr.value=1e-3"]  # fmt: skip
WINDOW = ["horizon=24", "env.max_episode_steps=17"]
BATCH = ["update.minibatch_size=null"]
ITERATIONS = 3


@functools.cache
def settings(*overrides: str) -> schema.Config:
    """The same for one rank as for two: how many there are is told to `make_runner`."""
    return compose([*overrides, *SMALL, "device.ranks=2"]).config


def runner_of(tmp_path: Path, overrides: list[str], ranks: Ranks | None = None) -> tuple[Runner, Recorder]:
    ranks = ranks or Ranks()
    cfg = settings(*overrides)
    count = ENVS // ranks.size
    env, log = build.make_env(cfg, count, ranks.rank * count), Recorder()
    monitor = Monitor([log] if ranks.leads else [], cfg.monitor.log_every)
    return build.make_runner(cfg, env, monitor, tmp_path, Interrupt(), [], ranks), log


def recorded(tmp_path: Path, overrides: list[str]) -> tuple[Runner, Recorder, torch.Tensor]:
    """One process: its runner after some iterations, its log, and the parameters that it began with."""
    runner, log = runner_of(tmp_path, overrides)
    start = runner.update.flat.snapshot()
    runner.collector = Recording(runner.collector)  # pyright: ignore
    for _ in range(ITERATIONS):
        runner._iterate()
    return runner, log, start


def replayed(
    tmp_path: Path, overrides: list[str], rollouts: list[Any], start: torch.Tensor
) -> list[tuple[Runner, Recorder]]:
    """The same rollouts, learned from by two ranks that hold half of the envs each."""

    def work(ranks: ThreadRanks) -> tuple[Runner, Recorder]:
        runner, log = runner_of(tmp_path, overrides, ranks)
        runner.update.flat.restore(start)
        count = ENVS // ranks.size
        runner.collector = Replay(runner.collector.env, rollouts, ranks.rank * count, count)  # pyright: ignore
        for _ in rollouts:
            runner._iterate()
        return runner, log

    return together(work)


PPO = ["algo=ppo", "env=CartPole-v1", *WINDOW, *BATCH, "reward.scaling=running_std", "entropy.coef=0.01"]
REINFORCE = ["algo=reinforce", "env=CartPole-v1"]
CASES = {
    "ppo": [*PPO, "update.epochs=4"],
    "ppo_stop": [*PPO, "update.epochs=8", "update/kl_guard=stop", "update.kl_guard.limit=1e-5"],
    "ppo_skip": [*PPO, "update.epochs=2", "update/kl_guard=skip", "update.kl_guard.limit=1e-4"],
    "ppo_rate": [*PPO, "update/kl_guard=learning_rate", "optim/lr=constant", "entropy=target",
                 "update/value_loss=clip_max"],
    "ppo_anew": [*PPO, "update.epochs=3", "update.recompute_advantages=true", "update/value_loss=huber"],
    "ppo_torch": [*PPO, "policy.layer_norm=true", "optim=rmsprop", "advantage.discount_states=true"],
    "ppo_kl": ["algo=ppo_kl", "env=Pendulum-v1", *WINDOW, *BATCH, "update.epochs=3", "policy.share=1"],
    "a2c": ["algo=a2c", "env=Pendulum-v1", *WINDOW, "policy.normalize_value=running"],
    "actor_critic": ["algo=actor_critic", "env=MountainCarContinuous-v0", *WINDOW],
    "reinforce": REINFORCE,
    "reinforce_exact": [*REINFORCE, "update.mean_over=episodes", "advantage.discount_states=true",
                        "collect.episodes=2", "optim=sgd"],
    "reinforce_step": [*REINFORCE, "advantage/baseline=loo", "advantage.baseline.scope=step"],
    "reinforce_mean": [*REINFORCE, "advantage/baseline=mean", "advantage.returns=total"],
    "reinforce_value": [*REINFORCE, "advantage/baseline=value", "update.mean_over=episodes",
                        "policy.layer_norm=true", "entropy.coef=0.01"],
    "reinforce_cut": [*REINFORCE, "collect.unit=steps", "horizon=40", "advantage.truncation_bootstrap=mean_return"],
}  # fmt: skip


@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES)
def test_two_ranks_are_one_with_the_double_batch(tmp_path: Path, overrides: list[str]) -> None:
    """Parameters, statistics, counters and every number on the dashboard, over three iterations."""
    one, log, start = recorded(tmp_path, overrides)
    assert (one.update.flat.data - start).abs().max() > 1e-5 or "update/kl_guard=skip" in overrides
    (first, told), (second, _) = replayed(tmp_path, overrides, one.collector.rollouts, start)  # pyright: ignore
    assert torch.equal(first.update.flat.data, second.update.flat.data)  # bit for bit
    torch.testing.assert_close(first.update.flat.data, one.update.flat.data, rtol=0, atol=1e-6)
    for whole, half, other in zip(*(list(r.policy.buffers()) for r in (one, first, second)), strict=True):
        assert torch.equal(half, other)
        torch.testing.assert_close(half, whole, rtol=1e-6, atol=1e-9)
    assert first.progress == second.progress == one.progress
    for name, schedule in one._schedules.items():
        assert first._schedules[name].state_dict() == pytest.approx(schedule.state_dict(), rel=1e-5)
    for row, expected in zip(told.rows, log.rows, strict=True):
        assert row.keys() == expected.keys()
        for tag in row:
            if not tag.startswith("time/"):
                assert row[tag] == pytest.approx(expected[tag], rel=2e-3, abs=2e-5, nan_ok=True), tag


def test_normaliser_statistics_are_those_of_all_rows(tmp_path: Path) -> None:
    overrides = CASES["ppo"]
    one, _, start = recorded(tmp_path, overrides)
    rollouts = one.collector.rollouts  # pyright: ignore
    (first, _), (second, _) = replayed(tmp_path, overrides, rollouts, start)
    rows = np.concatenate([r.obs.numpy().reshape(-1, 4).astype(np.float64) for r in rollouts])
    for runner in (first, second):
        moments = runner.policy.normalizer
        assert moments is not None and float(moments.count) == len(rows) == ITERATIONS * 24 * ENVS
        np.testing.assert_allclose(moments.mean.numpy(), rows.mean(0), rtol=1e-12)
        np.testing.assert_allclose(moments.var.numpy(), rows.var(0), rtol=1e-12)


@pytest.mark.parametrize("policy", [[], ["policy.layer_norm=true"]], ids=["host", "torch"])
def test_a_nan_on_one_rank_skips_the_update_on_all(tmp_path: Path, policy: list[str]) -> None:
    overrides = [*PPO, *policy, "update.epochs=2"]
    one, _, start = recorded(tmp_path, overrides)
    rollouts = one.collector.rollouts  # pyright: ignore
    rollouts[1].raw_reward[3, 2] = math.nan  # env 2 of 4: the first of rank 1
    rollouts[1].reward[3, 2] = math.nan
    ranks = replayed(tmp_path, overrides, rollouts, start)
    for runner, _ in ranks:
        assert runner.progress.skipped_updates == 2 and runner.progress.updates == 6
    assert torch.equal(ranks[0][0].update.flat.data, ranks[1][0].update.flat.data)
    assert ranks[0][0].update.flat.data.isfinite().all()
    assert "rank 1: first non-finite reward in env 2 at step 3" in ranks[0][1].messages[0][1]


def test_parted_parameters_are_an_error(tmp_path: Path) -> None:
    def work(ranks: ThreadRanks) -> None:
        runner, _ = runner_of(tmp_path, PPO, ranks)
        following.check_together(runner)
        runner.update.flat.data[7] += ranks.rank * 1e-7
        following.check_together(runner)

    with pytest.raises(TrainingError, match="parted"):
        together(work)


def test_ranks_start_from_rank_0(tmp_path: Path) -> None:
    def work(ranks: ThreadRanks) -> torch.Tensor:
        runner, _ = runner_of(tmp_path, [*PPO, f"seed={ranks.rank}"], ranks)
        return runner.update.flat.data

    first, second = together(work)
    assert torch.equal(first, second)


# ------------------------------------------------------------------------------------------------------- parts


class Kept:
    """A pipeline that keeps the batch it is given."""

    def epoch(self, batch: Batch, parts: Any, coefficients: Coefficients, learning_rate: Any) -> Tally:
        self.batch = batch
        return Tally((), lambda: torch.zeros(1, 0), torch.ones(1, dtype=torch.bool))


def normalized(ranks: Ranks, advantage: torch.Tensor, parts: Any = None) -> torch.Tensor:
    zeros = torch.zeros_like(advantage)
    batch = Batch(advantage=advantage, weight=zeros + 1)
    NormalizedOverRanks(kept := Kept(), ranks).epoch(batch, parts, Coefficients(1e-3, 0.0), 1e-3)
    return kept.batch.advantage


def test_advantages_are_normalised_over_ranks() -> None:
    """Mean 8.25 and sample std of [1, 2, 10, 20]; not −1, 1 on each rank."""
    rows = torch.tensor([[1.0, 2.0], [10.0, 20.0]])
    found = together(lambda ranks: normalized(ranks, rows[ranks.rank]))
    expected = [-0.8231022, -0.7095709, 0.1986799, 1.3339933]
    torch.testing.assert_close(torch.cat(found), torch.tensor(expected), rtol=0, atol=1e-6)


def test_each_minibatch_is_normalised_by_itself() -> None:
    rng = np.random.default_rng(0)
    rows = [torch.tensor(rng.normal(3, 2, 9)), torch.tensor(rng.normal(-1, 1, 5))]
    generator = torch.Generator().manual_seed(0)
    parts = [shuffled(len(x), 3, torch.device("cpu"), generator) for x in rows]
    found = together(lambda ranks: normalized(ranks, rows[ranks.rank], parts[ranks.rank]))
    for m in range(3):
        both = np.concatenate([rows[r][parts[r][m]].numpy() for r in range(2)])
        expected = (both - both.mean()) / both.std(ddof=1)
        got = np.concatenate([found[r][parts[r][m]].numpy() for r in range(2)])
        np.testing.assert_allclose(got, expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([[5.0], [5.0]], [[0.0], [0.0]]), ([[1.0], [math.nan]], [[math.nan], [math.nan]]),
     ([[1.0], [math.inf]], [[math.nan], [math.nan]])],
)  # fmt: skip
def test_normalising_without_spread_or_with_nan(rows: list[list[float]], expected: list[list[float]]) -> None:
    found = together(lambda ranks: normalized(ranks, torch.tensor(rows[ranks.rank])).tolist())
    assert found == [[pytest.approx(x, nan_ok=True) for x in row] for row in expected]


@pytest.mark.parametrize(
    ("rows", "size", "number"), [((64, 64), 32, 4), ((100, 28), 32, 4), ((128, 3), 32, 3), ((9, 9), 64, 1)]
)
def test_all_ranks_cut_as_many_minibatches(rows: tuple[int, int], size: int, number: int) -> None:
    """⌈all rows / size⌉, and no minibatch without a row on some rank."""
    assert together(lambda ranks: ranks.minibatches(rows[ranks.rank], size)) == [number, number]


@pytest.mark.parametrize("backend", [["native"], ["sync"], ["process", "env.workers=1"]], ids=lambda x: x[0])
def test_env_i_is_the_same_however_many_ranks(backend: list[str]) -> None:
    cfg = compose(["env=CartPole-v1", f"env.backend={backend[0]}", *backend[1:]]).config

    def start(num_envs: int, before: int) -> np.ndarray:
        with build.make_env(cfg, num_envs, before) as env:
            return env.reset(7)

    whole = start(4, 0)
    np.testing.assert_array_equal(np.concatenate([start(2, 0), start(2, 2)]), whole)
    assert len(np.unique(whole[:, 0])) == 4


def test_errors_of_batches_name_the_env_by_its_index_in_the_run() -> None:
    actions = ActionAdapter(spaces.Box(-1, 1, (2,)), "X-v0")
    with pytest.raises(TrainingError, match="action for env 7 is not finite"):
        actions(np.array([[0.0, 0.0], [0.0, math.nan]]), before=6)
    layout = MaskLayout(spaces.Discrete(2))
    with pytest.raises(TrainingError, match=r"^env index 7: "):
        layout.rows(np.array([[1, 1], [0, 0]], np.int8), 2, np.zeros(2, bool), before=6)


def test_one_module_talks_to_torch_distributed() -> None:
    package = Path(pgtrain.__file__).parent
    texts = {path.name: path.read_text() for path in package.rglob("*.py")}
    assert [
        name for name, text in texts.items() if "torch.distributed" in text and "import torch.dist" in text
    ] == ["distributed.py"]


def test_ranks_draw_actions_of_their_own() -> None:
    one, two = build.streams(3), build.streams(3, 1)
    assert one == build.streams(3, 0)
    assert {name for name in one if one[name] != two[name]} == {"action", "minibatch"}


def test_calibration_counts_the_steps_of_all(tmp_path: Path) -> None:
    overrides = [*PPO, "policy.normalize_obs=calibrated", "policy.calibration_steps=100"]

    def work(ranks: ThreadRanks) -> tuple[float, torch.Tensor]:
        runner, _ = runner_of(tmp_path, overrides, ranks)
        moments = runner.policy.normalizer
        assert moments is not None
        return float(moments.count), moments.mean

    (count, mean), (count_1, mean_1) = together(work)
    assert count == count_1 == 100 and torch.equal(mean, mean_1)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["algo=ppo", "num_envs=7"], "num_envs=7"),
        (["algo=trpo"], "update=trust_region"),
        (["algo=reinforce", "advantage/baseline=optimal"], "advantage/baseline=optimal"),
        (["algo=ppo", "policy/memory=gru"], "policy/memory=gru"),
        (["algo=ppo", "monitor.gradient=full"], "monitor.gradient=full"),
        (["algo=ppo", "device=cuda"], "device=cuda"),
        (["algo=ppo", "num_envs=4", "env.workers=3"], "env.workers=3"),
        (["algo=ppo", "num_envs=4", "env.threads=3"], "env.threads=3"),
        (["algo=shac", "env=pgtrain/Pendulum-v0"], "update=pathwise"),
    ],
)  # fmt: skip
def test_what_ranks_cannot_share_is_refused(overrides: list[str], named: str) -> None:
    with pytest.raises(UserError, match=named) as caught:
        compose([*overrides, "device.ranks=2"])
    assert "\n" not in str(caught.value) and "device.ranks=2" in str(caught.value)
