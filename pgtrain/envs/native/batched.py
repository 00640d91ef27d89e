"""What the batched classics share: states in NumPy that begin in a box, and their record.

A task gives its start states' range, `_advance` (one step of all envs) and `_observe`. State rows are [S, N]: one row a
variable, so that a NumPy call works on one variable of all envs. Start states are drawn 32 episodes ahead, which reads
the generator's stream exactly as one draw an episode does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space

from pgtrain.envs.base import env_seeds
from pgtrain.envs.native.same_step import SameStepEnv

AHEAD = 32  # start states drawn at a time


class BatchedEnv(SameStepEnv):
    """N envs of one task in NumPy. `start_low`, `start_high` [S]: the box of the start states; equal for no draw.

    `step` does not check its actions.
    """

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
        self._rngs: list[np.random.Generator] = []
        self._ahead = np.tile(low, (n, AHEAD, 1))  # start states to come
        self._used = np.zeros(n, dtype=np.int64)  # how many of them are gone
        self._state = self._make_state(len(low), n)
        self._state_t = self._state.T

    def _make_state(self, rows: int, n: int) -> np.ndarray:
        """The array [S, N] that holds the state; a task may lay it out beside its own buffers."""
        return np.zeros((rows, n))

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Moves the state of all envs by one step → reward [N] float64, terminated [N] bool, both fresh."""
        raise NotImplementedError

    def reset(self, seed: int) -> np.ndarray:
        self._rngs = [np.random.default_rng(s) for s in env_seeds(seed, self.num_envs, self.before)]
        self._used[:] = AHEAD
        return self._start_all()

    def _begin_episodes(self, index: np.ndarray) -> None:
        used = self._used
        for i in index[used[index] == AHEAD]:
            draw = self._rngs[i].uniform(self._low, self._high, (AHEAD, len(self._low)))
            self._ahead[i][:, self._drawn] = self._start(draw)
            used[i] = 0
        self._state_t[index] = self._ahead[index, used[index]]
        used[index] += 1

    def _start(self, draw: np.ndarray) -> np.ndarray:
        """Start states made from the uniform draws."""
        return draw

    def _step_all(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        idle = self._idle
        if idle is None:
            return self._advance(action)
        before = self._state[:, idle]
        moved = self._advance(action)
        self._state[:, idle] = before
        return moved

    def state_dict(self) -> dict[str, Any]:
        """A generator's state is told as of its last start state that was used."""
        rngs = []
        for rng, used in zip(self._rngs, self._used, strict=True):
            ahead: Any = np.random.PCG64()
            ahead.state = rng.bit_generator.state
            unused = AHEAD - int(used)
            rngs.append(ahead.advance(-len(self._low) * unused).state)  # one draw of the stream a number
        return super().state_dict() | {"state": self._state.tolist(), "rngs": rngs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._rngs = []
        for saved in state["rngs"]:
            bits: Any = np.random.PCG64()
            bits.state = saved
            self._rngs.append(np.random.Generator(bits))
        self._state[...] = state["state"]
        self._used[:] = AHEAD  # the rest of the block is drawn again
