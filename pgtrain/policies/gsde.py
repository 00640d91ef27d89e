"""Exploration whose noise depends on the state and is held for many steps."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pgtrain.policies.distributions import DiagonalGaussian


class StateDependentGaussian(DiagonalGaussian):
    """Generalised state-dependent exploration (gSDE): noise that is a linear function of features, held for many steps.

    u = μ(o) + z(o) E with z [..., L] the actor's features and E [L, A] drawn now and then, E_jk ~ N(0, s_jk²). Over
    the draws of E an action is N(μ, σ²), σ_k² = Σ_j z_j² s_jk² + 10⁻⁶, and that marginal is what `params` = [μ, log σ],
    log π, entropy and KL describe: all as for a Gaussian whose σ depends on the state. That several steps share an E
    is left out, as usual.
    s = exp(log_std), or with expln: exp(l) for l ≤ 0 and log(1 + l) + 1 above, which grows slower.
    `sample_freq`: steps between draws of E, one for each env; −1: one draw a rollout.
    Source: Raffin et al. 2021, "Smooth exploration for robotic reinforcement learning".
    """

    name = "gsde"
    EPS = 1e-6

    def __init__(
        self, low: np.ndarray, high: np.ndarray, features: int, *, sample_freq: int = -1, expln: bool = False
    ) -> None:
        super().__init__(low, high)
        self.features, self.sample_freq, self.expln = features, sample_freq, expln

    @property
    def log_std_shape(self) -> tuple[int, ...]:
        return (self.features, self.dim)

    def std(self, log_std: Tensor) -> Tensor:
        """s [L, A], the standard deviations of E."""
        if not self.expln:
            return log_std.exp()
        above = torch.log1p(log_std.clamp(min=0.0) + self.EPS) + 1.0
        return torch.where(log_std > 0, above, log_std.clamp(max=0.0).exp())

    def join(self, head: Tensor, log_std: Tensor | None, features: Tensor) -> Tensor:
        """μ [..., A], log_std [L, A] and z [..., L] → params [..., 2A]."""
        assert log_std is not None
        variance = features.square() @ self.std(log_std).square()
        return torch.cat([head, 0.5 * torch.log(variance + self.EPS)], -1)

    def spread_numpy(self, log_std: np.ndarray) -> np.ndarray:
        return self.std(torch.from_numpy(log_std)).square().numpy()

    def join_numpy(self, head: np.ndarray, spread: np.ndarray | None, features: np.ndarray) -> np.ndarray:
        variance = (features * features) @ spread
        return np.concatenate([head, 0.5 * np.log(variance + np.float32(self.EPS))], -1)
