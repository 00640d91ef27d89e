"""The terminal: which view fits the output, and the plain one (single lines for logs, pipes, notebooks)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from pgtrain.monitor.dashboard import BY_TAG
from pgtrain.monitor.hints import Hints
from pgtrain.monitor.monitor import RunInfo, Sink
from pgtrain.monitor.sinks.text import duration, number, to_encoding

_LINE = (("episode/return_100", "return"), ("episode/length", "length"), ("policy/entropy", "entropy"))
_LEVEL_PREFIX = {"info": "", "warning": "warning: ", "error": "error: "}


def terminal_sink(mode: str) -> Sink:
    """The live view where asked for (`live`, `auto`) and possible, else plain lines; `live` says why it is not."""
    obstacle = _live_obstacle()
    if mode == "plain" or (mode == "auto" and obstacle):
        return PlainSink()
    if obstacle:
        return PlainSink(f"monitor.terminal=live needs a terminal, but {obstacle}: plain lines instead.")
    from pgtrain.monitor.sinks.live import LiveSink

    return LiveSink()


def _live_obstacle() -> str | None:
    """Why the output can't show a view that redraws itself; None where it can."""
    if _in_notebook():
        return "this is a notebook"
    try:
        if not sys.stdout.isatty():
            return "the output is not one"
    except (AttributeError, ValueError):
        return "the output is not one"
    if os.environ.get("TERM", "" if os.name != "nt" else "windows").lower() in ("", "dumb", "unknown"):
        return "TERM says it is dumb"
    return None


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules and "IPython" in sys.modules


class Pace:
    """Progress of a run in wall time: elapsed, steps per second over the last part of the run, time left."""

    def __init__(self, info: RunInfo) -> None:
        self.total, self.start_step = info.total_steps, info.start_step
        self.started = time.perf_counter()
        self._marks = [(self.started, info.start_step)]  # every few seconds, the last minute of them

    def update(self, step: int, reported: float | None = None) -> tuple[float, float, float | None]:
        """(elapsed seconds, steps per second, seconds left or None while unknown).

        `reported`: the iteration's own steps per second, used in the first second.
        """
        now = time.perf_counter()
        first_time, first_step = self._marks[0]
        rate = (step - first_step) / max(now - first_time, 1e-9)
        if now - self.started < 1.0 and reported:
            rate = reported
        if now - self._marks[-1][0] > 3.0:
            self._marks = [*self._marks[-20:], (now, step)]
        left = max(0, self.total - step) / rate if rate > 0 else None
        return now - self.started, rate, left


def headline(info: RunInfo) -> str:
    """One line that says what run this is."""
    envs = f"{info.num_envs} env" + ("s" if info.num_envs != 1 else "")
    size = f" · {info.parameters}" if info.parameters else ""
    return f"{info.algo} on {info.env_id} · seed {info.seed} · {envs} · {info.device}{size}"


class PlainSink(Sink):
    """Single lines: the first iteration, then at most one every 2 s (later every 1 % of the time so far), the last.

    A hint about a bad number is printed when it first appears.
    """

    live = True

    def __init__(self, notice: str | None = None, interval: float = 2.0) -> None:
        self.notice, self.interval = notice, interval
        self._next = 0.0
        self._held: tuple[int, Mapping[str, float | None], float, float | None] | None = None

    def start(self, info: RunInfo) -> None:
        self._info, self._hints, self._pace = info, Hints(info), Pace(info)
        self._told: set[str] = set()
        self._last: dict[str, float | None] = {}
        before = f", the first {info.start_step:,} done" if info.start_step else ""
        self._print(f"{headline(info)} · {info.total_steps:,} steps{before}")
        self._print(f"run folder: {info.run_dir}")
        if info.reward_threshold is not None:
            self._print(f"{info.env_id} counts as solved at a return of {number(info.reward_threshold)}")
        if self.notice:
            self.message(self.notice, "info")

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        hints = self._hints.update(step, metrics)
        for tag, text in hints.items():
            if tag not in self._told:
                self._told.add(tag)
                self.message(f"{BY_TAG[tag].name} {number(metrics.get(tag))}: {text}", "warning")
        elapsed, rate, left = self._pace.update(step, metrics.get("time/steps_per_second"))
        self._held = (step, metrics, rate, left)  # made text only where it is shown
        if elapsed >= self._next:
            self._next = elapsed + max(self.interval, 0.01 * elapsed)
            self._flush()

    def message(self, text: str, level: str) -> None:
        if level == "detail":
            return
        self._print(f"{_LEVEL_PREFIX[level]}{text}")

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._held is not None:
            self._print(self._line(*self._held))
            self._held = None

    def _line(self, step: int, metrics: Mapping[str, float | None], rate: float, left: float | None) -> str:
        total = f"{self._info.total_steps:,}"
        self._last.update((tag, metrics[tag]) for tag, _ in _LINE if metrics.get(tag) is not None)
        metrics = {**metrics, **self._last}  # not every iteration has an episode's end
        parts = [f"step {step:>{len(total)},}/{total} {100 * step / max(self._info.total_steps, 1):3.0f} %"]
        parts += [f"{name} {number(metrics.get(tag)):>6}" for tag, name in _LINE]
        parts += [f"{number(rate):>6} steps/s", f"left {duration(left)}"]
        return "  ".join(parts)

    def _print(self, text: str) -> None:
        print(to_encoding(text, getattr(sys.stdout, "encoding", None)), flush=True)
