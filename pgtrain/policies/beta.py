"""Beta distributions: actions that fill a box from edge to edge, without a bound that a spread could run over."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from pgtrain.policies.distributions import DiagonalGaussian

EPS = 1e-6  # x is held this far from 0 and 1, where log π may be infinite
EDGE = 0.005  # of the box's width: what counts as held by a bound, as 1 % of the half width does for a tanh


class Beta:
    """x_j ~ Beta(α_j, β_j) on [0, 1]; the env gets low + (high − low) x.

    `params` = [α, β] [..., 2A], `action` = x [..., A].

    α, β = 1 + softplus(head): one hump, never an infinite density at a bound. log π and entropy are those of the env's
    action. Computed in float64, where α may be large and the terms cancel.
    Source: Chou, Maturana & Scherer 2017, "Improving stochastic policy gradients in continuous control".
    """

    name = "beta"
    action_dtype = torch.float32
    log_std_shape = None
    mask_dim = 0

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        box = DiagonalGaussian(low, high)
        if not box.bounded.all():
            raise ValueError(f"a Beta distribution needs two bounds in every dimension, got {low} and {high}")
        self.low, self.high, self.dim = box.low, box.high, box.dim
        self.width = 2 * box.half
        self.log_width = float(np.log(self.width).sum())
        self.head_dim = self.param_dim = 2 * self.dim
        self.action_shape = (self.dim,)
        self.tanh_mean = np.zeros(self.head_dim, bool)

    def join(self, head: Tensor, log_std: Tensor | None, features: Tensor) -> Tensor:
        return 1.0 + softplus(head)

    def spread_numpy(self, log_std: np.ndarray) -> np.ndarray:
        return log_std

    def join_numpy(self, head: np.ndarray, spread: np.ndarray | None, features: np.ndarray) -> np.ndarray:
        return 1.0 + np.logaddexp(np.float32(0), head)

    def apply_mask(self, params: Any, mask: Any) -> Any:
        return params

    def sample_numpy(self, params: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        usable = np.where(np.isfinite(params), params, 1.0)  # the update learns of the bad observation
        x = rng.beta(usable[..., : self.dim], usable[..., self.dim :])
        return x.clip(EPS, 1 - EPS).astype(np.float32)

    def sample(self, params: Tensor, generator: torch.Generator | None) -> Tensor:
        """Two gammas: x = g_α / (g_α + g_β)."""
        usable = torch.where(torch.isfinite(params), params, 1.0)
        gammas = torch._standard_gamma(usable, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
        a, b = gammas.split(self.dim, -1)
        return (a / (a + b)).clamp(EPS, 1 - EPS)

    def mode(self, params: Any) -> Any:
        """(α − 1)/(α + β − 2), the middle where α = β = 1."""
        a, b = params[..., : self.dim] - 1, params[..., self.dim :] - 1
        return (a + 1e-8) / (a + b + 2e-8)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        x = np.where(np.isfinite(action), action, 0.5).astype(np.float64)
        return np.clip(self.low + (self.high - self.low) * x, self.low, self.high)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log π = Σ_j [(α − 1) log x + (β − 1) log(1 − x) − log B(α, β) − log(high − low)], [...]."""
        a, b = self._split(params)
        x = _precise(action).clamp(EPS, 1 - EPS)
        each = (a - 1) * x.log() + (b - 1) * torch.log1p(-x) - _log_beta(a, b)
        return (each.sum(-1) - self.log_width).to(params.dtype)

    def entropy(self, params: Tensor) -> Tensor:
        """H = Σ_j [log B(α, β) − (α − 1) ψ(α) − (β − 1) ψ(β) + (α + β − 2) ψ(α + β) + log(high − low)], [...]."""
        a, b = self._split(params)
        each = _log_beta(a, b) - (a - 1) * _psi(a) - (b - 1) * _psi(b) + (a + b - 2) * _psi(a + b)
        return (each.sum(-1) + self.log_width).to(params.dtype)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Σ_j [log B(α', β')/B(α, β) + (α − α') ψ(α) + (β − β') ψ(β) − (α + β − α' − β') ψ(α + β)], [...]."""
        (a, b), (c, d) = self._split(old), self._split(new)
        each = _log_beta(c, d) - _log_beta(a, b) + (a - c) * _psi(a) + (b - d) * _psi(b)
        return (each - (a + b - c - d) * _psi(a + b)).sum(-1).to(new.dtype)

    def metrics(self, params: Tensor, action: Tensor) -> dict[str, Tensor]:
        """`policy/std` in units of the half box; `policy/clipped_actions`: share of components at a bound."""
        a, b = params.split(self.dim, -1)
        std = 2 * (a * b / (a + b + 1)).sqrt() / (a + b)
        held = ((action < EDGE) | (action > 1 - EDGE)).to(action.dtype)
        return {"policy/std": std.mean(-1), "policy/clipped_actions": held.mean(-1)}

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        a, b = _precise(params).split(self.dim, -1)
        return a, b


def _precise(x: Tensor) -> Tensor:
    return x if x.device.type == "mps" else x.double()  # Apple GPUs have no float64


def _psi(x: Tensor) -> Tensor:
    return torch.digamma(x)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
