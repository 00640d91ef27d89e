"""Starting the ranks of a run as processes of this machine, and learning how they ended."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pgtrain.distributed import GOODBYE_S, Gloo, RankLost, Ranks, in_use, meeting_place
from pgtrain.processes import OURS, end, how_ended, no_keyboard_interrupt
from pgtrain.types import TrainingError, UserError

_MISSED = 3  # exit code of a rank that ended because another one was gone


def torchrun_rank() -> int | None:
    """This process's rank among those that torchrun has started; None where it has not, or only one."""
    several = "TORCHELASTIC_RUN_ID" in os.environ and os.environ["WORLD_SIZE"] != "1"
    return int(os.environ["RANK"]) if several else None


def start(size: int, work: Callable[..., None], *args: Any) -> Ranks:
    """This process as rank 0 of `size`, the others started here: each calls work(ranks, *args), a function of a module.

    An error in one of them becomes this process's `RankLost` when it next waits for them. With size 1 nothing is
    started; under torchrun all are there already, and only meet.

    Raises: UserError, RankLost.
    """
    if (rank := torchrun_rank()) is not None:
        there = os.environ["WORLD_SIZE"]
        if there != str(size):
            raise UserError(
                f"device.ranks={size}: torchrun has started {there} processes; use device.ranks={there}"
            )
        return Gloo(rank, size)
    if size == 1:
        return Ranks()
    if in_use():
        raise UserError(f"device.ranks={size}: torch.distributed is in use in this process already; use 1")
    store = meeting_place(size)
    context = mp.get_context("spawn")
    memory = context.RawArray("q", size)
    played = np.frombuffer(memory, np.int64)
    children: list[_Child] = []
    try:
        with no_keyboard_interrupt(), _quiet_c10d():
            for rank in range(1, size):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_serve,
                    args=(theirs, rank, size, store.port, memory, work, args),
                    name=f"{OURS}rank-{rank}",
                )
                children.append(_Child(process, ours, played[rank : rank + 1]))
                process.start()
                theirs.close()
        _await(children)
        return Gloo(0, size, store, partial(_why, children), partial(_end, children), played)
    except BaseException:
        _end(children, patience=0.0)
        raise


def _serve(
    pipe: Any, rank: int, size: int, port: int, memory: Any, work: Callable[..., None], args: tuple[Any, ...]
) -> None:
    """A rank that another process started, from its beginning to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, which ends us
    code = 1
    threading.Thread(target=_end_with_rank_0, args=(rank,), daemon=True).start()
    try:
        pipe.send(None)
        ranks = Gloo(rank, size, meeting_place(size, port), played=np.frombuffer(memory, np.int64))
        work(ranks, *args)
        ranks.close()
        code = 0
    except RankLost:
        code = _MISSED
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())
        known = isinstance(error, TrainingError | UserError)
        told = text if known else f"{type(error).__name__}: {text}"
        with contextlib.suppress(OSError):
            pipe.send((f"failed: {told}", "" if known else traceback.format_exc()))
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # whatever an env has left running, and without a word from torch's threads


def _end_with_rank_0(rank: int) -> None:
    """Waits for the end of the process that started us, and ends this one: the store would be tried for minutes."""
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    if rank == 1:  # one line, whatever the number of ranks
        os.write(2, b"pgtrain: rank 0 is gone: the other ranks end\n")
    os._exit(_MISSED)


@contextlib.contextmanager
def _quiet_c10d() -> Iterator[None]:
    """Processes started inside print no stack trace of torch's C++ code where a connection breaks: we tell of it."""
    name = "TORCH_CPP_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "ERROR"
    try:
        yield
    finally:
        del os.environ[name]


def _await(children: list[_Child]) -> None:
    """Until every child says that it has started."""
    for rank, child in enumerate(children, 1):
        try:
            child.pipe.recv()
        except (EOFError, OSError):
            child.process.join(GOODBYE_S)
            told = child.failure() or ("died", "")
            raise RankLost(f"rank {rank} {told[0]}") from None


def _why(children: list[_Child]) -> tuple[str, str] | None:
    """Which child is gone by its own fault, and why; its traceback, if that is of use."""
    for rank, child in enumerate(children, 1):
        if (failure := child.failure()) is not None:
            return f"rank {rank} {failure[0]}", failure[1]
    return None


def _end(children: list[_Child], patience: float) -> None:
    """Waits so many seconds for them to end by themselves; forgets them."""
    end([child.process for child in children], patience)
    while children:
        children.pop().pipe.close()


class _Child(NamedTuple):
    """A rank that this process started; the pipe brings None once it runs, and what made it fail."""

    process: Any
    pipe: Any
    played: Any  # [1] its env steps so far

    def failure(self) -> tuple[str, str] | None:
        """What ended it, for people, and its traceback; None while it lives, or if it only missed another rank."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                told = self.pipe.recv()
                if told is not None:
                    return told
        code = self.process.exitcode
        if code in (None, 0, _MISSED):
            return None
        steps = int(self.played[0])
        return how_ended(code) + (f" after {steps:,} steps of its envs" if steps else ""), ""
