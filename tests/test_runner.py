"""The loop: budgets, schedules, skipped updates, what is logged, and that it learns the right thing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pgtrain import build
from pgtrain.envs.vector import adapt_vector_env
from pgtrain.interrupt import Interrupted
from pgtrain.learning.batch import flatten, sequences
from pgtrain.monitor.dashboard import BY_TAG
from pgtrain.monitor.diagnostics import experience_metrics, locate_non_finite, policy_metrics
from pgtrain.progress import Progress
from pgtrain.runner import Runner
from pgtrain.types import TrainingError
from tests import envs_for_tests
from tests.support import ScriptedEnv, configure, critic_only, env_id, make_policy, make_rollout, make_runner

REINFORCE: dict[str, Any] = {"collect": {"unit": "episodes"}}


class Spy:
    """A callback that keeps the parameters after each iteration."""

    def __init__(self, runner: Runner) -> None:
        self.after: list[torch.Tensor] = [runner.update.flat.snapshot()]
        self.ended = 0
        runner.callbacks = [*runner.callbacks, self]

    def after_iteration(self, runner: Runner) -> None:
        self.after.append(runner.update.flat.snapshot())

    def at_end(self, runner: Runner) -> None:
        self.ended += 1


def scripted(lengths: list[list[int]], autoreset: str = "same_step", ends: Any = None) -> Any:
    """A ScriptedEnv with what the build asks of a VectorEnv besides."""
    env = ScriptedEnv(lengths, ends, autoreset)
    env.notices, env.reward_threshold = [], None  # pyright: ignore
    return env


def played(env: ScriptedEnv) -> int:
    return sum(len(x) for x in env.log)


def next_step(make: Any, num_envs: int, **kwargs: Any) -> Any:
    vec = SyncVectorEnv([lambda: make(**kwargs)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    return adapt_vector_env(vec, "NextStep")


def value_at_zero(runner: Runner) -> float:
    policy = runner.policy
    with torch.no_grad():
        return float(policy.value(policy.prepare(torch.zeros(1, 1))))


# --------------------------------------------------------------------------------------------------- budgets


def test_fixed_windows_meet_the_budget_by_shortening_the_last(tmp_path: Path) -> None:
    """3 envs × 64 rows, 1000 steps: 5 whole windows (960), then 14 rows: 1002, the next multiple of 3."""
    env = scripted([[7], [3], [50]])
    cfg = configure(num_envs=3, horizon=64, total_steps=1000, **critic_only())
    runner, log = make_runner(cfg, tmp_path, env)
    runner.run()
    assert log.column("progress/steps") == [192, 384, 576, 768, 960, 1002] == log.column("step")
    assert log.column("progress/iteration") == [1, 2, 3, 4, 5, 6]
    assert runner.progress.steps == played(env) == 1002


def test_reset_rows_are_no_steps(tmp_path: Path) -> None:
    """NEXT_STEP: rows are asked for until the real steps suffice, and no more than N − 1 too many are played."""
    for total in (100, 1000):
        env = scripted([[7], [3], [1]], "next_step")
        runner, log = make_runner(
            configure(num_envs=3, horizon=64, total_steps=total, **critic_only()), tmp_path, env
        )
        runner.run()
        assert runner.progress.steps == played(env) == log.column("progress/steps")[-1]
        assert total <= runner.progress.steps <= total + 2
        assert runner.policy.normalizer is not None
        assert float(runner.policy.normalizer.count) == runner.progress.steps


def test_a_window_of_nothing_but_reset_rows_is_no_iteration(tmp_path: Path) -> None:
    """One env of one-step episodes under NEXT_STEP, one row an iteration: every other row is a reset."""
    cfg = configure(
        num_envs=1,
        horizon=1,
        total_steps=4,
        **critic_only() | {"advantage": {"name": "gae", "normalize": True}},
    )
    runner, log = make_runner(cfg, tmp_path, scripted([[1]], "next_step"))
    runner.run()
    assert log.column("progress/steps") == [1, 2, 3, 4]
    assert float(runner.update.optimizer.count) == 4


@pytest.mark.parametrize(("total", "steps"), [(100, 80), (119, 80), (120, 120), (40, 40)])
def test_no_iteration_of_whole_episodes_starts_that_would_exceed_the_budget(
    tmp_path: Path, total: int, steps: int
) -> None:
    env = scripted([[10]] * 4)
    runner, log = make_runner(configure(num_envs=4, total_steps=total, **REINFORCE), tmp_path, env)
    runner.run()
    assert runner.progress.steps == played(env) == steps
    assert runner.progress.iterations == steps // 40 and not log.messages
    assert runner.progress.episodes == 4 * (steps // 40)


def test_the_overshoot_of_growing_episodes_is_under_one_iteration(tmp_path: Path) -> None:
    env = scripted([list(range(10, 200, 10))] * 2)
    runner, log = make_runner(configure(num_envs=2, total_steps=330, **REINFORCE), tmp_path, env)
    runner.run()  # 20 + 40 + 60 + 80 = 200; 80 more fit, but the next takes 100; then 100 more do not fit
    assert log.column("progress/steps") == [20, 60, 120, 200, 300]
    env = scripted([list(range(10, 200, 10))] * 2)
    runner, log = make_runner(configure(num_envs=2, total_steps=290, **REINFORCE), tmp_path, env)
    runner.run()
    assert log.column("progress/steps") == [20, 60, 120, 200, 300]  # 10 over, less than the iteration's 100


def test_endless_episodes_end_within_the_budget_with_a_warning(tmp_path: Path) -> None:
    cfg = configure({"id": env_id("NeverEnds")}, num_envs=4, total_steps=1000, **REINFORCE)
    runner, log = make_runner(cfg, tmp_path)
    spy = Spy(runner)
    runner.run()
    assert 1000 <= runner.progress.steps < 1004 and runner.progress.iterations == 0
    assert torch.equal(runner.update.flat.data, spy.after[0])
    (level, text), *more = log.messages
    assert level == "warning" and not more
    assert "NeverEnds" in text and "did not end" in text and "env.max_episode_steps" in text


def test_episodes_that_stop_ending_are_not_learned_from(tmp_path: Path) -> None:
    env = scripted([[5, 5, 10_000], [5]])
    runner, log = make_runner(configure(num_envs=2, total_steps=200, **REINFORCE), tmp_path, env)
    spy = Spy(runner)
    runner.run()
    assert runner.progress.iterations == 2 and len(spy.after) == 3
    assert runner.progress.steps == played(env) <= 200 + 10 + 1
    assert len(log.messages) == 1
    assert torch.equal(runner.update.flat.data, spy.after[-1]) and not torch.equal(spy.after[1], spy.after[2])


# ------------------------------------------------------------------------------------------------- schedules


def test_linear_schedule_as_logged(tmp_path: Path) -> None:
    """4 iterations of 20 steps: progress 0, ¼, ½, ¾. The last update still learns."""
    cfg = configure(
        num_envs=2,
        horizon=10,
        total_steps=80,
        policy={"normalize_value": "none"},
        **critic_only() | {"optim": {"lr": {"name": "linear", "value": 0.004}}, "entropy": {"coef": 0.02}},
    )
    runner, log = make_runner(cfg, tmp_path, scripted([[4], [6]]))
    spy = Spy(runner)
    runner.run()
    assert log.column("schedule/learning_rate") == pytest.approx([0.004, 0.003, 0.002, 0.001])
    assert log.column("schedule/entropy_coef") == [0.02] * 4
    moved = [float((b - a).abs().max()) for a, b in zip(spy.after, spy.after[1:], strict=False)]
    assert moved[0] == pytest.approx(0.004, rel=0.02) and moved[3] > 0  # Adam's first step is the rate itself


# ------------------------------------------------------------------------------------- faults in the numbers


@pytest.mark.parametrize(("what", "value"), [("reward", "nan"), ("reward", "inf"), ("obs", "nan")])
@pytest.mark.parametrize("recipe", ["a2c", "reinforce"])
def test_a_bad_number_skips_one_update_and_is_traced(
    tmp_path: Path, what: str, value: str, recipe: str
) -> None:
    """Step 19 of the life of both envs: the third window of 8 rows, or their third episode."""
    kwargs = {"at": 19, "what": what, "value": value}
    settings = critic_only(horizon=8, policy={"normalize_value": "none"}) if recipe == "a2c" else REINFORCE
    cfg = configure({"id": env_id("NaNReward"), "kwargs": kwargs}, num_envs=2, total_steps=80, **settings)
    runner, log = make_runner(cfg, tmp_path)
    spy = Spy(runner)
    runner.run()
    assert len(spy.after) == 6 and torch.isfinite(runner.update.flat.data).all()
    stayed = [torch.equal(a, b) for a, b in zip(spy.after, spy.after[1:], strict=False)]
    assert stayed[2] and stayed.count(True) == 1
    assert log.column("gradient/skipped_updates") == [0, 0, 1, 1, 1]
    assert runner.progress.skipped_updates == 1 and runner.progress.skipped_in_a_row == 0
    (level, text), *more = log.messages
    assert level == "warning" and not more
    assert "iteration 3" in text and "env 0" in text and "parameters unchanged" in text
    if what == "reward":
        assert "reward in env 0 at step 2 of the rollout (step 2 of its episode" in text
        assert f"reward {value}" in text
    else:
        assert "observation in env 0 at step 3 of the rollout" in text and "reward 1" in text
    for row in (log.rows[1], log.rows[3]):
        assert math.isfinite(row["loss/actor"]) and math.isfinite(row["gradient/norm"])
    if runner.policy.normalizer is not None:
        assert torch.isfinite(runner.policy.normalizer.mean).all()


class AlwaysNaN(ScriptedEnv):
    def step(self, action: np.ndarray) -> Any:
        step = super().step(action)
        return step._replace(reward=step.reward * np.nan)


def test_k_skips_in_a_row_end_the_run(tmp_path: Path) -> None:
    cfg = configure(
        num_envs=2, horizon=10, total_steps=1000, update={"max_skipped_in_a_row": 3}, **critic_only()
    )
    runner, _ = make_runner(cfg, tmp_path, AlwaysNaN([[4], [6]]))
    spy = Spy(runner)
    with pytest.raises(
        TrainingError,
        match=r"all updates of 3 iterations in a row.*max_skipped_in_a_row=3.*reward in env 0 at step 0",
    ):
        runner.run()
    assert runner.progress.iterations == 3 and spy.ended == 1
    assert torch.equal(runner.update.flat.data, spy.after[0])
    assert (tmp_path / "checkpoint.pt").exists()


def test_iterations_are_counted_not_their_minibatches(tmp_path: Path) -> None:
    """2 minibatches an iteration, all skipped: 5 in a row are the fifth iteration."""
    cfg = configure(
        num_envs=2,
        horizon=10,
        total_steps=1000,
        update={"max_skipped_in_a_row": 5, "minibatch_size": 10},
        **critic_only(),
    )
    runner, _ = make_runner(cfg, tmp_path, AlwaysNaN([[4], [6]]))
    with pytest.raises(TrainingError, match="all updates of 5 iterations in a row"):
        runner.run()
    assert runner.progress.iterations == 5 and runner.progress.skipped_updates == 10


def test_one_bad_reward_costs_one_iteration_however_many_updates_it_has(tmp_path: Path) -> None:
    """Step 19 is in the third of ten windows; every epoch of that one is skipped, more than may be in a row."""
    kwargs = {"at": 19, "what": "reward", "value": "nan"}
    many = {"epochs": 6, "minibatch_size": None, "max_skipped_in_a_row": 2}
    cfg = configure(
        {"id": env_id("NaNReward"), "kwargs": kwargs}, num_envs=2, total_steps=160, horizon=8,
        update={"name": "clipped", **many}, policy={"normalize_value": "none"}, **critic_only(),
    )  # fmt: skip
    runner, log = make_runner(cfg, tmp_path)
    runner.run()
    assert runner.progress.iterations == 10 and runner.progress.skipped_updates == 6
    assert log.column("gradient/skipped_updates") == [0, 0, *[6] * 8]
    assert torch.isfinite(runner.update.flat.data).all()


def test_an_overflowing_gradient_is_named_by_its_tensors(tmp_path: Path) -> None:
    cfg = configure(num_envs=2, horizon=10, total_steps=20, **critic_only())
    runner, log = make_runner(cfg, tmp_path, scripted([[4], [6]]))
    pipeline: Any = runner.update.pipeline  # pyright: ignore
    source = pipeline.source

    def broken(*arguments: Any) -> Any:
        stats = source(*arguments)
        runner.update.flat.grad[runner.update.flat.slices["network.actor.0.bias"]] = torch.inf
        return stats

    broken.gradient = source.gradient  # pyright: ignore
    pipeline.source = broken
    runner.run()
    assert "the gradient of network.actor.0.bias" in log.messages[0][1]


def test_locating_the_first_bad_number() -> None:
    """In the order in which one spoils the next, real rows only."""
    r = make_rollout(
        np.ones((4, 3)), weight=[[1, 1, 1], [1, 0, 1], [1, 1, 1], [1, 1, 1]], value=np.zeros((4, 3))
    )
    r = r.replace(advantage=torch.zeros(4, 3))
    assert locate_non_finite(r) is None

    def but(name: str, t: int, n: int, x: float = math.nan) -> Any:
        tensor = getattr(r, name).clone()
        tensor[t, n] = x
        return r.replace(**{name: tensor})

    assert locate_non_finite(but("raw_reward", 1, 1)) is None  # no transition
    text = locate_non_finite(but("raw_reward", 2, 1, math.inf))
    assert (
        "first non-finite reward in env 1 at step 2 of the rollout (step 1 of its episode; reward inf" in text
    )
    assert "1 such steps" in text
    assert "value in env 2 at step 3" in locate_non_finite(but("value", 3, 2))
    assert "observation in env 0 at step 1" in locate_non_finite(but("obs", 1, 0))
    assert "advantage in env 0 at step 0" in locate_non_finite(but("advantage", 0, 0))
    both = but("advantage", 0, 0).replace(raw_reward=but("raw_reward", 3, 2).raw_reward)
    assert "reward in env 2" in locate_non_finite(both)
    final = r.replace(
        final_inputs=torch.tensor([[0.0], [math.nan]]),
        final_index=(torch.tensor([1, 2]), torch.tensor([0, 1])),
    )
    assert "final observation in env 1 at step 2" in locate_non_finite(final)


# ----------------------------------------------------------------------------------------- what is measured


def test_returns_are_raw_with_reward_scaling_on(tmp_path: Path) -> None:
    cfg = configure(
        {"id": env_id("FixedLen"), "kwargs": {"length": 5, "reward": 100.0}},
        num_envs=2,
        horizon=12,
        total_steps=240,
        reward={"scaling": "running_std", "clip": 3.0},
        **critic_only(),
    )
    runner, log = make_runner(cfg, tmp_path)
    rollouts = []
    estimator = runner.estimator
    runner.estimator = lambda r: rollouts.append(r) or estimator(r)  # pyright: ignore
    runner.run()
    assert log.column("episode/return") == [500.0] * 10 and log.column("episode/return_100") == [500.0] * 10
    assert log.column("episode/length") == [5.0] * 10
    # discounted sums 100 · (1 − 0.9ᵏ)/0.1 for k = 1 … 5, whose population std is the scale
    r = [100 * (1 - 0.9**k) / 0.1 for k in range(1, 6)]
    assert log.column("reward/scale")[-1] == pytest.approx(np.std(r), rel=0.02)
    assert float(rollouts[-1].raw_reward.max()) == 100.0
    assert float(rollouts[-1].reward.max()) == pytest.approx(100 / np.std(r), rel=0.02)


def test_an_outer_time_limit_is_seen(tmp_path: Path) -> None:
    cfg = configure({"id": env_id("LateLimit")}, num_envs=3, total_steps=60, **REINFORCE)
    runner, log = make_runner(cfg, tmp_path)
    runner.run()
    assert log.column("episode/return") == [5.0] * 4 and log.column("episode/length") == [5.0] * 4
    assert log.column("episode/count") == [3] * 4 and runner.progress.episodes == 12


def test_episode_numbers_of_windows(tmp_path: Path) -> None:
    """Windows of 4 rows over episodes of 6: episodes end in windows 2, 3, 5, 6; nothing is said where none ended."""
    runner, log = make_runner(
        configure(num_envs=1, horizon=4, total_steps=24, **critic_only()), tmp_path, AlwaysOne([[6]])
    )
    runner.run()
    assert log.column("episode/count") == [0, 1, 1, 0, 1, 1]
    assert log.column("episode/return") == [None, 6.0, 6.0, None, 6.0, 6.0]
    assert log.column("episode/return_100") == [None, 6.0, 6.0, 6.0, 6.0, 6.0]
    assert list(runner.progress.recent_returns) == [6.0] * 4


class AlwaysOne(ScriptedEnv):
    def step(self, action: np.ndarray) -> Any:
        step = super().step(action)
        valid = 1.0 if step.valid is None else step.valid.astype(float)
        return step._replace(reward=np.ones_like(step.reward) * valid)


def test_recent_returns_are_the_last_hundred() -> None:
    progress = Progress()
    progress.recent_returns.extend(float(x) for x in range(250))
    assert list(progress.recent_returns) == [float(x) for x in range(150, 250)]
    other = Progress()
    other.load_state_dict(progress.state_dict())
    assert other == progress and other.recent_returns.maxlen == 100


def test_kl_and_gradient_norm_are_those_of_the_update(tmp_path: Path) -> None:
    """KL(old ‖ new) over the batch, measured after the step; the norm before the limit of 0.5."""
    cfg = configure(num_envs=3, horizon=20, total_steps=60, **critic_only(lr=0.05))
    runner, log = make_runner(cfg, tmp_path, scripted([[4], [6], [9]]))
    rollouts = []
    estimator = runner.estimator
    runner.estimator = lambda r: rollouts.append(r) or estimator(r)  # pyright: ignore
    runner.run()
    r = rollouts[0]
    with torch.no_grad():
        head, _ = runner.policy.network(r.inputs)
    old, new = (torch.distributions.Categorical(logits=x.double()) for x in (r.params, head))
    exact = float(torch.distributions.kl_divergence(old, new).mean())
    ratio = new.log_prob(r.action) - old.log_prob(r.action)
    assert log.rows[0]["policy/kl"] == pytest.approx(exact, rel=1e-3) and exact > 1e-4
    assert log.rows[0]["policy/approx_kl"] == pytest.approx(float((ratio.exp() - 1 - ratio).mean()), rel=1e-3)
    assert log.rows[0]["gradient/norm"] > 0.5  # rewards of up to 300


def test_kl_is_zero_without_a_step(tmp_path: Path) -> None:
    """Acting and the update's view of it agree: with a rate of 0 the ratio is 1."""
    cfg = configure(
        {"id": env_id("SeedNoise")}, num_envs=3, horizon=20, total_steps=180, **critic_only(lr=1e-30)
    )
    runner, log = make_runner(cfg, tmp_path)
    assert runner.policy.normalizer is not None
    runner.run()
    assert max(abs(x) for x in log.column("policy/kl") + log.column("policy/approx_kl")) < 1e-6
    assert float(runner.policy.normalizer.count) == 180


def test_metrics_of_experience_are_of_real_rows() -> None:
    rng = np.random.default_rng(0)
    weight = (rng.random((6, 3)) < 0.7).astype(float)
    value = rng.standard_normal((6, 3))
    r = make_rollout(np.ones((6, 3)), weight=weight, value=value)
    advantage, target = torch.from_numpy(rng.standard_normal((2, 6, 3)))
    r = r.replace(advantage=advantage, value_target=target)
    used = weight > 0
    a, v, y = advantage.numpy()[used], value[used], target.numpy()[used]
    got = {name: float(x) for name, x in experience_metrics(flatten(r, None), critic=True).items()}
    assert got == pytest.approx(
        {
            "advantage/mean": a.mean(),
            "advantage/std": a.std(ddof=1),
            "advantage/min": a.min(),
            "advantage/max": a.max(),
            "critic/value": v.mean(),
            "critic/explained_variance": 1 - (y - v).var() / y.var(),
        },
        rel=1e-5,
    )


def test_metrics_of_sequences_are_of_real_rows() -> None:
    """Memory: what fills up sequences does not count, whatever it holds."""
    rng = np.random.default_rng(1)
    weight = (rng.random((7, 3)) < 0.7).astype(float)
    value, advantage, target = rng.standard_normal((3, 7, 3))
    policy = make_policy(1, gym.spaces.Box(-1, 1, (2,)))
    action = torch.from_numpy(rng.normal(size=(7, 3, 2))).float()
    r = make_rollout(np.ones((7, 3)), weight=weight, value=value, action=action, policy=policy)
    r = r.replace(advantage=torch.from_numpy(advantage), value_target=torch.from_numpy(target))
    batch = sequences(r, None, 2)
    assert batch.weight.shape[0] == 2 and (batch.weight == 0).any()
    batch = batch.replace(log_prob=torch.where(batch.weight > 0, batch.log_prob, 1e3))
    used = weight > 0
    a, v, y = advantage[used], value[used], target[used]
    got = experience_metrics(batch, critic=True) | policy_metrics(policy, batch)
    assert {name: float(x) for name, x in got.items()} == pytest.approx(
        {
            "advantage/mean": a.mean(),
            "advantage/std": a.std(ddof=1),
            "advantage/min": a.min(),
            "advantage/max": a.max(),
            "critic/value": v.mean(),
            "critic/explained_variance": 1 - (y - v).var() / y.var(),
            "policy/kl": 0.0,
            "policy/approx_kl": 0.0,
            "policy/std": 1.0,
            "policy/clipped_actions": (np.abs(action.numpy()[used]) > 1).mean(),
        },
        rel=1e-5,
        abs=1e-6,
    )


def test_gaussian_metrics_are_logged() -> None:
    policy = make_policy(1, gym.spaces.Box(-1, 1, (2,)), log_std_init=0.3)
    r = make_rollout(np.ones((4, 2)), action=torch.tensor([2.0, 0.0]).expand(4, 2, 2), policy=policy)
    r = r.replace(advantage=torch.zeros(4, 2), value_target=torch.zeros(4, 2))
    got = {name: float(x) for name, x in policy_metrics(policy, flatten(r, None)).items()}
    assert got["policy/std"] == pytest.approx(math.exp(0.3), rel=1e-5)
    assert got["policy/clipped_actions"] == 0.5
    assert got["policy/kl"] == pytest.approx(0.0, abs=1e-6)


def test_every_logged_tag_is_explained_and_times_add_up(tmp_path: Path) -> None:
    runner, log = make_runner(
        configure(num_envs=2, horizon=10, total_steps=40, **critic_only()), tmp_path, scripted([[4], [6]])
    )
    runner.run()
    for row in log.rows:
        assert row.keys() - {"step"} <= BY_TAG.keys()
        parts = [row[f"time/{name}"] for name in ("collect", "estimate", "update")]
        assert min(parts) > 0
        assert (
            0 < row["time/steps_per_second"] < 20 / sum(parts)
        )  # of wall time, in which more happens than the parts
    assert log.column("time/log")[0] == 0 < log.column("time/log")[1]  # what the entry before took


def test_entries_between_iterations_leave_no_episode_out(tmp_path: Path) -> None:
    """7 iterations of 8 steps, an entry every third and at the end: 3, 6, 7, with the episodes since the one before."""
    cfg = configure(num_envs=2, horizon=4, total_steps=56, monitor={"log_every": 3}, **critic_only())
    runner, log = make_runner(cfg, tmp_path, AlwaysOne([[2], [7]]))
    runner.run()
    assert log.column("progress/iteration") == [3, 6, 7]
    # env 0 ends an episode every 2 rows; env 1 at rows 7, 14, 21, 28
    assert log.column("episode/count") == [6 + 1, 6 + 2, 2 + 1]
    assert log.column("episode/return") == pytest.approx([(12 + 7) / 7, (12 + 14) / 8, (4 + 7) / 3])
    assert log.column("episode/length") == log.column("episode/return")
    assert runner.progress.episodes == 18


# ---------------------------------------------------------------------------------------------- it is right


def test_a_time_limit_is_no_death(tmp_path: Path) -> None:
    """Reward 1 for ever, cut every 5 steps: V = 1/(1 − 0.9) = 10. Taking the cut for an end gives below 4."""
    cfg = configure(
        {"id": env_id("ConstTruncate")}, num_envs=8, horizon=16, total_steps=20_000, **critic_only(lr=1e-2)
    )
    runner, _ = make_runner(cfg, tmp_path)
    runner.run()
    assert value_at_zero(runner) == pytest.approx(10.0, abs=0.7)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_made_up_reset_rows_are_not_learned_from(tmp_path: Path, mode: str) -> None:
    """One step of reward 1: V = 1. Learning from reset rows (reward 0) gives 0.5."""
    cfg = configure(
        {"id": env_id("OneStep")},
        num_envs=4,
        horizon=16,
        total_steps=4_000,
        **critic_only(lr=1e-2, gamma=0.0),
    )
    env = next_step(envs_for_tests.OneStep, 4) if mode == "next_step" else None
    runner, _ = make_runner(cfg, tmp_path, env)
    runner.run()
    assert value_at_zero(runner) == pytest.approx(1.0, abs=0.05)
    assert runner.progress.steps == runner.progress.episodes == 4_000


def test_termination_at_the_time_limit_is_an_end(tmp_path: Path) -> None:
    """Three steps of reward 1, both flags at the last: V(last) = 1, not 1 + 0.9 V(…)."""
    kwargs = {"length": 3, "end": "both"}
    cfg = configure(
        {"id": env_id("FixedLen"), "kwargs": kwargs},
        num_envs=8,
        horizon=16,
        total_steps=30_000,
        policy={"normalize_obs": "none"},
        **critic_only(lr=1e-2),
    )
    runner, _ = make_runner(cfg, tmp_path)
    runner.run()
    with torch.no_grad():
        values = runner.policy.value(torch.tensor([[0.0], [1 / 3], [2 / 3]])).tolist()
    assert values == pytest.approx([1 + 0.9 * 1.9, 1.9, 1.0], abs=0.15)


@pytest.mark.parametrize("recipe", ["a2c", "reinforce"])
def test_learns_which_action_pays(tmp_path: Path, recipe: str) -> None:
    """AliasObs shows the rewarded action: 8 at best, 4 by chance."""
    settings = critic_only(horizon=32) if recipe == "a2c" else {**REINFORCE, "optim": {"lr": {"value": 1e-2}}}
    cfg = configure({"id": env_id("AliasObs")}, num_envs=8, total_steps=12_000, **settings)
    runner, log = make_runner(cfg, tmp_path)
    runner.run()
    assert log.column("episode/return")[0] < 6.5
    assert log.column("episode/return_100")[-1] > 7.0


def test_learns_asymmetric_actions(tmp_path: Path) -> None:
    """AsymBox refuses foreign actions; its upper corner gives 8, its center 4."""
    cfg = configure({"id": env_id("AsymBox")}, num_envs=8, horizon=16, total_steps=20_000, **critic_only())
    runner, log = make_runner(cfg, tmp_path)
    runner.run()
    assert log.column("episode/return_100")[-1] > 5.5
    assert np.isfinite(log.column("policy/clipped_actions")).all()


# ------------------------------------------------------------------------------------------- repeatability


def final(tmp_path: Path, **changes: Any) -> tuple[torch.Tensor, list[Any]]:
    env = {"id": env_id("SeedNoise")} | changes.pop("env", {})
    recipe = changes.pop("recipe", None) or critic_only(horizon=20)
    cfg = configure(
        env, num_envs=3, total_steps=240, update={"epochs": 2, "minibatch_size": 16}, **recipe | changes
    )
    with build.make_env(cfg, 3) as vec:
        runner, log = make_runner(cfg, tmp_path, vec)
        runner.run()
    state = runner.state_dict()
    numbers = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in log.rows]
    return torch.cat([x.flatten().double() for x in state["policy"].values()]), numbers


@pytest.mark.parametrize("recipe", [critic_only(horizon=20), REINFORCE], ids=["windows", "episodes"])
def test_one_seed_is_one_run_and_another_is_another(tmp_path: Path, recipe: dict[str, Any]) -> None:
    torch.manual_seed(1)
    parameters, rows = final(tmp_path, recipe=recipe)
    torch.manual_seed(2)  # the global stream has no part in it
    np.random.seed(3)  # noqa: NPY002
    again, rows_again = final(tmp_path, recipe=recipe)
    assert torch.equal(parameters, again)
    assert repr(rows) == repr(rows_again) and len(rows) >= 3
    other, _ = final(tmp_path, recipe=recipe, seed=1)
    assert not torch.allclose(parameters, other)


def test_a_run_leaves_the_users_random_streams_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    final(tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_sync_and_process_train_alike(tmp_path: Path) -> None:
    sync, rows = final(tmp_path)
    process, other = final(tmp_path, env={"backend": "process", "workers": 2})
    assert torch.equal(sync, process)
    assert repr(rows) == repr(other)


# --------------------------------------------------------------------------------------------------- the end


def test_a_signal_between_iterations_ends_the_run(tmp_path: Path) -> None:
    runner, _ = make_runner(
        configure(num_envs=2, horizon=10, total_steps=1000, **critic_only()), tmp_path, scripted([[4], [6]])
    )

    class Stop(Spy):
        def after_iteration(self, runner: Runner) -> None:
            super().after_iteration(runner)
            if runner.progress.iterations == 3:
                runner.interrupt.signum = 2

    spy = Stop(runner)
    with pytest.raises(Interrupted):
        runner.run()
    assert runner.progress.steps == 60 and spy.ended == 1


def test_steps_of_a_collect_that_was_cut_short_are_counted(tmp_path: Path) -> None:
    class Breaks(ScriptedEnv):
        def step(self, action: np.ndarray) -> Any:
            if len(self.log[0]) == 17:
                raise Interrupted
            return super().step(action)

    for settings in (critic_only(horizon=10), REINFORCE):
        runner, _ = make_runner(
            configure(num_envs=2, total_steps=1000, **settings), tmp_path, Breaks([[10], [10]])
        )
        spy = Spy(runner)
        with pytest.raises(Interrupted):
            runner.run()
        assert runner.progress.steps == 34 and runner.progress.iterations == 1 and spy.ended == 1


def test_state_dict_holds_what_a_resumed_run_needs(tmp_path: Path) -> None:
    cfg = configure(
        {"id": env_id("SeedNoise")},
        num_envs=2,
        horizon=10,
        total_steps=40,
        reward={"scaling": "running_std"},
        **critic_only(),
    )
    runner, _ = make_runner(cfg, tmp_path)
    runner.run()
    path = tmp_path / "state.pt"
    torch.save(runner.state_dict(), path)
    state = torch.load(path, weights_only=True)
    parts = "policy update schedules collector reward_scaler progress estimator health unrecorded device blas seconds"
    assert state.keys() == set(parts.split())
    other, _ = make_runner(cfg, tmp_path)
    other.load_state_dict(state)
    assert torch.equal(other.update.flat.data, runner.update.flat.data)
    assert (
        torch.equal(other.update.optimizer.v, runner.update.optimizer.v) and other.progress == runner.progress
    )
    obs = np.zeros((2, 2))
    assert np.array_equal(other.collector.actor.act(obs)[1], runner.collector.actor.act(obs)[1])
