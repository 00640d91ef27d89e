"""An epoch of minibatches without a framework: NumPy from the gradient to the step rule."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.gradients import Source
from pgtrain.learning.host.losses import Rows
from pgtrain.learning.host.rules import Rule, make_rule
from pgtrain.learning.host.source import HostSource, make_source, to_rows
from pgtrain.learning.optimizers import Optimizer
from pgtrain.learning.updates import Pipeline, Tally, TorchPipeline
from pgtrain.policies.parameters import FlatParameters


def make_pipeline(
    source: Source, flat: FlatParameters, optimizer: Optimizer, max_grad_norm: float | None
) -> Pipeline:
    """The quickest pipeline for this gradient source and step rule."""
    host, rule = make_source(source), make_rule(optimizer)
    if host is None or rule is None:
        return TorchPipeline(source, flat, optimizer, max_grad_norm)
    return HostPipeline(host, rule, max_grad_norm)


class HostPipeline:
    """Gradient → finite check → norm limit → step rule, on the memory of the flat tensors."""

    def __init__(self, source: HostSource, rule: Rule, max_grad_norm: float | None) -> None:
        self.source, self.rule, self.max_grad_norm = source, rule, max_grad_norm
        self.clipped = np.empty_like(source.gradient)

    def epoch(
        self,
        batch: Batch,
        parts: Sequence[Tensor] | None,
        coefficients: Coefficients,
        learning_rate: float | Tensor,
    ) -> Tally:
        rate = float(learning_rate)
        with np.errstate(all="ignore"):  # what is not finite is looked for, and told
            stats = [self._step(rows, coefficients, rate) for rows in _cut(to_rows(batch), parts)]
        ok = np.array([s.pop("ok") for s in stats])
        return Tally(tuple(stats[0]), lambda: np.array([list(s.values()) for s in stats], np.float64), ok)

    def _step(self, rows: Rows, coefficients: Coefficients, rate: float) -> dict[str, float]:
        stats = self.source(rows, coefficients)
        grad = self.source.gradient
        norm = math.sqrt(float(grad @ grad))
        ok = math.isfinite(norm) and math.isfinite(stats["loss"])
        if ok:
            limit = math.inf if self.max_grad_norm is None else self.max_grad_norm
            self.rule(np.multiply(grad, min(1.0, limit / (norm + 1e-6)), out=self.clipped), rate)
        return {"ok": ok, **stats, "gradient/norm": norm}


def _cut(rows: Rows, parts: Sequence[Tensor] | None) -> list[Rows]:
    """Minibatches, as slices of rows that are put in order once."""
    if parts is None:
        return [rows]
    order = torch.cat(list(parts)).numpy()
    shuffled = Rows(lambda name: getattr(rows, name).take(order, 0), rows.episodes)
    result, start = [], 0
    for part in parts:
        minibatch = shuffled[start : start + len(part)]
        minibatch.episodes *= len(part) / len(order)
        result.append(minibatch)
        start += len(part)
    return result
