"""The gradient laboratory: what each estimator makes of the same episodes.

Every estimator here weighs the scores of an episode's steps, g_i = Σ_t w_t ∇log π(a_t|o_t), but for a baseline of its
own for each parameter, which is put together directly. All aim at the gradient of J = E[Σ_{t<H} γᵗ r_t], a time limit
counting as the end (so they have γᵗ; the row without it is there to be seen).

Dimension legend: T steps, N envs, E episodes, P parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pgtrain.learning import per_sample
from pgtrain.learning.advantages import GAE, MonteCarlo
from pgtrain.learning.optimal_advantage import OptimalAdvantage
from pgtrain.learning.optimal_baselines import return_weighted
from pgtrain.learning.optimal_estimator import Episodes, OptimalBaseline, ParameterBaseline
from pgtrain.learning.parameter_baselines import episode_gradient
from pgtrain.learning.scores import PolicyScores
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.networks import MLP
from pgtrain.rollout import Rollout, true_values

LAMBDAS = (0.0, 0.5, 0.9, 0.95, 1.0)
Weights = Callable[[Rollout], Tensor]  # → w [T, N]


class Estimator(NamedTuple):
    """A row of the table. `weights` None: the baseline for each parameter."""

    family: str  # what stands for the return: total, reward to go, GAE, pathwise
    name: str
    weights: Weights | None
    unbiased: bool = False  # whatever the policy, the critic and the batch: by theory


@dataclass(frozen=True)
class Laboratory:
    """Builds the rows for one policy and discount."""

    policy: ActorCritic
    gamma: float
    memory_limit: int = per_sample.MEMORY_LIMIT

    @property
    def scores(self) -> PolicyScores:
        return PolicyScores(self.policy, self.memory_limit)

    def estimators(self) -> list[Estimator]:
        total, to_go, gae = "total return", "reward to go", "GAE"

        def returns(form: str, baseline: str = "none") -> MonteCarlo:
            return MonteCarlo(self.gamma, form, "none", baseline)

        def optimal(scope: str, form: str = "reward_to_go", below: str = "none") -> Weights:
            b = OptimalBaseline(self.gamma, scope, form, discount_states=form != "total")
            found = OptimalAdvantage(returns(form, below), self.scores, b)
            return self.plain(found) if form == "total" else self.discounted(found)

        rows = [
            Estimator(total, "none", self.plain(returns("total")), True),
            Estimator(total, "mean", self.plain(returns("total", "mean"))),
            Estimator(total, "optimal scalar", optimal("scalar", "total")),
            Estimator(total, "return_weighted (a common mistake)", self.return_weighted),
            Estimator(to_go, "none", self.discounted(returns("reward_to_go")), True),
            Estimator(to_go, "none, no γᵗ (usual)", self.plain(returns("reward_to_go"))),
            Estimator(to_go, "mean", self.discounted(returns("reward_to_go", "mean"))),
            Estimator(to_go, "leave-one-out mean", self.discounted(returns("reward_to_go", "loo"))),
            Estimator(to_go, "value", self.discounted(returns("reward_to_go", "value")), True),
            Estimator(to_go, "optimal scalar", optimal("scalar")),
            Estimator(to_go, "optimal step", optimal("step")),
            Estimator(to_go, "optimal step_joint", optimal("step_joint")),
            Estimator(to_go, "optimal parameter", None),
            Estimator(to_go, "value, then optimal scalar", optimal("scalar", below="value")),
        ]
        rows += [Estimator(gae, f"λ = {lam:g}", self.discounted(GAE(self.gamma, lam))) for lam in LAMBDAS]
        return rows

    # ------------------------------------------------------------------------------------------------ weights

    def plain(self, estimate: Callable[[Rollout], Rollout]) -> Weights:
        def weights(rollout: Rollout) -> Tensor:
            advantage = estimate(rollout).advantage
            assert advantage is not None
            return advantage * rollout.weight

        return weights

    def discounted(self, estimate: Callable[[Rollout], Rollout]) -> Weights:
        plain = self.plain(estimate)
        return lambda rollout: plain(rollout) * self.gamma**rollout.episode_step

    def return_weighted(self, rollout: Rollout) -> Tensor:
        """Σ |s|² R³ / Σ |s|² R²: the score multiplied by the return before it is squared."""
        e = Episodes.of(rollout)
        R = self.plain(MonteCarlo(self.gamma, "total"))(rollout)
        square = self.scores.squared_norms(*rows_of(rollout), episode=e.episode)
        b = return_weighted(square.double(), e.pad(R)[:, 0].double())
        return (R - b.to(R.dtype)) * rollout.weight

    # ---------------------------------------------------------------------------------------------- gradients

    def gradients(self, estimator: Estimator, rollout: Rollout) -> Tensor:
        """Each episode's gradient [E, P], their mean being that of the batch."""
        e = Episodes.of(rollout)
        if estimator.weights is not None:
            return self._weighted(rollout, e, estimator.weights(rollout))
        target = self.plain(MonteCarlo(self.gamma))(rollout)
        discount = self.gamma ** rollout.episode_step.to(target.dtype)
        scores = self._weighted(rollout, e, discount * rollout.weight)
        return episode_gradient(scores, self._weighted(rollout, e, discount * target))[1]

    def _weighted(self, rollout: Rollout, e: Episodes, weight: Tensor) -> Tensor:
        return self.scores.gradients(*rows_of(rollout), e.episode, weight.flatten())

    def batch_gradient(self, estimator: Estimator, rollout: Rollout) -> Tensor:
        """The mean over episodes as a trainer makes it, [P]: one backward pass, no gradient of a single episode."""
        if estimator.weights is None:
            target = self.plain(MonteCarlo(self.gamma))(rollout)
            return ParameterBaseline(self.gamma, discount_states=True)(self.scores, rollout, target)
        weight = estimator.weights(rollout).flatten()
        new = self.policy.evaluate_actor(*rows_of(rollout))
        loss = (weight * new.log_prob).sum() / rollout.done.sum()
        wanted = list(self.policy.parameters())
        found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in found])

    def milliseconds(self, estimator: Estimator, rollout: Rollout, repeats: int = 3) -> float:
        """The least time of a batch's gradient, estimate and backward pass together."""
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            float(self.batch_gradient(estimator, rollout).sum())  # waits for a GPU
            times.append(time.perf_counter() - start)
        return 1e3 * min(times)


def rows_of(rollout: Rollout) -> tuple[Tensor, Tensor]:
    return rollout.inputs.flatten(0, 1), rollout.action.flatten(0, 1)


def ended(rollout: Rollout) -> Rollout:
    """The same episodes with their time limits as ends, as J counts rewards up to them."""
    return rollout.replace(terminated=rollout.done, truncated=torch.zeros_like(rollout.truncated))


def with_values(rollout: Rollout, value: Callable[[Tensor], Tensor]) -> Rollout:
    """`rollout` as this critic sees it."""
    r = rollout
    with torch.no_grad():
        v, following = true_values(value, r.inputs, r.last_inputs, r.final_inputs, r.final_index)
    return r.replace(value=v, next_value=following)


def fit_critic(rollout: Rollout, gamma: float, seed: int = 0, steps: int = 600) -> Callable[[Tensor], Tensor]:
    """A value network [64, 64] of the rewards to go of other episodes than the ones that are measured."""
    target = MonteCarlo(gamma)(rollout).advantage
    assert target is not None
    used = rollout.weight.flatten() > 0
    x, y = rollout.inputs.flatten(0, 1)[used], target.flatten()[used]
    shift, scale = y.mean(), y.std().nan_to_num(0.0) + 1e-6
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module = MLP(
            x.shape[-1], 1, hidden=[64, 64], activation="tanh", share=0, critic=False, last_gain=0.1
        )
    network.to(x.device)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        index = torch.randint(len(x), (min(len(x), 1024),), generator=generator).to(x.device)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / steps)
        loss = (network(x[index])[0].squeeze(-1) - (y[index] - shift) / scale).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return lambda inputs: network(inputs)[0].squeeze(-1) * scale + shift
