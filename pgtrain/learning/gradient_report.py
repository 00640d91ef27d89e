"""From the gradients of episodes to a row of the laboratory's table: variance, its interval, SNR, direction, bias.

Dimension legend: n samples (the mean of `size` episodes each), P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pgtrain.learning.statistics import double

ONCE_IN_1000 = 3.0902  # of a standard normal number


class Reference(NamedTuple):
    """The best known ∇J [P], and the variance of it (tr Σ / n; 0 if it is exact)."""

    gradient: Tensor
    variance: float
    exact: bool
    episodes: int = 0
    rounding: float = 0.0  # squared lengths up to this count as 0: floating-point numbers hold no less

    @property
    def squared_norm(self) -> float:
        """|∇J|² without what noise adds to it; 0 where nothing is left."""
        squared = float(double(self.gradient).square().sum()) - self.variance
        return squared if squared > self.rounding else 0.0


class Report(NamedTuple):
    """One estimator. nan: cannot be told from these episodes."""

    variance: float  # tr Σ of one episode's gradient
    low: float  # its bootstrap interval, 95 %
    high: float
    snr: float  # |∇J|² / (tr Σ / batch), of a batch; 0 where ∇J is known to be 0
    # between a batch's gradient and the reference, mean over the batches that the samples make; nan if the reference
    # is lost in its own noise, or 0
    cosine: float
    bias: float  # |E g − ∇J| / |∇J|, what is left of the distance once noise is taken off
    bias_limit: float  # the distance that noise alone exceeds once in a thousand times, in the same unit
    episodes: int
    relative: bool = True  # False: bias and its limit are |E g − ∇J| itself, as there is no |∇J| to divide by

    @property
    def biased(self) -> bool:
        """Whether the bias stands out of the noise."""
        return self.bias > self.bias_limit


def report(
    gradients: Tensor,
    reference: Reference,
    size: int = 1,
    batch: int = 8,
    unbiased: Sequence[Tensor] = (),
    resamples: int = 400,
    seed: int = 0,
) -> Report:
    """gradients [n, P]: independent samples, each the mean over `size` episodes.

    batch: episodes in a batch, of which SNR and cosine speak. unbiased: gradients [n, P] of the same episodes whose
    mean is ∇J by theory. The bias is the mean of the difference to one of them, or to the reference, whichever leaves
    the least noise. Samples that are all 0 say nothing of a ∇J that is not: SNR, cosine and bias are nan.
    """
    g, ref = double(gradients), double(reference.gradient)
    n = len(g)
    gram = _gram(g)
    trace, _ = _trace(gram)
    together = max(1, min(n, batch // size))
    spread = trace / together  # variance of a batch's gradient
    low, high = _interval(gram, resamples, seed)
    signal = reference.squared_norm
    silent = float(gram.diagonal().mean()) <= reference.rounding
    distances = [_distance(_gram(g - ref), reference.variance)]
    distances += [_distance(_gram(g - double(h)), 0.0) for h in unbiased]
    distance, limit = min(distances, key=lambda found: found[1])
    unit = signal if signal > 0 else 1.0
    told = not (silent and signal > 0)
    return Report(
        variance=size * trace,
        low=size * low,
        high=size * high,
        snr=_snr(signal, spread, reference.exact) if not silent else math.nan,
        cosine=_cosine(g, ref, together) if signal > 0 and not silent else math.nan,
        bias=math.sqrt(max(distance, 0.0) / unit) if told else math.nan,
        bias_limit=math.sqrt(limit / unit) + max(1e-5, math.sqrt(reference.rounding / unit)),
        episodes=n * size,
        relative=signal > 0,
    )


def _snr(signal: float, spread: float, exact: bool) -> float:
    if signal == 0:
        return 0.0 if exact and spread > 0 else math.nan  # a large sample lost in its noise leaves it open
    return signal / spread if spread > 0 else (math.nan if math.isnan(spread) else math.inf)


def _cosine(g: Tensor, ref: Tensor, together: int) -> float:
    """The mean over batches of `together` samples; nan where there is no direction."""
    batches = g[: len(g) // together * together].view(-1, together, g.shape[1]).mean(1)
    length = torch.linalg.vector_norm(batches, dim=1) * torch.linalg.vector_norm(ref)
    there = length > 0
    return float(((batches @ ref)[there] / length[there]).mean())  # nan for none


def _gram(g: Tensor) -> Tensor:
    return (g @ g.T).cpu()


def _trace(gram: Tensor) -> tuple[float, float]:
    """tr Σ, and |ḡ|²."""
    n = len(gram)
    squared = float(gram.mean())
    spread = max(float(gram.diagonal().mean()) - squared, 0.0)
    return spread * n / (n - 1) if n > 1 else math.nan, squared


def _distance(gram: Tensor, other: float) -> tuple[float, float]:
    """|E x|² of samples with these products, without what noise adds; and what that exceeds once in 1000 if E x = 0.

    Then |x̄|² has the mean m = tr Σ / n and the standard error √(2 tr Σ²) / n, tr Σ² from products of different
    samples: about m χ²_ν / ν of ν = 2 (m / standard error)² degrees of freedom. Where few directions hold the noise,
    ν is small and the tail long. other: the variance of what was subtracted from all, taken as one direction.
    """
    n = len(gram)
    if n < 2:
        return math.nan, math.inf
    trace, squared = _trace(gram)
    mean = gram.mean(0, keepdim=True)
    centred = gram - mean - mean.T + gram.mean()
    off = max(float(centred.square().sum() - centred.diagonal().square().sum()), 0.0)
    mean_square, error = trace / n + other, math.sqrt(2 * off / (n * (n - 1))) / n + math.sqrt(2) * other
    return squared - mean_square, mean_square * _excess(mean_square, error)


def _excess(mean: float, error: float) -> float:
    """χ²_ν / ν − 1 at 99.9 %, ν = 2 (mean / error)² (Wilson and Hilferty's cube)."""
    if mean <= 0 or error <= 0:
        return 0.0
    part = 2 / (9 * max(2 * (mean / error) ** 2, 1.0))
    return (1 - part + ONCE_IN_1000 * math.sqrt(part)) ** 3 - 1


def _interval(gram: Tensor, resamples: int, seed: int) -> tuple[float, float]:
    """2.5 % and 97.5 % of tr Σ over resamples of the episodes."""
    n = len(gram)
    if n < 2:
        return math.nan, math.nan
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n, (resamples, n), generator=generator)
    share = torch.zeros(resamples, n, dtype=gram.dtype).scatter_add_(
        1, drawn, torch.full((resamples, n), 1 / n, dtype=gram.dtype)
    )
    traces = share @ gram.diagonal() - ((share @ gram) * share).sum(1)
    traces = traces * n / (n - 1)
    low, high = torch.quantile(traces, torch.tensor([0.025, 0.975], dtype=traces.dtype)).tolist()
    return low, high
