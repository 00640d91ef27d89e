"""What an update works on: rows of a rollout, and the coefficients that schedules set for an iteration.

Dimension legend: B rows (transitions) of a batch, D size of an input, P size of the distribution parameters, L steps
of a sequence, n sequences. For a policy with memory a batch holds sequences, [L, n] wherever it says [B].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pgtrain.columns import Columns
from pgtrain.rollout import Rollout


class Coefficients(NamedTuple):
    """What schedules set for one iteration."""

    learning_rate: float
    entropy_coef: float
    clip: float = 0.2  # ε of the clipped surrogate
    value_clip: float = 0.2  # ε of the clipped value losses, in units of the standardised value


class Batch(Columns):
    """Rows of a rollout, flattened, only real transitions (weight 1); or whole sequences of rows, side by side."""

    COLUMNS = (
        "inputs",
        "action",
        "params",
        "log_prob",
        "advantage",
        "value_target",
        "value",
        "weight",
        "discount",
    )

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
        return self.raw("weight").shape[-1]

    def rows(self, index: Tensor) -> Batch:
        """The rows, or sequences, of that index."""
        axis, share = self.raw("weight").ndim - 1, len(index) / self.parts
        return self.map(lambda x: x.index_select(axis, index), episodes=self.episodes * share)

    def map(self, change: Callable[[Tensor], Tensor], **others: Any) -> Batch:
        """Each column changed, when somebody reads it; `others` take the place of what it would be."""
        changed = {name: lambda name=name: change(getattr(self, name)) for name in self.COLUMNS}
        return self.replace(**{**changed, **others})


def flatten(rollout: Rollout, gamma: float | None) -> Batch:
    """The rollout's transitions as one batch; `gamma` gives the rows their γᵗ (None: 1, the usual practice)."""
    batch = _in_place(rollout, gamma)
    weight = batch.raw("weight")
    steps, n = weight.shape
    if rollout.num_steps == steps * n:
        return batch.replace(**{name: _later(batch, name, _flat) for name in Batch.COLUMNS})
    index = weight.reshape(-1).nonzero()
    index = index[0] if isinstance(index, tuple) else index.squeeze(-1)  # NumPy's way, torch's
    return batch.replace(**{name: _later(batch, name, lambda x: _flat(x)[index]) for name in Batch.COLUMNS})


def _flat(x: Any) -> Any:
    """[T, N, …] → [T·N, …], an array or a tensor."""
    return x.reshape(-1, *x.shape[2:])


def _later(batch: Batch, name: str, change: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: change(batch.raw(name))


def sequences(rollout: Rollout, gamma: float | None, length: int | None = None) -> Batch:
    """The rollout as sequences for a policy with memory: one for each env, or cut into pieces of `length` steps.

    A piece starts from the state that its first row was collected with. Rows that are no transition stay, at weight 0
    and with inputs of 0; pieces of nothing else are left out. A last piece that is too short is filled up at weight 0.
    """
    batch = _in_place(rollout, gamma)
    real = (batch.weight > 0)[..., None]
    batch = batch.replace(inputs=torch.where(real, batch.inputs, 0.0))  # a NaN would reach the gradient
    if length is not None and length < len(batch.weight):
        batch = _cut(batch, length)
    if rollout.num_steps == rollout.weight.numel():
        return batch
    index = (batch.weight > 0).any(0).nonzero().squeeze(-1)
    return batch.rows(index).replace(episodes=batch.episodes)


def _in_place(rollout: Rollout, gamma: float | None) -> Batch:
    """All rows as they lie in the rollout, [T, N, …]."""
    weight, value = rollout.raw("weight"), rollout.raw("value")
    ones = (lambda: np.ones_like(weight)) if isinstance(weight, np.ndarray) else (lambda: torch.ones_like(weight))
    return Batch(
        device=rollout.device,
        inputs=rollout.raw("inputs"),
        action=rollout.raw("action"),
        params=rollout.raw("params"),
        log_prob=lambda: rollout.raw("log_prob"),
        advantage=rollout.raw("advantage"),
        value_target=rollout.raw("value_target"),
        value=(lambda: 0 * weight) if value is None else value,
        weight=weight,
        discount=ones if gamma is None else (lambda: gamma ** rollout.episode_step.to(rollout.weight.dtype)),
        episodes=float(rollout.done.sum()) if rollout.whole_episodes else 0.0,
    )


def _cut(batch: Batch, length: int) -> Batch:
    """[T, N, …] → [length, ⌈T/length⌉ · N, …]; what is missing at the end are copies of the last row, at weight 0."""
    missing = -len(batch.weight) % length

    def pieces(x: Tensor, filling: Tensor) -> Tensor:
        filled = torch.cat([x, filling.expand(missing, *x.shape[1:])])
        return filled.unflatten(0, (-1, length)).transpose(0, 1).flatten(1, 2)

    weight = pieces(batch.weight, torch.zeros_like(batch.weight[-1:]))
    return batch.map(lambda x: pieces(x, x[-1:]), weight=weight)
