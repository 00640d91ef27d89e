"""Both mountain cars for N envs at once, equal to Gymnasium's step by step.

State rows: position x ∈ [−1.2, 0.6], speed v ∈ ±0.07; the left wall stops the car.

    v ← clip(v + push − 0.0025·cos 3x, ±0.07),  x ← clip(x + v, −1.2, 0.6)

Source: Moore 1990; gymnasium/envs/classic_control/mountain_car.py and continuous_mountain_car.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from pgtrain.envs.native.batched import BatchedEnv
from pgtrain.types import UserError

MIN_POSITION, MAX_POSITION, MAX_SPEED = -1.2, 0.6, 0.07
GRAVITY = 0.0025
FORCE = 0.001  # of the car with three actions
POWER = 0.0015  # of the continuous car


class _Car(BatchedEnv):
    start_low, start_high = (-0.6, 0.0), (-0.4, 0.0)

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        action_space: spaces.Space[Any],
        *,
        max_episode_steps: int | None,
        reward_threshold: float | None,
        goal_velocity: float,
    ) -> None:
        low = np.array([MIN_POSITION, -MAX_SPEED], dtype=np.float32)
        high = np.array([MAX_POSITION, MAX_SPEED], dtype=np.float32)
        super().__init__(
            env_id,
            num_envs,
            spaces.Box(low, high, dtype=np.float32),
            action_space,
            max_episode_steps=max_episode_steps,
            reward_threshold=reward_threshold,
        )
        number = isinstance(goal_velocity, int | float) and not isinstance(goal_velocity, bool)
        if not number or not math.isfinite(goal_velocity):
            raise UserError(f"env.kwargs.goal_velocity={goal_velocity}: must be a finite number")
        self._goal_velocity = goal_velocity

    def _observe(self) -> np.ndarray:
        return self._state_t.astype(np.float32, "C")


class MountainCar(_Car):
    """MountainCar-v0: push left, not at all or right; reward −1 a step."""

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        max_episode_steps: int | None = 200,
        reward_threshold: float | None = -110.0,
        goal_velocity: float = 0,
    ) -> None:
        super().__init__(
            env_id,
            num_envs,
            spaces.Discrete(3),
            max_episode_steps=max_episode_steps,
            reward_threshold=reward_threshold,
            goal_velocity=goal_velocity,
        )

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        position, speed = self._state
        speed += (action - 1) * FORCE + np.cos(3 * position) * -GRAVITY
        np.clip(speed, -MAX_SPEED, MAX_SPEED, speed)
        position += speed
        np.clip(position, MIN_POSITION, MAX_POSITION, position)
        speed[(position == MIN_POSITION) & (speed < 0)] = 0.0
        terminated = (position >= 0.5) & (speed >= self._goal_velocity)
        return np.full(self.num_envs, -1.0), terminated


class MountainCarContinuous(_Car):
    """MountainCarContinuous-v0: push u ∈ [−1, 1]; reward −0.1·u² a step, and 100 at the goal.

    Gymnasium keeps this car's state in float32 (but an episode's first step takes the cosine of a float64 position),
    and so is ours, held in float64 and rounded where theirs is.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        max_episode_steps: int | None = 999,
        reward_threshold: float | None = 90.0,
        goal_velocity: float = 0,
    ) -> None:
        super().__init__(
            env_id,
            num_envs,
            spaces.Box(-1.0, 1.0, shape=(1,), dtype=np.float32),
            max_episode_steps=max_episode_steps,
            reward_threshold=reward_threshold,
            goal_velocity=goal_velocity,
        )
        self._min, self._max, self._fastest, self._goal = (
            np.float32(x) for x in (MIN_POSITION, MAX_POSITION, MAX_SPEED, 0.45)
        )

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        push = action[:, 0].astype(np.float32)
        angle = 3 * self._state[0]
        angle = np.where(self._clock == self._begin, angle, angle.astype(np.float32))
        force = push * np.float32(POWER) - (GRAVITY * np.cos(angle)).astype(np.float32)
        speed = self._state[1].astype(np.float32) + force
        np.clip(speed, -self._fastest, self._fastest, speed)
        # in float64 and rounded once: equal to a sum in float32, and right for an episode's first step, too
        position = np.clip((self._state[0] + speed).astype(np.float32), self._min, self._max)
        speed[(position == self._min) & (speed < 0)] = 0.0
        self._state[0], self._state[1] = position, speed
        terminated = (position >= self._goal) & (speed >= self._goal_velocity)
        return np.where(terminated, 100.0, 0.0) - 0.1 * push.astype(np.float64) ** 2, terminated
