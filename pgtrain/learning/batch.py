"""What an update works on: rows of a rollout, and the coefficients that schedules set for an iteration.

Dimension legend: B rows (transitions) of a batch, D size of an input, P size of the distribution parameters, L steps
of a sequence, n sequences. For a policy with memory a batch holds sequences, [L, n] wherever it says [B].
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
    """Rows of a rollout, flattened, only real transitions (weight 1); or whole sequences of rows, side by side."""

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

    @property
    def parts(self) -> int:
        """What may go into different minibatches: rows, or sequences."""
        return self.weight.shape[-1]

    def rows(self, index: Tensor) -> Batch:
        """The rows, or sequences, of that index."""
        axis, share = self.weight.dim() - 1, len(index) / self.parts
        picked = (x.index_select(axis, index) for x in self[:-1])  # pyright: ignore[reportAttributeAccessIssue]
        return Batch(*picked, self.episodes * share)  # pyright: ignore[reportCallIssue]


def flatten(rollout: Rollout, gamma: float | None) -> Batch:
    """The rollout's transitions as one batch; `gamma` gives the rows their γᵗ (None: 1, the usual practice)."""
    batch = _in_place(rollout, gamma)
    flat = Batch(*(x.flatten(0, 1) for x in batch[:-1]), batch.episodes)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    if rollout.num_steps == len(flat.weight):
        return flat
    index = flat.weight.nonzero().squeeze(-1)  # idle envs and reset rows are no transitions
    return Batch(*(x[index] for x in flat[:-1]), flat.episodes)  # pyright: ignore[reportCallIssue]


def sequences(rollout: Rollout, gamma: float | None, length: int | None = None) -> Batch:
    """The rollout as sequences for a policy with memory: one for each env, or cut into pieces of `length` steps.

    A piece starts from the state that its first row was collected with. Rows that are no transition stay, at weight 0
    and with inputs of 0; pieces of nothing else are left out. A last piece that is too short is filled up at weight 0.
    """
    batch = _in_place(rollout, gamma)
    real = (batch.weight > 0)[..., None]
    batch = batch._replace(
        inputs=torch.where(real, batch.inputs, 0.0)
    )  # a NaN there would reach the gradient
    if length is not None and length < len(batch.weight):
        batch = _cut(batch, length)
    if rollout.num_steps == rollout.weight.numel():
        return batch
    index = (batch.weight > 0).any(0).nonzero().squeeze(-1)
    return batch.rows(index)._replace(episodes=batch.episodes)


def _in_place(rollout: Rollout, gamma: float | None) -> Batch:
    """All rows as they lie in the rollout, [T, N, …]."""
    assert rollout.advantage is not None and rollout.value_target is not None
    weight = rollout.weight
    return Batch(
        rollout.inputs,
        rollout.action,
        rollout.params,
        rollout.log_prob,
        rollout.advantage,
        rollout.value_target,
        torch.zeros_like(weight) if rollout.value is None else rollout.value,
        weight,
        torch.ones_like(weight) if gamma is None else gamma ** rollout.episode_step.to(weight.dtype),
        float(rollout.done.sum()) if rollout.whole_episodes else 0.0,
    )


def _cut(batch: Batch, length: int) -> Batch:
    """[T, N, …] → [length, ⌈T/length⌉ · N, …]; what is missing at the end are copies of the last row, at weight 0."""
    missing = -len(batch.weight) % length

    def pieces(x: Tensor, filling: Tensor) -> Tensor:
        filled = torch.cat([x, filling.expand(missing, *x.shape[1:])])
        return filled.unflatten(0, (-1, length)).transpose(0, 1).flatten(1, 2)

    cut = (pieces(x, x[-1:]) for x in batch[:-1])  # pyright: ignore[reportIndexIssue, reportArgumentType]
    weight = pieces(batch.weight, torch.zeros_like(batch.weight[-1:]))
    return Batch(*cut, batch.episodes)._replace(weight=weight)  # pyright: ignore[reportCallIssue]
