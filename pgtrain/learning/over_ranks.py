"""What makes R ranks, each with its share of the rows, learn as one process with all of them would.

A mean over all rows is the mean of the ranks' means, each weighted with its number of transitions; that holds for the
gradient, as the loss is a sum of such means. What is no mean (the spread of advantages, a baseline over episodes,
running moments) is worked out from all ranks' numbers, in the same order everywhere: to the same bits.

Dimension legend: P parameters, R ranks, M minibatches, B rows of a batch here, T steps, N envs here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pgtrain.distributed import Ranks
from pgtrain.learning.advantages import Estimator, MonteCarlo
from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.statistics import double
from pgtrain.learning.updates import Pipeline, Tally
from pgtrain.policies.normalizer import Moments, RunningMoments, merge_moments
from pgtrain.rollout import Rollout

ToBatch = Callable[[Rollout, "float | None"], Batch]


# ------------------------------------------------------------------------------------------------- the gradient


class GradientOverRanks:
    """A gradient source (of either pipeline) whose gradient is that of the mean over all ranks' rows.

    g = Σ_r n_r g_r / Σ_r n_r,   n_r rows of rank r: one sum over the ranks, which carries the statistics along.
    A number that is not finite on one rank is so on all, and they skip the update together. Every rank needs a row.
    """

    def __init__(self, source: Any, grad: Tensor, ranks: Ranks) -> None:
        self.source, self.grad, self.ranks = source, grad, ranks
        self.gradient = getattr(source, "gradient", None)  # the memory of `grad`, for a source in NumPy

    def __call__(self, rows: Any, coefficients: Coefficients) -> dict[str, Any]:
        stats = self.source(rows, coefficients)
        size, grad, count = len(self.grad), self.grad, float(rows.weight.sum())
        told = [float(x) for x in stats.values()]
        message = torch.zeros(size + self.ranks.size * (1 + len(stats)), dtype=grad.dtype)
        torch.mul(grad, count, out=message[:size])
        table = message[size:].view(self.ranks.size, -1)  # each rank fills its own row
        table[self.ranks.rank] = torch.tensor([count, *told], dtype=grad.dtype)
        self.ranks.sum_(message)
        total = table[:, 0].sum()
        torch.div(message[:size], total, out=grad)
        mean, largest = (table[:, 0] / total) @ table[:, 1:], table[:, 1:].amax(0)
        merged = [
            largest[i] if name.endswith("_max") else mean[i] for i, name in enumerate(stats)
        ]  # of a maximum the mean would mean nothing
        numpy = self.gradient is not None
        return dict(zip(stats, [float(x) for x in merged] if numpy else merged, strict=True))


def share_gradient(pipeline: Any, grad: Tensor, ranks: Ranks, normalize: bool) -> Pipeline:
    """`pipeline` (whose source must not normalise advantages itself) over the rows of all ranks."""
    pipeline.source = GradientOverRanks(pipeline.source, grad, ranks)
    return NormalizedOverRanks(pipeline, ranks) if normalize else pipeline


@dataclass
class NormalizedOverRanks:
    """Shifts and scales the advantages of each minibatch as `statistics.normalize` does, over all ranks' rows of it."""

    pipeline: Pipeline
    ranks: Ranks
    eps: float = 1e-8

    def epoch(
        self,
        batch: Batch,
        parts: Sequence[Tensor] | None,
        coefficients: Coefficients,
        learning_rate: float | Tensor,
    ) -> Tally:
        batch = batch.replace(advantage=self._normalized(batch.advantage, parts))
        return self.pipeline.epoch(batch, parts, coefficients, learning_rate)

    def _normalized(self, advantage: Tensor, parts: Sequence[Tensor] | None) -> Tensor:
        """[B] → [B]; one exchange for all minibatches of the epoch."""
        index = [torch.arange(len(advantage))] if parts is None else parts
        pieces = [double(advantage[part]) for part in index]
        everyone = self.ranks.gather_tensor(torch.stack([_summary(x) for x in pieces], 1))  # [R, 5, M]
        each = [Moments(*table[:3]) for table in everyone]
        mean, m2, count = reduce(merge_moments, each)
        spread = everyone[:, 4].amax(0) - everyone[:, 3].amin(0)
        var = m2 / (count - 1).clamp(min=1)
        std = torch.where(
            (spread > 0) & (var > 0), var.sqrt() + self.eps, torch.inf
        )  # no spread: exact zeros
        std = torch.where(spread.isfinite(), std, torch.nan)  # must stay visible to the finite check
        alone = count == 1  # no spread to divide by: left as it is
        shift, scale = torch.where(alone, 0.0, mean), torch.where(alone, 1.0, std)
        result = torch.empty_like(advantage)
        for m, (part, x) in enumerate(zip(index, pieces, strict=True)):
            result[part] = ((x - shift[m]) / scale[m]).to(result.dtype)
        return result


def _summary(x: Tensor) -> Tensor:
    """Mean, sum of squared deviations, count, least and greatest of x [B]; [5]."""
    mean = x.mean()
    return torch.stack([mean, (x - mean).square().sum(), torch.tensor(float(len(x))).to(x), x.min(), x.max()])


# ---------------------------------------------------------------------------------------- what comes before it


@dataclass
class EstimatorOverRanks:
    """An estimator whose advantages depend on other envs' episodes, those of other ranks among them."""

    estimator: MonteCarlo
    ranks: Ranks

    @property
    def needs_critic(self) -> bool:
        return self.estimator.needs_critic

    def __call__(self, rollout: Rollout) -> Rollout:
        """Gathers all ranks' rewards and ends side by side, [T, R·N], and takes its own columns of the result."""
        names = ("reward", "weight", "terminated", "truncated", "value", "next_value")
        here = {name: x.numpy() for name in names if (x := getattr(rollout, name)) is not None}
        everyone = self.ranks.gather(here)
        longest = max(len(one["reward"]) for one in everyone)  # whole episodes: ranks need not end together
        whole = self.estimator(
            rollout.replace(
                **{name: _side_by_side([one[name] for one in everyone], longest) for name in here}
            )
        )
        before = sum(one["reward"].shape[1] for one in everyone[: self.ranks.rank])
        steps, n = rollout.reward.shape
        assert whole.advantage is not None and whole.value_target is not None
        columns = slice(before, before + n)
        return rollout.replace(
            advantage=whole.advantage[:steps, columns].contiguous(),
            value_target=whole.value_target[:steps, columns].contiguous(),
        )


def _side_by_side(parts: Sequence[np.ndarray], steps: int) -> Tensor:
    """[T_r, N] each → [steps, R·N], with zeros (rows of weight 0) where a rank's rows end sooner."""
    return torch.from_numpy(np.concatenate([np.pad(x, ((0, steps - len(x)), (0, 0))) for x in parts], 1))


def share_estimator(estimator: Estimator, ranks: Ranks) -> Estimator:
    """Over all ranks, if it looks at episodes of other envs."""
    if not isinstance(estimator, MonteCarlo):
        return estimator
    mixes = estimator.baseline in ("mean", "loo") or estimator.truncation_bootstrap == "mean_return"
    return EstimatorOverRanks(estimator, ranks) if mixes else estimator


def share_episodes(to_batch: ToBatch, ranks: Ranks) -> ToBatch:
    """Batches know this rank's share, by rows, of all ranks' whole episodes (see `Batch.episodes`)."""

    def make(rollout: Rollout, gamma: float | None) -> Batch:
        batch = to_batch(rollout, gamma)
        if not rollout.whole_episodes:
            return batch
        rows = float(batch.weight.sum())
        episodes, total = ranks.sum_(torch.tensor([batch.episodes, rows], dtype=torch.float64)).tolist()
        return batch.replace(episodes=episodes * rows / total)

    return make


def share_moments(owners: Sequence[object], ranks: Ranks) -> None:
    """From now on every update of the running moments in these modules takes in the samples of all ranks."""

    def join(here: Moments) -> Moments:
        return merge_over_ranks(here, ranks)

    for owner in owners:
        for module in owner.modules() if isinstance(owner, nn.Module) else ():
            if isinstance(module, RunningMoments):
                module.join = join


@torch.no_grad()
def merge_calibration(moments: RunningMoments, ranks: Ranks) -> None:
    """What each rank has seen by itself → what all have seen."""
    here = Moments(moments.mean, moments.m2, moments.count)
    for buffer, new in zip(here, merge_over_ranks(here, ranks), strict=True):
        buffer.copy_(new)


def merge_over_ranks(here: Moments, ranks: Ranks) -> Moments:
    size = len(here.mean)
    everyone = ranks.gather_tensor(torch.cat([here.mean, here.m2, here.count[None]]))
    return reduce(merge_moments, [Moments(x[:size], x[size:-1], x[-1]) for x in everyone])


# ------------------------------------------------------------------------------------------- what is told of it


def share_measure(measure: Callable[[Batch], Tensor], ranks: Ranks) -> Callable[[Batch], Tensor]:
    """A mean over the rows here → the mean over all ranks' rows."""

    def shared(batch: Batch) -> Tensor:
        return mean_over_ranks(ranks, {"": measure(batch)}, batch)[""]

    return shared


def mean_over_ranks(ranks: Ranks, means: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
    """0-d means (or numbers) over the rows of each rank → means over all rows."""
    if ranks.size == 1:
        return dict(means)
    here = [float(x) for x in (batch.weight.sum(), *means.values())]
    everyone = ranks.gather_tensor(torch.tensor(here, dtype=torch.float64))
    mean = (everyone[:, 0] / everyone[:, 0].sum()) @ everyone[:, 1:]
    return dict(zip(means, mean.unbind(), strict=True))


def learned_over_ranks(ranks: Ranks, batch: Batch) -> Batch:
    """A batch of all ranks' advantages, values, targets and weights; nothing else in it is."""
    if ranks.size == 1:
        return batch
    names = ("advantage", "value", "value_target", "weight")
    everyone = ranks.gather(torch.stack([getattr(batch, name) for name in names]).numpy())
    columns = torch.from_numpy(np.concatenate(everyone, 1))
    return batch.replace(**dict(zip(names, columns, strict=True)))
