"""Ctrl-C and SIGTERM: the run ends with a checkpoint and its summary instead of a traceback."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupted(BaseException):
    """Raised out of env stepping by the first signal; a BaseException, which no env's `except Exception` swallows."""


class Interrupt:
    """Installs the handlers while a run is under way (main thread only; elsewhere it does nothing).

    The first signal is noted; while an env is being stepped it also raises `Interrupted` at once, for an env may never
    come back. During an update or a save, and with envs that tell their state, it waits for the end of the iteration:
    a resumed run then goes on as if there had been no signal. A second signal is the ordinary KeyboardInterrupt; once
    the run is about to end (`hold`) its record is written all the same, and signals only cut short the waiting.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._stepping = self._held = False
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        return self.signum is not None

    @property
    def exit_code(self) -> int:
        """128 + signal number: 130 for Ctrl-C, 143 for SIGTERM; 0 without one."""
        return 0 if self.signum is None else 128 + self.signum

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous.clear()

    @contextlib.contextmanager
    def stepping(self, at_once: bool = True) -> Iterator[None]:
        """Env code runs inside: a signal ends it at once, unless `at_once` is False."""
        self._stepping = at_once  # before the look at `requested`: a signal in between would be lost for long
        try:
            if at_once and self.requested:
                raise Interrupted
            yield
        except (Interrupted, KeyboardInterrupt):
            self._held = True  # the run ends now
            raise
        finally:
            self._stepping = False

    def hold(self) -> None:
        """From now on further signals are only noted."""
        self._held = True

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """What must be whole is written inside: further signals are only noted."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside others are waited for; a further signal ends that, and nothing else. Held from then on."""
        self._held = False
        try:
            yield
            self._held = True
        except KeyboardInterrupt:
            self._held = True

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            if self._held:
                return
            raise KeyboardInterrupt
        self.signum = signum
        if self._stepping:
            raise Interrupted
