"""Optimal baselines as a trainer uses them: estimators that subtract one, and a gradient source for one a parameter.

Each wraps a `MonteCarlo` whose own baseline is none, or a critic's value: then the baseline is that of the residual
G_t − V(o_t), which corrects the critic where its errors matter to the gradient's variance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pgtrain.learning.advantages import MonteCarlo
from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.gradients import Backprop
from pgtrain.learning.optimal_baselines import Fit, PreviousBatch
from pgtrain.learning.optimal_estimator import Episodes, OptimalBaseline, ParameterBaseline
from pgtrain.learning.scores import Scores
from pgtrain.rollout import Rollout


@dataclass(frozen=True)
class OptimalAdvantage:
    """A_t = G_t (− V_t) − b_t with the b of least variance for today's policy.

    Form gpomdp has its own A_t = Σ_{l≥t} (γˡ r_l − b_l), discounted from the episode's start.
    """

    returns: MonteCarlo
    scores: Scores
    baseline: OptimalBaseline

    @property
    def needs_critic(self) -> bool:
        return self.returns.needs_critic

    def __call__(self, rollout: Rollout) -> Rollout:
        rollout = self.returns(rollout)
        if self.baseline.form == "gpomdp":
            return rollout.replace(advantage=self.baseline.advantage(self.scores, rollout))
        target = rollout.advantage
        assert target is not None
        return rollout.replace(advantage=target - self.baseline(self.scores, rollout, target))

    def state_dict(self) -> dict[str, Any]:
        return _state(self.baseline.fit)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _load(self.baseline.fit, state)


@dataclass
class ParameterAdvantage:
    """G_t (− V_t) for the dashboard, and beside it the policy's gradient with a baseline for each parameter.

    The gradient needs whole episodes, which a batch of rows no longer knows: it is made here, where the rollout is,
    and `ParameterGradient` hands it to the update.
    """

    returns: MonteCarlo
    scores: Scores
    baseline: ParameterBaseline
    gradient: Tensor = field(default_factory=lambda: torch.zeros(0), repr=False)  # ∇J [P], mean over episodes
    episodes: int = 0

    @property
    def needs_critic(self) -> bool:
        return self.returns.needs_critic

    def __call__(self, rollout: Rollout) -> Rollout:
        rollout = self.returns(rollout)
        assert rollout.advantage is not None
        self.episodes = Episodes.of(rollout).count
        self.gradient = self.baseline(self.scores, rollout, rollout.advantage)
        return rollout

    def state_dict(self) -> dict[str, Any]:
        return _state(self.baseline.fit)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _load(self.baseline.fit, state)


@dataclass
class ParameterGradient:
    """Gradient source: entropy and critic by backpropagation, the policy's part from `estimator`.

    It takes the rows of the whole rollout at the parameters that collected them: one epoch, one batch.
    """

    rest: Backprop
    estimator: ParameterAdvantage
    mean_over: str = "steps"

    def __call__(self, batch: Batch, coefficients: Coefficients) -> dict[str, Tensor]:
        stats = self.rest(batch.replace(advantage=torch.zeros_like(batch.advantage)), coefficients)
        found = self.estimator.gradient.to(self.rest.flat.grad.dtype)
        if self.mean_over == "steps":
            found = found * (self.estimator.episodes / batch.weight.sum())
        self.rest.flat.grad -= found
        weighted = batch.weight * batch.discount * batch.advantage * batch.log_prob
        count = batch.weight.sum() if self.mean_over == "steps" else self.estimator.episodes
        return stats | {
            "loss/actor": -weighted.sum() / count
        }  # of the returns, as no loss has the baseline in it


def _state(fit: Fit) -> dict[str, Any]:
    return fit.state_dict() if isinstance(fit, PreviousBatch) else {}


def _load(fit: Fit, state: dict[str, Any]) -> None:
    if isinstance(fit, PreviousBatch):
        fit.load_state_dict(state)
