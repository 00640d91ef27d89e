"""Pathwise gradients: the return of a window of a differentiable env, to be climbed by backpropagation.

Dimensions: T steps of time first, then N envs. The rewards (and the values at the cuts) carry their graph; nothing is
written in place and nothing loops over time or over the ends of episodes. The names are those of `returns.py`:
`next_value[t]` is the value of step t's true successor, ignored where `terminated`.

A window falls into segments, cut at each done and at its last row. The discount starts anew in each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pgtrain.learning.returns import discounted_sum, reward_to_go
from pgtrain.learning.shapes import check_same_shape


def segment_starts(done: Tensor) -> Tensor:
    """bool [T, N]: the first row, and each row after a done."""
    return torch.cat([torch.ones_like(done[:1]), done[:-1]])


def segment_step(done: Tensor) -> Tensor:
    """Steps since the segment's first, int64 [T, N]: t − t₀."""
    row = torch.arange(done.shape[0], device=done.device).unsqueeze(-1).expand(done.shape)
    return row - torch.where(segment_starts(done), row, torch.zeros_like(row)).cummax(dim=0).values


def segment_return(
    reward: Tensor, next_value: Tensor | None, terminated: Tensor, truncated: Tensor, gamma: float
) -> Tensor:
    """Discounted return from each step to its segment's end, and what follows there by the critic.

    G_t = r_t + γ G_{t+1} inside a segment;   at its last row r_t + γ V̄_t, V̄ = 0 where terminated, else next_value_t

    Args: reward [T, N] and next_value [T, N] with their graphs (None: nothing follows a cut, as if it were an end).
    Returns: [T, N] with graph. Raises: ValueError when shapes differ. Source: Xu et al. 2022 (SHAC), eq. 4.
    """
    done = terminated | truncated
    if next_value is None:
        return reward_to_go(reward, gamma, done)
    check_same_shape(reward=reward, next_value=next_value, terminated=terminated)
    value = torch.where(terminated, torch.zeros_like(next_value), next_value).to(reward.dtype)
    return reward_to_go(reward, gamma, done, value)


def pathwise_loss(
    segment_returns: Tensor,
    done: Tensor,
    weight: Tensor | None = None,
    denominator: Tensor | float | None = None,
) -> Tensor:
    """The actor's loss, 0-d: minus the returns of all segments, each taken at its first row.

    L = −(1/D) Σ_{t₀ starts a segment} G_{t₀},   D = denominator or Σ w, the steps of the window

    With `segment_return`'s next_value from the target critic this is SHAC's loss; without, it is backpropagation
    through time (BPTT) over whole episodes, or over windows that are blind beyond their end. D = number of episodes
    makes it the mean return. `weight` [T, N] is 0 for rows that are no transition; they must come last in a segment.
    Source: Xu et al. 2022 (SHAC), eq. 4; Werbos 1990 (BPTT).
    """
    check_same_shape(segment_returns=segment_returns, done=done, weight=weight)
    first = segment_starts(done)
    if weight is not None:
        first = first & (weight > 0)
        denominator = weight.sum() if denominator is None else denominator
    count = segment_returns.numel() if denominator is None else denominator
    return -torch.where(first, segment_returns, torch.zeros_like(segment_returns)).sum() / count


def td_lambda_target(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, lam: float
) -> Tensor:
    """What the critic is to learn, from the target critic's values alone.

    G_t = r_t + γ ((1 − λ) V̄_t + λ G_{t+1}) inside a segment;   r_t + γ V̄_t at its last row;   V̄ as in `segment_return`

    The recursion holds at λ = 1, too, where the form that divides by (1 − λ) does not. Not a part of any graph.
    Args: all [T, N]. Returns: [T, N]. Source: Xu et al. 2022 (SHAC), eq. 7; Sutton & Barto 2018, eq. 12.18.
    """
    reward, next_value = reward.detach(), next_value.detach().to(reward.dtype)
    check_same_shape(reward=reward, next_value=next_value, terminated=terminated, truncated=truncated)
    done = terminated | truncated
    cut = torch.cat([done[:-1], torch.ones_like(done[-1:])])
    value = torch.where(terminated, torch.zeros_like(next_value), next_value)
    going = (~cut).to(torch.float32 if reward.device.type == "mps" else torch.float64) * lam
    return discounted_sum(reward + gamma * (1 - going).to(reward.dtype) * value, gamma * going)


@torch.no_grad()
def follow(target: Tensor, source: Tensor, alpha: float) -> None:
    """w' ← α w' + (1 − α) w: the target critic's parameters follow the critic's (in place, outside any graph)."""
    target.lerp_(source, 1 - alpha)


def safe_norm(grad: Tensor) -> Tensor:
    """‖g‖, 0-d, without overflow: 10²⁵ is a float32 whose square is not. A NaN or infinity in g comes out as one."""
    largest = grad.abs().amax().clamp(min=torch.finfo(grad.dtype).tiny)
    return torch.linalg.vector_norm(grad / largest) * largest


def limit_norm(grad: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor]:
    """g scaled to a norm of at most `max_norm` (None: as it is), and its norm before."""
    norm = safe_norm(grad)
    if max_norm is None:
        return grad, norm
    return grad * (max_norm / (norm + 1e-6)).clamp(max=1.0), norm


def norms_through_time(tensors: Sequence[Tensor]) -> Tensor:
    """‖∂L/∂x_t‖ for tensors x_0 … x_{T−1} whose `.grad` a backward pass has filled (`retain_grad`), [T].

    Of the states of a window it says where a gradient explodes (the norm grows towards t = 0) or vanishes. A tensor
    that L does not depend on counts as 0.
    """
    if not tensors:
        return torch.zeros(0)
    return torch.stack(
        [torch.zeros_like(x.flatten()[0]) if x.grad is None else safe_norm(x.grad) for x in tensors]
    ).detach()
