"""Pendulum for N envs at once, equal to Gymnasium's PendulumEnv step by step.

State rows: θ (0 = up, never wrapped), θ̇. Torque u ∈ [−2, 2], mass and length 1, τ = 0.05:

    reward = −(wrap(θ)² + 0.1·θ̇² + 0.001·u²)
    θ̇ ← clip(θ̇ + (3g/2·sin θ + 3u)·τ, ±8),  θ ← θ + θ̇·τ

Source: gymnasium/envs/classic_control/pendulum.py.
"""

from __future__ import annotations

import math

import numpy as np
from gymnasium import spaces

from pgtrain.envs.native.batched import BatchedEnv
from pgtrain.types import UserError

MAX_SPEED, MAX_TORQUE, TAU = 8.0, 2.0, 0.05


class Pendulum(BatchedEnv):
    """Pendulum-v1: swing up and hold; only the time limit ends an episode. `g`: gravity, m/s²."""

    start_low, start_high = (-np.pi, -1.0), (np.pi, 1.0)

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        max_episode_steps: int | None = 200,
        reward_threshold: float | None = None,
        g: float = 10.0,
    ) -> None:
        high = np.array([1.0, 1.0, MAX_SPEED], dtype=np.float32)
        super().__init__(
            env_id,
            num_envs,
            spaces.Box(-high, high, dtype=np.float32),
            spaces.Box(-MAX_TORQUE, MAX_TORQUE, shape=(1,), dtype=np.float32),
            max_episode_steps=max_episode_steps,
            reward_threshold=reward_threshold,
        )
        if isinstance(g, bool) or not isinstance(g, (int, float)) or not math.isfinite(g):
            raise UserError(f"env.kwargs.g={g}: must be a finite number")
        self._pull = 3 * g / 2

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        theta, speed = self._state
        torque = np.clip(
            action[:, 0].astype(np.float32), -MAX_TORQUE, MAX_TORQUE
        )  # float32, as the env's own
        wrapped = (theta + np.pi) % (2 * np.pi) - np.pi
        reward = -(wrapped**2 + 0.1 * speed**2 + np.float32(0.001) * torque**2)
        speed += (self._pull * np.sin(theta) + np.float32(3.0) * torque) * TAU
        np.clip(speed, -MAX_SPEED, MAX_SPEED, speed)
        theta += speed * TAU
        return reward, self._false.copy()

    def _observe(self) -> np.ndarray:
        theta, speed = self._state
        out = np.empty((self.num_envs, 3), np.float32)
        out[:, 0], out[:, 1], out[:, 2] = np.cos(theta), np.sin(theta), speed
        return out
