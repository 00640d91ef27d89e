"""How good a gradient is: its variance, signal-to-noise ratio, noise scale and direction.

From the gradients g_i [n, P] of n independent samples (whole episodes: steps of one are not independent), or from
what streams of them leave: the mean of |g_i|² and the square of their mean. Every result is a 0-d tensor (nan where
there is nothing to tell), without reading anything back from the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pgtrain.learning.statistics import double


class GradientNoise(NamedTuple):
    """Noise of a batch gradient ḡ, the mean of n samples; 0-d each."""

    trace: Tensor  # tr Σ, the variance of one sample's gradient summed over the parameters
    squared_norm: Tensor  # |G|² of the true gradient, unbiased; may be negative
    variance_of_mean: Tensor  # tr Σ / n
    snr: Tensor  # |G|² / (tr Σ / n); may be negative
    noise_scale: Tensor  # tr Σ / |G|²: the batch size at which more samples stop paying; nan where |G|² ≤ 0


def noise(gradients: Tensor) -> GradientNoise:
    """tr Σ = Σ_i |g_i − ḡ|² / (n − 1) and what follows from it; gradients [n, P]. nan for n < 2."""
    g = double(gradients)
    mean = g.mean(0)
    trace = (g - mean).square().sum() / (len(g) - 1) if len(g) > 1 else g.new_tensor(torch.nan)
    return _noise(trace, mean.square().sum(), len(g))


def noise_from_norms(mean_of_squares: Tensor, square_of_mean: Tensor, n: int) -> GradientNoise:
    """As `noise`, from mean_i |g_i|² and |ḡ|² of n samples: squared norms suffice, no gradient is stored."""
    first, second = double(mean_of_squares), double(square_of_mean)
    trace = (first - second).clamp(min=0) * n / (n - 1) if n > 1 else first * torch.nan
    return _noise(trace, second, n)


def _noise(trace: Tensor, square_of_mean: Tensor, n: int) -> GradientNoise:
    spread = trace / n
    squared = square_of_mean - spread
    return GradientNoise(trace, squared, spread, _quotient(squared, spread), _quotient(trace, squared))


class TwoBatches(NamedTuple):
    """Estimates from gradients of two batch sizes, 0-d each."""

    squared_norm: Tensor
    trace: Tensor
    noise_scale: Tensor  # nan where |G|² ≤ 0


def noise_from_two_batches(small: Tensor, big: Tensor, small_size: int, big_size: int) -> TwoBatches:
    """From |g_b|² and |g_B|², the squared norms of the gradients of b and of B > b samples:

    |G|² = (B |g_B|² − b |g_b|²) / (B − b),   tr Σ = (|g_b|² − |g_B|²) / (1/b − 1/B)

    `small` may be the mean over several small batches. Both estimates are noisy: average them over updates before the
    quotient is taken (`RunningNoiseScale`). Raises: ValueError unless B > b.
    Source: McCandlish et al. 2018, "An empirical model of large-batch training", appendix A.1.
    """
    if big_size <= small_size:
        raise ValueError(f"the big batch must be bigger than the small one, got {big_size} and {small_size}")
    small, big = double(small), double(big)
    squared = (big_size * big - small_size * small) / (big_size - small_size)
    trace = (small - big) / (1 / small_size - 1 / big_size)
    return TwoBatches(squared, trace, _quotient(trace, squared))


class RunningNoiseScale:
    """tr Σ and |G|² averaged over updates, each on its own; the quotient of the averages is the noise scale.

    m ← β m + (1 − β) x for both; that the first averages are too small cancels in the quotient.
    """

    def __init__(self, decay: float = 0.95) -> None:
        self.decay = decay
        self.trace = self.squared_norm = 0.0
        self.count = 0

    def update(self, trace: float, squared_norm: float) -> None:
        """One update's estimates; what is not finite is left out."""
        if abs(trace) < torch.inf and abs(squared_norm) < torch.inf:
            keep = self.decay
            self.trace = keep * self.trace + (1 - keep) * trace
            self.squared_norm = keep * self.squared_norm + (1 - keep) * squared_norm
            self.count += 1

    @property
    def value(self) -> float:
        """The noise scale; nan while the averaged |G|² is not positive."""
        return self.trace / self.squared_norm if self.squared_norm > 0 else float("nan")

    def state_dict(self) -> dict[str, Any]:
        return {"trace": self.trace, "squared_norm": self.squared_norm, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trace, self.squared_norm, self.count = state["trace"], state["squared_norm"], state["count"]


def variance(gradients: Tensor) -> Tensor:
    """Each parameter's variance over the samples, ddof 1; [n, P] → [P], nan for n < 2."""
    g = double(gradients)
    spread = (g - g.mean(0)).square().sum(0)
    return spread / (len(g) - 1) if len(g) > 1 else torch.full_like(spread, torch.nan)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """cos of the angle between two gradients (of successive updates, or to the exact one), 0-d; nan if one is 0.

    Each is scaled by its largest entry first: squares of 1e±30 neither overflow nor vanish.
    """
    a, b = (_scaled(double(x).flatten()) for x in (a, b))
    length = torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b)
    return _quotient(a @ b, length).clamp(-1.0, 1.0)


def shares(gradient: Tensor, slices: Mapping[str, slice]) -> dict[str, Tensor]:
    """Each tensor's share of |g|², 0-d, summing to 1; nan for a gradient of 0. slices: name → its part of [P]."""
    square = _scaled(double(gradient)).square()
    total = square.sum()
    return {name: _quotient(square[part].sum(), total) for name, part in slices.items()}


def layer_shares(gradient: Tensor, slices: Mapping[str, slice]) -> dict[str, Tensor]:
    """As `shares`, a layer's weight and bias together: `actor.0.weight` and `actor.0.bias` are `actor.0`."""
    found: dict[str, Tensor] = {}
    for name, share in shares(gradient, slices).items():
        layer = name.removesuffix(".weight").removesuffix(".bias")
        found[layer] = found[layer] + share if layer in found else share
    return found


def _scaled(x: Tensor) -> Tensor:
    if not x.numel():
        return x
    top = x.abs().max()
    return x / torch.where(top > 0, top, torch.ones_like(top))


def _quotient(top: Tensor, bottom: Tensor) -> Tensor:
    """top / bottom, nan where bottom is not positive."""
    there = bottom > 0
    return torch.where(there, top / torch.where(there, bottom, torch.ones_like(bottom)), torch.nan)
