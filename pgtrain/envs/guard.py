"""The outermost wrapper of each single env: it can stand still, and its faults are told by name."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from pgtrain.envs.actions import with_arrays
from pgtrain.envs.masks import MaskReader, NoMask
from pgtrain.envs.registry import one_line
from pgtrain.envs.spaces import conform
from pgtrain.faults import FAULTS, told
from pgtrain.types import TrainingError

_FORM = "Gymnasium's reset returns (observation, info), and step (observation, reward, terminated, truncated, info)"
_CALL = "Gymnasium's reset takes the keywords seed and options"


class Guard(gym.Wrapper[Any, Any, Any, Any]):
    """Checks what one env returns, copies its observation, and drops its info.

    An exception (SystemExit, too), an observation that breaks the declared space, or a result of another form becomes
    a TrainingError that names the env, its index in the run and its step. While `idle`, the env is not stepped. `now`,
    if given, is a one-element array that gets the env's index whenever the env is entered (who is it that hangs?). With
    `masks`, the action mask of the observation last given lies in `mask` [M].
    """

    def __init__(
        self, env: gym.Env[Any, Any], env_id: str, index: int, now: np.ndarray | None = None
    ) -> None:
        super().__init__(env)
        self.env_id, self.index, self.idle = env_id, index, False
        self.steps = 0  # of the env's life
        self.episode, self.episode_step = 0, 0
        self._space = env.observation_space
        self._is_box = isinstance(self._space, spaces.Box)
        self._shape, self._dtype = self._space.shape, self._space.dtype
        self._obs: Any = None
        self._arrays = with_arrays(env.action_space)
        self.masks: MaskReader | NoMask | None = None
        self.mask: np.ndarray | None = None
        self._now = now if now is not None else np.zeros(1, np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._now[0] = self.index
        self.episode, self.episode_step = self.episode + 1, 0
        try:
            obs, info = self.env.reset(seed=seed, options=options)
            self._obs = self._conform(obs)
            if self.masks is not None:
                self.mask = self.masks(self._obs, info)
        except FAULTS as error:
            self._fail(error, f"reset {self.episode}")
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.idle:
            return self._obs, 0.0, False, False, {}
        self._now[0] = self.index
        self.steps += 1
        self.episode_step += 1
        try:
            obs, reward, terminated, truncated, info = self.env.step(
                action if self._arrays is None else self._arrays(action)
            )
            self._obs = self._conform(obs)
            if self.masks is not None and not (terminated or truncated):  # nobody acts at an episode's end
                self.mask = self.masks(self._obs, info)
            return self._obs, _number(reward), bool(terminated), bool(truncated), {}
        except FAULTS as error:
            self._fail(error, f"step {self.steps} (step {self.episode_step} of episode {self.episode})")

    def _conform(self, obs: Any) -> Any:
        if self._is_box:  # the usual case, without conform's questions
            array = np.array(obs)
            if array.shape == self._shape and array.dtype == self._dtype:
                return array
        return conform(self._space, obs)

    def _fail(self, error: Exception | SystemExit, when: str) -> NoReturn:
        text = one_line(str(error)) if isinstance(error, TrainingError) else told(error)
        if isinstance(error, (TypeError, ValueError)) and "unpack" in text:
            text += f" ({_FORM})"
        if isinstance(error, TypeError) and re.search(r"reset\(\) got an unexpected keyword", text):
            text += f" ({_CALL})"
        raise TrainingError(f"env={self.env_id}, env index {self.index}, at {when}: {text}") from error


def _number(reward: Any) -> float:
    if type(reward) is float:
        return reward
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "fiub":
        raise ValueError(f"reward: expected one number, got {reward!r}")
    return float(array.reshape(()))
