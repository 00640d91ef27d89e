"""Rollouts that stay on the policy's device, against the host's collector and against the env itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from pgtrain.collector import Collector
from pgtrain.device_rollout import LOOK_EVERY, DeviceCollector
from pgtrain.envs.differentiable import registration
from pgtrain.envs.vector import make_vector_env
from pgtrain.policies.actors import RecurrentActor, TorchActor
from pgtrain.policies.beta import Beta
from pgtrain.policies.device_actions import device_actions
from pgtrain.policies.discrete import MultiCategorical
from pgtrain.policies.distributions import DiagonalGaussian
from pgtrain.policies.gsde import StateDependentGaussian
from pgtrain.policies.squashed import TanhGaussian
from pgtrain.rollout import Rollout
from tests.support import make_policy
from tests.watching import Crossings, Questions

CPU = torch.device("cpu")
FIELDS = [name for name in Rollout.__annotations__ if name not in Rollout.optional]


def both(
    env_id: str, n: int = 3, limit: int = 7, normalizer: bool = False, **options: Any
) -> tuple[DeviceCollector, Collector]:
    """Collectors of the same task with the same randomness, one for tensors and one for the host."""
    host = make_vector_env(env_id, n, max_episode_steps=limit)
    policy = make_policy(host.obs_dim, host.action_space, normalizer=normalizer, gain=0.5, **options)
    task = registration.make(env_id, n, max_episode_steps=limit)
    return (
        DeviceCollector(task, policy, TorchActor(policy, 5), 11, rows=2),
        Collector(host, policy, TorchActor(policy, 5), 11, rows=2),
    )


def same(a: Any, b: Any, name: str) -> None:
    if isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            assert torch.equal(x, y), name
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape, name
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=lambda text: f"{name}: {text}")
    else:
        assert a == b, name


@pytest.mark.parametrize("normalizer", [False, True])
@pytest.mark.parametrize("env_id", ["pgtrain/Pendulum-v0", "pgtrain/CartPole-v0", "pgtrain/Quadrotor-v0"])
def test_windows_are_those_of_the_hosts_collector(env_id: str, normalizer: bool) -> None:
    on_device, on_host = both(env_id, normalizer=normalizer)
    for steps in (5, 1, 4):
        a, episodes_a = on_device.collect_steps(steps)
        on_host.env.env.detach()  # pyright: ignore  # so that both draw as many start states in advance
        b, episodes_b = on_host.collect_steps(steps)
        for name in FIELDS:
            same(getattr(a, name), getattr(b, name), name)
        np.testing.assert_allclose(episodes_a.returns, episodes_b.returns, rtol=1e-4)
        assert episodes_a.lengths.tolist() == episodes_b.lengths.tolist()
        on_device.policy.observe(a.obs, a.weight)


def test_whole_episodes() -> None:
    """Each env plays the number asked for, its time limit ends them, and what follows has no weight."""
    on_device, _ = both("pgtrain/Pendulum-v0", limit=7)
    on_device.collect_steps(3)  # an episode under way is left
    found = on_device.collect_episodes(2)
    assert found is not None
    rollout, episodes = found
    assert rollout.whole_episodes and rollout.num_steps == 3 * 14 == on_device.steps_now
    assert episodes.lengths.tolist() == [7] * 6 and rollout.done.sum(0).tolist() == [2, 2, 2]
    assert bool((rollout.weight == 1).all()) and rollout.episode_step[:, 0].tolist() == [*range(7), *range(7)]
    sums = rollout.raw_reward.view(2, 7, 3).sum(1).T.flatten()
    np.testing.assert_allclose(np.sort(episodes.returns), np.sort(sums.numpy()), rtol=1e-6)
    again = on_device.collect_episodes(1)
    assert again is not None and again[0].num_steps == 21


def test_episodes_of_different_length_end_in_rows_of_no_weight() -> None:
    """Quadrotors crash when they leave the arena: at different steps."""
    on_device, _ = both("pgtrain/Quadrotor-v0", n=8, limit=60)
    found = on_device.collect_episodes(1)
    assert found is not None
    rollout, episodes = found
    assert len(episodes.lengths) == 8 and rollout.num_steps == episodes.lengths.sum()
    for n in range(8):
        used = int(rollout.weight[:, n].sum())
        assert bool((rollout.weight[:used, n] == 1).all()) and bool(rollout.done[used - 1, n])
        assert not rollout.done[used:, n].any() and not rollout.raw_reward[used:, n].any()
    assert len(rollout.weight) == episodes.lengths.max()


def test_a_budget_that_does_not_suffice_gives_nothing() -> None:
    on_device, _ = both("pgtrain/Pendulum-v0", limit=10 * LOOK_EVERY)
    assert on_device.collect_episodes(1, max_steps=3 * LOOK_EVERY) is None
    assert on_device.steps_now == 3 * LOOK_EVERY


@pytest.mark.parametrize("env_id", ["pgtrain/Pendulum-v0", "pgtrain/Quadrotor-v0"])
@torch.no_grad()
def test_a_step_asks_the_device_for_nothing(env_id: str) -> None:
    on_device, on_host = both(env_id, normalizer=True)
    on_device._begin()
    on_device.env._quiet = 0  # as on a GPU
    on_device._step(0)  # draws start states for the next 32 steps, between limits that the host knows
    with Crossings() as crossings, Questions() as questions:
        for t in range(1, 13):  # ends of episodes among them
            on_device._step(t)
    assert questions.seen > 100 and not questions.asked and not crossings.made
    with Crossings() as crossings, Questions() as questions:
        on_host.collect_steps(1)
    assert "numpy" in crossings.made  # it would have been noticed
    with Questions() as questions:
        bool(on_device.obs.sum() > 0)
    assert questions.asked


def test_new_episodes_are_those_of_a_new_collector() -> None:
    fresh, _ = both("pgtrain/Pendulum-v0")
    used, _ = both("pgtrain/Pendulum-v0")
    used.collect_steps(3)
    assert not torch.equal(used.obs, fresh.obs) and used.episodes.partial_length.sum() > 0
    used.restart(11)
    assert torch.equal(used.obs, fresh.obs) and used.episodes.partial_length.sum() == 0


def test_it_goes_on_from_its_state() -> None:
    one, _ = both("pgtrain/Pendulum-v0", normalizer=True)
    one.collect_steps(5)
    other, _ = both("pgtrain/Pendulum-v0", normalizer=True)
    other.policy.load_state_dict(one.policy.state_dict())
    other.load_state_dict(one.state_dict())
    for steps in (4, 40):
        (a, episodes_a), (b, episodes_b) = one.collect_steps(steps), other.collect_steps(steps)
        for name in FIELDS:
            x, y = getattr(a, name), getattr(b, name)
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else name == "final_index" or x == y
        assert episodes_a.returns.tolist() == episodes_b.returns.tolist()


@pytest.mark.parametrize("make", [DiagonalGaussian, TanhGaussian, Beta, StateDependentGaussian])
def test_actions_are_those_the_host_would_make(make: Any) -> None:
    low, high = np.array([-1.0, -3.0, -1.0]), np.array([1.0, 5.0, 2.0])
    more = (4,) if make is StateDependentGaussian else ()
    d = make(low, high, *more)
    u = torch.rand(50, 3) if make is Beta else 3 * torch.randn(50, 3)
    u[0, 1], u[1, 2], u[2, 0] = torch.nan, torch.inf, -torch.inf
    apply = device_actions(d, CPU, torch.float32)
    assert apply is not None
    np.testing.assert_allclose(apply(u).numpy(), d.to_env(u.numpy()), rtol=1e-6, atol=1e-6)
    edge = torch.full((1, 3), 1.0 if make is Beta else 1e6)
    assert bool((apply(edge) <= torch.tensor(high, dtype=torch.float32)).all())


def test_several_choices_at_once_have_no_map() -> None:
    assert device_actions(MultiCategorical([3, 2]), CPU, torch.float32) is None
    policy = make_policy(3, spaces.Discrete(5))
    policy.distribution = MultiCategorical([3, 2])
    with pytest.raises(ValueError, match="multi_categorical"):
        DeviceCollector(registration.make("pgtrain/Pendulum-v0", 2), policy, TorchActor(policy, 0), 0)


# ------------------------------------------------------------------------------------------- which one a run takes


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["policy.activation=gelu"], DeviceCollector),  # a network that acts through torch
        (["policy.activation=gelu", "policy/distribution=beta"], DeviceCollector),
        (["policy.activation=gelu", "algo=reinforce"], DeviceCollector),
        (["num_envs=1025", "total_steps=8000"], DeviceCollector),  # a batch that does
        ([], Collector),  # few envs and a small network: NumPy
        (["policy.activation=gelu", "env.frame_stack=2"], Collector),
        (["policy.activation=gelu", "env.backend=sync"], Collector),
        (["policy/memory=gru"], Collector),
    ],
)
def test_a_run_takes_it_where_policy_and_env_are_both_in_torch(
    overrides: list[str], expected: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgtrain import runner, train

    seen: list[Any] = []
    run = runner.Runner.run
    monkeypatch.setattr(runner.Runner, "run", lambda self: seen.append(self.collector) or run(self))
    own = {x.split("=")[0] for x in overrides}
    defaults = {"algo": "ppo", "num_envs": "2", "total_steps": "900"}
    if "algo" not in own:
        defaults["horizon"] = "4" if "num_envs" in own else "16"
    settings = [f"{k}={v}" for k, v in defaults.items() if k not in own]
    train(
        *settings,
        *overrides,
        "env=pgtrain/Pendulum-v0",
        "eval.episodes=0",
        "monitor=quiet",
        run_dir=tmp_path / "run",
    )
    assert type(seen[0]) is expected
    if expected is Collector and "policy/memory=gru" in overrides:
        assert isinstance(seen[0].actor, RecurrentActor)


def test_choices_on_the_device_are_learned_from(tmp_path: Path) -> None:
    """PPO on the cart-pole in torch: the mean of the last 100 returns doubles at least."""
    from pgtrain import train

    settings = ["algo=ppo", "env=pgtrain/CartPole-v0", "policy.activation=gelu", "num_envs=8", "horizon=128"]
    result = train(
        *settings, "total_steps=20_000", "eval.episodes=0", "monitor=quiet", run_dir=tmp_path / "run"
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first = next(row["episode/return"] for row in rows if row.get("episode/return"))
    assert result.summary["return_mean"] > 2 * first


def test_processes_with_other_envs_have_other_start_states() -> None:
    policy = make_policy(3, spaces.Box(-1, 1, (1,), np.float32))
    starts = [
        DeviceCollector(
            registration.make("pgtrain/Pendulum-v0", 2), policy, TorchActor(policy, 0), 7, before=b
        ).obs
        for b in (0, 0, 2)
    ]
    assert torch.equal(starts[0], starts[1]) and not torch.equal(starts[0], starts[2])
