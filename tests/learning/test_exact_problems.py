"""Gradients and natural steps against problems with closed forms, all outcomes weighed by their probability.

A Gaussian bandit (Gauss–Hermite quadrature, exact for its polynomials), a softmax bandit (its batches enumerated)
and an infinite-horizon MDP (linear equations). The truth is worked out here as well: it holds for other numbers.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pgtrain.learning import baselines
from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.gradients import ActorLoss, Backprop
from pgtrain.learning.losses import ClippedSurrogate, KLPenalty, PolicyGradient, SquaredError, Surrogate
from pgtrain.learning.natural_gradient import FixedStep, LineSearch, NaturalUpdate
from pgtrain.learning.objectives import policy_gradient_loss
from pgtrain.learning.statistics import normalize
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters
from tests.learning.exact import (
    bandit,
    f64,
    gaussian_policy,
    golden,
    outcomes,
    quadrature,
    softmax_policy,
    tensor,
)

NOTHING = Coefficients(0.0, 0.0)


def gradient(policy: ActorCritic, batch: Batch, loss: Any, entropy_coef: float = 0.0) -> Tensor:
    """−∇ loss as an update would get it."""
    flat = FlatParameters(policy)
    source = Backprop(
        policy, flat, policy_loss=loss, value_loss=SquaredError(), value_coef=0.0, normalize_advantage=False
    )
    source(batch, Coefficients(0.0, entropy_coef))
    return -flat.grad.clone()


def losses(policy: ActorCritic) -> list[Any]:
    return [
        PolicyGradient(),
        Surrogate(),
        ClippedSurrogate(),
        ClippedSurrogate(dual_clip=3.0),
        KLPenalty(policy.distribution, beta=2.0),
    ]


def natural(
    policy: ActorCritic, batch: Batch, rule: Any, damping: float, **options: Any
) -> tuple[Tensor, Any]:
    """(θ after − θ before, result) of a natural update."""
    flat = FlatParameters(policy)
    before = flat.snapshot()
    loss = ActorLoss(Surrogate(), normalize_advantage=False)
    update = NaturalUpdate(policy, flat, loss, rule, None, damping=damping, **options)
    result = update(batch, NOTHING)
    return flat.data - before, result


# -------------------------------------------------------------------------------------------- Gaussian bandit

GAUSSIAN = [(0.7, 0.5, 2.0, 1.5, -0.3), (-1.1, 0.8, -3.0, 0.4, 0.9)]


@pytest.mark.parametrize(("mu", "sigma", "r0", "k", "m"), GAUSSIAN)
def test_gaussian_bandit(mu: float, sigma: float, r0: float, k: float, m: float) -> None:
    """∇J = (−2kd, −2kσ²) for every loss; Fisher diag(1/σ², 2), so the natural gradient is (−2kdσ², −kσ²)."""
    policy = gaussian_policy(mu, sigma)
    batch = quadrature(policy, lambda a: r0 - k * (a - m) ** 2)
    d = mu - m
    exact = tensor([-2 * k * sigma**2, -2 * k * d])  # log σ, μ
    for loss in losses(policy):
        torch.testing.assert_close(gradient(policy, batch, loss), exact, rtol=1e-10, atol=1e-10)
        with_bonus = gradient(policy, batch, loss, entropy_coef=0.3)
        torch.testing.assert_close(
            with_bonus, exact + tensor([0.3, 0.0]), rtol=1e-10, atol=1e-10
        )  # dH/d log σ = 1
    step, result = natural(policy, batch, FixedStep(1.0), damping=0.0)
    torch.testing.assert_close(step, tensor([-k * sigma**2, -2 * k * d * sigma**2]), rtol=1e-8, atol=1e-9)
    assert result.ok.all() and float(result.stats["update/cg_residual"]) < 1e-9
    step, _ = natural(gaussian_policy(mu, sigma), batch, FixedStep(0.5), damping=0.1)
    torch.testing.assert_close(step, 0.5 * exact / (tensor([2.0, 1 / sigma**2]) + 0.1), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("mu", "sigma", "r0", "k", "m"), GAUSSIAN)
@pytest.mark.parametrize("baseline", ["zero", "value", "norm"])
def test_gaussian_bandit_variance(
    mu: float, sigma: float, r0: float, k: float, m: float, baseline: str
) -> None:
    """One sample's variance in closed form: (A² + 6AC + 2B² + 15C²)/σ² and 2A² + 20AC + 10B² + 74C²."""
    policy = gaussian_policy(mu, sigma)
    d = mu - m
    mean_reward = r0 - k * (d**2 + sigma**2)
    best = [r0 - k * d**2 - c * k * sigma**2 for c in (3, 5)]
    shared = (best[0] / sigma**2 + 2 * best[1]) / (1 / sigma**2 + 2)
    b = {"zero": 0.0, "value": mean_reward, "norm": shared}[baseline]
    batch = quadrature(policy, lambda a: r0 - k * (a - m) ** 2 - b)
    log_std, theta = (p.detach() for p in policy.parameters())
    n = len(batch.weight)
    copies = [x.expand(n, 1).clone().requires_grad_() for x in (log_std, theta)]  # one of each for every node
    params = torch.cat([copies[1], copies[0]], -1)
    loss = policy_gradient_loss(
        policy.distribution.log_prob(params, batch.action), batch.advantage, denominator=1.0
    )
    found = []
    for g in torch.autograd.grad(loss, copies):
        mean = batch.weight @ g[:, 0]
        found.append(float(batch.weight @ (g[:, 0] - mean) ** 2))
    a, bb, c = r0 - k * d**2 - b, -2 * k * d * sigma, -k * sigma**2
    var_mu = (a**2 + 6 * a * c + 2 * bb**2 + 15 * c**2) / sigma**2
    var_log_sigma = 2 * a**2 + 20 * a * c + 10 * bb**2 + 74 * c**2
    assert found == pytest.approx([var_log_sigma, var_mu], rel=1e-9)
    if mu == 0.7:
        _, expected = golden("gaussian_bandit")
        assert var_mu == pytest.approx(expected["lr_var_mu"][baseline])
        assert var_log_sigma == pytest.approx(expected["lr_var_log_sigma"][baseline])


def test_gaussian_bandit_golden() -> None:
    inputs, expected = golden("gaussian_bandit")
    assert GAUSSIAN[0] == tuple(inputs[name] for name in ("mu", "sigma", "r0", "k", "m"))
    policy = gaussian_policy(inputs["mu"], inputs["sigma"])
    batch = quadrature(policy, lambda a: inputs["r0"] - inputs["k"] * (a - inputs["m"]) ** 2)
    found = gradient(policy, batch, PolicyGradient())
    assert found.tolist() == pytest.approx([expected["grad_log_sigma"], expected["grad_mu"]], abs=1e-8)
    step, _ = natural(policy, batch, FixedStep(1.0), damping=0.0)
    assert step.tolist() == pytest.approx(
        [expected["natural_grad_log_sigma"], expected["natural_grad_mu"]], abs=1e-8
    )
    assert float(policy.distribution.entropy(batch.params)[0]) == pytest.approx(expected["entropy"], abs=1e-8)


# --------------------------------------------------------------------------------------------- softmax bandit

SOFTMAX = [([0.2, -0.4, 0.9], [1.0, 3.0, -0.5]), ([1.3, 0.1, -2.0, 0.4], [0.3, -7.0, 2.0, 0.3])]


@pytest.mark.parametrize(("theta", "rewards"), SOFTMAX)
def test_softmax_bandit(theta: list[float], rewards: list[float]) -> None:
    """∇J = p (r − J); the bonus adds −c p (log p + H); natural gradient (F + cI)⁻¹ ∇J with F = diag p − p pᵀ."""
    r, p = tensor(rewards), tensor(theta).softmax(0)
    exact = p * (r - p @ r)
    entropy = -(p @ p.log())
    policy = softmax_policy(tensor([theta]))
    batch = bandit(policy, r)
    for loss in losses(policy):
        torch.testing.assert_close(gradient(policy, batch, loss), exact, rtol=1e-10, atol=1e-10)
        with_bonus = exact - 0.3 * p * (p.log() + entropy)
        torch.testing.assert_close(gradient(policy, batch, loss, 0.3), with_bonus, rtol=1e-10, atol=1e-10)
    fisher = torch.diag(p) - torch.outer(p, p)
    for damping in (0.1, 1e-3):
        step, _ = natural(softmax_policy(tensor([theta])), batch, FixedStep(1.0), damping)
        expected = torch.linalg.solve(fisher + damping * torch.eye(len(p), dtype=f64), exact)
        torch.testing.assert_close(step, expected, rtol=1e-8, atol=1e-8)
    # F is singular (logits may shift together); g has no part in that direction: c = 0 gives pinv(F) g = r − mean r
    step, _ = natural(softmax_policy(tensor([theta])), batch, FixedStep(1.0), damping=0.0)
    torch.testing.assert_close(step, r - r.mean(), rtol=1e-7, atol=1e-7)


def test_softmax_bandit_golden() -> None:
    inputs, expected = golden("softmax_bandit")
    policy = softmax_policy(tensor([inputs["theta"]]))
    batch = bandit(policy, tensor(inputs["rewards"]))
    assert gradient(policy, batch, PolicyGradient()).tolist() == pytest.approx(expected["grad"], abs=1e-8)
    zero = batch.replace(advantage=torch.zeros_like(batch.advantage))
    assert gradient(policy, zero, PolicyGradient(), 1.0).tolist() == pytest.approx(
        expected["entropy_grad"], abs=1e-8
    )
    step, _ = natural(policy, batch, FixedStep(1.0), damping=0.1)
    assert step.tolist() == pytest.approx(expected["natural_grad_damped_0.1"], abs=1e-8)
    policy = softmax_policy(tensor([inputs["theta"]]))
    step, _ = natural(policy, batch, FixedStep(1.0), damping=0.0)
    assert step.tolist() == pytest.approx(expected["natural_grad_pinv"], abs=1e-7)


def finite_batch(theta: list[float], rewards: list[float], n: int, kind: str) -> Tensor:
    """Exact expectation of a batch of n draws' gradient estimate, over all kⁿ batches."""
    logits, r = tensor([theta]), tensor(rewards)
    p = logits[0].softmax(0)
    total = torch.zeros(len(r), dtype=f64)
    index, step = torch.arange(n)[None], torch.zeros(1, n, dtype=torch.int64)
    for draw in itertools.product(range(len(r)), repeat=n):
        action = torch.tensor([draw])  # [1, n]: n episodes of one step
        reward = r[action]
        if kind == "mean_pooled":
            advantage = reward - baselines.mean(reward, index, step, scope="scalar")
        elif kind == "mean_loo":
            advantage = reward - baselines.leave_one_out(reward, index, step, scope="scalar")
        else:
            advantage = normalize(reward)
        theta_ = logits.clone().requires_grad_()
        log_prob = theta_.log_softmax(-1)[0][action]
        (g,) = torch.autograd.grad(policy_gradient_loss(log_prob, advantage, denominator=n), theta_)
        total -= p[action].prod() * g[0]
    return total


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("kind", ["mean_pooled", "mean_loo", "adv_norm_ddof1"])
def test_softmax_bandit_finite_batches(n: int, kind: str) -> None:
    inputs, expected = golden("softmax_bandit")
    found = finite_batch(inputs["theta"], inputs["rewards"], n, kind)
    assert found.tolist() == pytest.approx(
        expected["finite_batch"][f"N{n}"]["expected_estimate"][kind], abs=1e-7
    )


@pytest.mark.parametrize(("theta", "rewards"), SOFTMAX)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_pooled_mean_shrinks_by_one_over_n_and_leave_one_out_is_unbiased(
    theta: Any, rewards: Any, n: int
) -> None:
    p, r = tensor(theta).softmax(0), tensor(rewards)
    exact = p * (r - p @ r)
    torch.testing.assert_close(finite_batch(theta, rewards, n, "mean_loo"), exact, rtol=1e-9, atol=1e-9)
    pooled = finite_batch(theta, rewards, n, "mean_pooled")
    torch.testing.assert_close(pooled, (1 - 1 / n) * exact, rtol=1e-9, atol=1e-9)


def test_sampled_actions_estimate_the_gradient() -> None:
    """As above with the policy's own sampler: z-scores of 400 batches of 500 draws, and a Gaussian's alike."""
    theta, rewards = SOFTMAX[0]
    r, p = tensor(rewards), tensor(theta).softmax(0)
    policy = softmax_policy(tensor([theta]))
    state = torch.zeros(500, dtype=torch.int64)
    generator, one = torch.Generator().manual_seed(0), torch.ones(500, dtype=f64)
    check_z(policy, lambda a: r[a], p * (r - p @ r), state, one, generator)
    mu, sigma, r0, k, m = GAUSSIAN[0]
    policy = gaussian_policy(mu, sigma)
    exact = tensor([-2 * k * sigma**2, -2 * k * (mu - m)])
    check_z(policy, lambda a: r0 - k * (a[:, 0] - m) ** 2, exact, state, one, generator)


def check_z(
    policy: ActorCritic, reward: Any, exact: Tensor, state: Tensor, one: Tensor, generator: Any
) -> None:
    network: Any = policy.network
    params = policy.params(network.theta.detach()[state]).detach()
    estimates = []
    for _ in range(400):
        action = policy.distribution.sample(params, generator)
        estimates.append(
            gradient(policy, outcomes(policy, state, action, one, reward(action)), PolicyGradient())
        )
    g = torch.stack(estimates)
    z = (g.mean(0) - exact) / (g.std(0) / 20)
    assert z.abs().max() < 4.5, z


# --------------------------------------------------------------------------------------- infinite-horizon MDP


class Truth(NamedTuple):
    """All by linear equations."""

    gradient: Tensor  # [S, A] ∇J
    fisher: Tensor  # [SA, SA] states weighed by (1 − γ) d
    visits: Tensor  # [S] discounted visits d, sum 1/(1 − γ)
    advantage: Tensor  # [S, A]
    policy: Tensor  # [S, A]


def solve(p: Tensor, r: Tensor, d0: Tensor, gamma: float, theta: Tensor) -> Truth:
    """V = (I − γP_π)⁻¹ r_π, d = (I − γP_πᵀ)⁻¹ d₀, ∇J = d_s π (Q − V), F = Σ_s (1 − γ) d_s (diag π_s − π_s π_sᵀ)."""
    pi = theta.softmax(-1)
    states, actions = theta.shape
    move = torch.einsum("sa,sat->st", pi, p)
    eye = torch.eye(states, dtype=f64)
    value = torch.linalg.solve(eye - gamma * move, (pi * r).sum(-1))
    visits = torch.linalg.solve(eye - gamma * move.T, d0)
    advantage = r + gamma * p @ value - value[:, None]
    fisher = torch.zeros(states, actions, states, actions, dtype=f64)
    for s in range(states):
        fisher[s, :, s, :] = (1 - gamma) * visits[s] * (torch.diag(pi[s]) - torch.outer(pi[s], pi[s]))
    n = states * actions
    return Truth(visits[:, None] * pi * advantage, fisher.reshape(n, n), visits, advantage, pi)


def mdp(name: str) -> tuple[Tensor, Tensor, Tensor, float, Tensor]:
    """P [S, A, S], R [S, A], d₀, γ, θ: the golden one, or one drawn at random."""
    if name == "golden":
        inputs, _ = golden("infinite_mdp")
        return (*(tensor(inputs[k]) for k in ("P", "R", "d0")), inputs["gamma"], tensor(inputs["theta"]))  # pyright: ignore
    g = torch.Generator().manual_seed(5)
    p = torch.rand(4, 3, 4, generator=g, dtype=f64) ** 3
    d0 = torch.rand(4, generator=g, dtype=f64)
    r, theta = (torch.randn(4, 3, generator=g, dtype=f64) for _ in range(2))
    return p / p.sum(-1, keepdim=True), r, d0 / d0.sum(), 0.8, theta


def all_rows(policy: ActorCritic, truth: Truth, gamma: float) -> Batch:
    """A row for each (s, a), weight (1 − γ) d_s π(a|s)."""
    states, actions = truth.policy.shape
    s, a = torch.arange(states).repeat_interleave(actions), torch.arange(actions).repeat(states)
    weight = ((1 - gamma) * truth.visits[:, None] * truth.policy).flatten()
    return outcomes(policy, s, a, weight, truth.advantage.flatten())


@pytest.mark.parametrize("name", ["golden", "random"])
def test_policy_gradient_and_natural_step_of_an_mdp(name: str) -> None:
    *world, gamma, theta = mdp(name)
    truth = solve(*world, gamma, theta)
    policy = softmax_policy(theta)
    batch = all_rows(policy, truth, gamma)
    assert float(batch.weight.sum()) == pytest.approx(1.0)
    for loss in losses(policy):
        g = gradient(policy, batch, loss)
        torch.testing.assert_close(g, (1 - gamma) * truth.gradient.flatten(), rtol=1e-10, atol=1e-10)
    damped = truth.fisher + 0.1 * torch.eye(theta.numel(), dtype=f64)
    step, result = natural(policy, batch, FixedStep(0.3), damping=0.1, cg_iterations=30)
    expected = 0.3 * torch.linalg.solve(damped, (1 - gamma) * truth.gradient.flatten())
    torch.testing.assert_close(step, expected, rtol=1e-8, atol=1e-8)
    assert float(result.stats["update/cg_residual"]) < 1e-9


@pytest.mark.parametrize("name", ["golden", "random"])
def test_trpo_step_of_an_mdp(name: str) -> None:
    """√(2δ / xᵀ(F + cI)x) · x, the first trial accepted; its KL, the surrogate and the true J after it."""
    *world, gamma, theta = mdp(name)
    truth = solve(*world, gamma, theta)
    policy = softmax_policy(theta)
    batch = all_rows(policy, truth, gamma)
    step, result = natural(policy, batch, LineSearch(max_kl=0.01), damping=0.1, cg_iterations=30)
    damped = truth.fisher + 0.1 * torch.eye(theta.numel(), dtype=f64)
    x = torch.linalg.solve(damped, truth.gradient.flatten())
    torch.testing.assert_close(step, (0.02 / (x @ damped @ x)).sqrt() * x, rtol=1e-8, atol=1e-8)
    assert float(result.stats["update/line_search_trials"]) == 1
    assert float(result.stats["update/line_search_failed"]) == 0
    if name == "random":
        return
    _, expected = golden("infinite_mdp")
    new = theta + step.reshape(theta.shape)
    torch.testing.assert_close(new, tensor(expected["trpo_new_theta"]), rtol=1e-8, atol=1e-8)
    params = policy.evaluate(batch.inputs, batch.action).params.detach()
    kl = batch.weight @ policy.distribution.kl(batch.params, params)
    assert float(kl) == pytest.approx(expected["trpo_kl_old_new"], abs=1e-8)
    pi_new = new.softmax(-1)
    surrogate = (truth.visits[:, None] * pi_new * truth.advantage).sum()
    assert float(surrogate) == pytest.approx(expected["trpo_surrogate"], abs=1e-8)
    after = solve(*world, gamma, new)
    value = torch.linalg.solve(
        torch.eye(3, dtype=f64) - gamma * torch.einsum("sa,sat->st", pi_new, world[0]),
        (pi_new * world[1]).sum(-1),
    )
    assert float(world[2] @ value) == pytest.approx(expected["J_after"], abs=1e-8) and after.visits.min() > 0
    torch.testing.assert_close(truth.gradient, tensor(expected["grad"]), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(truth.fisher, tensor(expected["fisher"]), rtol=1e-8, atol=1e-8)
