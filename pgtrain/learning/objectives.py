"""What an update minimises or adds: policy gradient, surrogates, value errors, entropy. Pure functions of arrays.

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


# e²⁰ ≈ 5·10⁸; beyond it the exponential nears overflow, and 0 · ∞ would spoil the gradient
MAX_LOG_RATIO = 20.0


def ratio(log_prob: Tensor, old_log_prob: Tensor, weight: Tensor | None = None) -> Tensor:
    """r = π/π_old = exp(log π − log π_old), with the difference held within ±20 (no gradient beyond).

    1 for rows of weight 0. Raises: ValueError when shapes differ.
    """
    check_same_shape(log_prob=log_prob, old_log_prob=old_log_prob, weight=weight)
    difference, _ = _clean(log_prob - old_log_prob.detach(), weight)
    return torch.exp(difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def surrogate_loss(
    r: Tensor, advantage: Tensor, weight: Tensor | None = None, denominator: Tensor | float | None = None
) -> Tensor:
    """The importance-weighted advantage, to be maximised within a trust region.

    L = − Σ_i w_i r_i A_i / D,   r_i = π(a_i|o_i) / π_old(a_i|o_i),   D = denominator or Σ w

    At π = π_old its gradient is that of `policy_gradient_loss`. Raises: ValueError when shapes differ.
    Source: Kakade & Langford 2002; Schulman et al. 2015 (TRPO), eq. 14.
    """
    check_same_shape(ratio=r, advantage=advantage, weight=weight)
    r, w = _clean(r, weight)
    advantage, _ = _clean(advantage.detach(), weight)
    return -_scaled_sum(r * advantage, w, denominator)


def clipped_surrogate_loss(
    r: Tensor,
    advantage: Tensor,
    clip: Tensor | float,
    weight: Tensor | None = None,
    denominator: Tensor | float | None = None,
    dual_clip: float | None = None,
) -> Tensor:
    """PPO's surrogate: no reward for moving a ratio further than 1 ± ε.

    L = − Σ_i w_i min(r_i A_i, clip(r_i, 1 − ε, 1 + ε) A_i) / D,   D = denominator or Σ w

    The gradient is 0 where A > 0, r > 1 + ε and where A < 0, r < 1 − ε. With `dual_clip` c > 1 the term of A < 0 is
    max(min(…), c A): neither has an action with r > c a gradient there. Raises: ValueError when shapes differ.
    Source: Schulman et al. 2017 (PPO), eq. 7; Ye et al. 2020 (dual clip), eq. 5.
    """
    check_same_shape(ratio=r, advantage=advantage, weight=weight)
    r, w = _clean(r, weight)
    advantage, _ = _clean(advantage.detach(), weight)
    clipped = r.clamp(1 - clip, 1 + clip)  # pyright: ignore[reportCallIssue, reportArgumentType]
    gain = torch.minimum(r * advantage, clipped * advantage)
    if dual_clip is not None:
        gain = torch.where(advantage < 0, torch.maximum(gain, dual_clip * advantage), gain)
    return -_scaled_sum(gain, w, denominator)


def clip_fraction(r: Tensor, clip: Tensor | float, weight: Tensor | None = None) -> Tensor:
    """Share of the ratios outside 1 ± ε, whatever the sign of the advantage: Σ w [|r − 1| > ε] / Σ w."""
    check_same_shape(ratio=r, weight=weight)
    outside, w = _clean(((r - 1).abs() > clip).to(r.dtype), weight)
    return _scaled_sum(outside, w, None)


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


def clipped_value_loss(
    value: Tensor,
    old_value: Tensor,
    target: Tensor,
    clip: Tensor | float,
    weight: Tensor | None = None,
    pessimistic: bool = True,
) -> Tensor:
    """Squared error of a value held near the one at rollout time, V_c = V_old + clip(V − V_old, −ε, ε).

    pessimistic: L = ½ mean max((V − target)², (V_c − target)²)   (baselines, CleanRL)
    otherwise:   L = mean (V_c − target)²   (Stable-Baselines3; without ½: settings do not carry over)

    Raises: ValueError when shapes differ.
    Source: Huang et al. 2022, "The 37 implementation details of PPO", detail 9.
    """
    check_same_shape(value=value, old_value=old_value, target=target, weight=weight)
    value, w = _clean(value, weight)
    old_value, _ = _clean(old_value.detach(), weight)
    target, _ = _clean(target.detach(), weight)
    move = (value - old_value).clamp(-clip, clip)  # pyright: ignore[reportCallIssue, reportArgumentType]
    clipped = (old_value + move - target).square()
    if not pessimistic:
        return _scaled_sum(clipped, w, None)
    return 0.5 * _scaled_sum(torch.maximum((value - target).square(), clipped), w, None)


def huber_value_loss(value: Tensor, target: Tensor, delta: float, weight: Tensor | None = None) -> Tensor:
    """Half the squared error up to `delta`, linear beyond: wild targets pull no harder than ±δ.

    L = mean h(V − target),   h(e) = ½ e² for |e| ≤ δ, δ (|e| − ½ δ) otherwise

    Raises: ValueError when shapes differ. Source: Huber 1964.
    """
    check_same_shape(value=value, target=target, weight=weight)
    value, w = _clean(value, weight)
    target, _ = _clean(target.detach(), weight)
    size = (value - target).abs()
    inner = size.clamp(max=delta)
    return _scaled_sum(inner * (size - 0.5 * inner), w, None)


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
