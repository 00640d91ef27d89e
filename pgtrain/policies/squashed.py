"""A Gaussian that a tanh holds inside the action box, and both bounded Gaussians as smooth maps in torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from pgtrain.policies.distributions import DiagonalGaussian

LOG_2 = math.log(2.0)
NODES = 64  # of Gauss-Hermite quadrature: the entropy to 6e-8 for σ ≤ 1.5, 3e-5 at 2.5


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
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        self._nodes, self._weights = nodes, weights / weights.sum()

    def to_env(self, action: np.ndarray) -> np.ndarray:
        u = np.where(np.isfinite(action), action, 0.0)
        scaled = self.center + self.half * np.where(self.bounded, np.tanh(u), u)
        return np.clip(scaled, self.low, self.high)  # rounding, and dimensions with one bound

    def _log_slope(self, u: Tensor) -> Tensor:
        """log d tanh(u)/du of the bounded dimensions, 0 of the others; [..., A] (or one dimension more)."""
        bounded = torch.as_tensor(self.bounded, device=u.device)
        return torch.where(bounded, 2 * (LOG_2 - u - softplus(-2 * u)), 0.0)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return super().log_prob(params, action) - self._log_slope(action).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """H = H(u) + E[Σ_j log d tanh(u_j)/du] (+ Σ log half), by quadrature; [...]. At most that of the box."""
        mean, log_std = params.split(self.dim, -1)
        nodes = torch.as_tensor(self._nodes, dtype=params.dtype, device=params.device)
        weights = torch.as_tensor(self._weights, dtype=params.dtype, device=params.device)
        u = mean.unsqueeze(-2) + log_std.exp().unsqueeze(-2) * nodes.unsqueeze(-1)  # [..., 64, A]
        return super().entropy(params) + (self._log_slope(u).sum(-1) * weights).sum(-1)

    def metrics(self, params: Tensor, action: Tensor) -> dict[str, Tensor]:
        """`policy/clipped_actions`: share of components that the tanh holds within 1 % of a bound."""
        bounded = torch.as_tensor(self.bounded, device=action.device)
        held = ((action.tanh().abs() > 0.99) & bounded).to(action.dtype).mean(-1)
        return {"policy/std": params[..., self.dim :].exp().mean(-1), "policy/clipped_actions": held}


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
