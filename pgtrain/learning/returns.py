"""Discounted returns, n-step returns, TD errors, GAE and λ-returns as pure functions.

Dimensions: T steps of time first, then N envs (any trailing shape works, also none: [T]).
Time index t = 0 … T−1. Every function is differentiable in its float inputs, writes nothing in place,
keeps the dtype and device of its inputs and never waits for a GPU. On a CPU, where no gradient is asked for,
NumPy does the same arithmetic with a tenth of the overhead: at 40 rows an operation costs more than its numbers.

Names, for step t: `reward` r_t; `value` V(o_t); `next_value` V of the TRUE successor of step t, the
observation before any reset; `terminated`: the problem ended, what follows is worth 0; `truncated`: a
limit cut the episode, what follows is worth `next_value`. Where both are set, terminated wins.
done = terminated | truncated stops every sum. The window's last row is no end: it bootstraps.

    V(o_t) = value[t] ── a_t, r_t = reward[t] ──▶ successor, worth next_value[t] (0 if terminated[t])
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.forward_ad import unpack_dual

from pgtrain.learning.host import scan
from pgtrain.learning.shapes import check_same_shape


def discounted_sum(x: Tensor, decay: Tensor | float) -> Tensor:
    """Backward discounted sum, the one recursion under all returns.

    y_t = x_t + decay_t · y_{t+1},   y_T = 0,   t = T−1 … 0

    Not a loop over T: rows are joined in pairs, then fours, …, log₂ T times. After the pass with step s,
    y_t holds the terms t … t+2s−1 and c_t = decay_t ⋯ decay_{t+2s−1} is what the rest must be weighed with.
    Rounding errors of the sums grow with log T, too, and the products of γ are taken in float64 (where the device
    has it), so that float32 rewards are summed to float32's precision over thousands of steps.

    Args:
        x: [T, …] what is summed.
        decay: [T, …] or a number; decay_t weighs row t+1 in row t: γ inside an episode, 0 at its last step.
            decay_{T−1} has no effect.
    Returns: [T, …].
    Source: Hillis & Steele 1986, "Data parallel algorithms" (scan by doubling); Blelloch 1990, §1.4 (recurrences).
    """
    steps = x.shape[0]
    weights = decay.to(_wide(x)) if isinstance(decay, Tensor) else x.new_full((), decay, dtype=_wide(x))
    weights = weights.expand(x.shape)
    if _on_host(x, weights):
        return torch.from_numpy(scan.discounted_sum(x.numpy(), weights.numpy()))
    y, c, step = x, weights[:-1], 1
    while step < steps:
        y = torch.cat([y[:-step] + c.to(y.dtype) * y[step:], y[-step:]])
        c = c[:-step] * c[step:]  # rows t with t + 2·step < T, the only ones with a partner in the next pass
        step *= 2
    return y


def reward_to_go(
    rewards: Tensor, gamma: float, done: Tensor | None = None, bootstrap: Tensor | None = None
) -> Tensor:
    """Discounted return from each step on (Monte-Carlo return, reward-to-go).

    G_t = r_t + γ · (1 − done_t) · G_{t+1},   G_T = 0,   t = T−1 … 0

    The rewards may be part of a graph, as in a differentiable simulator. Collect them in a list, stack them
    once, and backpropagate through the result; writing `returns[t] = …` into a preallocated tensor is what
    raises "modified by an inplace operation". Nothing is written in place here, so this just works:

        rewards = []
        for _ in range(horizon):
            obs, reward = env_step(obs, policy(obs))     # differentiable in the action
            rewards.append(reward)                       # each [N]
        returns = reward_to_go(torch.stack(rewards), gamma=0.99)   # [T, N]
        (-returns[0].mean()).backward()                  # ascends E[Σ γᵗ r_t]

    Args:
        rewards: [T, …] (lists, NumPy arrays and whole numbers are converted).
        gamma: discount γ in [0, 1].
        done: [T, …] True (or 1) at an episode's last step; None: one episode.
        bootstrap: what follows a cut is worth, as [T, …]: read at done rows and at the last row only, so put 0
            where the problem terminated. Or of the shape of one row: the worth of what follows the last row.
            None: nothing follows. At a time limit or at the end of a window that is too little, i.e. biased.
    Returns: [T, …] like `rewards`.
    Raises: ValueError when shapes differ.
    Source: Williams 1992 (REINFORCE); Sutton & Barto 2018, eq. 3.9.
    """
    rewards = torch.as_tensor(rewards)
    if not rewards.is_floating_point():
        rewards = rewards.to(torch.get_default_dtype())
    ends = _flags(done, rewards)
    cut = ends | _last_row(rewards)
    if bootstrap is not None:
        if bootstrap.shape == rewards.shape[1:]:
            bootstrap = torch.where(_last_row(rewards) & ~ends, bootstrap, torch.zeros_like(rewards))
        check_same_shape(rewards=rewards, bootstrap=bootstrap)
        rewards = rewards + gamma * torch.where(cut, bootstrap, torch.zeros_like(bootstrap))
    return discounted_sum(rewards, gamma * (~cut).to(_wide(rewards)))


def total_return(
    rewards: Tensor,
    gamma: float,
    done: Tensor | None = None,
    bootstrap: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """The whole discounted return of its episode, at each of the episode's steps.

    R_t = G_{t₀} = Σ_{k=t₀} γ^{k−t₀} r_k,   t₀ = first step of t's episode in this window

    REINFORCE's original weight: Σ_t ∇log π(a_t|o_t) · R is unbiased, without a γᵗ, as R is discounted from
    the episode's first step; its variance is above that of `reward_to_go`, which drops what a_t cannot change.

    Args, raises: as for `reward_to_go`, and
        weight: [T, …] 0 for rows that are no transition: a reset row between two episodes is not the second
            one's first step. None: all rows are.
    Returns: [T, …].
    Source: Williams 1992, eq. 11 (episodic REINFORCE).
    """
    rewards = torch.as_tensor(rewards)
    ends = _flags(done, rewards)
    if weight is not None:
        check_same_shape(rewards=rewards, weight=weight)
        ends = ends | (weight == 0)  # an unused row is an episode of its own
    returns = reward_to_go(rewards, gamma, ends, bootstrap)
    starts = torch.cat([torch.ones_like(ends[:1]), ends[:-1]])
    row = _row_index(returns).expand(returns.shape)
    first_row = torch.where(starts, row, torch.zeros_like(row)).cummax(dim=0).values  # t₀ of each row
    return returns.gather(0, first_row)


def td_error(reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """One-step temporal-difference error.

    δ_t = r_t + γ · (1 − terminated_t) · next_value_t − value_t,   t = 0 … T−1

    Args: all [T, …]; `next_value` of the true successor (of the final observation at a time limit); where
        `terminated` it is not read at all, it may be NaN there.
    Returns: [T, …]; the advantage of one-step actor-critic, and GAE at λ = 0.
    Raises: ValueError when shapes differ.
    Source: Sutton & Barto 2018, eq. 6.5; Pardo et al. 2018, "Time limits in reinforcement learning", eq. 6.
    """
    check_same_shape(reward=reward, value=value, next_value=next_value, terminated=terminated)
    return reward + gamma * _alive_value(next_value, terminated) - value


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Generalised advantage estimation.

    A_t = δ_t + γ λ (1 − done_t) A_{t+1},   A_T = 0,   δ_t = `td_error`,   t = T−1 … 0

    λ = 0 is the one-step TD error (least variance, all of the critic's bias); λ = 1 the bootstrapped
    Monte-Carlo return minus V (no bias from the critic inside an episode, most variance).

    Args: all [T, …] as in the module's text; `gamma` γ and `lam` λ in [0, 1].
    Returns: [T, …]. Raises: ValueError when shapes differ.
    Source: Schulman et al. 2016, eq. 16, with the sum stopped at every done.
    """
    check_same_shape(
        reward=reward, value=value, next_value=next_value, terminated=terminated, truncated=truncated
    )
    terminated, truncated = terminated.bool(), truncated.bool()
    if _on_host(reward, value, next_value):
        r, v, after, ended, cut = (x.numpy() for x in (reward, value, next_value, terminated, truncated))
        return torch.from_numpy(scan.gae(r, v, after, ended, cut, gamma, lam))
    delta = td_error(reward, value, next_value, terminated, gamma)
    return discounted_sum(delta, gamma * lam * (~(terminated | truncated)).to(_wide(delta)))


def lambda_return(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """TD(λ) value target.

    G^λ_t = A_t(λ) + V_t = r_t + γ ((1 − λ) V_{t+1} + λ G^λ_{t+1}) inside an episode,   t = T−1 … 0

    Equals (1−λ) Σ_{k<K} λ^{k−1} G^{(k)}_t + λ^{K−1} G^{(K)}_t over the k-step returns, K = steps to the end of
    the episode or window; the recursion also holds at λ = 1, where dividing by (1 − λ) would not.

    Args, returns, raises: as for `gae`.
    Source: Sutton & Barto 2018, eq. 12.3 and 12.18.
    """
    return gae(reward, value, next_value, terminated, truncated, gamma, lam) + value


def n_step_return(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, n: int
) -> Tensor:
    """n-step bootstrapped return.

    Q_t = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated_{t+m−1}) next_value_{t+m−1},   m = min(n, steps to the cut)

    A cut is a done, or the window's last row: there fewer terms are summed, and what follows is bootstrapped
    unless terminated. Doubling again: sums of a and b steps join into one of a + b, so log₂ n passes suffice.

    Args: all [T, …] as in the module's text; `n` ≥ 1 (n = 1: r + γ · next_value; n ≥ T: `reward_to_go` with bootstrap).
    Returns: [T, …]. Raises: ValueError when shapes differ or n < 1.
    Source: Sutton & Barto 2018, eq. 7.1.
    """
    if n < 1:
        raise ValueError(f"n must be 1 or more, got {n}")
    check_same_shape(reward=reward, next_value=next_value, terminated=terminated, truncated=truncated)
    alive_value = _alive_value(next_value, terminated)
    cut = terminated.bool() | truncated.bool() | _last_row(reward)
    block = reward + gamma * torch.where(cut, alive_value, torch.zeros_like(alive_value))
    block_decay = gamma * (~cut).to(_wide(reward))
    # `total` sums the `length` steps from t on, `decay` is their product of γ; `block` the next power of two.
    total, decay, length = torch.zeros_like(reward), torch.ones_like(block_decay), 0
    remaining, block_length = min(n, reward.shape[0]), 1
    while remaining:
        if remaining & block_length:
            total = total + decay.to(total.dtype) * _ahead(block, length)
            decay = decay * _ahead(block_decay, length)
            length += block_length
            remaining -= block_length
        block = block + block_decay.to(block.dtype) * _ahead(block, block_length)
        block_decay = block_decay * _ahead(block_decay, block_length)
        block_length *= 2
    after = _ahead(
        alive_value, max(length - 1, 0)
    )  # `decay` is 0 where the sum met a cut: its `block` had it
    return total + decay.to(total.dtype) * after


def _on_host(*tensors: Tensor) -> bool:
    """Whether NumPy may take over: numbers on a CPU that no graph and no transform of torch.func follows."""
    return all(
        x.is_cpu
        and not (x.requires_grad or is_functorch_wrapped_tensor(x))
        and unpack_dual(x).tangent is None
        for x in tensors
    )


def _flags(done: Tensor | None, rewards: Tensor) -> Tensor:
    """`done` as bool [T, …]; None: nothing ends."""
    if done is None:
        return torch.zeros_like(rewards, dtype=torch.bool)
    flags = torch.as_tensor(done, device=rewards.device).bool()
    check_same_shape(rewards=rewards, done=flags)
    return flags


def _alive_value(next_value: Tensor, terminated: Tensor) -> Tensor:
    """`next_value`, 0 where terminated (by selection: 0 · NaN would be NaN)."""
    return torch.where(terminated.bool(), torch.zeros_like(next_value), next_value)


def _wide(x: Tensor) -> torch.dtype:
    """float64, but for devices without it. γ = 0.999 rounded to float32 is off by 3e-5 of γ¹⁰⁰⁰."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def _ahead(x: Tensor, steps: int) -> Tensor:
    """Row t + steps in row t, 0 past the end."""
    return torch.cat([x[steps:], torch.zeros_like(x[:steps])])


def _row_index(x: Tensor) -> Tensor:
    """t as int64, [T, 1, …]."""
    return torch.arange(x.shape[0], device=x.device).view(-1, *[1] * (x.ndim - 1))


def _last_row(x: Tensor) -> Tensor:
    """True in row T−1, bool [T, 1, …]."""
    return _row_index(x) == x.shape[0] - 1
