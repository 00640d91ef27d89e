"""Entries of the log: the numbers of an iteration, and of the episodes that ended since the last entry of the files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pgtrain.episodes import Episodes, join
from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.over_ranks import learned_over_ranks, mean_over_ranks
from pgtrain.learning.updates import UpdateResult
from pgtrain.monitor.diagnostics import PolicyMetrics, experience_metrics
from pgtrain.rollout import Rollout

if TYPE_CHECKING:
    from pgtrain.runner import Runner


class Entries:
    """Measures what a runner's iteration did and hands it to the monitor.

    policy_metrics: how far an update moved the policy.
    """

    def __init__(self, policy_metrics: PolicyMetrics) -> None:
        self.policy_metrics = policy_metrics
        self.unrecorded: list[Episodes] = []  # ended since the last entry of the files
        self._seconds = 0.0  # what the last call of `write` took
        self._mark = (0.0, 0)  # time and steps at that call

    def begin(self, steps: int) -> None:
        """The run starts, or goes on, with so many steps made."""
        self._mark = time.perf_counter(), steps

    def write(
        self,
        runner: Runner,
        rollout: Rollout,
        batch: Batch,
        result: UpdateResult,
        coefficients: Coefficients,
        phases: dict[str, float],
    ) -> None:
        """phases: seconds of each part of the iteration, by tag."""
        p, started = runner.progress, time.perf_counter()
        metrics = self._learned(runner, rollout, batch, result, coefficients) | self._episodes()
        if p.recent_returns:
            metrics["episode/return_100"] = p.mean_return
        metrics |= {
            "episode/count": sum(len(e.returns) for e in self.unrecorded),
            "gradient/skipped_updates": p.skipped_updates,
            "gradient/skipped_share": p.skipped_updates / max(p.updates, 1),
            "schedule/entropy_coef": coefficients.entropy_coef,
            "progress/iteration": p.iterations,
            "progress/steps": p.steps,
            "time/log": self._seconds,
            "time/steps_per_second": self._pace(started, p.steps),
        }
        runner.monitor.log(p.steps, metrics | phases)
        if runner.monitor.recording:
            self.unrecorded.clear()
        self._seconds = time.perf_counter() - started

    def _learned(
        self,
        runner: Runner,
        rollout: Rollout,
        batch: Batch,
        result: UpdateResult,
        coefficients: Coefficients,
    ) -> dict[str, float]:
        critic = rollout.value is not None
        tensors = result.stats | experience_metrics(learned_over_ranks(runner.ranks, batch), critic)
        tensors |= mean_over_ranks(runner.ranks, self.policy_metrics(batch), batch)
        tensors.pop("loss", None)
        if runner.reward_scaler is not None:
            tensors["reward/scale"] = runner.reward_scaler.std
        metrics = {"schedule/learning_rate": coefficients.learning_rate}  # unless the update has a say in it
        if runner.clip is not None:
            metrics["schedule/clip"] = coefficients.clip
        metrics |= to_floats(tensors)  # the iteration's one device sync for numbers
        metrics |= runner.health.metrics()
        return metrics

    def _episodes(self) -> dict[str, float]:
        ended = [e for e in self.unrecorded if len(e.returns)]
        if not ended:
            return {}
        episodes = join(ended)
        finite = episodes.returns[np.isfinite(episodes.returns)]
        mean = {"episode/return": float(finite.mean())} if len(finite) else {}
        return mean | {"episode/length": float(episodes.lengths.mean())}

    def _pace(self, now: float, steps_now: int) -> float:
        """Env steps per second of wall time since the last call, everything included."""
        then, steps = self._mark
        self._mark = now, steps_now
        return (steps_now - steps) / max(now - then, 1e-9)

    def state_dict(self) -> list[list[Any]]:
        return [[e.returns.tolist(), e.lengths.tolist()] for e in self.unrecorded]

    def load_state_dict(self, state: list[list[Any]]) -> None:
        self.unrecorded = [Episodes(np.array(r), np.array(n, np.int64)) for r, n in state]


def to_floats(numbers: dict[str, Any]) -> dict[str, float]:
    """0-d tensors → floats with one transfer from the device, in the widest of their types; others as they are."""
    tensors = [x for x in numbers.values() if isinstance(x, Tensor)]
    moved = iter(torch.stack(tensors).tolist() if tensors else ())
    return {name: next(moved) if isinstance(x, Tensor) else float(x) for name, x in numbers.items()}
