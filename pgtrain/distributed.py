"""Ranks: processes that train one policy together, each with its share of the envs. The only user of torch.distributed.

`launch.py` starts them.

Every rank runs the same program on its own envs, and what they decide on is always the same reduced number, so that
they never part. All methods of `Ranks` that talk must be called by all ranks, in the same order. R ranks.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pgtrain.types import TrainingError

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
    played: np.ndarray | None = None  # [R] env steps of each rank so far, in memory that all of them share

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
    """This process as one of several, over torch.distributed with gloo.

    store: where they meet (see `meeting_place`), over the loopback interface; None: where torchrun says.
    why: asked which rank is gone, and why, when a connection breaks (→ text and traceback; None: nothing known yet).
    end: ends the other ranks within so many seconds.
    played: see `Ranks`; None where they share no memory.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: Any = None,
        why: Callable[[], tuple[str, str] | None] | None = None,
        end: Callable[[float], None] = lambda patience: None,
        played: np.ndarray | None = None,
    ) -> None:
        self.played = played
        self.rank, self.size, self.why, self.end = rank, size, why, end
        with contextlib.nullcontext() if store is None else _loopback():
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
        if self.why is None:
            raise RankLost(f"rank {self.rank}: another rank is gone") from error
        end = time.monotonic() + GOODBYE_S
        while (told := self.why()) is None and time.monotonic() < end:
            time.sleep(0.01)
        if told is None:
            first = str(error).splitlines()[0]
            raise RankLost(f"the ranks do not hear from each other any more ({first})") from error
        raise RankLost(*told) from error

    def close(self, patience: float = GOODBYE_S) -> None:
        self.end(patience)  # first: the group cannot be taken down while something is on its way in it
        if dist.is_initialized():
            dist.destroy_process_group()


def meeting_place(size: int, port: int | None = None) -> Any:
    """Rank 0's store on the loopback interface, at a free port (`store.port`); with `port`, as another rank sees it."""
    first = port is None
    return dist.TCPStore("127.0.0.1", port or 0, size, first, wait_for_workers=False)  # pyright: ignore


def in_use() -> bool:
    """Whether this process is in a group of torch.distributed's already."""
    return dist.is_initialized()


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


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
