"""Score-function estimates on a linear-quadratic regulator, against its closed form.

x' = A x + B u + w,  u = −K x + σ ε,  reward −(xᵀQx + uᵀRu), H steps, w ~ N(0, W). The truth is worked out here by the
backward and forward recursions of the second moments, compared with golden numbers, and so holds for any others.

Dimension legend: H steps, N episodes, D state size, A action size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pgtrain.learning.advantages import GAE, TD, Estimator, MonteCarlo, NStep
from pgtrain.learning.batch import Coefficients, flatten
from pgtrain.learning.gradients import Backprop
from pgtrain.learning.losses import ClippedSurrogate, PolicyGradient, SquaredError
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import DiagonalGaussian
from pgtrain.policies.parameters import FlatParameters
from pgtrain.rollout import Rollout
from tests.learning.exact import Table, f64, golden, tensor
from tests.support import make_rollout

BATCHES, EPISODES = 100, 128


@dataclass
class Problem:
    A: Tensor
    B: Tensor
    Q: Tensor
    R: Tensor
    K: Tensor
    W: Tensor
    x0_mean: Tensor
    x0_cov: Tensor
    sigma: float
    gamma: float
    horizon: int

    def __post_init__(self) -> None:
        """V_t(x) = −(xᵀ P_t x + c_t), P_H = 0, c_H = 0; E[x xᵀ]_t."""
        closed = self.A - self.B @ self.K
        noise = self.sigma**2 * self.B @ self.B.T + self.W
        self.P, self.c = [torch.zeros_like(self.Q)], [tensor(0.0)]
        for _ in range(self.horizon):
            after, rest = self.P[0], self.c[0]
            self.P.insert(0, self.Q + self.K.T @ self.R @ self.K + self.gamma * closed.T @ after @ closed)
            spread = self.sigma**2 * self.R.trace() + self.gamma * (after @ noise).trace()
            self.c.insert(0, spread + self.gamma * rest)
        self.second = [self.x0_cov + torch.outer(self.x0_mean, self.x0_mean)]
        for _ in range(self.horizon):
            self.second.append(closed @ self.second[-1] @ closed.T + noise)

    def objective(self) -> float:
        return -float((self.P[0] @ self.second[0]).trace() + self.c[0])

    def gradient(self, steps: int) -> Tensor:
        """(∂J/∂log σ, −∂J/∂Kᵀ) in the order of the flat parameters, over the first `steps` steps.

        ∂J/∂K = −2 Σ γᵗ E_t Σ_t, E_t = (R + γBᵀP_{t+1}B)K − γBᵀP_{t+1}A; ∂J/∂log σ = −2σ² Σ γᵗ tr(R + γBᵀP_{t+1}B)
        """
        by_k, by_log_sigma = torch.zeros_like(self.K), tensor(0.0)
        for t in range(steps):
            inner = self.R + self.gamma * self.B.T @ self.P[t + 1] @ self.B
            error = inner @ self.K - self.gamma * self.B.T @ self.P[t + 1] @ self.A
            by_k += -2 * self.gamma**t * error @ self.second[t]
            by_log_sigma += -2 * self.sigma**2 * self.gamma**t * inner.trace()
        return torch.cat([by_log_sigma.reshape(1), -by_k.T.flatten()])

    def value(self, t: int, x: Tensor) -> Tensor:
        return -(torch.einsum("nd,de,ne->n", x, self.P[t], x) + self.c[t])


def problem(name: str) -> Problem:
    if name == "golden":
        inputs, _ = golden("lqr")
        names = ("A", "B", "Q", "R", "K", "W", "x0_mean", "x0_cov")
        return Problem(
            *(tensor(inputs[n]) for n in names),
            **{n: inputs[n] for n in ("sigma", "gamma", "horizon")},
        )
    return Problem(
        A=tensor([[0.9, 0.3], [0.0, 0.7]]),
        B=tensor([[0.2], [0.5]]),
        Q=tensor([[0.5, 0.1], [0.1, 0.8]]),
        R=tensor([[0.2]]),
        K=tensor([[-0.3, 0.4]]),
        W=0.01 * torch.eye(2, dtype=f64),
        x0_mean=tensor([0.3, 0.8]),
        x0_cov=0.1 * torch.eye(2, dtype=f64),
        sigma=0.5,
        gamma=0.9,
        horizon=8,
    )


def make_policy(p: Problem) -> ActorCritic:
    """u ~ N(−K x, σ²); parameters in the order log σ, −Kᵀ."""
    infinite = np.array([np.inf])
    table: Any = Table(-p.K.T)
    policy = ActorCritic(table, DiagonalGaussian(-infinite, infinite), None, mean="identity").double()
    assert policy.log_std is not None
    nn.init.constant_(policy.log_std, float(np.log(p.sigma)))
    return policy


def frame(p: Problem, steps: int) -> Rollout:
    """A rollout of EPISODES episodes side by side, ended at the horizon, to be filled by `play`."""
    end = np.zeros((steps, EPISODES), bool)
    end[-1] = steps == p.horizon
    return make_rollout(
        np.zeros((steps, EPISODES)), terminated=end, whole_episodes=steps == p.horizon
    )  # slow to make


@torch.no_grad()
def play(p: Problem, policy: ActorCritic, empty: Rollout, generator: torch.Generator) -> Rollout:
    """EPISODES episodes from the start, with the exact value of every state."""

    def normal(cov: Tensor) -> Tensor:
        noise = torch.empty(EPISODES, len(cov), dtype=f64).normal_(generator=generator)
        return noise @ torch.linalg.cholesky(cov).T

    x = p.x0_mean + normal(p.x0_cov)
    seen: dict[str, list[Tensor]] = {name: [] for name in ("inputs", "action", "reward", "value", "next")}
    for t in range(len(empty.reward)):
        u = policy.distribution.sample(policy.params(policy.network.act(x)), generator)
        cost = torch.einsum("nd,de,ne->n", x, p.Q, x) + torch.einsum("na,ab,nb->n", u, p.R, u)
        after = x @ p.A.T + u @ p.B.T + normal(p.W)
        values = p.value(t, x), p.value(t + 1, after)
        for name, item in zip(seen, (x, u, -cost, *values), strict=True):
            seen[name].append(item)
        x = after
    found = {name: torch.stack(items) for name, items in seen.items()}
    new = policy.evaluate(found["inputs"], found["action"])
    return empty.replace(
        inputs=found["inputs"],
        action=found["action"],
        reward=found["reward"],
        value=found["value"],
        next_value=found["next"],
        params=new.params,
        log_prob=new.log_prob,
    )


ESTIMATORS: dict[str, Any] = {
    "reward to go": lambda g: MonteCarlo(g),
    "mean per step": lambda g: MonteCarlo(g, baseline="loo", scope="step"),
    "leave one out": lambda g: MonteCarlo(g, baseline="loo"),
    "value": lambda g: MonteCarlo(g, baseline="value"),
    "total": lambda g: MonteCarlo(g, form="total"),
    "td": TD,
    "3 steps": lambda g: NStep(g, 3),
    "gae": lambda g: GAE(g, 0.95),
}


def z_scores(
    p: Problem, estimator: Estimator, steps: int, discounted: bool = True, loss: Any = None
) -> Tensor:
    policy = make_policy(p)
    flat = FlatParameters(policy)
    loss = loss or PolicyGradient()
    source = Backprop(
        policy, flat, policy_loss=loss, value_loss=SquaredError(), value_coef=0.0, normalize_advantage=False
    )
    generator = torch.Generator().manual_seed(0)
    empty, found = frame(p, steps), []
    for _ in range(BATCHES):
        rollout = estimator(play(p, policy, empty, generator))
        source(flatten(rollout, p.gamma if discounted else None), Coefficients(0.0, 0.0))
        found.append(-flat.grad * steps)  # the loss is a mean over steps
    g = torch.stack(found)
    return (g.mean(0) - p.gradient(steps)) / (g.std(0) / BATCHES**0.5)


def test_the_closed_form_is_the_golden_one() -> None:
    inputs, expected = golden("lqr")
    p = problem("golden")
    assert p.objective() == pytest.approx(expected["J"], abs=1e-9)
    torch.testing.assert_close(p.P[0], tensor(expected["P0"]), rtol=1e-9, atol=1e-9)
    for steps, numbers in ((p.horizon, expected), (inputs["short_horizon"], expected["short_horizon"])):
        exact = p.gradient(steps)
        assert float(exact[0]) == pytest.approx(numbers["grad_log_sigma"], abs=1e-9)
        assert (-exact[1:]).tolist() == pytest.approx(numbers["grad_K"][0], abs=1e-9)
    short = expected["short_horizon"]
    torch.testing.assert_close(p.P[inputs["short_horizon"]], tensor(short["value_P"]), rtol=1e-9, atol=1e-9)
    assert float(p.c[inputs["short_horizon"]]) == pytest.approx(short["value_c"], abs=1e-9)


@pytest.mark.parametrize("name", ["golden", "other"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimators_have_the_exact_gradient_for_their_mean(name: str, estimator: str) -> None:
    """With the exact value as critic every one of them is unbiased. Total returns are discounted from step 0."""
    p = problem(name)
    z = z_scores(p, ESTIMATORS[estimator](p.gamma), p.horizon, discounted=estimator != "total")
    assert z.abs().max() < 4.5, z


@pytest.mark.parametrize("estimator", ["td", "3 steps", "gae"])
def test_a_window_with_the_exact_value_at_its_end(estimator: str) -> None:
    """Σ_{t<h} γᵗ r_t + γʰ V(x_h) with V held fixed: what a rollout that is cut at h estimates."""
    inputs, _ = golden("lqr")
    p = problem("golden")
    z = z_scores(p, ESTIMATORS[estimator](p.gamma), inputs["short_horizon"], loss=ClippedSurrogate())
    assert z.abs().max() < 4.5, z


def test_undiscounted_states_are_another_gradient() -> None:
    """The usual practice of deep RL leaves γᵗ out: far from the exact gradient (and so this test can tell)."""
    p = problem("other")
    assert z_scores(p, GAE(p.gamma, 0.95), p.horizon, discounted=False).abs().max() > 10
