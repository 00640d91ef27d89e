"""What an iteration learns from: a record of what the policy experienced, and its values under a critic.

Dimension legend: T steps, N envs, D observation size, P size of the distribution parameters, C cuts (ends of episodes).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgtrain.columns import Columns
from pgtrain.policies.actor_critic import ActorCritic


class Rollout(Columns):
    """One iteration's experience, valid until the next collect (buffers are reused); tensors on the policy's device.

    On a CPU most fields are kept as NumPy arrays, and `log_prob` is worked out when somebody reads it (see `Columns`).
    """

    optional = frozenset({"advantage", "value_target"})

    obs: Tensor  # [T, N, D] as the env gave it
    inputs: (
        Tensor  # [T, N, D] standardised: what the networks saw; with memory also its state before the step
    )
    action: Tensor  # [T, N, …] the policy's own variable
    params: Tensor  # [T, N, P] distribution parameters that the action was drawn from
    log_prob: Tensor  # [T, N]
    reward: Tensor  # [T, N] what training uses (raw unless reward scaling is on)
    raw_reward: Tensor  # [T, N] float64, as the env gave it
    terminated: Tensor  # [T, N] bool
    truncated: Tensor  # [T, N] bool
    weight: Tensor  # [T, N] 1 for a transition, 0 for a reset row or an idle env
    episode_start: Tensor  # [T, N] bool
    episode_step: Tensor  # [T, N] int64, steps since the episode's first, carried across windows
    value: Tensor | None  # [T, N]
    next_value: Tensor | None  # [T, N] V of the TRUE successor: of the final observation at a cut
    final_inputs: Tensor  # [C, D] standardised observations that episodes ended with
    final_index: tuple[Tensor, Tensor]  # (t, n) of each, [C]
    last_inputs: Tensor  # [N, D] standardised observations after the window's last step
    num_steps: int  # real env steps: rows of weight 1
    whole_episodes: bool
    advantage: Tensor | None  # [T, N], once it is estimated
    value_target: Tensor | None  # [T, N], likewise

    @property
    def done(self) -> Tensor:
        """[T, N] bool: the episode ended at this step, one way or the other."""
        return self.terminated | self.truncated


@torch.no_grad()
def revalue(policy: ActorCritic, rollout: Rollout) -> Rollout:
    """The same experience as today's critic values it."""
    r = rollout
    value, next_value = true_values(policy.value, r.inputs, r.last_inputs, r.final_inputs, r.final_index)
    return r.replace(value=value, next_value=next_value)


def true_values(
    value_of: Callable[[Any], Any],
    inputs: Any,
    last_inputs: Any,
    final_inputs: Any,
    final_index: tuple[Any, Any],
) -> tuple[Any, Any]:
    """V(o_t) and V of each step's true successor, both [T, N], from one batched forward pass. Arrays or tensors.

    next_value[t] = V(final observation) where the episode ended at t, V(o_{t+1}) otherwise (o_T after the last step).
    The value after a termination is given too; estimators give it weight 0.
    """
    steps, n, width = inputs.shape
    parts = [inputs.reshape(-1, width), last_inputs, final_inputs]
    values = value_of(torch.cat(parts) if isinstance(inputs, Tensor) else np.concatenate(parts))
    window = values[: (steps + 1) * n].reshape(steps + 1, n)
    if len(final_inputs) == 0:
        return window[:-1], window[1:]
    finals = values[(steps + 1) * n :]
    if isinstance(window, Tensor):
        next_value = window[1:].clone()
        next_value[tuple(torch.as_tensor(i, device=window.device) for i in final_index)] = finals
    else:
        next_value = window[1:].copy()
        next_value[final_index] = finals
    return window[:-1], next_value
