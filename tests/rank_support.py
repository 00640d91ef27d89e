"""Ranks without processes: threads that exchange what they have at a barrier; and rollouts to play again."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from pgtrain.distributed import Several
from pgtrain.episodes import Episodes, EpisodeTally
from pgtrain.rollout import Rollout

T = TypeVar("T")


class ThreadRanks(Several):
    """One of `size` threads; `board` is theirs together."""

    def __init__(self, rank: int, size: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.board, self.barrier = rank, size, board, barrier

    def gather(self, x: T) -> list[T]:
        self.board[self.rank] = pickle.dumps(x)
        self.barrier.wait()
        everyone = [pickle.loads(text) for text in self.board]
        self.barrier.wait()
        return everyone

    def sum_(self, x: Tensor) -> Tensor:
        x.copy_(torch.stack(self.gather(x.clone())).sum(0))
        return x

    def copy_from_first_(self, x: Tensor) -> None:
        x.copy_(self.gather(x.clone())[0])


def together(work: Callable[[ThreadRanks], T], size: int = 2) -> list[T]:
    """What `work` gives on each of `size` ranks. An error on one of them frees the others, and is raised."""
    board, barrier = [None] * size, threading.Barrier(size, timeout=30)

    def run(rank: int) -> T:
        try:
            return work(ThreadRanks(rank, size, board, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
        errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]


class Recording:
    """Stands in for a collector and keeps a copy of each rollout."""

    def __init__(self, collector: Any) -> None:
        self.collector, self.rollouts = collector, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.collector, name)

    def collect_steps(self, *args: Any) -> Any:
        return self._kept(self.collector.collect_steps(*args))

    def collect_episodes(self, *args: Any, **kwargs: Any) -> Any:
        return self._kept(self.collector.collect_episodes(*args, **kwargs))

    def _kept(self, collected: tuple[Rollout, Episodes]) -> Any:
        found = collected[0].as_dict()
        copies = {name: x.clone() if isinstance(x, Tensor) else x for name, x in found.items()}
        self.rollouts.append(Rollout(**copies))
        return collected


class Replay:
    """The envs `first` … `first + count` − 1 of recorded rollouts, as the collector that has them alone gives them."""

    def __init__(self, env: Any, rollouts: list[Rollout], first: int, count: int) -> None:
        self.env, self.steps_now = env, 0
        self.columns = slice(first, first + count)
        self.tally = EpisodeTally(count)
        self.left = list(rollouts)

    def collect_steps(self, steps: int) -> tuple[Rollout, Episodes]:
        return self._next()

    def collect_episodes(self, episodes: int, max_steps: int | None = None) -> tuple[Rollout, Episodes]:
        return self._next()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def _next(self) -> tuple[Rollout, Episodes]:
        rollout = split(self.left.pop(0), self.columns)
        arrays = (rollout.raw_reward.numpy(), rollout.weight.numpy() > 0, rollout.done.numpy())
        return rollout, self.tally.count(*arrays)[0]


def split(rollout: Rollout, columns: slice) -> Rollout:
    """Some envs of a rollout: up to the last row that holds a transition of theirs."""
    used = (rollout.weight[:, columns] > 0).any(1).nonzero()
    steps = int(used[-1]) + 1

    def part(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[:steps, columns].contiguous()

    t, n = rollout.final_index
    mine = (n >= columns.start) & (n < columns.stop)
    names = list(Rollout.__annotations__)
    names = names[: names.index("final_inputs")]
    by_row: dict[str, Any] = {name: part(getattr(rollout, name)) for name in names}
    return Rollout(
        **by_row,
        final_inputs=rollout.final_inputs[mine],
        final_index=(t[mine], n[mine] - columns.start),
        last_inputs=rollout.last_inputs[columns],
        num_steps=int(np.count_nonzero(rollout.weight[:, columns].numpy())),
        whole_episodes=rollout.whole_episodes,
    )
