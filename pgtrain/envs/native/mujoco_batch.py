"""N MuJoCo simulations of one Gymnasium task, with all that is no physics done for all of them at once.

One env of Gymnasium's is made and asked for what it knows: the model, the spaces, and each start state, which its own
`reset_model` draws. The N simulations share that model. A step writes the controls, calls MuJoCo once for each env,
and gathers what reward, end and observation are made of into one row an env. MuJoCo lets go of Python's lock while it
simulates, so that several threads can each step a share of the envs; whose thread does it changes no number.

Why (HalfCheetah-v5, 8 envs, 64-64 networks, py-spy): of an iteration's collection MuJoCo itself was 39 %, Gymnasium's
Python around it 29 %, checks and copies for single envs 19 %, acting 11 %. Each NumPy call in an env's `step` costs as
much for one env as for eight.
"""

from __future__ import annotations

import importlib
import inspect
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from numbers import Real
from typing import Any, NoReturn

import gymnasium.envs.mujoco.mujoco_env  # noqa: F401 (says what to install where MuJoCo is missing)
import numpy as np

from pgtrain.envs.base import env_seeds
from pgtrain.envs.cores import cores, threads_worth
from pgtrain.envs.native.same_step import SameStepEnv
from pgtrain.envs.registry import EnvFactory, find_spec
from pgtrain.faults import FAULTS, told
from pgtrain.types import TrainingError, UserError

mujoco: Any = importlib.import_module("mujoco")  # type checkers do not see what it exports
_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)  # all that a simulation goes on from, bit for bit

_NAMES = ("main_body",)  # numbers, or names of the model
_TRIALS = 5


class MujocoBatch(SameStepEnv):
    """N simulations of one of Gymnasium's MuJoCo tasks (v5); `kwargs` are those of its env.

    `threads`: that step them; None: as many as are worth it and as this process, one of `ranks`, has cores.
    A task says what a row [W] is gathered from (`_parts`), and makes reward, end and observation of rows. Dimensions:
    Q = positions (qpos), V = velocities (qvel), A = actuators, W = numbers in a row.
    """

    contact_forces = False  # whether MuJoCo is to work out cfrc_ext after a step

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        max_episode_steps: int | None,
        reward_threshold: float | None,
        threads: int | None = None,
        ranks: int = 1,
        **kwargs: Any,
    ) -> None:
        task: Any = EnvFactory(env_id, find_spec(env_id), kwargs)().unwrapped
        self.settings = _settings(type(task), kwargs)
        super().__init__(
            env_id,
            num_envs,
            task.observation_space,
            task.action_space,
            max_episode_steps=max_episode_steps,
            reward_threshold=reward_threshold,
        )
        self._task = task
        self.model, self.frame_skip, self.dt = task.model, task.frame_skip, task.dt
        self._data = [mujoco.MjData(self.model) for _ in range(num_envs)]
        self._rngs: list[np.random.Generator] = []
        parts = [self._parts(data) for data in self._data]
        self._by_env = [[part.reshape(-1) for part in of_env] for of_env in parts]
        self._all_parts = [part for of_env in self._by_env for part in of_env]
        self._rows = np.zeros((num_envs, sum(part.size for part in self._by_env[0])))
        self._controls = [data.ctrl for data in self._data]
        self.threads = threads or self._threads_worth(cores(ranks))
        self._pool = ThreadPoolExecutor(self.threads - 1, "pgtrain-mujoco") if self.threads > 1 else None
        self._share(range(num_envs))

    def _threads_worth(self, available: int) -> int:
        """By what the quickest of some steps of a simulation takes."""
        if min(available, self.num_envs) == 1:
            return 1
        data, spent = mujoco.MjData(self.model), []
        for _ in range(_TRIALS):
            started = time.perf_counter()
            mujoco.mj_step(self.model, data, self.frame_skip)
            spent.append(time.perf_counter() - started)
        step_ms = 1e3 * min(spent) * self.num_envs
        count = threads_worth(step_ms, self.num_envs, available)
        if count > 1:
            self.notices.append(
                f"env.threads={count}: one thread takes {step_ms:.2g} ms to step {self.num_envs} envs"
            )
        return count

    def _share(self, moving: Sequence[int]) -> None:
        """The envs that move, in a part for each thread."""
        parts = np.array_split(np.array(moving, np.intp), self.threads)
        self._shares: list[list[int]] = [part.tolist() for part in parts if part.size] or [[]]

    def _parts(self, data: Any) -> list[np.ndarray]:
        """The views of one simulation that its row is made of."""
        return [data.qpos, data.qvel]

    def _judge(
        self, before: np.ndarray, after: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows [N, W] before and after the step, the action [N, A] → reward [N] float64, terminated [N], both fresh."""
        raise NotImplementedError

    def _obs_of(self, rows: np.ndarray) -> np.ndarray:
        """Rows [k, W] → a fresh obs [k, D]."""
        raise NotImplementedError

    def reset(self, seed: int) -> np.ndarray:
        self._rngs = [np.random.default_rng(s) for s in env_seeds(seed, self.num_envs, self.before)]
        self._rows = np.empty_like(self._rows)
        return self._start_all()

    def _begin_episodes(self, index: np.ndarray) -> None:
        task = self._task
        for i in index.tolist():
            task.data, task.np_random = self._data[i], self._rngs[i]
            mujoco.mj_resetData(self.model, task.data)
            try:
                task.reset_model()
            except FAULTS as error:
                self._fail(i, error, "a reset")
            np.concatenate(self._by_env[i], out=self._rows[i])

    def _step_all(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        action = self._decode(action, self.before)
        if self._pool is None:
            self._simulate(self._shares[0], action)
        else:
            others = [self._pool.submit(self._simulate, share, action) for share in self._shares[1:]]
            try:
                self._simulate(self._shares[0], action)
            finally:
                wait(others)  # whatever happened, no simulation moves once this call is over
            for other in others:
                other.result()
        before, self._rows = self._rows, np.empty_like(self._rows)
        np.concatenate(self._all_parts, out=self._rows.reshape(-1))
        if self._idle is not None:  # a simulation that was loaded tells its row only after its next step
            self._rows[self._idle] = before[self._idle]
        return self._judge(before, self._rows, action)

    def _simulate(self, envs: list[int], action: np.ndarray) -> None:
        model, frames, contact_forces = self.model, self.frame_skip, self.contact_forces
        controls, simulations = self._controls, self._data
        step, forces = mujoco.mj_step, mujoco.mj_rnePostConstraint
        for i in envs:
            controls[i][:] = action[i]
            try:
                step(model, simulations[i], frames)
            except FAULTS as error:
                self._fail(i, error, f"step {int(self._clock - self._begin[i]) + 1} of its episode")
            if contact_forces:
                forces(model, simulations[i])

    def _fail(self, i: int, error: Exception | SystemExit, when: str) -> NoReturn:
        raise TrainingError(
            f"env={self.env_id}, env index {self.before + i}, at {when}: {told(error)}"
        ) from error

    def _observe(self) -> np.ndarray:
        return self._obs_of(self._rows)

    def _observe_start(self, index: np.ndarray) -> np.ndarray:
        return self._obs_of(self._rows[index])

    def set_idle(self, mask: np.ndarray) -> None:
        super().set_idle(mask)
        idle = self._idle
        self._share([i for i in range(self.num_envs) if idle is None or not idle[i]])

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._task.close()

    def state_dict(self) -> dict[str, Any]:
        physics = np.empty((self.num_envs, mujoco.mj_stateSize(self.model, _STATE)))
        for data, row in zip(self._data, physics, strict=True):
            mujoco.mj_getState(self.model, data, row, _STATE)
        return super().state_dict() | {
            "physics": physics.tolist(),
            "rows": self._rows.tolist(),
            "rngs": [rng.bit_generator.state for rng in self._rngs],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for data, row in zip(self._data, np.array(state["physics"]), strict=True):
            mujoco.mj_setState(self.model, data, row, _STATE)
        self._rows = np.array(state["rows"])
        self._rngs = [np.random.default_rng() for _ in state["rngs"]]
        for rng, saved in zip(self._rngs, state["rngs"], strict=True):
            rng.bit_generator.state = saved


def _settings(task: type, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the task's constructor, by name: those given, and its defaults for the others.

    Raises UserError for one of another kind than its default.
    """
    settings: dict[str, Any] = {}
    for name, parameter in inspect.signature(task.__init__).parameters.items():
        default, value = parameter.default, kwargs.get(name, parameter.default)
        if isinstance(default, bool):
            right, what = isinstance(value, bool), "true or false"
        elif isinstance(default, tuple):
            right = np.shape(value) == (2,) and all(map(_is_number, value))
            right, what = right and value[0] <= value[1], "two numbers, the lower one first"
        elif isinstance(default, (int, float)) and name not in _NAMES:
            right, what = _is_number(value), "a number"
        else:
            right, what = True, ""
        if not right:
            raise UserError(f"env.kwargs.{name}={value}: must be {what}; the task's own is {default}")
        settings[name] = value
    return settings


def _is_number(x: Any) -> bool:
    """Infinite ones, too."""
    return isinstance(x, Real) and not isinstance(x, bool) and not math.isnan(x)
