"""The update: epochs × minibatches through one pipeline.

gradient → finite check → norm limit → step rule, and after each epoch the guards. Nothing in a minibatch asks
the device for a number: a non-finite loss or gradient is masked out (parameters, moments and step count stay
as they were) and counted; the runner reads the counts once an iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from pgtrain.distributed import Ranks
from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.gradients import Source
from pgtrain.learning.kl_guard import Guard, Measure
from pgtrain.learning.optimizers import Optimizer
from pgtrain.policies.distributions import where
from pgtrain.policies.parameters import FlatParameters

Array = Tensor | np.ndarray  # as the pipeline works
Reestimate = Callable[[], Batch]  # the same rows with today's values, advantages and value targets


@dataclass
class UpdateResult:
    """`tell` is called once someone asks for the numbers, before the next update: in a long run few iterations are
    shown."""

    tell: Callable[[], dict[str, Any]]
    ok: Array  # [minibatches] bool, False where the update was skipped

    @cached_property
    def stats(self) -> dict[str, Any]:
        """Means over the minibatches whose update was made, and what the guards tell: numbers, or 0-d tensors."""
        return self.tell()


def minibatch_indices(
    rows: int, size: int | None, device: torch.device, generator: torch.Generator
) -> list[Tensor]:
    """A fresh permutation of all rows, cut into ⌈rows/size⌉ parts that differ by at most one row.

    Every row is used exactly once an epoch; with even parts there is no tail of one or two rows to make a wild step.
    """
    return shuffled(rows, 1 if size is None else math.ceil(rows / size), device, generator)


def shuffled(rows: int, parts: int, device: torch.device, generator: torch.Generator) -> list[Tensor]:
    """A fresh permutation of all rows in `parts` parts."""
    order = torch.randperm(rows, generator=generator, device=generator.device).to(device)
    return list(order.tensor_split(parts))


class Tally(NamedTuple):
    """What an epoch of M minibatches tells."""

    names: tuple[str, ...]
    table: Callable[[], Array]  # [M, len(names)], made when somebody asks for it
    ok: Array  # [M] bool, False where the update was skipped


def joined(parts: Sequence[Array]) -> Array:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(x, np.ndarray) for x in parts):
        return np.concatenate(parts)
    return torch.cat([torch.as_tensor(x) for x in parts])


class Pipeline(Protocol):
    """Minibatches through gradient → finite check → norm limit → step rule."""

    def epoch(
        self,
        batch: Batch,
        parts: Sequence[Tensor] | None,
        coefficients: Coefficients,
        learning_rate: float | Tensor,
    ) -> Tally:
        """One update for each of `parts` (row indices; None: the whole batch), in this order."""
        ...


@dataclass
class TorchPipeline:
    """On any device, for any gradient source and step rule; no host sync."""

    source: Source
    flat: FlatParameters
    optimizer: Optimizer
    max_grad_norm: float | None

    def epoch(
        self,
        batch: Batch,
        parts: Sequence[Tensor] | None,
        coefficients: Coefficients,
        learning_rate: float | Tensor,
    ) -> Tally:
        batches = [batch] if parts is None else (batch.rows(part) for part in parts)
        stats = [self._step(one, coefficients, learning_rate) for one in batches]
        ok = torch.stack([s.pop("ok") for s in stats])
        return Tally(tuple(stats[0]), lambda: torch.stack([torch.stack(list(s.values())) for s in stats]), ok)

    def _step(
        self, batch: Batch, coefficients: Coefficients, learning_rate: float | Tensor
    ) -> dict[str, Tensor]:
        stats = self.source(batch, coefficients)
        grad = self.flat.grad
        norm = torch.linalg.vector_norm(grad)
        ok = torch.isfinite(norm) & torch.isfinite(stats["loss"])
        if self.max_grad_norm is not None:
            grad = grad * (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        self.optimizer.step(grad, ok, learning_rate)
        return stats | {"gradient/norm": norm, "ok": ok}


@dataclass
class Update:
    """Runs `source` over epochs × minibatches and applies its gradient through `optimizer`.

    `pipeline` does so for the minibatches of an epoch (None: a `TorchPipeline`). `measure_kl` (batch → mean
    KL(old ‖ now), 0-d) is called for guards that ask for it, once an epoch at most.
    """

    through_time: ClassVar[bool] = False  # works on rows in any order, not on the window itself

    source: Source
    flat: FlatParameters
    optimizer: Optimizer
    generator: torch.Generator
    epochs: int = 1
    minibatch_size: int | None = None
    max_grad_norm: float | None = 0.5
    guards: Sequence[Guard] = ()
    measure_kl: Callable[[Batch], Tensor] | None = None
    pipeline: Pipeline | None = None
    ranks: Ranks = field(default_factory=Ranks)  # all of them cut their rows into as many minibatches

    def __post_init__(self) -> None:
        if self.pipeline is None:
            self.pipeline = TorchPipeline(self.source, self.flat, self.optimizer, self.max_grad_norm)

    def __call__(
        self, batch: Batch, coefficients: Coefficients, reestimate: Reestimate | None = None
    ) -> UpdateResult:
        """`reestimate` is called before each epoch but the first; values are clipped to the rollout's all the same."""
        assert self.pipeline is not None
        tallies: list[Tally] = []
        kl: Measure = self._measurement(batch)
        for guard in self.guards:
            guard.begin(self.optimizer)
        epoch = 0
        for epoch in range(1, self.epochs + 1):
            if epoch > 1 and reestimate is not None:
                batch = reestimate().replace(value=batch.value)
            rate = self._rate(coefficients)
            tallies.append(self.pipeline.epoch(batch, self._parts(batch), coefficients, rate))
            kl = self._measurement(batch)
            verdicts = [
                guard.after_epoch(kl, last=epoch == self.epochs) for guard in self.guards
            ]  # all are asked
            if not all(verdicts):
                break
        told: dict[str, Any] = {"update/epochs": epoch, "schedule/learning_rate": self._rate(coefficients)}
        for guard in self.guards:
            told |= guard.finish(kl)
        ok = joined([tally.ok for tally in tallies])

        @np.errstate(all="ignore")
        def tell() -> dict[str, Any]:
            table = joined([tally.table() for tally in tallies])
            total = where(ok[:, None], table, 0.0).sum(0)
            means = total / ok.sum()  # NaN if no update was made
            return dict(zip(tallies[0].names, means, strict=True)) | told

        return UpdateResult(tell, ok)

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "minibatch_rng": self.generator.get_state(),
            "guards": [guard.state_dict() for guard in self.guards],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["minibatch_rng"])
        for guard, kept in zip(self.guards, state["guards"], strict=True):
            guard.load_state_dict(kept)

    def _rate(self, coefficients: Coefficients) -> float | Tensor:
        rate: float | Tensor = coefficients.learning_rate
        for guard in self.guards:
            rate = guard.learning_rate(rate)
        return rate

    def _measurement(self, batch: Batch) -> Measure:
        """The KL as of the first call; asked for again it is not measured anew."""
        known: list[Tensor] = []

        def measure() -> Tensor:
            if not known:
                assert self.measure_kl is not None, "a guard asks for the KL: give the update `measure_kl`"
                known.append(self.measure_kl(batch))
            return known[0]

        return measure

    def _parts(self, batch: Batch) -> list[Tensor] | None:
        if self.minibatch_size is None:
            return None
        parts, rows = (
            batch.parts,
            math.prod(batch.raw("weight").shape) // batch.parts,
        )  # rows of each: 1, or a whole sequence
        size = max(1, self.minibatch_size // rows)
        number = self.ranks.minibatches(parts, size)
        return None if number == 1 else shuffled(parts, number, batch.device, self.generator)
