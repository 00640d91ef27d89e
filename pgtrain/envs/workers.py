"""ProcessEnv: the envs in worker processes, a SyncEnv of some of them in each.

Observations, rewards, flags and actions go through shared memory; a pipe for each worker carries only "go", "done" and
errors. Gymnasium's AsyncVectorEnv is not used here: it needs one process an env, pickles every env's info at each
step, and answers a dead worker with a bare EOFError.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import time
from typing import Any, NoReturn

import cloudpickle  # comes with Gymnasium
import numpy as np

from pgtrain.envs.base import VectorEnv, env_seeds, idle_mask
from pgtrain.envs.cores import cores
from pgtrain.envs.masks import MaskLayout
from pgtrain.envs.registry import EnvFactory
from pgtrain.envs.serve import Shared, serve
from pgtrain.envs.sync import time_limit
from pgtrain.processes import OURS, UNGUARDED, end, how_ended, no_keyboard_interrupt
from pgtrain.types import Step, TrainingError, UserError

GOODBYE_S = 5.0  # how long a worker may take to close its envs


class _RemoteTraceback(Exception):
    """The traceback of a worker, as the cause of the error that tells of it."""


class ProcessEnv(VectorEnv):
    """N envs in `workers` processes; equal to SyncEnv in every number.

    Started with `start_method` spawn by default, so that threads and locks of this process do not matter. An error in
    an env, a worker that dies, or one that does not answer within `step_timeout` seconds ends all workers and becomes a
    TrainingError that names the env, by its index in the run: `before` others of it come before these.
    `workers`: None for one a core, of which this process as one of `ranks` has its part.
    """

    backend = "process"

    def __init__(
        self,
        factory: EnvFactory,
        num_envs: int,
        workers: int | None = None,
        *,
        step_timeout: float | None = None,
        start_method: str = "spawn",
        action_mask: str = "none",
        before: int = 0,
        ranks: int = 1,
    ) -> None:
        self.before = before
        self._processes: list[Any] = []
        self._pipes: list[Any] = []
        probe, warned = factory.make_with_warnings()  # tells the spaces, and the user's mistakes, at once
        observation_space, action_space, limit = (
            probe.observation_space,
            probe.action_space,
            time_limit(probe),
        )
        probe.close()
        super().__init__(
            factory.env_id,
            num_envs,
            observation_space,
            action_space,
            reward_threshold=factory.spec.reward_threshold,
            max_episode_steps=limit,
            action_mask=action_mask,
            one_hot_max=factory.one_hot_max,
        )
        self._lives = factory.atari is not None and factory.atari.terminal_on_life_loss
        self._timeout = step_timeout
        self._idle: np.ndarray | None = None
        count = workers or min(num_envs, cores(ranks))
        self._groups = [range(int(g[0]), int(g[-1]) + 1) for g in np.array_split(np.arange(num_envs), count)]
        context = mp.get_context(start_method)
        self._arrays(context, count)
        self._start(context, factory, action_mask)
        self._look_for_masks()
        self.notices += [*warned, f"{num_envs} envs in {count} worker processes"]

    def _arrays(self, context: Any, workers: int) -> None:
        n, width = self.num_envs, self._decode.width
        d = self.obs_dim + (MaskLayout(self.action_space).dim if self.masks_unknown else 0)
        action: tuple[str, tuple[int, ...]] = ("int64", (n,)) if width is None else ("float64", (n, width))
        layout = {
            "obs": (np.dtype(self.obs_dtype).name, (n, d)),
            "final_obs": (np.dtype(self.obs_dtype).name, (n, d)),
            "reward": ("float64", (n,)),
            "terminated": ("bool", (n,)),
            "truncated": ("bool", (n,)),
            "goes_on": ("bool", (n,)),
            "action": action,
            "now": ("int64", (workers, 1)),  # the env that a worker is in
            "masked": ("bool", (1,)),  # whether info has action masks
        }
        self._shared = {
            name: Shared(context.RawArray("b", int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype, shape)
            for name, (dtype, shape) in layout.items()
        }
        self._a = {name: shared.array() for name, shared in self._shared.items()}
        self._a["now"][:, 0] = [self.before + group.start for group in self._groups]

    def _look_for_masks(self) -> None:
        """A worker tells whether info has masks: a reset may hang or crash, and does not take this process along."""
        if not self.masks_unknown:
            return
        count = len(self._groups)
        self._command("first reset", [True] + [False] * (count - 1))
        try:
            self.masks_in_info(bool(self._a["masked"][0]))
        except UserError:
            self.close(force=True)
            raise
        self._command("masks", [self.mask_dim > 0] * count)

    def _start(self, context: Any, factory: EnvFactory, action_mask: str) -> None:
        payload = cloudpickle.dumps(factory)
        try:
            with no_keyboard_interrupt():
                for number, group in enumerate(self._groups):
                    ours, theirs = context.Pipe()
                    rows = slice(group.start, group.stop)
                    process = context.Process(
                        target=serve,
                        args=(theirs, payload, self._shared, number, rows, self.before, action_mask),
                        name=f"{OURS}envs-{number}",
                        daemon=True,
                    )
                    self._pipes.append(ours)
                    self._processes.append(process)
                    process.start()
                    theirs.close()
            self._collect(None, "start")
        except BaseException:
            self.close(force=True)
            raise

    def reset(self, seed: int) -> np.ndarray:
        seeds = env_seeds(seed, self.num_envs, self.before)
        self._command("reset", [seeds[g.start : g.stop] for g in self._groups])
        return self._a["obs"][:, : self.obs_dim].copy()

    def step(self, action: np.ndarray) -> Step:
        a = self._a
        a["action"][...] = np.asarray(action).reshape(a["action"].shape)
        self._command("step", [None] * len(self._groups))
        terminated, truncated = a["terminated"].copy(), a["truncated"].copy()
        done = terminated | truncated
        final_obs = a["final_obs"][done, : self.obs_dim] if done.any() else None
        valid = None if self._idle is None else ~self._idle
        goes_on = a["goes_on"] & done if self._lives else None
        obs = a["obs"][:, : self.obs_dim].copy()
        return Step(obs, a["reward"].copy(), terminated, truncated, final_obs, valid, goes_on)

    def set_idle(self, mask: np.ndarray) -> None:
        idle = idle_mask(mask, self.num_envs)
        if idle is None and self._idle is None:
            return
        self._idle = idle
        each = np.zeros(self.num_envs, np.bool_) if idle is None else idle
        self._command("idle", [each[g.start : g.stop] for g in self._groups])

    def _command(self, name: str, data: list[Any]) -> None:
        if not self._pipes:
            raise RuntimeError(f"env={self.env_id}: the vector env is closed")
        try:
            for number, (pipe, part) in enumerate(zip(self._pipes, data, strict=True)):
                try:
                    pipe.send((name, part))
                except OSError:
                    self._died(number)
            self._collect(self._timeout, name)
        except (
            BaseException
        ):  # Ctrl-C too: answers still under way would be taken for those of the next command
            self.close(force=True)
            raise

    def _collect(self, timeout: float | None, what: str) -> None:
        """Wait for every worker's answer. The first error, by env index, is raised; whoever called ends the workers."""
        until = None if timeout is None else time.monotonic() + timeout
        failed: tuple[type[Exception], str, str] | None = None
        for number, pipe in enumerate(self._pipes):
            try:
                if not pipe.poll(None if until is None else max(0.0, until - time.monotonic())):
                    self._hangs(number, timeout, what)
                answer = pipe.recv()
            except (EOFError, OSError):
                if failed is None:
                    self._died(number)
                continue
            failed = failed or answer
        if failed is not None:
            kind, text, trace = failed
            raise kind(text) from _RemoteTraceback(f"\n{trace}")

    def _hangs(self, number: int, timeout: float | None, what: str) -> NoReturn:
        index = int(self._a["now"][number, 0])
        raise TrainingError(
            f"env={self.env_id}, env index {index}: no answer to {what} within {timeout:g} s; the workers were ended"
        )

    def _died(self, number: int) -> NoReturn:
        group, process = self._groups[number], self._processes[number]
        process.join(GOODBYE_S)
        code, first = process.exitcode, self.before + group.start
        where = "" if code == UNGUARDED else f", in env index {int(self._a['now'][number, 0])}"
        hint = "" if code in (1, UNGUARDED) else " (out of memory, or a crash in the env's native code?)"
        raise TrainingError(
            f"env={self.env_id}: the worker of envs {first}..{first + len(group) - 1} {how_ended(code)}{where}{hint}"
        )

    def close(self, force: bool = False) -> None:
        """End the workers; `force` does not wait for them to close their envs."""
        pipes, processes = self._pipes, self._processes
        self._pipes, self._processes = [], []
        if not force:
            for pipe in pipes:
                with contextlib.suppress(OSError):
                    pipe.send(("close", None))
        end(processes, 0.0 if force else GOODBYE_S)
        for pipe in pipes:
            pipe.close()

    def __del__(self) -> None:
        if getattr(self, "_processes", None):
            self.close(force=True)
