"""Baselines of least variance, from scores (or their squared norms) and returns of whole episodes.

An estimate of ∇J is g = Σ_t Z_t (G_t − b_t), a sum over an episode's steps; the batch's gradient is the mean of g over
its episodes. A baseline b of least variance minimises E|g|², and weighs returns by squared scores:

    scalar      b   = E[|Z|² R] / E[|Z|²],  Z = Σ_t s_t          `scalar(|Z|², R)`
    parameter   b_h = E[Z_h² R] / E[Z_h²]                       `scalar(Z², R)`
    shared      b   = E[Z·Y] / E[|Z|²],  Y = Σ_t Z_t G_t         `ratio(Z·Y, |Z|²)`: one b for all steps
    step        b_t = E[|Z_t|² G_t] / E[|Z_t|²]                 `scalar(|Z_t|², G)`: as if steps were unrelated
    joint       M b = v,  M_tu = E[Z_t·Z_u],  v_t = E[Z_t·Y]     `joint(Z_t·Z_u, G)`: the optimum over all b_t

With the return of the whole episode R, Z_t = s_t = ∇log π(a_t|o_t); with rewards to go G_t, Z_t = γᵗ s_t is the exact
gradient and s_t the usual practice. G(PO)MDP puts C_l = Σ_{k≤l} s_k in place of Z_t and γˡ r_l in place of G_t: the
same functions serve. C_l keeps its last value after an episode's end (`cumulative`): to mask it there biases the
gradient, as being alive depends on earlier actions. To correct a value baseline give G_t − V(o_t) for G_t.

A baseline must not know the episode that it is used in: its `fit` says from which episodes' sums it comes. Where the
weights of those sum to 0 (a dead layer, a step that nobody reaches, a single episode left out) b is 0.

Dimension legend: E episodes (the first dimension everywhere), L steps, H parameters.
Source: Greensmith, Bartlett & Baxter 2004, §4; Peters & Schaal 2008, eqs. 11 and 18; Weaver & Tao 2001.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Fit = Callable[
    ..., tuple[Tensor, ...]
]  # terms [E, …] → their sums over the episodes that each one learns from


def pooled(*terms: Tensor) -> tuple[Tensor, ...]:
    """Sums over all episodes, the episode itself among them: [1, …]. Biases the gradient by O(1/E)."""
    return tuple(x.sum(0, keepdim=True) for x in terms)


def leave_one_out(*terms: Tensor) -> tuple[Tensor, ...]:
    """Sums over all OTHER episodes, [E, …]: unbiased.

    Made of the sums before and after an episode, not of the total less its own: that difference would be rounding
    noise where one episode outweighs all others.
    """
    return tuple(_before(x) + _before(x.flip(0)).flip(0) for x in terms)


def split(*terms: Tensor) -> tuple[Tensor, ...]:
    """Episodes of even number learn from those of odd number, and the other way round, [E, …]: unbiased."""
    found = []
    for x in terms:
        both = torch.stack([x[1::2].sum(0), x[::2].sum(0)])
        found.append(both[torch.arange(len(x), device=x.device) % 2])
    return tuple(found)


FITS: dict[str, Fit] = {"leave_one_out": leave_one_out, "split": split, "pooled": pooled}


class PreviousBatch:
    """Sums over the batch before: unbiased given that batch, 0 in the first one.

    For terms of steps, both batches need not be of one length: steps that the batch before did not reach have sum 0,
    and those that today's arrays do not have are left out. (G(PO)MDP needs these: give it arrays that are as long as
    an episode may be.)
    """

    def __init__(self) -> None:
        self.sums: list[Tensor] = []

    def __call__(self, *terms: Tensor) -> tuple[Tensor, ...]:
        before = self.sums or [torch.zeros_like(x[:1]) for x in terms]
        self.sums = [x.sum(0, keepdim=True).detach() for x in terms]
        return tuple(_like(old, x) for old, x in zip(before, terms, strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums = list(state["sums"])


def make_fit(name: str) -> Fit:
    """By name: leave_one_out, split, pooled or previous_batch (which is a new object of its own state)."""
    if name == "previous_batch":
        return PreviousBatch()
    if name not in FITS:
        raise ValueError(f"fit must be one of {', '.join([*FITS, 'previous_batch'])}, got {name!r}")
    return FITS[name]


def scalar(
    square: Tensor, returns: Tensor, fit: Fit = leave_one_out, probability: Tensor | None = None
) -> Tensor:
    """b = Σ w R / Σ w over the episodes of the fit, with w the squared score, entry by entry.

    Args: square [E, …] of any kind: |Z|² [E], Z² [E, H], |Z_t|² [E, L], Z_t² [E, L, H]. returns: [E], [E, L], … as
        many dimensions as serve; missing ones at the end are shared. probability: [E] weight of each episode, None: 1.
    Returns: [E, …] or, for fits that are the same for all, [1, …]; within the range of the returns, 0 where Σ w = 0.
    """
    returns = returns.reshape(*returns.shape, *[1] * (square.dim() - returns.dim()))
    return ratio(square * returns, square, fit, probability)


def ratio(top: Tensor, bottom: Tensor, fit: Fit = leave_one_out, probability: Tensor | None = None) -> Tensor:
    """b = Σ top / Σ bottom over the episodes of the fit, 0 where Σ bottom = 0; [E, …] each."""
    up, down = fit(_weighted(top, probability), _weighted(bottom, probability))
    there = down > 0
    return torch.where(there, up, torch.zeros_like(up)) / torch.where(there, down, torch.ones_like(down))


def joint(
    gram: Tensor,
    returns: Tensor,
    fit: Fit = leave_one_out,
    probability: Tensor | None = None,
    prior: float = 0.0,
) -> Tensor:
    """The per-step baselines that minimise E|Σ_t Z_t (G_t − b_t)|² together: the least-norm solution of M b = v.

    M is singular where no episode reaches a step (b_t = 0 there) or episodes are fewer than steps; then this fits the
    noise of those few. `prior` episodes more, whose scores are unrelated from step to step (as they are in the mean)
    and whose returns are those of the baseline `step`, hold it down: with k of them,

        M_tt ← M_tt + k D_t,   v_t ← v_t + k D_t b_t(step),   D_t = the mean of |Z_t|² where step t is reached

    Args: gram [E, L, L] or, one problem a parameter, [E, H, L, L]: Z_t·Z_u. returns: [E, L].
    Returns: [E or 1, (H,) L]. Source: the normal equations; Z_t and Z_u are uncorrelated, so E[M] is diagonal.
    """
    target = returns if gram.dim() == 3 else returns[:, None]
    v = (gram @ target[..., None]).squeeze(-1)
    square = gram.diagonal(dim1=-2, dim2=-1)
    terms = (gram, v, square * target, (square > 0).to(gram.dtype))
    m, v, top, count = (double(x) for x in fit(*(_weighted(x, probability) for x in terms)))
    unit = prior / torch.where(count > 0, count, torch.ones_like(count))
    m = m + torch.diag_embed(unit * m.diagonal(dim1=-2, dim2=-1))
    v = v + unit * top
    m = m.nan_to_num(0.0, 0.0, 0.0)  # eigh raises for a NaN; it comes through in v
    size = m.diagonal(dim1=-2, dim2=-1).amax(-1)[
        ..., None, None
    ]  # the scale is taken out: 1e±30 must do as well
    scale = torch.where(size > 0, size, torch.ones_like(size))
    values, vectors = torch.linalg.eigh(m / scale)
    kept = values > m.shape[-1] * 1e-12
    inverse = torch.where(kept, 1 / torch.where(kept, values, torch.ones_like(values)), 0.0)
    solved = vectors @ (inverse[..., None] * (vectors.mT @ (v[..., None] / scale)))
    return solved.squeeze(-1).to(returns.dtype)


def cumulative(gram: Tensor) -> Tensor:
    """Products of cumulative scores C_l·C_m from those of step scores, [E, …, L, L], zero past an episode's end."""
    return gram.cumsum(-1).cumsum(-2)


def gpomdp_advantage(rewards: Tensor, baseline: Tensor) -> Tensor:
    """Step weights of G(PO)MDP: Σ_l C_l (γˡ r_l − b_l) = Σ_t s_t A_t with A_t = Σ_{l≥t} (γˡ r_l − b_l), [E, L].

    rewards: [E, L] γˡ r_l, 0 past the end. baseline: [E or 1, L]; it counts past an episode's end as well.
    """
    return (rewards - baseline).flip(-1).cumsum(-1).flip(-1)


def return_weighted(square: Tensor, returns: Tensor, probability: Tensor | None = None) -> Tensor:
    """A common mistake, here to be shown: the score multiplied by the return BEFORE it is squared.

    b = E[|s|² R² · R] / E[|s|² R²]. No variance is least at it; on the Gaussian bandit it exceeds that of b = 0.
    """
    returns = returns.reshape(*returns.shape, *[1] * (square.dim() - returns.dim()))
    return ratio(square * returns.square() * returns, square * returns.square(), pooled, probability)


def double(x: Tensor) -> Tensor:
    return x if x.device.type == "mps" else x.to(torch.float64)


def _weighted(x: Tensor, probability: Tensor | None) -> Tensor:
    return x if probability is None else x * probability.reshape(-1, *[1] * (x.dim() - 1))


def _before(x: Tensor) -> Tensor:
    """Σ over the episodes before each."""
    return torch.cat([torch.zeros_like(x[:1]), x[:-1]]).cumsum(0)


def _like(old: Tensor, new: Tensor) -> Tensor:
    """Sums [1, …] cut or filled up with zeros to the shape of terms [E, …]."""
    out = torch.zeros_like(new[:1])
    common = tuple(slice(min(a, b)) for a, b in zip(old.shape, out.shape, strict=True))
    out[common] = old[common].to(out)
    return out
