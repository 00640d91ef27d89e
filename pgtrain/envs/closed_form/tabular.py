"""A finite MDP from its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

# Two states, two actions; the last column of a row is the chance to end.
TRANSITION = [[[0.7, 0.3, 0.0], [0.1, 0.8, 0.1]], [[0.4, 0.4, 0.2], [0.2, 0.3, 0.5]]]
REWARD = [[1.0, -0.5], [0.3, 2.0]]
START = [0.6, 0.4]
HORIZON = 3


class TabularMDP(gym.Env[Any, Any]):
    """s' ~ P[s, a, ·], of which the last entry is the chance to end; r = R[s, a]; s_0 ~ d0. Observed as Discrete(S).

    The end at `horizon` is a true one (terminated): it is part of the task, and the policy does not see the time.
    """

    def __init__(
        self,
        P: Sequence[Sequence[Sequence[float]]] = TRANSITION,  # [S, A, S + 1]
        R: Sequence[Sequence[float]] = REWARD,  # [S, A]
        d0: Sequence[float] = START,  # [S]
        horizon: int = HORIZON,
    ) -> None:
        self.P, self.R, self.d0 = (np.asarray(x, np.float64) for x in (P, R, d0))
        self.horizon = horizon
        states, actions = self.R.shape
        if self.P.shape != (states, actions, states + 1) or self.d0.shape != (states,):
            shapes = f"{self.P.shape}, {self.R.shape}, {self.d0.shape}"
            raise ValueError(
                f"P, R, d0 must have the shapes (S, A, S + 1), (S, A), (S,), the last column of P the end; got {shapes}"
            )
        if not (np.allclose(self.P.sum(-1), 1) and np.isclose(self.d0.sum(), 1)):
            raise ValueError("the rows of P, and d0, must sum to 1")
        if not isinstance(horizon, int) or horizon < 1:
            raise ValueError(f"horizon must be a whole number of steps, 1 or more; got {horizon}")
        self.observation_space, self.action_space = spaces.Discrete(states), spaces.Discrete(actions)
        self._cumulative = self.P.cumsum(-1)
        self.state = self.time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.time, self.state = 0, self._draw(self.d0.cumsum())
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = float(self.R[self.state, action])
        following = self._draw(self._cumulative[self.state, action])
        self.time += 1
        ended = following == len(self.R) or self.time >= self.horizon
        if following < len(self.R):
            self.state = following  # at the end, the last state is shown
        return self.state, reward, ended, False, {}

    def _draw(self, cumulative: np.ndarray) -> int:
        return min(
            int(np.searchsorted(cumulative, self.np_random.random(), side="right")), len(cumulative) - 1
        )
