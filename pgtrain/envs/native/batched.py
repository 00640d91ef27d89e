"""What the batched classics share: start states, time limits, idle envs, SAME_STEP resets and their record.

A task gives its start states' range, `_advance` (one step of all envs) and `_observe`. State rows are [S, N]: one row a
variable, so that a NumPy call works on one variable of all envs.

Where the time goes: at N = 8 each NumPy call costs 0.3–1 µs whatever it computes, so what counts is the number of
calls. Hence: start states are drawn 32 episodes ahead, which reads the generator's stream exactly as one draw an
episode does; the time limit is looked at only once the oldest episode can have reached it; `np.count_nonzero` is three
times faster than `.any()`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space

from pgtrain.envs.base import VectorEnv, env_seeds, idle_mask
from pgtrain.types import Step

AHEAD = 32  # start states drawn at a time

_NO_LIMIT = 2**62


class BatchedEnv(VectorEnv):
    """N envs of one task in NumPy. `start_low`, `start_high` [S]: the box of the start states; equal for no draw.

    `step` does not check its actions.
    """

    backend = "native"
    tells_state = True
    start_low: tuple[float, ...]
    start_high: tuple[float, ...]

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
        n = num_envs
        low, high = np.array(self.start_low), np.array(self.start_high)
        self._drawn = np.flatnonzero(low < high)
        self._low, self._high = low[self._drawn], high[self._drawn]
        self._limit = _NO_LIMIT if max_episode_steps is None else max_episode_steps
        self._rngs: list[np.random.Generator] = []
        self._ahead = np.tile(low, (n, AHEAD, 1))  # start states to come
        self._used = np.zeros(n, dtype=np.int64)  # how many of them are gone
        self._clock = 0  # steps since reset
        self._begin = np.zeros(n, dtype=np.int64)  # clock at which the env's episode began
        # no _begin is earlier; brought up to date only when it says that an episode may be cut
        self._oldest = 0
        self._idle: np.ndarray | None = None
        self._false = np.zeros(n, dtype=np.bool_)
        self._state = self._make_state(len(low), n)
        self._state_t = self._state.T

    def _make_state(self, rows: int, n: int) -> np.ndarray:
        """The array [S, N] that holds the state; a task may lay it out beside its own buffers."""
        return np.zeros((rows, n))

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Moves the state of all envs by one step → reward [N] float64, terminated [N] bool, both fresh."""
        raise NotImplementedError

    def _observe(self) -> np.ndarray:
        """A fresh obs [N, D] of the state."""
        raise NotImplementedError

    def _observe_start(self, index: np.ndarray) -> np.ndarray:
        """obs [k, D] of the envs `index`, which have just begun an episode."""
        return self._observe()[index]

    def reset(self, seed: int) -> np.ndarray:
        self._rngs = [np.random.default_rng(s) for s in env_seeds(seed, self.num_envs, self.before)]
        self._used[:] = AHEAD
        self._clock = self._oldest = 0
        everyone = np.arange(self.num_envs)
        self._begin_episodes(everyone)
        return self._observe_start(everyone).astype(self.obs_dtype, copy=True)

    def _begin_episodes(self, index: np.ndarray) -> None:
        """Give the envs `index` [k] their next start state."""
        used = self._used
        for i in index[used[index] == AHEAD]:
            draw = self._rngs[i].uniform(self._low, self._high, (AHEAD, len(self._low)))
            self._ahead[i][:, self._drawn] = self._start(draw)
            used[i] = 0
        self._state_t[index] = self._ahead[index, used[index]]
        used[index] += 1
        self._begin[index] = self._clock

    def _start(self, draw: np.ndarray) -> np.ndarray:
        """Start states made from the uniform draws."""
        return draw

    def step(self, action: np.ndarray) -> Step:
        idle = self._idle
        before = None if idle is None else self._state[:, idle]
        reward, terminated = self._advance(action)
        self._clock += 1
        valid = None
        if idle is not None:
            self._state[:, idle] = before
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
        obs[index] = self._observe_start(index)
        return Step(obs, reward, terminated, truncated, final_obs, valid)

    def set_idle(self, mask: np.ndarray) -> None:
        self._idle = idle_mask(mask, self.num_envs)

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and ints. A generator's state is told as of its last start state that was used."""
        rngs = []
        for rng, used in zip(self._rngs, self._used, strict=True):
            ahead: Any = np.random.PCG64()
            ahead.state = rng.bit_generator.state
            unused = AHEAD - int(used)
            rngs.append(ahead.advance(-len(self._low) * unused).state)  # one draw of the stream a number
        return {
            "state": self._state.tolist(),
            "episode_step": (self._clock - self._begin).tolist(),
            "rngs": rngs,
            "idle": None if self._idle is None else self._idle.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["episode_step"]) != self.num_envs:
            raise ValueError(f"the state is of {len(state['episode_step'])} envs, this has {self.num_envs}")
        self._rngs = []
        for saved in state["rngs"]:
            bits: Any = np.random.PCG64()
            bits.state = saved
            self._rngs.append(np.random.Generator(bits))
        self._state[...] = state["state"]
        self._used[:] = AHEAD  # the rest of the block is drawn again
        self._clock = 0
        self._begin[:] = [-t for t in state["episode_step"]]
        self._oldest = int(self._begin.min())
        self._idle = None if state["idle"] is None else np.array(state["idle"])
