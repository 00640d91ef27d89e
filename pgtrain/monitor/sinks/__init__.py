"""Where a run's numbers go. Each sink imports what it needs only when it is made."""

from __future__ import annotations

import sys
from pathlib import Path

from pgtrain.monitor.monitor import Sink

TERMINAL_MODES = ("auto", "live", "plain", "none")


def make_sinks(run_dir: str | Path, *, tensorboard: bool = True, terminal: str = "auto") -> list[Sink]:
    """The sinks of a run: log file and JSONL always, TensorBoard and the terminal as asked.

    `terminal`: live (a view that redraws itself), plain (single lines), auto (live where the output is a terminal
    that can, else plain) or none. `live` without such a terminal falls back to plain and says so.
    Raises: ValueError for another `terminal`.
    """
    if terminal not in TERMINAL_MODES:
        raise ValueError(f"terminal={terminal!r}: must be one of {', '.join(TERMINAL_MODES)}.")
    from pgtrain.monitor.sinks.jsonl import JsonlSink
    from pgtrain.monitor.sinks.textlog import TextLogSink

    run_dir = Path(run_dir)
    sinks: list[Sink] = [TextLogSink(run_dir), JsonlSink(run_dir)]
    if terminal != "none" and sys.stdout is not None:
        from pgtrain.monitor.sinks.terminal import terminal_sink

        sinks.append(terminal_sink(terminal))
    if tensorboard:
        from pgtrain.monitor.sinks.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(run_dir))
    return sinks
