"""What each rank of a run does beside training: ranks above 0 follow, and what all have played is counted."""

from __future__ import annotations

from typing import Any

import numpy as np

from pgtrain.runner import Runner
from pgtrain.types import Step


def count_played(runner: Runner) -> None:
    """Notes the steps of every rank as they are made: those of one that hangs or dies belong to the run, too.

    For a runner that is ready to run. Under torchrun ranks share no memory, and steps count when all have told theirs.
    """
    played = runner.ranks.played
    if played is None:
        return
    env: Any = CountedEnv(runner.collector.env, played, runner.ranks.rank)
    runner.collector.env = env
    if runner.ranks.leads:
        runner.callbacks = [PlayedByAll(played, runner.progress.steps), *runner.callbacks]


class CountedEnv:
    """`env`, whose steps are added up in `played` [R] at this rank's place."""

    def __init__(self, env: Any, played: np.ndarray, rank: int) -> None:
        self.env, self.played, self.rank = env, played, rank

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, action: Any) -> Step:
        step = self.env.step(action)
        self.played[self.rank] += self.env.num_envs if step.valid is None else np.count_nonzero(step.valid)
        return step


class PlayedByAll:
    """At the end of a run that began with `start` steps counts what ranks have played and could not tell any more."""

    def __init__(self, played: np.ndarray, start: int) -> None:
        self.played, self.start = played, start

    def after_iteration(self, runner: Runner) -> None:
        pass

    def at_end(self, runner: Runner) -> None:
        runner.progress.steps = max(runner.progress.steps, self.start + int(self.played.sum()))
