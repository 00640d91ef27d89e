"""Confidence intervals of a mean over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# Student's t, 97.5 %, for 1, 2, … degrees of freedom
T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
)  # fmt: skip


def half_interval(values: Sequence[float]) -> float | None:
    """Half the 95 % confidence interval of the mean over seeds, t · s/√n; None for a single seed."""
    n = len(values)
    if n < 2:
        return None
    t = T975[n - 2] if n - 2 < len(T975) else 1.96 * (1 + 1.5 / n)
    return t * statistics.stdev(values) / math.sqrt(n)
