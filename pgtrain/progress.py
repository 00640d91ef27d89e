"""How far a run is to go, and how far it is."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pgtrain.episodes import Episodes


@dataclass
class Plan:
    """How much is collected in an iteration, and when the run is over."""

    total_steps: int
    horizon: int | None  # rows in each env; None: whole episodes
    episodes: int | None  # whole episodes in each env

    def goes_on(self, p: Progress) -> bool:
        """Fixed windows: until the budget is met. Whole episodes: while one more iteration of the usual length fits."""
        if self.horizon is not None or p.iterations == 0:
            return p.steps < self.total_steps
        return p.steps + p.last_iteration_steps <= self.total_steps


@dataclass
class Progress:
    """Counters of a run. Steps are real env transitions, summed over envs and ranks."""

    steps: int = 0
    iterations: int = 0
    episodes: int = 0
    updates: int = 0  # made or skipped
    skipped_updates: int = 0
    skipped_in_a_row: int = 0  # iterations of which every update was skipped
    last_iteration_steps: int = 0
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))

    @property
    def mean_return(self) -> float:
        """Of the last hundred episodes; NaN before one has ended."""
        return statistics.fmean(self.recent_returns) if self.recent_returns else math.nan

    def state_dict(self) -> dict[str, Any]:
        return asdict(self) | {"recent_returns": list(self.recent_returns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"recent_returns": deque(state["recent_returns"], maxlen=100)})

    def count(self, steps: int, episodes: Episodes, made: list[bool]) -> None:
        """An iteration of so many steps, its episodes, and which of its updates were made."""
        self.iterations += 1
        self.steps += steps
        self.last_iteration_steps = steps
        self.episodes += len(episodes.returns)
        # a NaN reward is told by the runner; it must not hide the returns of the next 100 episodes
        self.recent_returns.extend(episodes.returns[np.isfinite(episodes.returns)].tolist())
        self.updates += len(made)
        self.skipped_updates += made.count(False)
        if (
            made
        ):  # iterations are counted: one bad reward may spoil every minibatch of one, however many there are
            self.skipped_in_a_row = 0 if any(made) else self.skipped_in_a_row + 1
