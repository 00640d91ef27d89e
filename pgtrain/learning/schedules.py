"""Coefficients that move with training: progress in [0, 1) and, for some, what was measured → a value.

`progress` = env steps done before the iteration / total steps; it is 0 for the first update and below 1 for
the last, which therefore still learns. Beyond the budget (an overshoot of whole episodes) it is held at 1: a
rate never turns negative. After each iteration the schedules that adapt are shown what was measured; they
keep their state in `state_dict`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple


class Measured(NamedTuple):
    """What an iteration showed. NaN: nothing to tell."""

    returns: Sequence[float]  # raw returns of the episodes that ended in it
    mean_return: float  # of the last 100 episodes
    entropy: float  # mean entropy of the policy, in nats


class Schedule:
    """A coefficient as a function of progress; the base of those that look at nothing else."""

    adapts: ClassVar[bool] = False  # whether `observe` does anything

    def __call__(self, progress: float) -> float:
        raise NotImplementedError

    def observe(self, measured: Measured) -> None:
        """Called once after each iteration."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@dataclass
class Curve(Schedule):
    """c(p) = end + (value − end) · shape(p), shape falling from 1 at p = 0 to 0 at p = 1."""

    value: float
    end: float
    shape: Callable[[float], float]

    def __call__(self, progress: float) -> float:
        return self.end + (self.value - self.end) * self.shape(min(max(progress, 0.0), 1.0))


def constant(value: float) -> Schedule:
    """c(p) = value."""
    return Curve(value, value, lambda p: 1.0)


def linear(value: float, end: float = 0.0) -> Schedule:
    """c(p) = value + (end − value) · p for p = 0 … 1."""
    return Curve(value, end, lambda p: 1.0 - p)


def cosine(value: float, end: float = 0.0) -> Schedule:
    """c(p) = end + (value − end) · ½ (1 + cos πp) for p = 0 … 1."""
    return Curve(value, end, lambda p: 0.5 * (1.0 + math.cos(math.pi * p)))


@dataclass
class _Stateful(Schedule):
    """The fields named in `kept` are the state; plain numbers and lists of them."""

    adapts: ClassVar[bool] = True

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.kept()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.kept():
            setattr(self, name, state[name])

    def kept(self) -> tuple[str, ...]:
        raise NotImplementedError


@dataclass
class ReturnGated(_Stateful):
    """`value` until the mean return has clearly risen, from then on linearly to `end` at the end of training.

    Clearly: the mean of the last 100 episodes is above that of the first `episodes` ones by more than `rise` of their
    standard deviations (at least 1 % of their mean's size). An agent that has found nothing yet goes on exploring.
    """

    value: float
    end: float = 0.0
    rise: float = 1.0
    episodes: int = 20
    first: list[float] = field(default_factory=list)
    opened: float | None = None  # progress at which the gate opened
    progress: float = 0.0

    def kept(self) -> tuple[str, ...]:
        return ("first", "opened", "progress")

    def __call__(self, progress: float) -> float:
        self.progress = min(max(progress, 0.0), 1.0)
        if self.opened is None:
            return self.value
        left = 1.0 - self.opened
        gone = (self.progress - self.opened) / left if left > 0 else 1.0
        return self.value + (self.end - self.value) * max(gone, 0.0)

    def observe(self, measured: Measured) -> None:
        if self.opened is not None:
            return
        if len(self.first) < self.episodes:
            finite = [float(x) for x in measured.returns if math.isfinite(x)]
            self.first = [*self.first, *finite][: self.episodes]
        elif measured.mean_return > self._threshold():  # False for NaN
            self.opened = self.progress

    def _threshold(self) -> float:
        mean = sum(self.first) / len(self.first)
        square = sum((x - mean) ** 2 for x in self.first) / max(len(self.first) - 1, 1)
        return mean + self.rise * max(math.sqrt(square), 0.01 * abs(mean))


@dataclass
class TargetEntropy(_Stateful):
    """The entropy coefficient that holds the entropy at `target` nats, a multiplicative controller.

    c ← c · exp(rate · clip(target − H, −1, 1)) after each iteration, held within [smallest, largest]: it grows
    while the policy is too sure of itself and shrinks while it is too undecided.
    Source: the idea of Haarnoja et al. 2018 (SAC), §5, as a controller of a bonus.
    """

    value: float
    target: float
    rate: float = 0.05
    smallest: float = 1e-6
    largest: float = 1.0
    now: float | None = None

    def kept(self) -> tuple[str, ...]:
        return ("now",)

    def __call__(self, progress: float) -> float:
        return min(max(self.value if self.now is None else self.now, self.smallest), self.largest)

    def observe(self, measured: Measured) -> None:
        error = self.target - measured.entropy
        if math.isfinite(error):
            self.now = self(0.0) * math.exp(self.rate * min(max(error, -1.0), 1.0))
            self.now = self(0.0)  # within the limits


@dataclass
class Plateau(_Stateful):
    """A rate that falls by `factor` each time the mean return of the last 100 episodes stood still.

    Stood still: for `patience` iterations it did not exceed its best so far by more than `threshold` of the
    best's size. Never below `smallest`.
    """

    value: float
    factor: float = 0.5
    patience: int = 20
    threshold: float = 0.01
    smallest: float = 1e-6
    best: float = -math.inf
    waited: int = 0
    scale: float = 1.0

    def kept(self) -> tuple[str, ...]:
        return ("best", "waited", "scale")

    def __call__(self, progress: float) -> float:
        return max(self.value * self.scale, min(self.smallest, self.value))

    def observe(self, measured: Measured) -> None:
        if not math.isfinite(measured.mean_return):
            return
        margin = self.threshold * abs(self.best) if math.isfinite(self.best) else 0.0
        if measured.mean_return > self.best + margin:
            self.best, self.waited = measured.mean_return, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.scale, self.waited = self.scale * self.factor, 0


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "return_gated": ReturnGated,
    "target": TargetEntropy,
    "plateau": Plateau,
}
