"""The monitor: one call an iteration, passed on to the sinks (terminal, TensorBoard, JSONL, log file)."""

from __future__ import annotations

import sys
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
    reward_threshold: float | None = None  # the return at which the env counts as solved
    start_step: int = 0  # steps done before, in a resumed run


class Sink:
    """Where numbers and messages go. Every method may be left out; none may change `metrics`.

    A metric is None where it does not apply and NaN or infinite where the run went wrong.
    """

    every_iteration = False  # True: gets each iteration, whatever `log_every` is

    def start(self, info: RunInfo) -> None: ...

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None: ...

    def message(self, text: str, level: str) -> None: ...

    def finish(self, summary: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Monitor:
    """Passes what a run tells on to its sinks. A sink that fails is dropped with one message; training goes on.

    With `log_every=k` the files get every k-th iteration, as it was, and the last one; the terminal sees all.
    All sinks together take 1.0 to 1.5 % of the processor's time at 10 iterations a second: about 1 ms a call and 0.4 ms
    in TensorBoard's thread. At 100 a second, where TensorBoard and the live view skip, it is 0.4 ms, 4 to 5 %: use
    `log_every` there. (`python tests/monitor/cost.py`, on two busy cores.)

    `close` may be called at any time and again; as a context manager the monitor closes itself.
    """

    def __init__(self, sinks: Iterable[Sink], log_every: int = 1) -> None:
        if log_every < 1:
            raise ValueError(f"log_every={log_every}: must be 1 or more.")
        self.sinks = list(sinks)
        self.log_every = log_every
        self._calls = 0
        self._pending: tuple[int, dict[str, float | None]] | None = None

    def start(self, info: RunInfo) -> None:
        """Opens the sinks, then shows the run's notices."""
        self._each("start", info)
        for notice in info.notices:
            self.message(notice)

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
        due = self._calls % self.log_every == 0
        self._calls += 1
        self._pending = None if due else (step, numbers)
        for sink in list(self.sinks):
            if due or sink.every_iteration:
                self._call(sink, "log", step, numbers)

    def message(self, text: str, level: str = "info") -> None:
        """One line for people. `level`: info, warning or error."""
        if level not in ("info", "warning", "error"):
            raise ValueError(f"level={level!r}: must be info, warning or error.")
        self._each("message", text, level)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run is over: `summary` as in `summary.json`. Shows what is still held back and flushes."""
        if self._pending is not None:
            step, numbers = self._pending
            self._pending = None
            for sink in list(self.sinks):
                if not sink.every_iteration:
                    self._call(sink, "log", step, numbers)
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
