"""Wall and processor time: of a run over all its parts, and of the phases of an iteration."""

from __future__ import annotations

import os
import time


class Stopwatch:
    """Seconds since it was made, on top of those that earlier parts of the run took."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), cpu_seconds()
        self.before = (0.0, 0.0)  # wall and processor seconds of earlier parts

    @property
    def wall(self) -> float:
        return self.before[0] + time.perf_counter() - self._wall

    @property
    def cpu(self) -> float:
        return self.before[1] + cpu_seconds() - self._cpu


class Laps:
    """Seconds of each phase of an iteration."""

    def __init__(self) -> None:
        self.last = time.perf_counter()
        self.phases: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.phases[name] = now - self.last
        self.last = now


def cpu_seconds() -> float:
    """Processor time of this process and of the workers that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
