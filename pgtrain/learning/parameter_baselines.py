"""Gradients whose baseline differs from parameter to parameter: no loss has them, so they are put together directly.

Dimension legend: E episodes, L steps, P parameters. See `optimal_baselines.py` for the baselines and their fits.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pgtrain.learning.optimal_baselines import Fit, leave_one_out, ratio
from pgtrain.learning.per_sample import Moments


def episode_gradient(scores: Tensor, returns: Tensor, fit: Fit = leave_one_out) -> tuple[Tensor, Tensor]:
    """One baseline a parameter: g_h = mean_i Y_ih − b_h Z_ih, b_h = E[Z_h Y_h] / E[Z_h²].

    Args: scores Z [E, P]. returns: R [E], then Y = Z R and b_h = E[Z_h² R] / E[Z_h²]; or Y = Σ_t Z_t G_t itself [E, P].
    Returns: the gradient [P] and each episode's part of it [E, P].
    Source: Peters & Schaal 2008, eq. 11.
    """
    weighted = scores * returns[:, None] if returns.dim() == 1 else returns
    parts = weighted - ratio(weighted * scores, scores.square(), fit) * scores
    return parts.mean(0), parts


def gradient_from_sums(today: Moments, fitted_on: Moments | None = None) -> Tensor:
    """As `episode_gradient` with single returns, from sums alone, [P]: nothing of size [E, P] is held.

    The baseline comes from `fitted_on` (the batch before, another part of the data; before the first: count 0), or
    from today's sums themselves, which biases the gradient by O(1/E).
    """
    source = today if fitted_on is None else fitted_on
    there = source.square > 0
    baseline = torch.where(there, source.square_return, 0.0) / torch.where(there, source.square, 1.0)
    return (today.score_return - baseline * today.score) / max(today.count, 1)


def stepwise_gradient(
    steps: Iterable[Tensor], returns: Tensor, fit: Fit = leave_one_out, cumulative: bool = False
) -> Tensor:
    """A baseline for each parameter and step, step by step: g_h = mean_i Σ_t Z_ith (G_it − b_th), [P].

    b_th = E[Z_th² G_t] / E[Z_th²]. One step's [E, P] is held at a time. Args: steps gives Z_t [E, P] for t = 0, 1, …, 0
        for episodes that have ended. returns: G [E, L], 0 past the end. cumulative: the sums C_l of the scores so far
        are used in place of Z_t, for G(PO)MDP with returns γˡ r_l; they last beyond an episode's end.
    Source: Peters & Schaal 2008, eq. 18.
    """
    total, score = torch.zeros(()), torch.zeros(())
    for z, target in zip(steps, returns.T, strict=True):
        score = score + z if cumulative else z
        square = score.square()
        baseline = ratio(square * target[:, None], square, fit)
        total = total + (score * (target[:, None] - baseline)).mean(0)
    return total
