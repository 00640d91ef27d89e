"""The pathwise update: what moves, what must not, exploded gradients, α-order on the same objective, resume."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv
from pgtrain.envs.differentiable.registration import make
from pgtrain.learning import pathwise
from pgtrain.learning.batch import Coefficients
from pgtrain.learning.optimizers import SGD
from pgtrain.learning.pathwise_training import Settings, Trainer, alpha_order, bptt, make_policy, shac
from pgtrain.learning.pathwise_update import (
    AlphaOrder,
    Pathwise,
    PathwiseUpdate,
    TargetCritic,
    TDLambda,
    WindowReturn,
    critic_slice,
)
from pgtrain.learning.window import WindowCollector
from pgtrain.policies.normalizer import RunningMoments
from pgtrain.policies.parameters import FlatParameters
from pgtrain.types import UserError
from tests.envs.differentiable.faulty import Good
from tests.support import make_policy as small_policy

SMALL = Settings(horizon=6, hidden=(8,), critic_epochs=2, critic_minibatches=2, last_lr=2e-3)
NOTHING = Coefficients(0.1, 0.0)


class DiffLine(DifferentiableEnv):
    """x' = x + a, r = −x'², from 1."""

    action_low, action_high = (-float("inf"),), (float("inf"),)
    max_episode_steps = 1000

    def start(self, count: int) -> Tensor:
        return self.uniform(count, [1.0], [1.0])

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        return state + action

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -next_state.square().sum(-1)


def parts(env: Any, **changes: Any) -> tuple[Trainer, FlatParameters]:
    trainer = shac(env, 0, Settings(**(vars(SMALL) | changes)))
    return trainer, trainer.update.flat


# ---- the actor's step -----------------------------------------------------------------------------------------------


def test_the_gradient_is_the_actors_alone_and_equals_finite_differences() -> None:
    env = Good(5, max_episode_steps=4)
    trainer, flat = parts(env, normalize_obs=False)
    trainer.collector.probe = None
    state = trainer.collector.state_dict()
    source = Pathwise(flat, 0.9)

    def loss() -> tuple[float, Any]:
        trainer.collector.load_state_dict(state)
        rollout, _ = trainer.collector.collect_steps(6)
        return float(source(rollout)["loss"]), rollout

    loss()
    grad = flat.grad.clone()
    critic = critic_slice(flat)
    assert (grad[critic] == 0).all() and (grad[: critic.start] != 0).float().mean() > 0.9
    direction = torch.randn(critic.start, generator=torch.Generator().manual_seed(1))
    direction = direction * (0.05 / direction.norm())
    kept = flat.snapshot()
    flat.data[: critic.start] += direction
    high, _ = loss()
    flat.restore(kept)
    flat.data[: critic.start] -= direction
    low, _ = loss()
    flat.restore(kept)
    assert (high - low) / 2 == pytest.approx(float(grad[: critic.start] @ direction), rel=2e-3)


def test_the_target_critic_is_read_and_never_trained() -> None:
    env = Good(3)
    trainer, flat = parts(env)
    target = trainer.update.target
    assert target is not None
    before = [p.clone() for p in target.parameters()]
    rollout, _ = trainer.collector.collect_steps(4)
    assert rollout.next_value is not None and rollout.next_value.requires_grad
    Pathwise(flat, 0.9)(rollout)
    assert all(not p.requires_grad for p in target.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters(), strict=True))


def test_the_target_follows_the_critic_once_an_iteration() -> None:
    trainer, flat = parts(Good(3), target_alpha=0.25)
    target = trainer.update.target
    assert target is not None
    before = torch.cat([p.flatten() for p in target.parameters()])
    assert torch.equal(before, flat.data[critic_slice(flat)])
    trainer.total_steps = 1000
    trainer.iterate()
    after = torch.cat([p.flatten() for p in target.parameters()])
    now = flat.data[critic_slice(flat)]
    assert not torch.equal(now, before)
    assert torch.allclose(after, 0.25 * before + 0.75 * now, atol=1e-6)


def test_actor_and_critic_steps_leave_each_other_alone() -> None:
    trainer, flat = parts(Good(3))
    critic = critic_slice(flat)
    update = trainer.update
    rollout = trainer.estimator(trainer.collector.collect_steps(4)[0])
    before = flat.snapshot()
    update.critic, kept = None, update.critic
    update(rollout, NOTHING)
    assert torch.equal(flat.data[critic], before[critic])
    assert not torch.equal(flat.data[: critic.start], before[: critic.start])
    update.critic, update.source = kept, lambda rollout: (flat.zero_grad(), {"loss": torch.zeros(())})[1]
    update.optimizer = SGD(flat.data)
    before = flat.snapshot()
    update(trainer.estimator(trainer.collector.collect_steps(4)[0]), NOTHING)
    assert torch.equal(flat.data[: critic.start], before[: critic.start])
    assert not torch.equal(flat.data[critic], before[critic])


def test_the_loss_is_that_of_the_spec() -> None:
    trainer, flat = parts(Good(4))
    rollout, _ = trainer.collector.collect_steps(9)
    stats = Pathwise(flat, 0.9)(rollout)
    assert rollout.next_value is not None
    total = 0.0
    for n in range(4):
        discount = 1.0
        for t in range(9):
            total += discount * float(rollout.raw_reward[t, n])
            discount *= 0.9
            if rollout.truncated[t, n] or t == 8:
                total += discount * float(rollout.next_value[t, n].detach())
                discount = 1.0
    assert float(stats["loss"]) == pytest.approx(-total / 36, rel=1e-5)


# ---- exploded gradients (GRAD-06) -----------------------------------------------------------------------------------


def diffline(horizon: int, max_grad_norm: float | None) -> tuple[PathwiseUpdate, Any, FlatParameters]:
    """An update and a rollout of a = 0.5 x, nearly without noise."""
    env = DiffLine(1)
    policy = small_policy(1, env.action_space, critic=False, hidden=(1,), log_std_init=-5.0)
    policy.network.actor[0] = torch.nn.Identity()
    policy.network.actor[1] = torch.nn.Identity()
    policy.network.actor[2] = torch.nn.Linear(1, 1, bias=False)
    policy.network.actor[2].weight.data.fill_(0.5)
    flat = FlatParameters(policy)
    collector = WindowCollector(env, policy, (0, 0))
    rollout = WindowReturn(1.0)(collector.collect_steps(horizon)[0])
    return (
        PathwiseUpdate(Pathwise(flat, 1.0), flat, SGD(flat.data), max_grad_norm=max_grad_norm),
        rollout,
        flat,
    )


def test_an_exploded_gradient_is_limited_and_its_norm_told() -> None:
    update, rollout, flat = diffline(64, 1.0)
    result = update(rollout, NOTHING)
    assert result.ok.tolist() == [True]
    assert float(result.stats["gradient/norm"]) == pytest.approx(
        5.26e24 / 64, rel=0.05
    )  # the mean over steps
    assert torch.isfinite(flat.data).all()
    assert float(flat.data[-1]) == pytest.approx(0.4, abs=1e-3)  # 0.5 − 0.1 · 1


def test_a_gradient_that_overflows_is_skipped() -> None:
    update, rollout, flat = diffline(400, 1.0)
    before = flat.snapshot()
    result = update(rollout, NOTHING)
    assert result.ok.tolist() == [False]
    assert torch.equal(flat.data, before)


# ---- estimators -----------------------------------------------------------------------------------------------------


def test_estimators() -> None:
    trainer, _ = parts(Good(3, max_episode_steps=3))
    rollout, _ = trainer.collector.collect_steps(7)
    assert rollout.next_value is not None and rollout.value is not None
    r = TDLambda(0.9, 0.8)(rollout)
    want = pathwise.td_lambda_target(
        rollout.reward, rollout.next_value, rollout.terminated, rollout.truncated, 0.9, 0.8
    )
    assert r.value_target is not None and r.advantage is not None
    assert torch.allclose(r.value_target, want)
    assert torch.allclose(r.advantage, want - rollout.value)
    w = WindowReturn(0.9)(rollout)
    assert w.advantage is not None and float(w.advantage.mean()) == pytest.approx(0, abs=1e-6)
    assert not r.value_target.requires_grad and not w.advantage.requires_grad


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_a_shared_critic_has_no_target() -> None:
    policy = small_policy(2, Good(1).action_space, hidden=(8, 8), share=1)
    with pytest.raises(UserError, match=r"policy\.share=0"):
        TargetCritic(policy, FlatParameters(policy), 0.2)


def test_standardised_values_have_no_target() -> None:
    policy = small_policy(2, Good(1).action_space, value_moments=RunningMoments(1))
    with pytest.raises(UserError, match=r"policy\.normalize_value=none"):
        TargetCritic(policy, FlatParameters(policy), 0.2)


# ---- α-order --------------------------------------------------------------------------------------------------------


def both_samples(n: int, groups: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of either order, and the pathwise gradient of the first half of the envs."""
    env = Good(n, max_episode_steps=4)
    policy = make_policy(env, 1, Settings(hidden=(4,), log_std_init=-0.7, normalize_obs=False))
    with torch.no_grad():
        for p in policy.network.parameters():
            p.mul_(1.5)
    flat = FlatParameters(policy)
    target = TargetCritic(policy, flat, 0.2)
    collector = WindowCollector(env, policy, (seed, seed + 1), target)
    rollout, _ = collector.collect_steps(5)
    seen: list[Tensor] = []

    class Spy(AlphaOrder):
        def _samples(self, *args: Any) -> Tensor:
            seen.append(super()._samples(*args))
            return seen[-1]

    Spy(policy, flat, 0.9, groups)(rollout)
    half = slice(0, n // 2)
    returns = pathwise.segment_return(
        rollout.reward[:, half],
        rollout.next_value[:, half],  # pyright: ignore[reportOptionalSubscript]
        rollout.terminated[:, half],
        rollout.truncated[:, half],
        0.9,
    )
    flat.zero_grad()
    pathwise.pathwise_loss(returns, rollout.done[:, half]).backward()
    return seen[0], seen[1], flat.grad[: critic_slice(flat).start]


def test_the_mean_of_the_pathwise_samples_is_the_pathwise_gradient() -> None:
    first, _, whole = both_samples(16, 4)
    assert first.shape == (4, len(whole))
    assert torch.allclose(first.mean(0), whole, atol=1e-5)


def test_both_orders_estimate_the_same_gradient() -> None:
    """Resets and cuts included; within 4.5 standard errors of the difference, parameter by parameter."""
    first, zeroth, _ = both_samples(12_000, 60)
    error = (first.var(0) / 60 + zeroth.var(0) / 60).sqrt()
    z = (first.mean(0) - zeroth.mean(0)) / error
    assert float(z.abs().max()) < 4.5
    strong = first.mean(0).abs() > 5 * error
    assert strong.any()  # a gradient of 0 would agree with anything


def test_smooth_dynamics_make_the_pathwise_gradient_the_better_one() -> None:
    trainer = alpha_order(Good(64), 0, SMALL, groups=8)
    trainer.total_steps = 1000
    row = trainer.iterate()
    assert row["gradient/variance_pathwise"] < 0.5 * row["gradient/variance_score"]
    assert 0.5 < row["gradient/alpha"] <= 1


def test_too_few_envs_for_the_groups_are_refused() -> None:
    trainer = alpha_order(Good(8), 0, SMALL, groups=8)
    with pytest.raises(UserError, match="num_envs"):
        trainer.iterate()


# ---- whole runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [shac, bptt, alpha_order])
@pytest.mark.parametrize("env_id", ["pgtrain/Pendulum-v0", "pgtrain/Quadrotor-v0"])
def test_resume_is_bit_exact(recipe: Any, env_id: str) -> None:
    def fresh() -> Trainer:
        trainer = recipe(make(env_id, 16, max_episode_steps=9), 3, SMALL)
        trainer.total_steps = 10_000
        return trainer

    trainer = fresh()
    for _ in range(3):
        trainer.iterate()
    file = io.BytesIO()
    torch.save(trainer.state_dict(), file)
    file.seek(0)
    other = fresh()
    other.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(3):
        assert str(trainer.iterate()) == str(other.iterate())  # as text: a NaN equals itself
    assert torch.equal(trainer.update.flat.data, other.update.flat.data)


def test_whole_episodes_train() -> None:
    trainer = bptt(Good(8), 0, Settings(horizon=None, hidden=(8,), actor_lr=1e-2, last_lr=1e-3))
    trainer.run(8 * 5 * 60)
    returns = [row["episode/return"] for row in trainer.history]
    assert sum(returns[-5:]) > sum(returns[:5]) + 0.5


@pytest.mark.slow
def test_shac_swings_the_pendulum_up() -> None:
    from pgtrain.learning.pathwise_training import evaluate

    trainer = shac(
        make("pgtrain/Pendulum-v0", 16),
        0,
        Settings(horizon=8, log_std_init=0.0, critic_epochs=8, actor_lr=5e-3),
    )
    trainer.run(100_000)
    assert float(evaluate(make("pgtrain/Pendulum-v0", 100), trainer.policy, 1).mean()) > -250
