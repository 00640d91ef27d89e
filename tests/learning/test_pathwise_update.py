"""The pathwise update: what moves, what must not, exploded gradients, α-order on the same objective, resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pgtrain import build
from pgtrain.config.compose import compose
from pgtrain.envs.differentiable.base import DifferentiableEnv
from pgtrain.interrupt import Interrupt
from pgtrain.learning import pathwise
from pgtrain.learning.batch import Coefficients
from pgtrain.learning.optimizers import SGD
from pgtrain.learning.pathwise_gradients import AlphaOrder, BothOrders, Comparison, Pathwise
from pgtrain.learning.pathwise_update import (
    PathwiseUpdate,
    TargetCritic,
    TDLambda,
    WindowReturn,
    critic_slice,
)
from pgtrain.learning.window import TimeProbe, WindowCollector
from pgtrain.monitor.monitor import Monitor
from pgtrain.policies.normalizer import RunningMoments
from pgtrain.policies.parameters import FlatParameters
from pgtrain.policies.squashed import TanhGaussian
from pgtrain.runner import Runner
from pgtrain.types import UserError
from tests.envs.differentiable.faulty import Good
from tests.support import make_policy as small_policy

SPRING = "env=tests.envs.differentiable.registered:Registered-v0"
SMALL = ["horizon=6", "policy.hidden=[8]", "update.critic_epochs=2"]
NOTHING = Coefficients(0.1, 0.0)


def runner_of(envs: int, *overrides: str, algo: str = "shac", small: list[str] = SMALL) -> Runner:
    """A runner that nothing has run yet, on the spring of the tests."""
    words = [f"algo={algo}", SPRING, f"num_envs={envs}", "total_steps=10_000", *small, *overrides]
    last = {word.partition("=")[0]: word for word in words}  # the later one of two counts
    cfg = compose(list(last.values())).config
    with build.make_env(cfg, envs) as env:
        return build.make_runner(cfg, env, Monitor([]), Path("not-written"), Interrupt(), [])


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


def parts(envs: int, *overrides: str) -> tuple[Any, FlatParameters]:
    runner = runner_of(envs, "horizon=9", *overrides)
    return runner, runner.update.flat


# ---- the actor's step -----------------------------------------------------------------------------------------------


def test_the_gradient_is_the_actors_alone_and_equals_finite_differences() -> None:
    trainer, flat = parts(5, "env.max_episode_steps=4", "policy.normalize_obs=none")
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
    trainer, flat = parts(3)
    target = trainer.update.target
    assert target is not None
    before = [p.clone() for p in target.parameters()]
    rollout, _ = trainer.collector.collect_steps(4)
    assert rollout.next_value is not None and rollout.next_value.requires_grad
    Pathwise(flat, 0.9)(rollout)
    assert all(not p.requires_grad for p in target.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters(), strict=True))


def test_the_target_follows_the_critic_once_an_iteration() -> None:
    trainer, flat = parts(3, "update.target_alpha=0.25")
    target = trainer.update.target
    assert target is not None
    before = torch.cat([p.flatten() for p in target.parameters()])
    assert torch.equal(before, flat.data[critic_slice(flat)])
    trainer._iterate()
    after = torch.cat([p.flatten() for p in target.parameters()])
    now = flat.data[critic_slice(flat)]
    assert not torch.equal(now, before)
    assert torch.allclose(after, 0.25 * before + 0.75 * now, atol=1e-6)


def test_actor_and_critic_steps_leave_each_other_alone() -> None:
    trainer, flat = parts(3)
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
    trainer, flat = parts(4)
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


def diffline(
    horizon: int, max_grad_norm: float | None, probe: TimeProbe | None = None
) -> tuple[PathwiseUpdate, Any, FlatParameters]:
    """An update and a rollout of a = 0.5 x, nearly without noise."""
    env = DiffLine(1)
    policy = small_policy(1, env.action_space, critic=False, hidden=(1,), log_std_init=-5.0)
    policy.network.actor[0] = torch.nn.Identity()
    policy.network.actor[1] = torch.nn.Identity()
    gain = policy.network.actor[2] = torch.nn.Linear(1, 1, bias=False)
    gain.weight.data.fill_(0.5)
    flat = FlatParameters(policy)
    collector = WindowCollector(env, policy, (0, 0), probe=probe)
    rollout = WindowReturn(1.0)(collector.collect_steps(horizon)[0])
    return (
        PathwiseUpdate(policy, Pathwise(flat, 1.0, probe), flat, SGD(flat.data), max_grad_norm=max_grad_norm),
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
    trainer, _ = parts(3, "env.max_episode_steps=3")
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


def test_values_without_a_graph_are_those_with_one() -> None:
    """NumPy on the same memory, also after the target moved; any leading shape."""
    policy = small_policy(3, Good(1).action_space, hidden=(16, 16), activation="elu")
    flat = FlatParameters(policy)
    target = TargetCritic(policy, flat, 0.2)
    for _ in range(2):
        flat.data[critic_slice(flat)] += 0.3
        target.follow()
        x = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0))
        assert torch.allclose(target(x), target(x.clone().requires_grad_()), atol=1e-5)
        assert not target(x).requires_grad and target(x).shape == (5, 4)


# ---- α-order --------------------------------------------------------------------------------------------------------


def both_samples(n: int, groups: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of either order, and the pathwise gradient of the first half of the envs."""
    env = Good(n, max_episode_steps=4)
    space = env.action_space
    policy = small_policy(2, space, hidden=(4,), activation="elu", seed=1, mean="identity", log_std_init=0.0)
    policy.distribution = TanhGaussian(space.low, space.high)
    flat = FlatParameters(policy)
    target = TargetCritic(policy, flat, 0.2)
    collector = WindowCollector(env, policy, (seed, seed + 1), target)
    rollout, _ = collector.collect_steps(5)
    seen: list[Tensor] = []

    class Spy(BothOrders):
        def samples(self, *args: Any) -> Tensor:
            seen.append(super().samples(*args))
            return seen[-1]

    source = AlphaOrder(policy, flat, 0.9, groups)
    source.orders = Spy(policy, flat, 0.9)
    source(rollout)
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
    runner: Any = runner_of(64, algo="alpha_order")
    rollout = runner.estimator(runner.collector.collect_steps(6)[0])
    stats = runner.update(rollout, NOTHING).stats
    assert stats["gradient/variance_pathwise"] < 0.5 * stats["gradient/variance_score"]
    assert 0.5 < stats["gradient/alpha"] <= 1


def test_too_few_envs_for_the_groups_are_refused() -> None:
    runner: Any = runner_of(16, algo="alpha_order")
    runner.update.source.groups = 9
    with pytest.raises(UserError, match="num_envs"):
        runner.update(runner.collector.collect_steps(6)[0], NOTHING)


# ---- what is measured on the way ------------------------------------------------------------------------------------


def test_the_comparison_measures_the_samples_variance_and_leaves_the_gradient_alone() -> None:
    """On the same rollout: variances by one backward pass for each env, and the gradient as without a comparison."""
    runner: Any = runner_of(4, "update.compare_every=3")
    rollout = runner.collector.collect_steps(6)[0]
    flat, policy = runner.update.flat, runner.policy
    orders = BothOrders(policy, flat, 0.99)
    want = []
    for gain in orders.gains(rollout):
        each = []
        for n in range(4):
            loss = -gain[:, n].mean()
            grads = torch.autograd.grad(loss, orders.parameters, retain_graph=True)
            each.append(torch.cat([g.flatten() for g in grads]))
        want.append(float(torch.stack(each).var(0).sum() / 4))
    probe = runner.update.source.probe
    source = Pathwise(flat, 0.99, probe, Comparison(orders, 4, 3))
    stats = source(rollout)
    assert float(stats["gradient/variance_pathwise"]) == pytest.approx(want[0], rel=1e-4)
    assert float(stats["gradient/variance_score"]) == pytest.approx(want[1], rel=1e-4)
    assert want[0] < want[1]
    with_comparison = flat.grad.clone()
    other: Any = runner_of(4, "update.compare_every=null")
    assert other.update.source.comparison is None
    other.update.source(other.collector.collect_steps(6)[0])
    assert torch.allclose(with_comparison, other.update.flat.grad, rtol=1e-5)
    assert float(stats["gradient/norm_through_time"]) > 0


def test_comparisons_come_every_so_many_iterations() -> None:
    runner: Any = runner_of(4, "update.compare_every=3")
    seen = []
    for _ in range(5):
        rollout = runner.estimator(runner.collector.collect_steps(6)[0])
        seen.append(float(runner.update(rollout, NOTHING).stats["gradient/variance_score"]))
    assert seen[0] == seen[1] == seen[2] != seen[3] == seen[4]


def test_where_a_gradient_explodes_is_told() -> None:
    """x' = x + a, a = 0.5 x + noise: each step back multiplies the slope by 1.5, so the first states have the most."""
    update, rollout, _ = diffline(12, None, TimeProbe())
    stats = update(rollout, NOTHING).stats
    assert float(stats["gradient/norm_peak_step"]) == 1
    assert float(stats["gradient/norm_through_time"]) == float(stats["gradient/norm_first"])
    assert float(stats["gradient/norm_first"]) > 50 * float(stats["gradient/norm_last"]) > 0


def test_a_window_of_one_step_has_no_way_back() -> None:
    runner: Any = runner_of(4, "horizon=1")
    rollout = runner.estimator(runner.collector.collect_steps(1)[0])
    result = runner.update(rollout, NOTHING)
    assert result.ok.all() and "gradient/norm_first" not in result.stats
