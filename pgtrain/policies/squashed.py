"""A Gaussian that a tanh holds inside the action box, and both bounded Gaussians as smooth maps in torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from pgtrain.policies.constants import Constant
from pgtrain.policies.distributions import DiagonalGaussian

LOG_2 = math.log(2.0)
TERMS = 8  # of the entropy's series: right to 1e-7 for every μ and σ


class TanhGaussian(DiagonalGaussian):
    """u ~ N(μ, σ²), the env gets a = center + half·tanh(u): never outside the box, with a slope everywhere.

    `action` is u, never a (the inverse of a rounded tanh is infinite); a dimension without two bounds is not squashed.
    log π(a) = log N(u; μ, σ²) − Σ_j [2(log 2 − u_j − softplus(−2u_j)) + log half_j]; the KL is that of the Gaussians.
    The policy's mean must not be squashed once more (mean="identity"). Its greedy action, tanh(μ), is the median.
    Source: Haarnoja et al. 2018, "Soft actor-critic", appendix C.
    """

    name = "tanh_gaussian"

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        super().__init__(low, high)
        self.tanh_mean = np.zeros(self.dim, bool)
        self._bounded = Constant(self.bounded)
        self._weights = Constant(alternating_weights(TERMS) / np.arange(1, TERMS + 1))

    def to_env(self, action: np.ndarray) -> np.ndarray:
        u = np.where(np.isfinite(action), action, 0.0)
        scaled = self.center + self.half * np.where(self.bounded, np.tanh(u), u)
        return np.clip(scaled, self.low, self.high)  # rounding, and dimensions with one bound

    def _log_slope(self, u: Tensor) -> Tensor:
        """log d tanh(u)/du of the bounded dimensions, 0 of the others; [..., A] (or one dimension more)."""
        return torch.where(self._bounded.on(u.device), 2 * (LOG_2 - u - softplus(-2 * u)), 0.0)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return super().log_prob(params, action) - self._log_slope(action).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """H = H(u) + Σ_j E[log d tanh(u_j)/du] (+ Σ log half), [...]. At most that of the box.

        log d tanh(u)/du = 2 log 2 − 2|u| − 2 log(1 + e^{−2|u|}). E|u| has a closed form; the last term is the
        alternating series Σ_k (−1)^{k+1} E[e^{−2k|u|}]/k, of which 8 accelerated terms give 1e-7 for all μ, σ (a
        Gauss-Hermite rule of 64 nodes is off by 0.02 at σ = 7). float64, where the terms cancel.
        """
        precise = params if params.device.type == "mps" else params.double()
        mean, log_std = precise.split(self.dim, -1)
        std = log_std.exp()
        z = mean / std
        size = std * math.sqrt(2 / math.pi) * (-0.5 * z * z).exp() + mean * torch.erf(
            z / math.sqrt(2)
        )  # E|u|
        k = torch.arange(1, TERMS + 1, device=params.device, dtype=precise.dtype)
        weights = self._weights.on(params.device, precise.dtype)
        series = ((_laplace(mean, std, k) + _laplace(-mean, std, k)) * weights).sum(-1)
        slope = torch.where(self._bounded.on(params.device), 2 * (LOG_2 - size - series), 0.0)
        return super().entropy(params) + slope.sum(-1).to(params.dtype)

    def metrics(self, params: Tensor, action: Tensor) -> dict[str, Tensor]:
        """`policy/clipped_actions`: share of components that the tanh holds within 1 % of a bound."""
        held = ((action.tanh().abs() > 0.99) & self._bounded.on(action.device)).to(action.dtype).mean(-1)
        return {"policy/std": params[..., self.dim :].exp().mean(-1), "policy/clipped_actions": held}


def _laplace(mean: Tensor, std: Tensor, k: Tensor) -> Tensor:
    """E[e^{−2ku}; u > 0] = e^{2k²σ² − 2kμ} Φ(μ/σ − 2kσ) for u ~ N(μ, σ²), [..., K]; in logs, where it is tiny."""
    mean, std = mean.unsqueeze(-1), std.unsqueeze(-1)
    return torch.exp(2 * k * (k * std * std - mean) + torch.special.log_ndtr(mean / std - 2 * k * std))


def alternating_weights(terms: int) -> np.ndarray:
    """w [K] with Σ_k (−1)^k a_k ≈ Σ_k w_k a_k, to 5.8^{−K}, where a_k are moments of a positive measure.

    Source: Cohen, Rodriguez Villegas & Zagier 2000, "Convergence acceleration of alternating series", algorithm 1.
    """
    d = (3 + math.sqrt(8)) ** terms
    d = 0.5 * (d + 1 / d)
    b, c, weights = -1.0, -d, []
    for k in range(terms):
        c = b - c
        weights.append(c / d)
        b *= (k + terms) * (k - terms) / ((k + 0.5) * (k + 1))
    return np.array(weights)


def action_map(
    distribution: DiagonalGaussian, device: torch.device, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """`distribution.to_env` in torch and with its graph: u [..., A] → the env's action [..., A].

    TanhGaussian: center + half·tanh(u). DiagonalGaussian: center + half·clip(u), whose slope is 0 beyond the box, so
    that an action that left it has nothing to bring it back but the entropy or the other envs; prefer the former.
    """
    d = distribution

    def constant(x: np.ndarray) -> Tensor:
        return torch.as_tensor(x, dtype=dtype, device=device)

    center, half = constant(d.center), constant(d.half)
    low, high = constant(d.u_low), constant(d.u_high)
    bounded = torch.as_tensor(d.bounded, device=device)
    plain = bool((d.center == 0).all() and (d.half == 1).all())
    squash = isinstance(d, TanhGaussian)
    free = bool(np.isinf(d.u_low).all() and np.isinf(d.u_high).all())

    def apply(u: Tensor) -> Tensor:
        u = u.to(dtype)
        if free:
            return u
        if not squash:
            u = u.clamp(low, high)
        elif d.bounded.all():
            u = u.tanh()
        else:
            u = torch.where(bounded, u.tanh(), u.clamp(low, high))
        return u if plain else center + half * u

    return apply
