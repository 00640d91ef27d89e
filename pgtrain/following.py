"""What each rank of a run does beside training: ranks above 0 follow, and what all have played is counted."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from pgtrain import build, device, launch
from pgtrain.account import run_info
from pgtrain.config import schema
from pgtrain.distributed import Ranks
from pgtrain.interrupt import Interrupt
from pgtrain.monitor.monitor import Monitor
from pgtrain.origin import Beginning
from pgtrain.runner import Runner
from pgtrain.types import Step, TrainingError


def follow_torchrun(cfg: schema.Config) -> None:
    """What a process of torchrun's has to do that is not rank 0."""
    with launch.start(cfg.device.ranks, follow) as ranks:
        follow(ranks, cfg)


def follow(ranks: Ranks, cfg: schema.Config, origin: Beginning | None = None) -> None:
    """A rank above 0 of a run: trains its share and leaves all that is told or written to rank 0."""
    device.use_threads(cfg.device.threads)
    with (
        build.make_share(cfg, ranks) as env,
        Monitor([], cfg.monitor.log_every) as monitor,
    ):
        runner = build.make_runner(cfg, env, monitor, Path(), Interrupt(), [], ranks)
        if origin is not None:
            origin.restore(cfg, runner, env)
        monitor.start(run_info(cfg, Path(), [], env, runner, []))
        count_played(runner)
        runner.run()
        check_together(runner)


def check_together(runner: Runner) -> None:
    """Ranks decide and step on the same numbers; one that does not would spoil the run without a word."""
    data = runner.update.flat.data.cpu().numpy().tobytes()
    if len(set(runner.ranks.gather(hashlib.sha256(data).hexdigest()))) > 1:
        raise TrainingError(
            "the ranks' parameters have parted: the policy or an optimiser is not deterministic"
        )


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
