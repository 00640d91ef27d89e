"""Acrobot for N envs at once, equal to Gymnasium's AcrobotEnv step by step.

State rows: θ₁, θ₂, θ̇₁, θ̇₂; torque a ∈ {−1, 0, 1} on the second joint; both links of length and mass 1, centre of mass
½, inertia 1, held for 0.2 s, one fourth-order Runge–Kutta step:

    d₁ = m₁·c₁² + m₂·(l₁² + c₂² + 2·l₁·c₂·cos θ₂) + I₁ + I₂,     d₂ = m₂·(c₂² + l₁·c₂·cos θ₂) + I₂
    φ₂ = m₂·c₂·g·cos(θ₁ + θ₂ − π/2)
    φ₁ = −m₂·l₁·c₂·θ̇₂²·sin θ₂ − 2·m₂·l₁·c₂·θ̇₂·θ̇₁·sin θ₂ + (m₁·c₁ + m₂·l₁)·g·cos(θ₁ − π/2) + φ₂
    θ̈₂ = (a + d₂/d₁·φ₁ − m₂·l₁·c₂·θ̇₁²·sin θ₂ − φ₂) / (m₂·c₂² + I₂ − d₂²/d₁),     θ̈₁ = −(d₂·θ̈₂ + φ₁)/d₁

Source: Sutton and Barto 1998, the book's equations; gymnasium/envs/classic_control/acrobot.py.
"""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from pgtrain.envs.native.batched import BatchedEnv

DT = 0.2
MAX_VELOCITY_1, MAX_VELOCITY_2 = 4 * np.pi, 9 * np.pi
GRAVITY = 9.8
START = 0.1
TORQUES = np.array([-1.0, 0.0, 1.0])
_HALF_PI = np.pi / 2


class Acrobot(BatchedEnv):
    """Acrobot-v1: reward −1 a step, 0 at the step that lifts the tip above the bar by one link."""

    start_low, start_high = (-START,) * 4, (START,) * 4

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        max_episode_steps: int | None = 500,
        reward_threshold: float | None = -100.0,
    ) -> None:
        high = np.array([1, 1, 1, 1, MAX_VELOCITY_1, MAX_VELOCITY_2], dtype=np.float32)
        super().__init__(
            env_id,
            num_envs,
            spaces.Box(-high, high, dtype=np.float32),
            spaces.Discrete(3),
            max_episode_steps=max_episode_steps,
            reward_threshold=reward_threshold,
        )
        self._max_velocity = np.array([[MAX_VELOCITY_1], [MAX_VELOCITY_2]])

    def _start(self, draw: np.ndarray) -> np.ndarray:
        return draw.astype(np.float32)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        state, torque = self._state, TORQUES.take(action)
        k1 = _derivative(state, torque)
        k2 = _derivative(state + DT / 2 * k1, torque)
        k3 = _derivative(state + DT / 2 * k2, torque)
        k4 = _derivative(state + DT * k3, torque)
        state += DT / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        angle, velocity = state[:2], state[2:]
        while np.count_nonzero(above := angle > np.pi):
            angle[above] -= 2 * np.pi
        while np.count_nonzero(below := angle < -np.pi):
            angle[below] += 2 * np.pi
        np.clip(velocity, -self._max_velocity, self._max_velocity, velocity)
        terminated = -np.cos(angle[0]) - np.cos(angle[1] + angle[0]) > 1.0
        return np.where(terminated, 0.0, -1.0), terminated

    def _observe(self) -> np.ndarray:
        return _observation(self._state)

    def _observe_start(self, index: np.ndarray) -> np.ndarray:
        # Gymnasium's start state is of float32, and so are its cosines
        return _observation(self._state[:, index].astype(np.float32))


def _observation(state: np.ndarray) -> np.ndarray:
    """[4, k] → cos θ₁, sin θ₁, cos θ₂, sin θ₂, θ̇₁, θ̇₂; [k, 6]."""
    out = np.empty((state.shape[1], 6), np.float32)
    angle = state[:2].T
    out[:, 0:4:2] = np.cos(angle)
    out[:, 1:4:2] = np.sin(angle)
    out[:, 4:] = state[2:].T
    return out


def _derivative(state: np.ndarray, torque: np.ndarray) -> np.ndarray:
    """θ̇₁, θ̇₂, θ̈₁, θ̈₂ of the states [4, N]; constants of links with m = l = I = 1, c = ½ are multiplied out."""
    theta1, theta2, velocity1, velocity2 = state
    cos2, sin2 = np.cos(theta2), np.sin(theta2)
    d1 = 0.25 + (1.25 + cos2) + 1.0 + 1.0
    d2 = 0.25 + 0.5 * cos2 + 1.0
    phi2 = 0.5 * GRAVITY * np.cos(theta1 + theta2 - _HALF_PI)
    phi1 = (
        -0.5 * (velocity2 * velocity2) * sin2
        - velocity2 * velocity1 * sin2
        + 1.5 * GRAVITY * np.cos(theta1 - _HALF_PI)
        + phi2
    )
    ratio = d2 / d1
    out = np.empty_like(state)
    out[:2] = state[2:]
    out[3] = (torque + ratio * phi1 - 0.5 * (velocity1 * velocity1) * sin2 - phi2) / (1.25 - d2 * d2 / d1)
    out[2] = -(d2 * out[3] + phi1) / d1
    return out
