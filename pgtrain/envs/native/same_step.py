"""What all batched envs of our own share: time limits, idle envs, and resets in the step that ends an episode.

A task gives `_step_all` (one step of all envs that are not idle), `_observe`, `_begin_episodes`, `_observe_start`. The
time limit is looked at only once the oldest episode can have reached it, as at N = 8 each NumPy call costs 0.3–1 µs
whatever it computes; for the same reason `np.count_nonzero`, three times faster than `.any()`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space

from pgtrain.envs.base import VectorEnv, idle_mask
from pgtrain.types import Step

_NO_LIMIT = 2**62


class SameStepEnv(VectorEnv):
    """N envs of one task; one that is done begins its next episode in the same step."""

    backend = "native"
    tells_state = True

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        max_episode_steps: int | None,
        reward_threshold: float | None,
    ) -> None:
        super().__init__(
            env_id,
            num_envs,
            observation_space,
            action_space,
            reward_threshold=reward_threshold,
            max_episode_steps=max_episode_steps,
        )
        self._limit = _NO_LIMIT if max_episode_steps is None else max_episode_steps
        self._clock = 0  # steps since reset
        self._begin = np.zeros(num_envs, dtype=np.int64)  # clock at which the env's episode began
        # no _begin is earlier; brought up to date only when it says that an episode may be cut
        self._oldest = 0
        self._idle: np.ndarray | None = None
        self._false = np.zeros(num_envs, dtype=np.bool_)

    def _step_all(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step of all envs that are not idle → reward [N] float64, terminated [N] bool, both fresh."""
        raise NotImplementedError

    def _observe(self) -> np.ndarray:
        """A fresh obs [N, D] of the state."""
        raise NotImplementedError

    def _observe_start(self, index: np.ndarray) -> np.ndarray:
        """obs [k, D] of the envs `index`, which have just begun an episode."""
        return self._observe()[index]

    def _begin_episodes(self, index: np.ndarray) -> None:
        """Give the envs `index` [k] their next start state."""
        raise NotImplementedError

    def _start_all(self) -> np.ndarray:
        """All envs begin their first episode → obs [N, D]."""
        self._clock = self._oldest = 0
        self._begin[:] = 0
        everyone = np.arange(self.num_envs)
        self._begin_episodes(everyone)
        return self._observe_start(everyone).astype(self.obs_dtype, copy=True)

    def step(self, action: np.ndarray) -> Step:
        idle = self._idle
        reward, terminated = self._step_all(action)
        self._clock += 1
        valid = None
        if idle is not None:
            self._begin[idle] += 1  # their time stands still
            terminated[idle], reward[idle], valid = False, 0.0, ~idle

        if self._clock - self._oldest >= self._limit:
            truncated = self._clock - self._begin >= self._limit
            self._oldest = int(self._begin.min())
            done = terminated | truncated
        else:
            truncated, done = self._false.copy(), terminated

        obs = self._observe()
        if not np.count_nonzero(done):
            return Step(obs, reward, terminated, truncated, None, valid)
        index = done.nonzero()[0]
        final_obs = obs[index]
        self._begin_episodes(index)
        self._begin[index] = self._clock
        obs[index] = self._observe_start(index)
        return Step(obs, reward, terminated, truncated, final_obs, valid)

    def set_idle(self, mask: np.ndarray) -> None:
        self._idle = idle_mask(mask, self.num_envs)

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and ints."""
        return {
            "episode_step": (self._clock - self._begin).tolist(),
            "idle": None if self._idle is None else self._idle.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["episode_step"]) != self.num_envs:
            raise ValueError(f"the state is of {len(state['episode_step'])} envs, this has {self.num_envs}")
        self._clock = 0
        self._begin[:] = [-t for t in state["episode_step"]]
        self._oldest = int(self._begin.min())
        self.set_idle(np.zeros(self.num_envs, bool) if state["idle"] is None else np.array(state["idle"]))
