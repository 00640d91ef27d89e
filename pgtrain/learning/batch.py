"""What an update works on: rows of a rollout, and the coefficients that schedules set for an iteration.

Dimension legend: B rows (transitions) of a batch, D observation size, P size of the distribution parameters.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pgtrain.rollout import Rollout


class Coefficients(NamedTuple):
    """What schedules set for one iteration."""

    learning_rate: float
    entropy_coef: float
    clip: float = 0.2  # ε of the clipped surrogate
    value_clip: float = 0.2  # ε of the clipped value losses, in units of the standardised value


class Batch(NamedTuple):
    """Rows of a rollout, flattened; only real transitions (weight 1)."""

    inputs: Tensor  # [B, D]
    action: Tensor  # [B, …]
    params: Tensor  # [B, P] distribution parameters at rollout time
    log_prob: Tensor  # [B] at rollout time
    advantage: Tensor  # [B]
    value_target: Tensor  # [B]
    value: Tensor  # [B] at rollout time; 0 without a critic
    weight: Tensor  # [B]
    discount: Tensor  # [B] γᵗ of the step within its episode, or 1
    episodes: float  # whole episodes in the rollout that the rows come from (times the rows' share of it)

    def rows(self, index: Tensor) -> Batch:
        share = len(index) / len(self.weight)
        return Batch(*(x[index] for x in self[:-1]), self.episodes * share)  # pyright: ignore[reportCallIssue]


def flatten(rollout: Rollout, gamma: float | None) -> Batch:
    """The rollout's transitions as one batch; `gamma` gives the rows their γᵗ (None: 1, the usual practice)."""
    assert rollout.advantage is not None and rollout.value_target is not None
    weight = rollout.weight.flatten()
    discount = (
        torch.ones_like(weight) if gamma is None else gamma ** rollout.episode_step.flatten().to(weight.dtype)
    )
    batch = Batch(
        rollout.inputs.flatten(0, 1),
        rollout.action.flatten(0, 1),
        rollout.params.flatten(0, 1),
        rollout.log_prob.flatten(),
        rollout.advantage.flatten(),
        rollout.value_target.flatten(),
        torch.zeros_like(weight) if rollout.value is None else rollout.value.flatten(),
        weight,
        discount,
        float(rollout.done.sum()) if rollout.whole_episodes else 0.0,
    )
    if rollout.num_steps == len(weight):
        return batch
    index = weight.nonzero().squeeze(-1)  # idle envs and reset rows are no transitions
    return Batch(*(x[index] for x in batch[:-1]), batch.episodes)  # pyright: ignore[reportCallIssue]
