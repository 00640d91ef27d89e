"""Updates chosen by configs, end to end: equivalences, refused steps, and that all of a run's state is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pgtrain import build, checkpoint, training
from pgtrain.config.compose import compose
from pgtrain.interrupt import Interrupt
from pgtrain.monitor.monitor import Monitor
from pgtrain.runner import Runner
from pgtrain.types import UserError
from tests.support import Recorder, env_id

SMALL = [
    "num_envs=4", "horizon=16", "total_steps=192", "eval.episodes=0", "monitor.terminal=none", "monitor.log_every=1",
    "monitor.tensorboard=false", "env.max_episode_steps=12",
]  # fmt: skip


def runner_of(tmp_path: Path, *overrides: str, small: list[str] = SMALL) -> tuple[Runner, Recorder]:
    cfg = compose([*overrides, *small]).config
    env, log = build.make_env(cfg, cfg.num_envs), Recorder()
    build.refuse_unused(cfg, list(overrides), env)
    runner = build.make_runner(cfg, env, Monitor([log], 1), tmp_path, Interrupt(), [])
    return runner, log


def trained(tmp_path: Path, *overrides: str, small: list[str] = SMALL) -> tuple[Runner, Recorder]:
    runner, log = runner_of(tmp_path, *overrides, small=small)
    runner.run()
    return runner, log


# ----------------------------------------------------------------------------------------------- equivalences


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize(
    "ppo",
    [
        ["update=clipped"],
        ["update=clipped", "update/clip=linear", "update.dual_clip=3", "update/kl_guard=skip"],
        ["update=kl_penalty", "update.beta=7"],
    ],
    ids=["ppo", "ppo+", "ppo_kl"],
)  # fmt: skip
def test_a2c_is_ppo_with_one_epoch_and_one_batch(tmp_path: Path, env: str, ppo: list[str]) -> None:
    """Huang et al. 2022: with no normalisation and no value clipping, the same parameters to 1e-6."""
    same = [f"env={env}", "advantage.normalize=false", "entropy.coef=0.01", "optim.lr.value=3e-3"]
    one, log = trained(tmp_path, "algo=a2c", *same)
    more = ["update.epochs=1", "update.minibatch_size=null"]
    two, _ = trained(tmp_path, "algo=a2c", *ppo, *more, *same)
    assert log.column("progress/iteration") == [1, 2, 3]
    torch.testing.assert_close(one.update.flat.data, two.update.flat.data, rtol=0, atol=1e-6)
    start, _ = runner_of(tmp_path, "algo=a2c", *same)
    assert (one.update.flat.data - start.update.flat.data).abs().max() > 1e-3
    other, _ = trained(tmp_path, "algo=a2c", "update=clipped", "update.epochs=2", *same)
    assert (one.update.flat.data - other.update.flat.data).abs().max() > 1e-3


def test_npg_and_trpo_differ_in_the_length_of_the_step_alone(tmp_path: Path) -> None:
    """From the same rollout: parallel steps of the actor, the same step of the critic."""
    moved = []
    for recipe in (["algo=npg"], ["algo=trpo"], ["algo=ppo", "update=natural", "optim/lr=constant"]):
        one_iteration = [*SMALL, "env=CartPole-v1"]
        one_iteration[2] = "total_steps=64"
        runner, _ = runner_of(tmp_path, *recipe, small=one_iteration)
        before = runner.update.flat.snapshot()
        runner.run()
        moved.append((runner.update.flat.data - before).double())
    actor = slice(0, runner.update.size)  # pyright: ignore[reportAttributeAccessIssue]
    npg, trpo, by_hand = (x[actor] for x in moved)
    assert float(torch.cosine_similarity(npg, trpo, 0)) > 1 - 1e-5
    assert not torch.allclose(npg, trpo, rtol=0.01)
    assert torch.equal(npg, by_hand)
    assert torch.equal(moved[0][actor.stop :], moved[1][actor.stop :]) and moved[0][actor.stop :].any()


# ----------------------------------------------------------------------------------------------- trust region


@pytest.mark.parametrize("how", ["no trials", "refused"])
def test_a_line_search_that_fails_leaves_the_actor_as_it_was(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case KL-06: not a bit of the actor changes, the failures are counted and shown; the critic goes on learning."""
    trials = 0 if how == "no trials" else 10
    runner, log = runner_of(
        tmp_path, "algo=trpo", f"env={env_id('SeedNoise')}", f"update.step.trials={trials}"
    )
    update: Any = runner.update
    if how == "refused":
        refuse = lambda *_: lambda: (torch.tensor(1e3), torch.tensor(1.0))  # noqa: E731
        monkeypatch.setattr(type(update), "_trial", refuse)
    before = update.flat.snapshot()
    runner.run()
    after = update.flat.data
    assert torch.equal(after[: update.size], before[: update.size])
    assert not torch.equal(after[update.size :], before[update.size :])
    assert log.column("update/line_search_failed") == [1, 2, 3]
    assert log.column("update/line_search_trials") == [trials] * 3
    assert log.column("policy/kl") == pytest.approx([0.0] * 3, abs=1e-6)


def test_the_trust_region_is_kept(tmp_path: Path) -> None:
    for limit in (1e-3, 0.05):
        _, log = trained(
            tmp_path, "algo=trpo", "env=Pendulum-v1", f"update.step.max_kl={limit}", "update.damping=1e-3"
        )
        assert all(0.05 * limit < kl <= 1.01 * limit for kl in log.column("policy/kl"))


def test_guards_act_and_tell(tmp_path: Path) -> None:
    """Steps far too large: stop ends the epochs, skip undoes the update, learning_rate lowers the rate."""
    wild = [
        "algo=ppo",
        "env=CartPole-v1",
        "optim.lr.value=9e-3",
        "optim/lr=constant",
        "update.minibatch_size=16",
    ]
    runner, log = trained(tmp_path, *wild, "update/kl_guard=stop", "update.kl_guard.limit=1e-3")
    assert log.column("update/kl_guard") == [1, 1, 1] and log.column("update/epochs") == [1, 1, 1]
    runner, log = runner_of(tmp_path, *wild, "update/kl_guard=skip", "update.kl_guard.limit=1e-3")
    before = runner.update.flat.snapshot()
    runner.run()
    assert log.column("update/kl_guard") == [1, 1, 1]
    assert torch.equal(runner.update.flat.data[: len(before) // 2], before[: len(before) // 2])
    assert log.column("policy/kl") == pytest.approx([0.0] * 3, abs=1e-6)
    _, log = trained(tmp_path, *wild, "update/kl_guard=learning_rate", "update.kl_guard.target=1e-4")
    rates = log.column("schedule/learning_rate")
    assert all(0.99e-5 <= rate < 5e-3 for rate in rates)
    _, log = trained(tmp_path, *wild, "update/kl_guard=stop", "update.kl_guard.limit=null")
    assert log.column("update/epochs") == [10] * 3 and log.column("update/kl_guard") == [None] * 3


# ------------------------------------------------------------------------------------------------ exploration


@pytest.mark.parametrize("algo", ["a2c", "ppo", "ppo_kl", "npg", "trpo"])
@pytest.mark.parametrize("env", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_gsde_trains_with_every_recipe(tmp_path: Path, algo: str, env: str) -> None:
    noise = ["policy/distribution=gsde", "policy.distribution.sample_freq=4", "policy.log_std_init=-1"]
    runner, log = trained(tmp_path, f"algo={algo}", f"env={env}", *noise)
    assert runner.policy.log_std is not None and runner.policy.log_std.shape[0] == 64
    assert all(0 < kl < 1 for kl in log.column("policy/kl"))
    assert not any(level == "warning" for level, _ in log.messages)


def test_gsde_with_discrete_actions_is_refused_wherever_it_comes_from(tmp_path: Path) -> None:
    cfg = compose(["algo=ppo", "policy/distribution=gsde", *SMALL]).config  # say, from the YAML of a user
    with pytest.raises(UserError, match=r"gsde needs continuous actions.*CartPole-v1 are discrete"):
        training.train(cfg, tmp_path, [])
    with pytest.raises(UserError, match=r"policy/distribution=gsde has no effect with the discrete actions"):
        training.train(cfg, tmp_path, ["policy/distribution=gsde"])


@pytest.mark.parametrize("override", ["optim.eps=1e-3", "optim=sgd", "optim/lr=linear", "optim.lr.value=1"])
def test_an_optimiser_that_nothing_uses_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(UserError, match=f"{override} has no effect with update=natural and no critic"):
        runner_of(tmp_path, "algo=reinforce", "update=natural", override, small=[])


# ------------------------------------------------------------------------------------------------- small steps


def test_actor_critic_may_learn_after_every_step(tmp_path: Path) -> None:
    small = ["horizon=1" if x.startswith("horizon") else x for x in SMALL]
    _, log = trained(tmp_path, "algo=actor_critic", "env=CartPole-v1", small=small)
    assert log.column("progress/steps") == list(range(4, 193, 4))
    assert max(log.column("policy/kl")) > 0 and not log.messages
    one_env = ["num_envs=1" if x.startswith("num_envs") else x for x in small]
    runner, log = trained(tmp_path, "algo=actor_critic", "env=Pendulum-v1", small=one_env)
    assert len(log.rows) == 192 and torch.isfinite(runner.update.flat.data).all()


# -------------------------------------------------------------------------------------------------- the state

RICH = {
    "ppo": [
        "algo=ppo", "update/kl_guard=stop", "update/clip=linear", "entropy=target", "optim/lr=plateau",
        "optim.lr.patience=1", "update.minibatch_size=20",
    ],
    "ppo rate": ["algo=ppo", "update/kl_guard=learning_rate", "optim/lr=constant", "entropy=return_gated", "optim=sgd"],
    "ppo_kl": ["algo=ppo_kl", "optim=rmsprop_tf"],
    "trpo": ["algo=trpo", "update.critic_minibatch_size=20"],
}  # fmt: skip


def leaves(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict):
        for key, value in state.items():
            yield from leaves(value, f"{name}.{key}")
    elif isinstance(state, list | tuple):
        for i, value in enumerate(state):
            yield from leaves(value, f"{name}[{i}]")
    else:
        yield name, state


@pytest.mark.parametrize("name", RICH)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_runs_state_is_saved_and_read_back(tmp_path: Path, name: str, env: str) -> None:
    """Optimiser, guards, penalty, schedules: what a run has moved lies in its checkpoint, and another takes it over."""
    runner, _ = trained(tmp_path, *RICH[name], f"env={env}", "checkpoint.every_steps=64")
    saved = checkpoint.load(tmp_path)[0]["runner"]
    mine = dict(leaves(runner.state_dict()))
    assert mine.keys() == dict(leaves(saved)).keys()
    fresh, _ = runner_of(tmp_path, *RICH[name], f"env={env}")
    start = dict(leaves(fresh.state_dict()))
    moved = {
        key.rpartition(".")[2].partition("[")[0]
        for key, value in mine.items()
        if not same(value, start.get(key))
    }
    parts: dict[str, set[str]] = {
        "ppo": {"m", "v", "count", "minibatch_rng", "now", "best"},
        "ppo rate": {"velocity", "rate", "first"},
        "ppo_kl": {"v", "beta"},
        "trpo": {"m", "v", "count", "minibatch_rng"},
    }
    assert parts[name] <= moved, (parts[name] - moved, moved)
    fresh.update.load_state_dict(saved["update"])
    for key, schedule in fresh._schedules.items():
        schedule.load_state_dict(saved["schedules"][key])
    again = fresh.state_dict()
    for part in ("update", "schedules"):
        for key, value in leaves(again[part], f".{part}"):
            assert same(value, mine[key]), key


def same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b


def test_schedules_of_clip_and_rate_are_shown(tmp_path: Path) -> None:
    settings = ["update/clip=linear", "update.clip.value=0.3", "optim/lr=cosine", "entropy=linear"]
    _, log = trained(tmp_path, "algo=ppo", "env=CartPole-v1", *settings)
    assert log.column("schedule/clip") == pytest.approx([0.3, 0.2, 0.1])
    assert log.column("schedule/learning_rate") == pytest.approx([1e-3, 0.75e-3, 0.25e-3])
    assert log.column("schedule/entropy_coef") == pytest.approx([0.01, 0.02 / 3, 0.01 / 3])
