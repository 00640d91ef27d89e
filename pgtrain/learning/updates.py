"""The update: epochs × minibatches through one pipeline.

gradient → finite check → norm limit → step rule. Nothing in a minibatch asks the device for a number: a non-finite
loss or gradient is masked out (parameters, moments and step count stay as they were) and counted; the runner reads the
counts once an iteration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pgtrain.learning.gradients import Backprop, Batch
from pgtrain.learning.optimizers import Adam
from pgtrain.policies.parameters import FlatParameters


class Coefficients(NamedTuple):
    """What schedules set for one iteration."""

    learning_rate: float
    entropy_coef: float


class UpdateResult(NamedTuple):
    stats: dict[str, Tensor]  # 0-d means over the minibatches whose update was made
    ok: Tensor  # [minibatches] bool, False where the update was skipped


def minibatch_indices(
    rows: int, size: int | None, device: torch.device, generator: torch.Generator
) -> list[Tensor]:
    """A fresh permutation of all rows, cut into ⌈rows/size⌉ parts that differ by at most one row.

    Every row is used exactly once an epoch; with even parts there is no tail of one or two rows to make a wild step.
    """
    parts = 1 if size is None else math.ceil(rows / size)
    order = torch.randperm(rows, generator=generator, device=generator.device).to(device)
    return list(order.tensor_split(parts))


@dataclass
class Update:
    """Runs `source` over epochs × minibatches and applies its gradient through `optimizer`."""

    source: Backprop
    flat: FlatParameters
    optimizer: Adam
    generator: torch.Generator
    epochs: int = 1
    minibatch_size: int | None = None
    max_grad_norm: float | None = 0.5

    def __call__(self, batch: Batch, coefficients: Coefficients) -> UpdateResult:
        collected = [
            self._step(part, coefficients) for _ in range(self.epochs) for part in self._minibatches(batch)
        ]
        ok = torch.stack([s.pop("ok") for s in collected])
        return UpdateResult(
            {name: _mean_where(ok, [s[name] for s in collected]) for name in collected[0]}, ok
        )

    def _minibatches(self, batch: Batch) -> list[Batch]:
        rows = len(batch.weight)
        if self.minibatch_size is None or rows <= self.minibatch_size:
            return [batch]
        indices = minibatch_indices(rows, self.minibatch_size, batch.weight.device, self.generator)
        return [batch.rows(index) for index in indices]

    def _step(self, batch: Batch, coefficients: Coefficients) -> dict[str, Tensor]:
        stats = self.source(batch, coefficients.entropy_coef)
        norm = torch.linalg.vector_norm(self.flat.grad)
        ok = torch.isfinite(norm) & torch.isfinite(stats["loss"])
        grad = self.flat.grad
        if self.max_grad_norm is not None:
            grad = grad * (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        self.optimizer.step(grad, ok, coefficients.learning_rate)
        return stats | {"gradient/norm": norm, "ok": ok}


def _mean_where(ok: Tensor, values: list[Tensor]) -> Tensor:
    """The mean over the updates that were made; NaN if none was."""
    kept = torch.where(ok, torch.stack(values), 0.0)
    return kept.sum() / ok.sum()
