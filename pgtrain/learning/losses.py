"""Losses of a batch: (what the policy says now, rows, coefficients) → a scalar and what to tell about it.

A policy loss is one of four small callables, a value loss one of three; `Backprop` adds them up. The maths is in
`objectives.py`. Advantages reach a policy loss ready to use (normalised and discounted, where that was asked for).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pgtrain.learning import objectives
from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.kl_guard import Guard, Measure
from pgtrain.learning.statistics import weighted_mean
from pgtrain.policies.actor_critic import Evaluation
from pgtrain.policies.distributions import Distribution

Stats = dict[str, Tensor]


class PolicyLoss(Protocol):
    def __call__(self, new: Evaluation, batch: Batch, coefficients: Coefficients) -> tuple[Tensor, Stats]:
        """new: [B] each, with gradient. Returns the loss, 0-d, and 0-d statistics by metric tag."""
        ...


class ValueLoss(Protocol):
    def __call__(
        self, value: Tensor, old: Tensor, target: Tensor, weight: Tensor, coefficients: Coefficients
    ) -> Tensor:
        """All [B] and in the same units (standardised, if the critic's targets are). Returns the loss, 0-d."""
        ...


# ---------------------------------------------------------------------------------------------- policy losses


@dataclass(frozen=True)
class PolicyGradient:
    """−Σ A log π / (steps, or whole episodes for mean_over="episodes": the exact estimator of ∇J)."""

    mean_over: str = "steps"

    def __call__(self, new: Evaluation, batch: Batch, coefficients: Coefficients) -> tuple[Tensor, Stats]:
        denominator = _denominator(batch, self.mean_over)
        loss = objectives.policy_gradient_loss(
            new.log_prob, batch.advantage, batch.weight, denominator=denominator
        )
        return loss, {}


@dataclass(frozen=True)
class Surrogate:
    """−Σ r A / (steps or whole episodes), r = π/π_old: what a trust-region step improves."""

    mean_over: str = "steps"

    def __call__(self, new: Evaluation, batch: Batch, coefficients: Coefficients) -> tuple[Tensor, Stats]:
        r = objectives.ratio(new.log_prob, batch.log_prob, batch.weight)
        denominator = _denominator(batch, self.mean_over)
        loss = objectives.surrogate_loss(r, batch.advantage, batch.weight, denominator)
        return loss, {"policy/ratio_max": r.detach().max()}


@dataclass(frozen=True)
class ClippedSurrogate:
    """PPO: −Σ min(r A, clip(r, 1 ± ε) A) / (steps or whole episodes), ε = `coefficients.clip`.

    `dual_clip` c > 1 also bounds the term of bad actions from below by c A (None: not).
    """

    mean_over: str = "steps"
    dual_clip: float | None = None

    def __call__(self, new: Evaluation, batch: Batch, coefficients: Coefficients) -> tuple[Tensor, Stats]:
        r = objectives.ratio(new.log_prob, batch.log_prob, batch.weight)
        clip, denominator = coefficients.clip, _denominator(batch, self.mean_over)
        loss = objectives.clipped_surrogate_loss(
            r, batch.advantage, clip, batch.weight, denominator, self.dual_clip
        )
        fraction = objectives.clip_fraction(r.detach(), clip, batch.weight)
        return loss, {"policy/clip_fraction": fraction, "policy/ratio_max": r.detach().max()}


class KLPenalty(Guard):
    """PPO with a penalty: −Σ r A / (steps or whole episodes) + β · mean KL(π_old ‖ π), the KL exact.

    After each update β follows the KL that it led to: doubled above 1.5 × `target`, halved below `target` / 1.5, held
    within [`smallest`, `largest`] so that it always finds its way back. target=None keeps β. It is one of the
    update's `guards`, too, to be told of the KL.
    Source: Schulman et al. 2017 (PPO), §4.
    """

    def __init__(
        self,
        distribution: Distribution,
        *,
        beta: float = 1.0,
        target: float | None = 0.01,
        mean_over: str = "steps",
        smallest: float = 1e-6,
        largest: float = 1e6,
        device: torch.device | str = "cpu",
    ) -> None:
        self.distribution, self.target, self.mean_over = distribution, target, mean_over
        self.limits = smallest, largest
        self.surrogate = Surrogate(mean_over)
        self.beta = torch.tensor(beta, device=device)

    def __call__(self, new: Evaluation, batch: Batch, coefficients: Coefficients) -> tuple[Tensor, Stats]:
        loss, stats = self.surrogate(new, batch, coefficients)
        kl = self.distribution.kl(batch.params, new.params)
        return loss + self.beta * weighted_mean(kl, batch.weight), stats

    def finish(self, measure: Measure) -> Stats:
        """Moves β by the mean KL of the update just made; no host sync. A NaN leaves it alone."""
        told = {"schedule/kl_coef": self.beta.clone()}  # the one that the update used
        if self.target is not None:
            kl = measure()
            factor = torch.where(kl > 1.5 * self.target, 2.0, torch.where(kl < self.target / 1.5, 0.5, 1.0))
            self.beta.copy_((self.beta * factor).clamp(*self.limits))
        return told

    def state_dict(self) -> dict[str, Any]:
        return {"beta": self.beta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.beta.copy_(state["beta"])


def _denominator(batch: Batch, mean_over: str) -> float | None:
    return batch.episodes if mean_over == "episodes" else None


# ----------------------------------------------------------------------------------------------- value losses


@dataclass(frozen=True)
class SquaredError:
    """½ mean (V − target)²."""

    def __call__(
        self, value: Tensor, old: Tensor, target: Tensor, weight: Tensor, coefficients: Coefficients
    ) -> Tensor:
        return objectives.value_loss(value, target, weight)


@dataclass(frozen=True)
class ClippedError:
    """The value held within ± `coefficients.value_clip` of the one at rollout time; form "clip_max" or
    "clip_only"."""

    form: str = "clip_max"

    def __call__(
        self, value: Tensor, old: Tensor, target: Tensor, weight: Tensor, coefficients: Coefficients
    ) -> Tensor:
        pessimistic = self.form == "clip_max"
        return objectives.clipped_value_loss(value, old, target, coefficients.value_clip, weight, pessimistic)


@dataclass(frozen=True)
class HuberError:
    """½ e² up to |e| = `delta`, linear beyond."""

    delta: float = 1.0

    def __call__(
        self, value: Tensor, old: Tensor, target: Tensor, weight: Tensor, coefficients: Coefficients
    ) -> Tensor:
        return objectives.huber_value_loss(value, target, self.delta, weight)
