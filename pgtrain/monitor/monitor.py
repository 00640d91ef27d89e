"""The monitor: one call an iteration, passed on to the sinks (terminal, TensorBoard, JSONL, log file)."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgtrain.monitor.dashboard import BY_TAG


@dataclass
class RunInfo:
    """What is known about a run when it starts."""

    run_dir: Path
    algo: str
    env_id: str
    seed: int
    total_steps: int
    num_envs: int
    device: str = "cpu"
    notices: list[str] = field(default_factory=list)  # one-line things to tell the user at the start
    config: dict[str, Any] = field(default_factory=dict)  # nested, plain
    overrides: list[str] = field(default_factory=list)
    policy_parameters: int = 0
    parameter_counts: dict[str, int] = field(
        default_factory=dict
    )  # of each part: actor, critic, what they share
    reward_threshold: float | None = None  # the return at which the env counts as solved
    start_step: int = 0  # steps done before, in a resumed run
    start_seconds: float = 0.0  # and the time they took

    @property
    def parameters(self) -> str:
        """`9,155 parameters (actor 4,610, critic 4,545)`; "" where nothing is known of them."""
        parts = ", ".join(f"{name} {count:,}" for name, count in self.parameter_counts.items() if count)
        several = sum(count > 0 for count in self.parameter_counts.values()) > 1
        text = f"{self.policy_parameters:,} parameters" if self.policy_parameters else ""
        return f"{text} ({parts})" if several else text


class Sink:
    """Where numbers and messages go. Every method may be left out; none may change `metrics`.

    A metric is None where it does not apply and NaN or infinite where the run went wrong.
    """

    live = False  # True: shows the run as it goes, gets numbers between the entries of the files too

    def start(self, info: RunInfo) -> None: ...

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None: ...

    def message(self, text: str, level: str) -> None: ...

    def finish(self, summary: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Monitor:
    """Passes what a run tells on to its sinks. A sink that fails is dropped with one message; training goes on.

    The files get every `log_every`-th iteration, or with None about `ENTRIES` in a run, however long it is: the log of
    1e7 steps is no larger than that of 1e5. Live sinks get numbers as often as they can show them. In between, `wants`
    says that nobody needs any, and the caller computes none: one entry in all sinks takes about 1 ms of processor time
    (`python tests/monitor/cost.py`).

    `close` may be called at any time and again; as a context manager the monitor closes itself.
    """

    ENTRIES = 500  # more than a plot has columns for
    LIVE_SECONDS = 0.2  # a live view draws at most this often

    def __init__(self, sinks: Iterable[Sink], log_every: int | None = None) -> None:
        if log_every is not None and log_every < 1:
            raise ValueError(f"log_every={log_every}: must be 1 or more.")
        self.sinks = list(sinks)
        self.log_every = log_every
        self._spacing = 0.0  # steps between two entries
        self._next_entry = 0.0
        self._shown = -math.inf
        self.recording = True  # whether the files get the next `log`

    def start(self, info: RunInfo) -> None:
        """Opens the sinks, then shows the run's notices."""
        self._spacing = info.total_steps / self.ENTRIES
        self._next_entry = float(info.start_step)
        self._each("start", info)
        for notice in info.notices:
            self.message(notice)

    def wants(self, iteration: int, step: int, last: bool = False) -> bool:
        """Whether anyone needs this iteration's numbers; asked once an iteration, before `log`."""
        if self.log_every is not None:
            self.recording = iteration % self.log_every == 0 or last
        else:
            self.recording = step >= self._next_entry or last
        if self.recording:
            self._next_entry = step + self._spacing
        live = any(sink.live for sink in self.sinks)
        return self.recording or (live and time.perf_counter() - self._shown >= self.LIVE_SECONDS)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One iteration's numbers. `step`: env steps so far, over all envs.

        Raises: ValueError for a tag that `dashboard.METRICS` does not explain.
        """
        if not metrics.keys() <= BY_TAG.keys():
            unknown = ", ".join(sorted(metrics.keys() - BY_TAG.keys()))
            raise ValueError(
                f"unknown metric {unknown}: explain it in pgtrain/monitor/dashboard.py METRICS first."
            )
        numbers = {tag: _number(value) for tag, value in metrics.items()}
        for sink in list(self.sinks):
            if self.recording or sink.live:
                self._call(sink, "log", step, numbers)
        self._shown = time.perf_counter()

    def message(self, text: str, level: str = "info") -> None:
        """One line for people. `level`: info, warning or error; detail: for `run.log` alone, of any length."""
        if level not in ("info", "warning", "error", "detail"):
            raise ValueError(f"level={level!r}: must be info, warning, error or detail.")
        self._each("message", text, level)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run is over: `summary` as in `summary.json`. Flushes."""
        self._each("finish", summary)

    def close(self) -> None:
        """Gives up files and the screen."""
        sinks, self.sinks = self.sinks, []
        for sink in sinks:
            try:
                sink.close()
            except Exception as error:
                print(f"pgtrain: {_name(sink)} did not close ({_one_line(error)}).", file=sys.stderr)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _each(self, method: str, *args: Any) -> None:
        for sink in list(self.sinks):
            self._call(sink, method, *args)

    def _call(self, sink: Sink, method: str, *args: Any) -> None:
        try:
            getattr(sink, method)(*args)
        except Exception as error:
            self._drop(sink, error)

    def _drop(self, sink: Sink, error: Exception) -> None:
        if sink not in self.sinks:  # it failed again while the message about it was on its way
            return
        self.sinks.remove(sink)
        with suppress(Exception):  # it is being dropped because it fails; the first error is the one to tell
            sink.close()
        text = f"{_name(sink)} failed ({_one_line(error)}) and is left out from here on; training goes on."
        if self.sinks:
            self.message(text, "warning")
        else:
            print(f"pgtrain: {text}", file=sys.stderr)


def _number(value: Any) -> float | None:
    """A plain number: ints stay ints, NumPy and torch scalars become floats."""
    return value if value is None or type(value) in (float, int) else float(value)


def _name(sink: Sink) -> str:
    return f"the monitor's {type(sink).__name__}"


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no details'}"
