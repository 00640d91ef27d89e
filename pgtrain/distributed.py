"""Ranks: processes that train one policy together, each with its share of the envs. The only user of torch.distributed.

Every rank runs the same program on its own envs, and what they decide on is always the same reduced number, so that
they never part. All methods of `Ranks` that talk must be called by all ranks, in the same order. R ranks.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import resource_tracker
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pgtrain.types import TrainingError, UserError

T = TypeVar("T")

TIMEOUT = timedelta(minutes=30)  # how long a rank waits for another one that is alive
GOODBYE_S = 10.0  # how long ranks may take to end once the run is over
SHORT = 1016  # bytes of a pickled object that go into one message
POLL_S = 1e-4


class RankLost(TrainingError):
    """Another rank ended. `details`: its traceback, "" for a failure that needs none."""

    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details


class Ranks:
    """One process by itself: what there is to share is what it has. The base of real ranks."""

    rank = 0
    size = 1

    @property
    def leads(self) -> bool:
        """Whether this is the rank that logs, writes and evaluates."""
        return self.rank == 0

    def gather(self, x: T) -> list[T]:
        """Every rank's `x` (anything that can be pickled), in the order of ranks. Signals are heard while it waits."""
        return [x]

    def gather_tensor(self, x: Tensor) -> Tensor:
        """[…] of the same shape and type on each rank → [R, …]."""
        return x[None]

    def sum_(self, x: Tensor) -> Tensor:
        """Adds up x over the ranks, in place and to the same bits everywhere."""
        return x

    def first(self, x: bool) -> bool:
        """What rank 0 says."""
        return x

    def copy_from_first_(self, x: Tensor) -> None:
        """Rank 0's numbers, in place."""

    def minibatches(self, rows: int, size: int) -> int:
        """How many minibatches of about `size` rows of all ranks; on no rank more than it has rows."""
        return -(-rows // size)

    def close(self, patience: float = GOODBYE_S) -> None:
        """Ends the ranks that this process started, after `patience` seconds by force; again it does nothing."""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(patience=1.0)


class Several(Ranks):
    """More than one: what `gather`, `sum_` and `copy_from_first_` of a subclass are good for."""

    def gather_tensor(self, x: Tensor) -> Tensor:
        table = torch.zeros(self.size, *x.shape, dtype=x.dtype)
        table[self.rank] = x
        return self.sum_(table)

    def first(self, x: bool) -> bool:
        return bool(self.sum_(torch.tensor(float(x) if self.leads else 0.0)))

    def minibatches(self, rows: int, size: int) -> int:
        each = self.gather_tensor(torch.tensor(rows))
        return min(-(-int(each.sum()) // size), int(each.min()))


class Gloo(Several):
    """This process as one of several, over torch.distributed with gloo."""

    def __init__(self, rank: int, size: int, store: Any = None, children: list[_Child] | None = None) -> None:
        self.rank, self.size, self.children = rank, size, children or []
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)

    def gather(self, x: T) -> list[T]:
        data = pickle.dumps(x)
        message = torch.zeros(self.size, 8 + SHORT, dtype=torch.uint8)
        message[self.rank, :8] = _bytes(len(data).to_bytes(8, "little"))
        message[self.rank, 8 : 8 + len(data)] = _bytes(data[:SHORT])
        with self._together():
            work = dist.all_reduce(message, async_op=True)
            assert work is not None
            while not work.is_completed():
                time.sleep(POLL_S)
            work.wait()
        lengths = [int.from_bytes(row[:8].numpy().tobytes(), "little") for row in message]
        rows = message[:, 8:]
        if max(lengths) > SHORT:
            rows = torch.zeros(self.size, max(lengths), dtype=torch.uint8)
            rows[self.rank, : len(data)] = _bytes(data)
            self.sum_(rows)
        return [
            pickle.loads(row[:length].numpy().tobytes()) for row, length in zip(rows, lengths, strict=True)
        ]

    def sum_(self, x: Tensor) -> Tensor:
        with self._together():
            dist.all_reduce(x)
        return x

    def copy_from_first_(self, x: Tensor) -> None:
        with self._together():
            dist.broadcast(x, 0)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self._lost(error)

    def _lost(self, error: Exception) -> NoReturn:
        """A connection broke: the rank at its other end is gone, and has told why if it could."""
        if not self.children:
            raise RankLost(f"rank {self.rank}: another rank is gone") from error
        end = time.monotonic() + GOODBYE_S
        while time.monotonic() < end:
            for number, child in enumerate(self.children, 1):
                if (failure := child.failure()) is not None:
                    raise RankLost(f"rank {number} {failure[0]}", failure[1]) from error
            time.sleep(0.01)
        raise RankLost(
            f"the ranks do not hear from each other any more ({str(error).splitlines()[0]})"
        ) from error

    def close(self, patience: float = GOODBYE_S) -> None:
        children, self.children = self.children, []
        _end(children, patience)  # first: the group cannot be taken down while something is on its way in it
        if dist.is_initialized():
            dist.destroy_process_group()


class _Child(NamedTuple):
    process: Any
    pipe: Any

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
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        hint = " (started from a script? guard its entry point with: if __name__ == '__main__':)"
        return f"died with {how}{hint if code == 1 else ''}", ""


_MISSED = 3  # exit code of a rank that ended because another one was gone


def torchrun_rank() -> int | None:
    """This process's rank among those that torchrun has started; None where it has not, or only one."""
    several = "TORCHELASTIC_RUN_ID" in os.environ and os.environ["WORLD_SIZE"] != "1"
    return int(os.environ["RANK"]) if several else None


def start(size: int, work: Callable[..., None], *args: Any) -> Ranks:
    """This process as rank 0 of `size`, the others started here: each calls work(ranks, *args), a function of a module.

    They talk over the loopback interface. An error in one of them becomes this process's `RankLost` when it next
    waits for them. With size 1 nothing is started; under torchrun all are there already, and only meet.
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
    if dist.is_initialized():
        raise UserError(f"device.ranks={size}: torch.distributed is in use in this process already; use 1")
    store = dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)  # pyright: ignore
    context, children = mp.get_context("spawn"), []
    try:
        with _no_keyboard_interrupt():
            for rank in range(1, size):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_serve,
                    args=(theirs, rank, size, store.port, work, args),
                    name=f"pgtrain-rank-{rank}",
                )
                children.append(_Child(process, ours))
                process.start()
                theirs.close()
        _await(children)
        with _loopback():
            return Gloo(0, size, store, children)
    except BaseException:
        _end(children, patience=0.0)
        raise


def _serve(
    pipe: Any, rank: int, size: int, port: int, work: Callable[..., None], args: tuple[Any, ...]
) -> None:
    """A rank that another process started, from its beginning to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, which ends us
    code = 1
    try:
        pipe.send(None)
        store = dist.TCPStore("127.0.0.1", port, size, False)  # pyright: ignore
        with _loopback():
            ranks = Gloo(rank, size, store)
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


def _await(children: list[_Child]) -> None:
    """Until every child says that it has started."""
    for rank, child in enumerate(children, 1):
        try:
            child.pipe.recv()
        except (EOFError, OSError):
            child.process.join(GOODBYE_S)
            told = child.failure() or ("died", "")
            raise RankLost(f"rank {rank} {told[0]}") from None


def _end(children: list[_Child], patience: float) -> None:
    end = time.monotonic() + patience
    started = [child.process for child in children if child.process.pid is not None]
    for process in started:
        process.join(max(0.0, end - time.monotonic()))
    for stop in ("terminate", "kill"):
        left = [process for process in started if process.is_alive()]
        for process in left:
            getattr(process, stop)()
        for process in left:
            process.join(1.0)
    for child in children:
        child.pipe.close()


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Gloo would look its address up by the machine's name, which need not have one."""
    name = "GLOO_SOCKET_IFNAME"
    if not sys.platform.startswith("linux") or name in os.environ:
        yield
        return
    os.environ[name] = "lo"
    try:
        yield
    finally:
        del os.environ[name]


@contextlib.contextmanager
def _no_keyboard_interrupt() -> Iterator[None]:
    """Holds SIGINT back while ranks start (a child inherits the mask)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it in between would lift the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
