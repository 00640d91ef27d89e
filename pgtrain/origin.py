"""Where a run begins: at its first step, or where a checkpoint left it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from omegaconf import OmegaConf

from pgtrain import blas, build, checkpoint
from pgtrain.callbacks import Checkpointer
from pgtrain.collector import Collector
from pgtrain.config import convert, schema
from pgtrain.envs.vector import VectorEnv
from pgtrain.learning.window import WindowCollector
from pgtrain.monitor import record
from pgtrain.monitor.sinks.jsonl import cut_after
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
        """Called on each rank, all of which go on from what rank 0 saved."""
        ranks, steps, notices = runner.ranks, self.step, list(self.notices)
        now, then = next(runner.policy.parameters()).device.type, self.state["device"]
        on_host = isinstance(runner.collector, Collector) and "episodes" in self.state["collector"]
        if now != then and not on_host:  # tasks in torch, whose randomness is the device's
            raise UserError(f"the run computed its envs on {then}, where it has to go on; give device={then}")
        named = build.streams(cfg.seed, ranks.rank)
        seeds = {
            name: int(np.random.SeedSequence([x, steps]).generate_state(1)[0]) for name, x in named.items()
        }
        state = self.state
        if now != then or ranks.size > 1:
            state = with_new_streams(state, runner, seeds)
        try:
            runner.load_state_dict(state)
        except (KeyError, ValueError, RuntimeError) as error:
            first = str(error).splitlines()[-1].strip() if str(error) else type(error).__name__
            raise UserError(
                f"the checkpoint does not fit env={cfg.env.id} and the settings of the run as they are now "
                f"(has the env changed?): {first}"
            ) from error
        runner.stopwatch.before = self.seconds
        self._adjust(runner)
        anew = "so the run is not bit for bit what it would have been without a break"
        if ranks.size > 1:
            runner.restart_episodes(seeds["env"])
            notices.append(
                f"device.ranks={ranks.size}: random numbers and episodes of every rank begin anew, {anew}"
            )
        elif isinstance(runner.collector, Collector) and not (env.tells_state and state["collector"]["env"]):
            runner.restart_episodes(seeds["env"])
            notices.append(
                f"env.backend={env.backend}: these envs cannot go on in the middle of an episode; all begin a new one "
                f"with new seeds, {anew}"
            )
        if now != then:
            notices.append(f"device={now} in place of {then}: random numbers begin anew, {anew}")
        kernels, before = blas.kernels(), state.get("blas", "")
        if kernels != before:
            how = f"{kernels or '?'} in place of {before or '?'}"
            notices.append(f"NumPy multiplies by {how}: sums are rounded in another way, {anew}")
        self.restored = True
        return notices

    def _adjust(self, runner: Runner) -> None:
        """What is not of the run but of this part of it."""
        progress = runner.progress
        if progress.skipped_in_a_row >= runner.max_skipped_in_a_row:
            progress.skipped_in_a_row = 0  # it was given up for that: now it gets another chance
        for callback in runner.callbacks:
            if isinstance(callback, Checkpointer):
                callback.saved_at = progress.steps

    def write(self, cfg: schema.Config, run_dir: Path, overrides: list[str]) -> None:
        if not self.restored:  # the envs failed or were interrupted before: all stays as it is
            return
        aside = checkpoint.go_back(run_dir, self.age)
        cut = cut_after(run_dir, self.step)
        details = {"step": self.step, "overrides": self.changes, "set_aside": aside, "entries_cut": cut}
        record.write_resume(run_dir, settings_of(cfg), overrides, details)


def with_new_streams(state: dict[str, Any], runner: Runner, seeds: dict[str, int]) -> dict[str, Any]:
    """The state of a runner with random numbers made from `seeds`, of the kind that this one uses.

    For another rank than the one that saved it, and for another device, whose generators differ.
    """
    assert not isinstance(runner.collector, WindowCollector)
    actor = {k: x for k, x in state["collector"]["actor"].items() if k not in ("numpy", "torch")}
    if "numpy" in runner.collector.actor.state_dict():
        actor["numpy"] = np.random.default_rng(seeds["action"]).bit_generator.state
    else:
        device = next(runner.policy.parameters()).device
        actor["torch"] = torch.Generator(device).manual_seed(seeds["action"]).get_state()
    minibatch = torch.Generator().manual_seed(seeds["minibatch"]).get_state()

    def renewed(update: dict[str, Any]) -> dict[str, Any]:
        update = {k: renewed(x) if k == "critic" and x is not None else x for k, x in update.items()}
        return update | {"minibatch_rng": minibatch} if "minibatch_rng" in update else update

    return state | {
        "collector": state["collector"] | {"actor": actor},
        "update": renewed(state["update"]),
    }


def settings_of(cfg: schema.Config) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(convert.to_dict(cfg)))
