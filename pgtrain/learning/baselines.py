"""Baselines from returns alone: means over whole episodes, with or without the episode itself.

A baseline b is subtracted from the return before it weighs ∇log π. It leaves the gradient unbiased where it
depends on nothing that the action influences (earlier steps, other episodes), and lowers its variance.

Layout: [T, N] rows, T time steps of N envs; an env's column may hold several episodes one after the other.
`episode_id` says whose row it is: 0 … E−1, and −1 for a row to leave out; `episode_step` counts the episode's
steps 0, 1, …. `episode_index` makes both. G_{i,t} is the return at step t of episode i, L_i the episode's length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pgtrain.learning.shapes import check_same_shape

SCOPES = ("scalar", "step")


def episode_index(
    done: Tensor, weight: Tensor | None = None, starts_fresh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Names the whole episodes in a window.

    Args:
        done: [T, N] True (or 1) at an episode's last step.
        weight: [T, N] 0 for rows that are no transition (reset rows, idle envs); None: all rows are.
        starts_fresh: [N] True where row 0 begins an episode; None: everywhere, as in whole-episode collection.
    Returns: `episode_id` [T, N] int64: whole episodes are numbered env by env in order of time, −1 marks rows of
        weight 0, rows after a column's last done (unfinished), and the rest of an episode from an earlier window.
        `episode_step` [T, N] int64: 0, 1, … within the episode, rows of weight 0 not counted; 0 where id is −1.
    """
    check_same_shape(done=done, weight=weight)
    used = torch.ones_like(done, dtype=torch.bool) if weight is None else weight > 0
    ends = done.bool() & used
    finished = ends.cumsum(dim=0) - ends.long()  # [T, N] episodes of this column that ended before this row
    per_column = ends.sum(dim=0)  # [N]
    whole = used & (finished < per_column)
    if starts_fresh is not None:
        whole = whole & (starts_fresh.bool() | (finished > 0))
        carried = (~starts_fresh.bool() & (per_column > 0)).long()  # an episode cut at the front gets no id
    else:
        carried = torch.zeros_like(per_column)
    offset = (per_column - carried).cumsum(dim=0) - per_column  # first id of the column, less its carried one
    episode_id = torch.where(whole, offset + finished, torch.full_like(finished, -1))

    row = used.cumsum(dim=0) - used.long()  # [T, N] used rows of this column before this one
    first = torch.cat([torch.ones_like(ends[:1]), ends[:-1]])
    first_row = torch.where(first, row, torch.zeros_like(row)).cummax(dim=0).values
    return episode_id, torch.where(whole, row - first_row, torch.zeros_like(row))


def mean(
    returns: Tensor,
    episode_id: Tensor,
    episode_step: Tensor,
    scope: str = "scalar",
    weight: Tensor | None = None,
) -> Tensor:
    """Mean return over all episodes of the batch, the row's own among them.

    scalar: b   = Σ_{i,t} w G_{i,t} / Σ_{i,t} w          one number: over all used steps of all episodes
    step:   b_t = Σ_{i: L_i>t} w G_{i,t} / Σ_{i: L_i>t} w     for each t, over the episodes that reach step t

    With w = 1 `scalar` weighs long episodes more, as they have more steps. As an episode takes part in its own
    baseline the gradient is shrunk: with one pooled mean over N equally long episodes to exactly (1 − 1/N) ∇J.
    `leave_one_out` is free of this. A step that a single episode reaches has b_t = G_t, i.e. advantage 0.

    Args:
        returns: [T, N] (reward-to-go or total). episode_id, episode_step: [T, N] int64.
        scope: "scalar" or "step". weight: [T, N] w ≥ 0, None for 1.
    Returns: [T, N], 0 in rows of id −1; differentiable in `returns`.
    Raises: ValueError for shapes that differ and for an unknown scope.
    Source: Williams 1992, §4 (reinforcement baseline); Sutton & Barto 2018, §13.4.
    """
    row = _Rows(returns, episode_id, weight)
    if _check(scope) == "scalar":
        baseline = _ratio(row.weighted.sum(), row.weight.sum()).expand(row.weight.shape)
    else:
        step = torch.where(row.used, episode_step, torch.zeros_like(episode_step)).reshape(-1)
        size = returns.shape[0]
        baseline = _ratio(_group_sum(row.weighted, step, size), _group_sum(row.weight, step, size))[step]
    return row.finish(baseline)


def leave_one_out(
    returns: Tensor,
    episode_id: Tensor,
    episode_step: Tensor,
    scope: str = "scalar",
    weight: Tensor | None = None,
) -> Tensor:
    """Mean return over all OTHER episodes of the batch: unbiased, as it does not know the row's own episode.

    scalar: b_{−i}   = Σ_{j≠i} Σ_t w G_{j,t} / Σ_{j≠i} Σ_t w        over all used steps of the other episodes
    step:   b_{−i,t} = Σ_{j≠i, L_j>t} w G_{j,t} / Σ_{j≠i, L_j>t} w      over the others that reach step t

    The whole EPISODE is left out, not just the step: its steps share randomness. 0 where no other episode
    is there (N = 1, or no other reaches t): no baseline is unbiased as well. For N equally long episodes
    G_i − b_{−i} = N/(N−1) · (G_i − mean), the pooled mean without its shrink.

    Args, returns, raises: as for `mean`; the memory needed is that of a few [T, N] arrays.
    Source: Kool, van Hoof & Welling 2019, "Buy 4 REINFORCE samples, get a baseline for free!", eq. 8.
    """
    row = _Rows(returns, episode_id, weight)
    if _check(scope) == "scalar":
        # There are no more episodes than rows, so T·N bins suffice and no size has to be read back from a GPU.
        own = torch.where(row.used, episode_id, torch.zeros_like(episode_id)).reshape(-1)
        size = returns.numel()
        total, total_weight, total_count = row.weighted.sum(), row.weight.sum(), row.counted.sum()
        own_sum = _group_sum(row.weighted, own, size)[own]
        own_weight = _group_sum(row.weight, own, size)[own]
        own_count = _group_sum(row.counted, own, size)[own]
    else:
        step = torch.where(row.used, episode_step, torch.zeros_like(episode_step)).reshape(-1)
        size = returns.shape[0]
        total = _group_sum(row.weighted, step, size)[step]
        total_weight = _group_sum(row.weight, step, size)[step]
        total_count = _group_sum(row.counted, step, size)[step]
        own_sum, own_weight, own_count = row.weighted, row.weight, row.counted  # one row per episode and step
    baseline = _ratio(total - own_sum, total_weight - own_weight)
    # Whether others are there is counted, not concluded from a difference of weights, which rounds.
    return row.finish(torch.where(total_count > own_count, baseline, torch.zeros_like(baseline)))


class _Rows:
    """The [T, N] rows flattened to [T·N]: what to sum, with zeros in unused rows."""

    def __init__(self, returns: Tensor, episode_id: Tensor, weight: Tensor | None) -> None:
        check_same_shape(returns=returns, episode_id=episode_id, weight=weight)
        self.returns = returns
        self.used = episode_id >= 0
        # Sums less an own part lose digits: float64, where the device has it.
        dtype = torch.float32 if returns.device.type == "mps" else torch.float64
        weights = torch.ones_like(returns) if weight is None else weight
        used_weight = torch.where(self.used, weights, torch.zeros_like(weights)).to(dtype)
        clean = torch.where(self.used, returns, torch.zeros_like(returns)).to(dtype)
        self.weight = used_weight.reshape(-1)
        self.weighted = (used_weight * clean).reshape(-1)
        self.counted = (used_weight > 0).to(dtype).reshape(-1)

    def finish(self, baseline: Tensor) -> Tensor:
        """[T·N] → [T, N] in the dtype of the returns, 0 in unused rows."""
        baseline = baseline.reshape(self.used.shape).to(self.returns.dtype)
        return torch.where(self.used, baseline, torch.zeros_like(baseline))


def _group_sum(x: Tensor, group: Tensor, size: int) -> Tensor:
    """Sum of the x [M] of each group [M]; [size]."""
    return torch.zeros(size, dtype=x.dtype, device=x.device).index_add(0, group, x)


def _ratio(top: Tensor, bottom: Tensor) -> Tensor:
    """top / bottom, 0 where there is nothing to divide by."""
    there = bottom > 0
    top = torch.where(there, top, torch.zeros_like(top))
    return top / torch.where(there, bottom, torch.ones_like(bottom))


def _check(scope: str) -> str:
    if scope not in SCOPES:
        raise ValueError(f"baseline scope must be one of {', '.join(SCOPES)}, got {scope!r}")
    return scope
