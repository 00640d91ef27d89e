"""What worker processes and ranks have in common: how they start, and how they are ended."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from typing import Any

OURS = "pgtrain-"  # how the name of a process begins that pgtrain has started
UNGUARDED = 4  # exit code of one that came to train while it only imported the script
GUARD = "guard the script's entry point with: if __name__ == '__main__':"


@contextlib.contextmanager
def no_keyboard_interrupt() -> Iterator[None]:
    """Holds SIGINT back while processes start, and in them for good (a child inherits the mask)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it in between would lift the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_if_unguarded() -> None:
    """Ends a process of ours, without a word, that imports the script and is about to train: its parent tells why."""
    process = mp.current_process()
    if process.name.startswith(OURS) and getattr(process, "_inheriting", False):
        raise SystemExit(UNGUARDED)


def how_ended(code: int | None) -> str:
    """How a process of ours ended that told of no error: the end of a line."""
    if code == UNGUARDED:
        return f"could not start: each process imports the script; {GUARD}"
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return f"died with {how}" + (f" (started from a script? {GUARD})" if code == 1 else "")


def end(processes: Sequence[Any], patience: float) -> None:
    """Waits so many seconds for them to end by themselves, then ends them by force."""
    until = time.monotonic() + patience
    started = [process for process in processes if process.pid is not None]
    for process in started:
        process.join(max(0.0, until - time.monotonic()))
    for stop in ("terminate", "kill"):
        left = [process for process in started if process.is_alive()]
        for process in left:
            getattr(process, stop)()
        for process in left:
            process.join(1.0)
