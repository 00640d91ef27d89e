"""CartPole for N envs at once, equal to Gymnasium's CartPoleEnv bit for bit.

State rows: x, ẋ, θ, θ̇. One Euler step of length τ, force F = ±10:

    temp = (F + m_p·l·θ̇²·sin θ) / m
    θ̈ = (g·sin θ − cos θ·temp) / (l·(4/3 − m_p·cos²θ / m))
    ẍ = temp − m_p·l·θ̈·cos θ / m

Source: Barto, Sutton, Anderson 1983; gymnasium/envs/classic_control/cartpole.py.

Few NumPy calls (see `batched`): quantities that get the same operation lie in neighbouring rows of one buffer and share
a call (cos² and θ̇²; g·sin and cos·temp; all four state rows of the Euler step); every result goes to a buffer made
once, passed as the third argument; constants are arrays of the full shape (a Python float is converted anew at each
call). The order of operations is Gymnasium's, up to factors of ½, which are exact.
"""

from __future__ import annotations

import math

import numpy as np
from gymnasium import spaces

from pgtrain.envs.native.batched import BatchedEnv
from pgtrain.types import UserError

GRAVITY, FORCE, TAU = 9.8, 10.0, 0.02
MASS_POLE, LENGTH = 0.1, 0.5  # LENGTH is half the pole's length
MASS = MASS_POLE + 1.0
X_LIMIT, THETA_LIMIT = 2.4, 12 * 2 * math.pi / 360
START = 0.05  # start states are uniform in ±START

_F32 = np.dtype(np.float32)


class CartPole(BatchedEnv):
    """CartPole-v0 and -v1: reward 1 a step (`sutton_barto_reward`: 0, and −1 for the fall), SAME_STEP autoreset.

    `step` takes int64 [N] of 0 (left) and 1 (right) and does not check it.
    """

    start_low, start_high = (-START,) * 4, (START,) * 4

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        max_episode_steps: int | None = 500,
        reward_threshold: float | None = 475.0,
        sutton_barto_reward: bool = False,
    ) -> None:
        high = np.array([2 * X_LIMIT, np.inf, 2 * THETA_LIMIT, np.inf], dtype=np.float32)
        super().__init__(
            env_id,
            num_envs,
            spaces.Box(-high, high, dtype=np.float32),
            spaces.Discrete(2),
            reward_threshold=reward_threshold,
            max_episode_steps=max_episode_steps,
        )
        if not isinstance(sutton_barto_reward, bool):
            raise UserError(f"env.kwargs.sutton_barto_reward={sutton_barto_reward}: must be true or false")
        self._sutton_barto_reward = sutton_barto_reward

    def _make_state(self, rows: int, n: int) -> np.ndarray:
        # Rows 0–3 are the state; cos θ and sin θ follow θ̇ so that pairs of neighbours share a call.
        all_rows = np.zeros((6, n))
        self._theta, self._theta_dot_cos, self._cos_sin = all_rows[2], all_rows[3:5], all_rows[4:6]
        self._cos, self._sin = all_rows[4], all_rows[5]
        self._velocities, self._positions = all_rows[1:4:2], all_rows[0:4:2]
        mid = np.zeros((3, n))  # g, temp, and m_p·cos²/(2m)
        mid[0] = GRAVITY
        self._temp_half, self._temp_g = mid[1:3], mid[1::-1]
        self._temp, self._half = mid[1], mid[2]
        self._pair, self._force, self._den = np.zeros((2, n)), np.zeros(n), np.zeros(n)
        self._pair0, self._pair1 = self._pair  # a view made anew would cost as much as some calls
        self._change = np.zeros((4, n))  # ẋ, ẍ, θ̇, θ̈
        self._change_x = self._change[0::2]
        self._x_acc, self._theta_acc = self._change[1], self._change[3]
        self._outside = np.zeros((2, n), dtype=np.bool_)
        self._x_outside, self._theta_outside = self._outside
        self._forces = np.array([-FORCE, FORCE])
        self._factor = np.array([[MASS_POLE * LENGTH], [MASS_POLE / 2]]).repeat(n, axis=1)
        self._pole = np.full(n, MASS_POLE * LENGTH)
        self._mass, self._mass2 = np.full(n, MASS), np.full((2, n), MASS)
        self._two_thirds, self._tau = np.full(n, LENGTH * (4.0 / 3.0)), np.full((4, n), TAU)
        self._limits = np.array([[X_LIMIT], [THETA_LIMIT]]).repeat(n, axis=1)
        self._ones, self._zeros = np.ones(n), np.zeros(n)
        return all_rows[:4]

    def _observe(self) -> np.ndarray:
        return self._state_t.astype(_F32, "C")

    def _observe_start(self, index: np.ndarray) -> np.ndarray:
        return self._state_t[index]

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._move(action)
        np.greater(np.abs(self._positions, self._pair), self._limits, self._outside)
        terminated = np.logical_or(self._x_outside, self._theta_outside)
        reward = self._zeros - terminated if self._sutton_barto_reward else self._ones.copy()
        return reward, terminated

    def _move(self, action: np.ndarray) -> None:
        """One Euler step of all envs."""
        multiply, subtract, pair, den = np.multiply, np.subtract, self._pair, self._den
        temp, cos, x_acc, theta_acc, change = (
            self._temp,
            self._cos,
            self._x_acc,
            self._theta_acc,
            self._change,
        )
        np.cos(self._theta, cos)
        np.sin(self._theta, self._sin)
        multiply(self._theta_dot_cos, self._theta_dot_cos, pair)  # θ̇², cos²
        multiply(pair, self._factor, self._temp_half)  # m_p·l·θ̇², m_p·cos²/2
        multiply(temp, self._sin, temp)
        self._forces.take(action, None, self._force, "clip")
        np.add(self._force, temp, temp)
        np.divide(self._temp_half, self._mass2, self._temp_half)
        multiply(self._cos_sin, self._temp_g, pair)  # cos·temp, g·sin
        subtract(self._pair1, self._pair0, theta_acc)
        subtract(self._two_thirds, self._half, den)  # l·(4/3 − m_p·cos²/m), with l = ½
        np.divide(theta_acc, den, theta_acc)
        multiply(theta_acc, self._pole, den)
        multiply(den, cos, den)
        np.divide(den, self._mass, den)
        subtract(temp, den, x_acc)
        self._change_x[...] = self._velocities
        multiply(change, self._tau, change)
        np.add(self._state, change, self._state)
