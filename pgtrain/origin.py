"""Where a run begins: at its first step, or where a checkpoint left it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from omegaconf import OmegaConf

from pgtrain import build, checkpoint
from pgtrain.callbacks import Checkpointer
from pgtrain.config import convert, schema
from pgtrain.envs.vector import VectorEnv
from pgtrain.monitor import record
from pgtrain.monitor.sinks.jsonl import cut_after
from pgtrain.rollout import Collector
from pgtrain.runner import Runner
from pgtrain.types import UserError


class Beginning:
    """A new run."""

    step: int = 0
    resumes: ClassVar[bool] = False

    def restore(self, cfg: schema.Config, runner: Runner, env: VectorEnv) -> list[str]:
        """Brings a new runner to where the run begins; what to tell the user.

        Raises: UserError where that cannot be.
        """
        return []

    def write(self, cfg: schema.Config, run_dir: Path, overrides: list[str]) -> None:
        """Says in the run folder what run this is, as soon as it is known that it can be."""
        record.write_provenance(run_dir, settings_of(cfg), overrides)


@dataclass
class Resumed(Beginning):
    """A run that goes on from a checkpoint, in its own folder.

    `changes`: the overrides of this part alone.
    """

    state: dict[str, Any]  # of the runner
    age: int  # of the checkpoint among those of the run
    seconds: tuple[float, float]  # wall and processor time of the parts before
    changes: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    restored: bool = False
    resumes: ClassVar[bool] = True

    @property
    def step(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return int(self.state["progress"]["steps"])

    def restore(self, cfg: schema.Config, runner: Runner, env: VectorEnv) -> list[str]:
        now, then = next(runner.policy.parameters()).device.type, self.state["device"]
        if now != then:
            raise UserError(
                f"the run computed on {then} and would go on on {now}, whose random numbers are others; "
                f"give device={then}"
            )
        try:
            runner.load_state_dict(self.state)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            first = str(error).splitlines()[-1].strip() if str(error) else type(error).__name__
            raise UserError(
                f"the checkpoint does not fit env={cfg.env.id} and the settings of the run as they are now "
                f"(has the env changed?): {first}"
            ) from error
        runner.stopwatch.before = self.seconds
        self.restored = True
        progress = runner.progress
        if progress.skipped_in_a_row >= runner.max_skipped_in_a_row:
            progress.skipped_in_a_row = 0  # it was given up for that: now it gets another chance
        for callback in runner.callbacks:
            if isinstance(callback, Checkpointer):
                callback.saved_at = progress.steps
        notices = list(self.notices)
        if isinstance(runner.collector, Collector) and not (
            env.tells_state and self.state["collector"]["env"]
        ):
            seed = np.random.SeedSequence([build.streams(cfg.seed)["env"], progress.steps]).generate_state(1)[
                0
            ]
            runner.restart_episodes(int(seed))
            notices.append(
                f"env.backend={env.backend}: these envs cannot go on in the middle of an episode; all begin a new one "
                "with new seeds, so the run is not bit for bit what it would have been without a break"
            )
        return notices

    def write(self, cfg: schema.Config, run_dir: Path, overrides: list[str]) -> None:
        if not self.restored:  # the envs failed or were interrupted before: all stays as it is
            return
        aside = checkpoint.go_back(run_dir, self.age)
        cut = cut_after(run_dir, self.step)
        details = {"step": self.step, "overrides": self.changes, "set_aside": aside, "entries_cut": cut}
        record.write_resume(run_dir, settings_of(cfg), overrides, details)


def settings_of(cfg: schema.Config) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(convert.to_dict(cfg)))
