"""What an update minimises or adds: policy gradient, value error, entropy.

One entry per sample, [T, N] or flat [M]; log-probabilities are already summed over action dimensions. `weight`
is 0 for rows to leave out, 1 otherwise (a probability when all outcomes are enumerated); None is 1 everywhere.
What a left-out row holds, even NaN, reaches neither the loss nor a gradient.

`denominator` turns the weighted sum into a mean. None takes Σ w, the mean over steps. The number of episodes gives
the exact estimator of ∇J, a mean over EPISODES of sums over their steps; to divide by the number of steps instead is
biased when the policy changes the episodes' lengths (it scales every batch by its own mean length).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pgtrain.learning.shapes import check_same_shape


def policy_gradient_loss(
    log_prob: Tensor,
    advantage: Tensor,
    weight: Tensor | None = None,
    denominator: Tensor | float | None = None,
) -> Tensor:
    """Loss whose negative gradient is the score-function estimate of ∇J.

    L = − Σ_i w_i A_i log π(a_i|o_i) / D,   −∇L = Σ_i w_i A_i ∇log π(a_i|o_i) / D,   D = denominator or Σ w

    The value of L itself means nothing and need not fall. `advantage` is held constant (detached).
    Raises: ValueError when shapes differ, e.g. [N] and [N, 1].
    Source: Williams 1992; Sutton et al. 2000, "Policy gradient methods", eq. 2.
    """
    check_same_shape(log_prob=log_prob, advantage=advantage, weight=weight)
    log_prob, w = _clean(log_prob, weight)
    advantage, _ = _clean(advantage.detach(), weight)
    return -_scaled_sum(advantage * log_prob, w, denominator)


def value_loss(
    value: Tensor, target: Tensor, weight: Tensor | None = None, denominator: Tensor | float | None = None
) -> Tensor:
    """Half the mean squared error of the critic.

    L = ½ Σ_i w_i (V_i − target_i)² / D,   D = denominator or Σ w

    With the ½ (CleanRL, baselines), so that value_coef 0.5 here is 0.25 in libraries without it. `target` is held
    constant. Raises: ValueError when shapes differ.
    """
    check_same_shape(value=value, target=target, weight=weight)
    value, w = _clean(value, weight)
    target, _ = _clean(target.detach(), weight)
    return 0.5 * _scaled_sum((value - target).square(), w, denominator)


def entropy_bonus(
    entropy: Tensor, weight: Tensor | None = None, denominator: Tensor | float | None = None
) -> Tensor:
    """Mean entropy of the policy, to be maximised: loss − coef · entropy_bonus.

    H = Σ_i w_i H_i / D,   D = denominator or Σ w

    A continuous policy's (differential) entropy may be negative; it is not clamped.
    Raises: ValueError when shapes differ.
    Source: Williams & Peng 1991; Mnih et al. 2016, §4.
    """
    check_same_shape(entropy=entropy, weight=weight)
    entropy, w = _clean(entropy, weight)
    return _scaled_sum(entropy, w, denominator)


def _clean(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """x with 0 where left out (selected: the gradient of 0 · NaN is NaN), and weights in its dtype."""
    if weight is None:
        return x, torch.ones_like(x)
    return torch.where(weight > 0, x, torch.zeros_like(x)), weight.to(x.dtype)


def _scaled_sum(x: Tensor, w: Tensor, denominator: Tensor | float | None) -> Tensor:
    """Σ w x / D; 0 when every weight is 0."""
    if denominator is None:
        total = w.sum()
        denominator = torch.where(total > 0, total, torch.ones_like(total))
    return (w * x).sum() / denominator
