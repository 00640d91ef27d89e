"""Fisher products, conjugate gradients, the two step rules, and what happens when there is no good step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pgtrain.learning.batch import Batch, Coefficients, flatten
from pgtrain.learning.gradients import ActorLoss, Backprop, CriticBackprop
from pgtrain.learning.kl_guard import measure_kl
from pgtrain.learning.losses import PolicyGradient, SquaredError, Surrogate
from pgtrain.learning.natural_gradient import (
    FixedStep,
    LineSearch,
    Move,
    NaturalUpdate,
    conjugate_gradient,
    fisher_product,
    flat_gradient,
)
from pgtrain.learning.optimizers import Adam
from pgtrain.learning.updates import Update
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters
from pgtrain.types import UserError
from tests.learning.test_gradients import SPACES, experience
from tests.support import make_policy

f64 = torch.float64
NOTHING = Coefficients(1e-3, 0.0)


def update(
    policy: ActorCritic,
    rule: Any = None,
    *,
    critic_epochs: int = 0,
    normalize: bool = False,
    loss: Any = None,
    **options: Any,
) -> NaturalUpdate:
    flat = FlatParameters(policy)
    critic = Update(
        CriticBackprop(policy, flat, SquaredError()),
        flat,
        Adam(flat.data),
        torch.Generator().manual_seed(0),
        epochs=critic_epochs,
        minibatch_size=5,
    )
    actor = ActorLoss(loss or Surrogate(), normalize_advantage=normalize)
    return NaturalUpdate(
        policy, flat, actor, rule or LineSearch(), critic if critic_epochs else None, **options
    )


def setting(space: str = "discrete", dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Any, Batch]:
    policy = make_policy(3, SPACES[space], gain=0.5, **options)
    batch = flatten(experience(policy), None)
    if dtype == f64:
        policy = policy.double()
        batch = batch.map(lambda x: x.double() if x.is_floating_point() else x)
        with torch.no_grad():
            new = policy.evaluate(batch.inputs, batch.action)
        batch = batch.replace(params=new.params, log_prob=new.log_prob)
    return policy, batch


def actor_parameters(policy: ActorCritic) -> list[Tensor]:
    return [p for name, p in policy.named_parameters() if not name.startswith("network.critic")]


# --------------------------------------------------------------------------------------------- Fisher product


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_fisher_product_is_that_of_the_scores_of_all_actions(activation: str) -> None:
    """F = E_s Σ_a π(a|s) ∇log π ∇log πᵀ, written out for a network with three actions; and its damping."""
    policy, batch = setting(dtype=f64, activation=activation)
    parameters = actor_parameters(policy)
    n = sum(p.numel() for p in parameters)
    fisher = torch.zeros(n, n, dtype=f64)
    for row in batch.inputs:
        log_p = policy.distribution.log_prob(policy(row.expand(3, -1))[0], torch.arange(3))
        for k in range(3):
            score = flat_gradient(log_p[k], parameters, retain_graph=True)
            fisher += log_p[k].detach().exp() * torch.outer(score, score) / len(batch.inputs)
    params = policy(batch.inputs)[0]
    kl = policy.distribution.kl(params.detach(), params).mean()
    product = fisher_product(kl, parameters, 0.3)
    v = torch.randn(3, n, generator=torch.Generator().manual_seed(1), dtype=f64)
    for x in v:
        torch.testing.assert_close(product(x), fisher @ x + 0.3 * x, rtol=1e-9, atol=1e-9)


def test_fisher_of_a_gaussian_has_its_log_std() -> None:
    """∂²KL/∂(log σ)² = 2, and no cross terms with the mean."""
    policy, batch = setting("box", dtype=f64)
    parameters = actor_parameters(policy)
    assert parameters[0] is policy.log_std
    params = policy(batch.inputs)[0]
    product = fisher_product(policy.distribution.kl(params.detach(), params).mean(), parameters, 0.0)
    n = sum(p.numel() for p in parameters)
    e = torch.zeros(n, dtype=f64)
    e[1] = 1.0
    torch.testing.assert_close(product(e), 2 * e)


# ---------------------------------------------------------------------------------------- conjugate gradients


def spd(n: int, seed: int, smallest: float = 0.1) -> Tensor:
    a = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=f64)
    return a @ a.T / n + smallest * torch.eye(n, dtype=f64)


@settings(deadline=None)
@given(
    n=st.integers(1, 12), seed=st.integers(0, 1000), scale=st.sampled_from([1e-200, 1e-30, 1.0, 1e30, 1e200])
)
def test_conjugate_gradient_solves(n: int, seed: int, scale: float) -> None:
    a = spd(n, seed)
    b = scale * torch.randn(n, generator=torch.Generator().manual_seed(seed + 1), dtype=f64)
    x, residual = conjugate_gradient(lambda v: a @ v, b, 3 * n)
    torch.testing.assert_close(x / scale, torch.linalg.solve(a, b / scale), rtol=1e-6, atol=1e-8)
    assert float(residual) < 1e-9


def test_residual_is_that_of_the_equation_and_ends_the_search() -> None:
    a = spd(30, 0, 0.01)
    b = torch.randn(30, generator=torch.Generator().manual_seed(1), dtype=f64)
    last = 1.0
    for iterations in (1, 4, 10, 20):
        x, residual = conjugate_gradient(lambda v: a @ v, b, iterations)
        assert float(residual) == pytest.approx(float((b - a @ x).norm() / b.norm()), rel=1e-6)
        last = float(residual)
    assert last < 0.1
    rough, residual = conjugate_gradient(lambda v: a @ v, b, 1000, tolerance=0.1)
    assert 0.001 < float(residual) <= 0.1
    again, _ = conjugate_gradient(lambda v: a @ v, b, 2000, tolerance=0.1)
    assert torch.equal(rough, again)  # masked from there on


@pytest.mark.parametrize("dtype", [torch.float32, f64])
def test_conjugate_gradient_of_nothing_and_of_bad_curvature(dtype: torch.dtype) -> None:
    zero = torch.zeros(4, dtype=dtype)
    x, residual = conjugate_gradient(lambda v: 2 * v, zero, 10)
    assert torch.equal(x, zero) and float(residual) == 0
    b = torch.ones(4, dtype=dtype)
    for product in (lambda v: -v, lambda v: 0 * v, lambda v: v * torch.nan):
        x, _ = conjugate_gradient(product, b, 10)
        assert torch.equal(x, zero)
    x, _ = conjugate_gradient(lambda v: v, b, 500)  # solved at once, and no noise after it
    assert torch.equal(x, b)


# ------------------------------------------------------------------------------------------------ line search


def move(kls: list[float], gains: list[float]) -> tuple[Move, list[Tensor]]:
    """Trials whose KL and improvement are written down; the parameters that each was made at are kept."""
    data = torch.tensor([1.0, 2.0])
    made: list[Tensor] = []

    def trial() -> tuple[Tensor, Tensor]:
        k = len(made)
        made.append(data.clone())
        return torch.tensor(kls[k]), torch.tensor(gains[k])

    return Move(data, torch.tensor([4.0, 0.0]), torch.tensor(9.0), torch.tensor(2.0), trial), made


def test_line_search_takes_the_first_good_step() -> None:
    """√(2 · 0.01 / 2) · 4 = 0.4, times 0.5ʲ: too far, worse, no number, good."""
    m, made = move([0.02, 0.005, torch.nan, 0.01, 0.0], [1.0, 0.0, 1.0, 1e-9, 1.0])
    told = LineSearch(max_kl=0.01, shrink=0.5, trials=5)(m)
    assert [float(x[0]) for x in made] == pytest.approx([1.4, 1.2, 1.1, 1.05])
    assert torch.equal(m.data, made[-1])
    assert told == {"update/line_search_trials": 4, "update/line_search_failed": 0}


@pytest.mark.parametrize("trials", [0, 1, 3])
def test_a_failed_line_search_leaves_everything_bit_for_bit(trials: int) -> None:
    m, made = move([0.02, 0.005, 0.005], [1.0, -1.0, torch.nan])
    told = LineSearch(max_kl=0.01, trials=trials)(m)
    assert m.data.tolist() == [1.0, 2.0] and len(made) == trials
    assert told == {"update/line_search_trials": trials, "update/line_search_failed": 1}


@pytest.mark.parametrize("space", SPACES)
def test_refused_steps_leave_the_policy_and_let_the_critic_learn(
    space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stub that reports too large a KL for each candidate."""
    policy, batch = setting(space)
    u = update(policy, LineSearch(max_kl=0.01), critic_epochs=2)
    monkeypatch.setattr("pgtrain.learning.natural_gradient.mean_kl", lambda *_: torch.tensor(99.0))
    before = u.flat.snapshot()
    result = u(batch, NOTHING)
    assert torch.equal(u.flat.data[: u.size], before[: u.size])
    assert not torch.equal(u.flat.data[u.size :], before[u.size :])
    assert float(result.stats["update/line_search_failed"]) == 1
    assert float(result.stats["update/line_search_trials"]) == 10 and result.ok.all()
    assert (
        float(u(batch, NOTHING).stats["update/line_search_failed"]) == 2
    )  # counted on, also by a resumed run
    other = update(policy, critic_epochs=2)
    other.load_state_dict(u.state_dict())
    assert other.failed == 2


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("limit", [1e-4, 0.01, 0.3])
def test_trpo_improves_the_surrogate_within_the_limit(space: str, limit: float) -> None:
    policy, batch = setting(space)
    u = update(policy, LineSearch(max_kl=limit), normalize=True)
    result = u(batch, NOTHING)
    kl = float(measure_kl(policy, batch))
    assert limit / 10 < kl <= limit * 1.0001
    assert float(result.stats["update/line_search_failed"]) == 0
    with torch.no_grad():
        new = policy.evaluate(batch.inputs, batch.action)
        standard = (batch.advantage - batch.advantage.mean()) / batch.advantage.std()
        assert ((new.log_prob - batch.log_prob).exp() * standard).mean() > standard.mean() + 1e-4


@settings(max_examples=20, deadline=None)
@given(limit=st.floats(1e-6, 1.0), seed=st.integers(0, 1000), damping=st.floats(1e-3, 1.0))
def test_after_trpo_the_policy_is_within_the_limit_or_untouched(
    limit: float, seed: int, damping: float
) -> None:
    policy = make_policy(3, spaces.Discrete(3), gain=0.5, seed=seed)
    batch = flatten(experience(policy, seed=seed), None)
    u = update(policy, LineSearch(max_kl=limit), damping=damping)
    before = u.flat.snapshot()
    failed = float(u(batch, NOTHING).stats["update/line_search_failed"])
    assert (failed == 1) == torch.equal(u.flat.data, before)
    assert float(measure_kl(policy, batch)) <= limit


# ----------------------------------------------------------------------------------------------------- update


@pytest.mark.parametrize("space", SPACES)
def test_the_step_solves_the_damped_equation(space: str) -> None:
    """With enough iterations: (F + cI) step = η ∇(surrogate + c_H H), and the critic is not touched."""
    policy, batch = setting(space, dtype=f64)
    parameters = actor_parameters(policy)
    n = sum(p.numel() for p in parameters)
    params = policy(batch.inputs)[0]
    product = fisher_product(policy.distribution.kl(params.detach(), params).mean(), parameters, 0.1)
    damped = torch.stack([product(e) for e in torch.eye(n, dtype=f64)])
    new = policy.evaluate(batch.inputs, batch.action)
    objective = (new.log_prob * batch.advantage).mean() + 0.05 * new.entropy.mean()
    g = flat_gradient(objective, parameters)
    u = update(policy, FixedStep(0.2), cg_iterations=300)
    before = u.flat.snapshot()
    result = u(batch, Coefficients(1e-3, 0.05))
    step = u.flat.data - before
    torch.testing.assert_close(step[:n], 0.2 * torch.linalg.solve(damped, g), rtol=1e-6, atol=1e-9)
    assert (step[n:] == 0).all() and n < len(step)
    assert float(result.stats["gradient/norm"]) == pytest.approx(float(g.norm()))


def test_policy_gradient_and_surrogate_lead_the_same_way() -> None:
    steps = []
    for loss in (PolicyGradient(), Surrogate()):
        policy, batch = setting(dtype=f64)
        u = update(policy, FixedStep(0.2), loss=loss)
        before = u.flat.snapshot()
        u(batch, NOTHING)
        steps.append(u.flat.data - before)
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-10, atol=1e-12)


def test_the_critic_learns_through_its_own_pipeline_and_moves_no_actor() -> None:
    policy, batch = setting()
    u = update(policy, FixedStep(0.0), critic_epochs=3)
    before = u.flat.snapshot()
    with torch.no_grad():
        error = (policy.value(batch.inputs) - batch.value_target).square().mean()
    result = u(batch, Coefficients(0.01, 0.0))
    assert torch.equal(u.flat.data[: u.size], before[: u.size])
    with torch.no_grad():
        assert (policy.value(batch.inputs) - batch.value_target).square().mean() < 0.9 * error
    assert len(result.ok) == 1 + 3 * 3 and result.ok.all()
    assert {"loss/actor", "loss/critic", "policy/entropy", "schedule/learning_rate"} <= result.stats.keys()
    other = update(make_policy(), critic_epochs=1)
    other.load_state_dict(u.state_dict())
    assert torch.equal(other.critic.optimizer.m, u.critic.optimizer.m)  # pyright: ignore


def test_shared_layers_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"update=natural .* policy\.share=0") as error:
        update(make_policy(share=1))
    assert "\n" not in str(error.value)
    update(make_policy(share=1, critic=False))  # nobody to share with


# -------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("rule", [FixedStep(0.1), LineSearch()])
def test_no_advantage_no_step(space: str, rule: Any) -> None:
    for advantage, normalize in ((0.0, False), (0.0, True), (3.7, True)):
        policy, batch = setting(space)
        u = update(policy, rule, normalize=normalize, critic_epochs=1)
        before = u.flat.snapshot()
        result = u(batch.replace(advantage=torch.full_like(batch.advantage, advantage)), NOTHING)
        assert result.ok.all() and torch.equal(u.flat.data[: u.size], before[: u.size])
        assert float(result.stats["gradient/norm"]) == 0 and "update/line_search_failed" not in result.stats
        assert torch.isfinite(u.flat.data).all()


@pytest.mark.parametrize("rule", [FixedStep(0.1), LineSearch()])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_number_skips_the_step_and_is_counted(rule: Any, bad: float) -> None:
    policy, batch = setting()
    u = update(policy, rule, critic_epochs=1)
    before = u.flat.snapshot()
    batch.advantage[3] = bad
    batch.value_target[3] = bad
    result = u(batch, NOTHING)
    assert result.ok.tolist().count(False) == 2 and not result.ok[0]
    assert torch.equal(u.flat.data[: u.size], before[: u.size]) and torch.isfinite(u.flat.data).all()


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8])
def test_trpo_does_not_care_for_the_scale_of_the_advantages(space: str, scale: float) -> None:
    found = []
    for factor in (1.0, scale):
        policy, batch = setting(space)
        u = update(policy)
        u(batch.replace(advantage=factor * batch.advantage), NOTHING)
        found.append(u.flat.data.clone())
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("normalize", [False, True])
def test_one_sample_is_enough(normalize: bool) -> None:
    policy, batch = setting()
    u = update(policy, normalize=normalize, critic_epochs=1)
    result = u(batch.rows(torch.tensor([4])), NOTHING)
    assert result.ok.all() and torch.isfinite(u.flat.data).all()
    assert 0 < float(measure_kl(policy, batch.rows(torch.tensor([4])))) <= 0.01


def test_backprop_and_the_natural_update_see_the_same_gradient() -> None:
    policy, batch = setting()
    flat = FlatParameters(policy)
    Backprop(
        policy,
        flat,
        policy_loss=Surrogate(),
        value_loss=SquaredError(),
        value_coef=0.0,
        normalize_advantage=True,
    )(batch, NOTHING)
    norm = float(flat.grad.norm())
    result = update(policy, normalize=True)(batch, NOTHING)
    assert float(result.stats["gradient/norm"]) == pytest.approx(norm, rel=1e-5)
