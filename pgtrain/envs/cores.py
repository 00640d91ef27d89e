"""How many CPU cores envs may use, and how many threads are worth waking for a step."""

from __future__ import annotations

import math
import os
from pathlib import Path

# To wake a thread and wait for it takes 50 µs: with a quarter of a millisecond each, two threads take 0.6 of the time
# of one, and below it little is gained for the processor time that it costs (docs/performance.md).
THREAD_MS = 0.25
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cores(ranks: int = 1) -> int:
    """The CPU cores that this process may use, as one of `ranks` that share them; at least 1.

    Those of its affinity, and no more than a container's quota (cgroup v2) gives it.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, min(count, _quota()) // ranks)


def _quota() -> int:
    """Whole cores of processor time; a large number where nothing limits it."""
    try:
        allowed, period = _QUOTA.read_text().split()
        return max(1, math.ceil(int(allowed) / int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return 2**31


def threads_worth(step_ms: float, num_envs: int, available: int) -> int:
    """Threads for a vector step that takes `step_ms` in one thread: each has `THREAD_MS` of work or more."""
    return max(1, min(num_envs, available, int(step_ms / THREAD_MS)))
