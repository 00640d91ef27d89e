"""The gradient of each sample's log π, ∇log π(a|o), instead of their sum: as they are, or what is asked of them.

How do I get unaggregated gradients, to compute the variance-optimal baseline? For single steps with their returns:

    scores = pgtrain.per_sample.gradients(policy, obs, action)      # [B, P]: a row for each sample, nothing summed
    weight = pgtrain.per_sample.squared_norms(policy, obs, action)  # [B] = |score|², without making [B, P]
    baseline = (weight * returns).sum() / weight.sum()              # b* = E[|s|² R] / E[|s|²]
    gradient = (scores * (returns - baseline)[:, None]).mean(0)

The weight is the squared norm of the score ALONE. A common mistake is to multiply the score by the return before it is
squared, b = E[|s|²R²·R] / E[|s|²R²]: that is no optimal baseline, and often raises the variance above that of none.
Whole episodes have one score, the sum over their steps; its norm is not the sum of the steps' norms. Say which step
belongs to which: `squared_norms(policy, obs, action, episode=episode_id)` [E]. `pgtrain.learning.optimal_baselines`
has the baselines (with fits that leave the gradient unbiased, which the pooled one above does not).

`policy` is pgtrain's, with observations as the env gives them, or any module together with a function
`log_prob(policy, obs, action)` → [B] in which a sample's number depends on its own row alone. `.grad` stays as it is.

Dimension legend: B samples (steps), E episodes, L steps of the longest episode, P parameters in the order of
`policy.parameters()`; columns of parameters that log π does not depend on (a critic's) are 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pgtrain.learning import layer_gradients
from pgtrain.learning.sample_blocks import Blocks
from pgtrain.learning.score_capture import LogProb

MEMORY_LIMIT = 256 * 2**20  # bytes of working memory, beside the result


@torch.no_grad()
def gradients(
    policy: nn.Module,
    obs: Tensor,
    action: Tensor,
    *,
    log_prob: LogProb | None = None,
    episode: Tensor | None = None,
    weight: Tensor | None = None,
    prepared: bool = False,
    memory_limit: int = MEMORY_LIMIT,
) -> Tensor:
    """The scores s_b = ∇log π(a_b|o_b), [B, P]; of whole episodes Z_e = Σ_{b in e} w_b s_b, [E, P].

    Args:
        policy: pgtrain's, or any module if `log_prob` is given. obs: [B, …]. action: [B, …], the policy's own variable.
        log_prob: (policy, obs, action) → log π [B]. episode: [B] int64, 0 … E−1, −1 for rows to leave out.
        weight: [B] factor of each score (γᵗ, an advantage), None for 1. prepared: observations are standardised
        already, as a rollout's `inputs`. memory_limit: bytes beside the result; work is done in parts below it.
    Raises: ValueError for shapes that do not fit, a module without `log_prob`, and batch normalisation in training.
    """
    call = Blocks.of(policy, obs, action, log_prob, episode, weight, prepared, memory_limit)
    out = obs.new_zeros(call.results, call.scorer.width, dtype=call.dtype)
    for index, rows in call.blocks(lambda length: 2 * call.scorer.width):
        for r in rows:
            call.scorer.place(r, out, at=index)
    return out


@torch.no_grad()
def squared_norms(
    policy: nn.Module,
    obs: Tensor,
    action: Tensor,
    *,
    log_prob: LogProb | None = None,
    episode: Tensor | None = None,
    weight: Tensor | None = None,
    prepared: bool = False,
    memory_limit: int = MEMORY_LIMIT,
) -> Tensor:
    """|s_b|² [B], or |Z_e|² [E] of whole episodes; arguments as for `gradients`.

    No gradient is stored for Linear, Conv2d, Embedding and LayerNorm layers and small free parameters (a log σ):
    memory is that of a forward pass, time below that of an ordinary backward pass.
    """
    call = Blocks.of(policy, obs, action, log_prob, episode, weight, prepared, memory_limit)
    out = obs.new_zeros(call.results, dtype=call.dtype)
    for index, rows in call.blocks(lambda length: 2 * length**2):
        if rows:
            out[index] = sum(r.squared_norms() for r in rows)
    return out


@torch.no_grad()
def grams(
    policy: nn.Module,
    obs: Tensor,
    action: Tensor,
    episode: Tensor,
    *,
    log_prob: LogProb | None = None,
    weight: Tensor | None = None,
    prepared: bool = False,
    memory_limit: int = MEMORY_LIMIT,
) -> Tensor:
    """Inner products of an episode's step scores, K[e, t, u] = (w_t s_t)·(w_u s_u), [E, L, L], 0 past an episode's end.

    Steps are numbered in the order of an episode's rows. Arguments as for `gradients`.
    """
    call = Blocks.of(policy, obs, action, log_prob, episode, weight, prepared, memory_limit)
    longest = int(call.lengths.max()) if call.results else 0
    out = obs.new_zeros(call.results, longest, longest, dtype=call.dtype)
    for index, rows in call.blocks(lambda length: 4 * length**2):
        length = int(call.lengths[index].max())
        if rows and length:
            out[index, :length, :length] = torch.stack([r.gram(length) for r in rows]).sum(0)
    return out


@torch.no_grad()
def products(
    policy: nn.Module,
    obs: Tensor,
    action: Tensor,
    episode: Tensor,
    weights: Tensor,
    *,
    log_prob: LogProb | None = None,
    prepared: bool = False,
    memory_limit: int = MEMORY_LIMIT,
) -> Tensor:
    """Inner products of an episode's K weighted scores, Z^k = Σ_t w^k_t s_t: weights [K, B] → Z^k·Z^l [E, K, K].

    With weights 1 and G_t this gives |Z|², Z·Y and |Y|² of the reward-to-go estimate Y = Σ_t G_t s_t, without
    storing Z or Y. Other arguments as for `gradients`.
    """
    call = Blocks.of(policy, obs, action, log_prob, episode, None, prepared, memory_limit)
    k = len(weights)
    out = obs.new_zeros(call.results, k, k, dtype=call.dtype)
    for index, rows, factor in call.weighted(lambda length: 2 * (k * length) ** 2, weights):
        if rows:
            out[index] = layer_gradients.products(rows, factor)
    return out


class Moments(NamedTuple):
    """Sums over samples (or episodes) i: all that pooled baselines need."""

    count: int
    score: Tensor  # Σ s_i [P]
    score_return: Tensor  # Σ R_i s_i [P]
    square: Tensor  # Σ s_i² [P]
    square_return: Tensor  # Σ R_i s_i² [P]
    norm: Tensor  # Σ |s_i|², 0-d
    norm_return: Tensor  # Σ R_i |s_i|², 0-d


@torch.no_grad()
def moments(
    policy: nn.Module,
    obs: Tensor,
    action: Tensor,
    returns: Tensor,
    *,
    log_prob: LogProb | None = None,
    episode: Tensor | None = None,
    weight: Tensor | None = None,
    prepared: bool = False,
    memory_limit: int = MEMORY_LIMIT,
) -> Moments:
    """The sums over the batch, part by part, with `returns` [B] (or [E]). [B, P] is never held.

    For single steps, layers' squares come from Σ_b s_b² = (Δ²)ᵀ X², at the cost of an ordinary backward pass.
    """
    call = Blocks.of(policy, obs, action, log_prob, episode, weight, prepared, memory_limit)
    if returns.shape != (call.results,):
        raise ValueError(
            f"returns must be [{call.results}], one a sample or an episode, got {list(returns.shape)}"
        )
    both = torch.stack([torch.ones_like(returns), returns]).to(call.dtype)  # [2, n]
    first = obs.new_zeros(2, call.scorer.width, dtype=call.dtype)
    second = torch.zeros_like(first)
    norm = obs.new_zeros(2, dtype=call.dtype)
    for index, rows in call.blocks(lambda length: 3 * call.scorer.width if episode is not None else 0):
        for r in rows:
            for total, part in zip((first, second), r.sums(both[:, index]), strict=True):
                added = torch.zeros_like(total)
                call.scorer.place(r, added, part)
                total += added
            norm += both[:, index] @ r.squared_norms()
    return Moments(call.results, first[0], first[1], second[0], second[1], norm[0], norm[1])
