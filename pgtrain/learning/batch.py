"""What an update works on: rows of a rollout, and the coefficients that schedules set for an iteration.

Dimension legend: B rows (transitions) of a batch, D size of an input, P size of the distribution parameters, L steps
of a sequence, n sequences. For a policy with memory a batch holds sequences, [L, n] wherever it says [B].
"""

from __future__ import annotations

import math
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
    weight = rollout.raw("weight")
    if rollout.num_steps == math.prod(weight.shape):
        return _batch(rollout, gamma, _flat)
    index = torch.as_tensor(weight).reshape(-1).nonzero().squeeze(-1)  # idle envs, reset rows: no transitions
    return _batch(rollout, gamma, lambda x: _flat(x)[index])


def _flat(x: Any) -> Any:
    """[T, N, …] → [T·N, …], an array or a tensor."""
    return x.reshape(-1, *x.shape[2:])


def sequences(rollout: Rollout, gamma: float | None, length: int | None = None) -> Batch:
    """The rollout as sequences for a policy with memory: one for each env, or cut into pieces of `length` steps.

    A piece starts from the state that its first row was collected with. Rows that are no transition stay, at weight 0
    and with inputs of 0; pieces of nothing else are left out. A last piece that is too short is filled up at weight 0.
    """
    batch = _batch(rollout, gamma, _in_place)
    real = (batch.weight > 0)[..., None]
    batch = batch.replace(inputs=torch.where(real, batch.inputs, 0.0))  # a NaN would reach the gradient
    if length is not None and length < len(batch.weight):
        batch = _cut(batch, length)
    if rollout.num_steps == rollout.weight.numel():
        return batch
    index = (batch.weight > 0).any(0).nonzero().squeeze(-1)
    return batch.rows(index).replace(episodes=batch.episodes)


def _in_place(x: Any) -> Any:
    return x


def _batch(rollout: Rollout, gamma: float | None, pick: Callable[[Any], Any]) -> Batch:
    """`pick` takes the rows of a column of the rollout [T, N, …], an array or a tensor, when somebody reads it."""
    raw = rollout.raw

    def ones() -> Any:
        weight = raw("weight")
        return np.ones_like(weight) if isinstance(weight, np.ndarray) else torch.ones_like(weight)

    def value() -> Any:
        found = raw("value")
        return 0 * ones() if found is None else found

    def discount() -> Any:
        return ones() if gamma is None else gamma ** rollout.episode_step.to(rollout.weight.dtype)

    return Batch(
        device=rollout.device,
        inputs=lambda: pick(raw("inputs")),
        action=lambda: pick(raw("action")),
        params=lambda: pick(raw("params")),
        log_prob=lambda: pick(raw("log_prob")),
        advantage=lambda: pick(raw("advantage")),
        value_target=lambda: pick(raw("value_target")),
        value=lambda: pick(value()),
        weight=lambda: pick(raw("weight")),
        discount=lambda: pick(discount()),
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
