"""Bandits: episodes of one step from one state, observed as Discrete(1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Stepped = tuple[int, float, bool, bool, dict[str, Any]]


class GaussianBandit(gym.Env[Any, Any]):
    """r = r0 − k (a − m)², a any number: the best a Gaussian policy can do is μ = m, σ → 0."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, r0: float = 2.0, k: float = 1.5, m: float = -0.3) -> None:
        self.r0, self.k, self.m = r0, k, m

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: np.ndarray) -> Stepped:
        return 0, self.r0 - self.k * (float(np.asarray(action).item()) - self.m) ** 2, True, False, {}


class SoftmaxBandit(gym.Env[Any, Any]):
    """Arm i pays rewards[i], without noise."""

    observation_space = spaces.Discrete(1)

    def __init__(self, rewards: Sequence[float] = (1.0, 3.0, -0.5)) -> None:
        self.rewards = [float(r) for r in rewards]
        if len(self.rewards) < 2:
            raise ValueError(f"rewards must name two arms or more, got {self.rewards}")
        self.action_space = spaces.Discrete(len(self.rewards))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> Stepped:
        return 0, self.rewards[int(action)], True, False, {}
