"""α-order mixing of two estimates of one gradient: pathwise (first order) and score function (zeroth order).

Dimension legend: N samples (each a gradient from noise of its own), D parameters.

Where dynamics are smooth the pathwise estimate has the smaller variance; where they are stiff or jump it may be worse
than nothing, or biased (a step function has slope 0 all but everywhere), which no variance shows. The score function's
estimate is unbiased but noisy. The mixture takes as much of the first as its bias, seen as its distance from the
second, allows.
Source: Suh, Simchowitz, Zhang & Tedrake 2022, "Do differentiable simulators give better policy gradients?".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Mixture(NamedTuple):
    grad: Tensor  # [D]
    alpha: Tensor  # [] or [D], the weight of the first-order estimate
    variance_first: Tensor  # [] trace over parameters, of one sample
    variance_zeroth: Tensor  # []
    disagreement: Tensor  # [] B = ‖ḡ₁ − ḡ₀‖
    radius: Tensor  # [] ε, how far ḡ₀ may be from the truth


def variance(samples: Tensor) -> Tensor:
    """Unbiased variance of each parameter over the samples, [N, D] → [D]; N ≥ 2."""
    return samples.var(0, correction=1)


def bernstein_radius(
    variance_trace: Tensor, samples: int, dim: int, bound: Tensor | float, delta: float
) -> Tensor:
    """ε: the mean of N samples is within ε of its expectation, but for a probability of `delta`.

    ε = √(2 v ln((D+1)/δ) / N) + 2 L ln((D+1)/δ) / (3 N),   L ≥ ‖g_i‖

    Source: Suh et al. 2022, eq. 8 (vector Bernstein). `delta` is the probability of FAILURE: 0.05, not 0.95.
    """
    log_term = math.log((dim + 1) / delta)
    return (2 * variance_trace * log_term / samples).sqrt() + 2 * bound * log_term / (3 * samples)


def mix(
    first: Tensor,
    zeroth: Tensor,
    tolerance: float,
    bound: Tensor | float | None = None,
    delta: float = 0.05,
) -> Mixture:
    """g = α ḡ₁ + (1 − α) ḡ₀ with one α for all parameters.

    ᾱ = v₀/(v₀ + v₁), the α of least variance;   α = 0 if ε > γ_b,   ᾱ if ᾱ B ≤ γ_b − ε,   else (γ_b − ε)/B

    Args: first, zeroth [N, D], of independent noise; `tolerance` γ_b, the bias that may be had; `bound` L ≥ ‖g_i‖
        of the zeroth order (None: the largest seen, an estimate). Without branches: no host sync.
    Source: Suh et al. 2022, eq. 9.
    """
    v1, v0 = variance(first).sum(), variance(zeroth).sum()
    largest = torch.linalg.vector_norm(zeroth, dim=1).amax() if bound is None else bound
    g1, g0 = first.mean(0), zeroth.mean(0)
    radius = bernstein_radius(v0, len(zeroth), zeroth.shape[1], largest, delta)
    disagreement = torch.linalg.vector_norm(g1 - g0)
    alpha_bar = _share(v0, v1)
    slack = tolerance - radius
    limited = torch.minimum(alpha_bar, slack / disagreement.clamp(min=torch.finfo(g0.dtype).tiny))
    alpha = torch.where((slack < 0) | (alpha_bar == 0), torch.zeros_like(limited), limited)
    return Mixture(_join(alpha, g1, g0), alpha, v1, v0, disagreement, radius)


def mix_per_parameter(first: Tensor, zeroth: Tensor) -> Mixture:
    """g_j = α_j ḡ₁_j + (1 − α_j) ḡ₀_j with α_j = v₀_j/(v₀_j + v₁_j): inverse-variance weights, parameter by parameter.

    Of least variance if both are unbiased; it has no guard against a pathwise estimate that is not.
    """
    v1, v0 = variance(first), variance(zeroth)
    g1, g0 = first.mean(0), zeroth.mean(0)
    alpha = _share(v0, v1)
    distance = torch.linalg.vector_norm(g1 - g0)
    return Mixture(_join(alpha, g1, g0), alpha, v1.sum(), v0.sum(), distance, torch.zeros_like(distance))


def _share(v0: Tensor, v1: Tensor) -> Tensor:
    """v₀/(v₀ + v₁); 1 where neither varies; 0 where the first order's variance is not even finite."""
    total = v0 + v1
    share = torch.where(total > 0, v0 / torch.where(total > 0, total, torch.ones_like(total)), 1.0)
    return torch.where(torch.isfinite(v1), share, torch.zeros_like(share))


def _join(alpha: Tensor, g1: Tensor, g0: Tensor) -> Tensor:
    """α g₁ + (1 − α) g₀; where α is 0 what g₁ holds, even NaN, does not matter."""
    return torch.where(alpha > 0, alpha * g1, 0.0) + (1 - alpha) * g0
