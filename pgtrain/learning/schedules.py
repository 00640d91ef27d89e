"""Coefficients that move with training: progress in [0, 1) → a value.

`progress` = env steps done before the iteration / total steps; it is 0 for the first update and below 1 for the last,
which therefore still learns. Beyond the budget (an overshoot of whole episodes) it is held at 1: a rate never turns
negative.
"""

from __future__ import annotations

from collections.abc import Callable

Schedule = Callable[[float], float]


def constant(value: float) -> Schedule:
    """c(p) = value."""
    return lambda progress: value


def linear(value: float, end: float = 0.0) -> Schedule:
    """c(p) = value + (end − value) · p for p = 0 … 1."""
    return lambda progress: value + (end - value) * min(max(progress, 0.0), 1.0)


SCHEDULES: dict[str, Callable[..., Schedule]] = {"constant": constant, "linear": linear}
