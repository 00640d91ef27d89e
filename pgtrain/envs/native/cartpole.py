"""CartPole for N envs at once, equal to Gymnasium's CartPoleEnv bit for bit.

State rows: x, ẋ, θ, θ̇. One Euler step of length τ, force F = ±10:

    temp = (F + m_p·l·θ̇²·sin θ) / m
    θ̈ = (g·sin θ − cos θ·temp) / (l·(4/3 − m_p·cos²θ / m))
    ẍ = temp − m_p·l·θ̈·cos θ / m

Source: Barto, Sutton, Anderson 1983; gymnasium/envs/classic_control/cartpole.py.

Where the time goes: at N = 8 each NumPy call costs 0.3–1 µs whatever it computes, so what counts is the number of
calls. Hence: quantities that get the same operation lie in neighbouring rows of one buffer and share a call (cos²
and θ̇²; g·sin and cos·temp; all four state rows of the Euler step); every result goes to a buffer made once, passed
as the third argument; constants are arrays of the full shape (a Python float is converted anew at each call);
`np.count_nonzero` is three times faster than `.any()`; start states are drawn 32 episodes ahead, which reads the
generator's stream exactly as one draw an episode does; and the time limit is looked at only once the oldest episode can
have reached it. The order of operations is Gymnasium's, up to factors of ½, which are exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from pgtrain.envs.base import VectorEnv, env_seeds, idle_mask
from pgtrain.types import Step, UserError

GRAVITY, FORCE, TAU = 9.8, 10.0, 0.02
MASS_POLE, LENGTH = 0.1, 0.5  # LENGTH is half the pole's length
MASS = MASS_POLE + 1.0
X_LIMIT, THETA_LIMIT = 2.4, 12 * 2 * math.pi / 360
START = 0.05  # start states are uniform in ±START
AHEAD = 32  # start states drawn at a time

_F32 = np.dtype(np.float32)


class CartPole(VectorEnv):
    """CartPole-v0 and -v1: reward 1 a step (`sutton_barto_reward`: 0, and −1 for the fall), SAME_STEP autoreset.

    `step` takes int64 [N] of 0 (left) and 1 (right) and does not check it.
    """

    backend = "native"

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
        n = num_envs
        if not isinstance(sutton_barto_reward, bool):
            raise UserError(f"env.kwargs.sutton_barto_reward={sutton_barto_reward}: must be true or false")
        self._sutton_barto_reward = sutton_barto_reward
        self._limit = max_episode_steps if max_episode_steps is not None else 2**62
        self._rngs: list[np.random.Generator] = []
        self._ahead = np.zeros((n, AHEAD, 4))  # start states to come
        self._used = np.zeros(n, dtype=np.int64)  # how many of them are gone
        self._clock = 0  # steps since reset
        self._begin = np.zeros(n, dtype=np.int64)  # clock at which the env's episode began
        self._oldest = (
            0  # no _begin is earlier; brought up to date only when it says that an episode may be cut
        )
        self._idle: np.ndarray | None = None
        self._make_buffers(n)

    def _make_buffers(self, n: int) -> None:
        # Rows 0–3 are the state; cos θ and sin θ follow θ̇ so that pairs of neighbours share a call.
        rows = np.zeros((6, n))
        self._state, self._state_t = rows[:4], rows[:4].T
        self._theta, self._theta_dot_cos, self._cos_sin = rows[2], rows[3:5], rows[4:6]
        self._cos, self._sin = rows[4], rows[5]
        self._velocities, self._positions = rows[1:4:2], rows[0:4:2]
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
        self._false = np.zeros(n, dtype=np.bool_)

    def reset(self, seed: int) -> np.ndarray:
        self._rngs = [np.random.default_rng(s) for s in env_seeds(seed, self.num_envs)]
        self._used[:] = AHEAD
        self._clock = self._oldest = 0
        self._begin_episodes(np.arange(self.num_envs))
        return self._state_t.astype(_F32, "C")

    def _begin_episodes(self, index: np.ndarray) -> None:
        """Give the envs `index` [k] their next start state."""
        used = self._used
        for i in index[used[index] == AHEAD]:
            self._ahead[i] = self._rngs[i].uniform(-START, START, (AHEAD, 4))
            used[i] = 0
        self._state_t[index] = self._ahead[index, used[index]]
        used[index] += 1
        self._begin[index] = self._clock

    def step(self, action: np.ndarray) -> Step:
        idle = self._idle
        before = None if idle is None else self._state[:, idle]
        self._move(action)
        if idle is not None:
            self._state[:, idle] = before
        self._clock += 1

        np.greater(np.abs(self._positions, self._pair), self._limits, self._outside)
        terminated = np.logical_or(self._x_outside, self._theta_outside)
        reward = self._zeros - terminated if self._sutton_barto_reward else self._ones.copy()
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

        obs = self._state_t.astype(_F32, "C")
        if not np.count_nonzero(done):
            return Step(obs, reward, terminated, truncated, None, valid)
        index = done.nonzero()[0]
        final_obs = obs[index]
        self._begin_episodes(index)
        obs[index] = self._state_t[index]
        return Step(obs, reward, terminated, truncated, final_obs, valid)

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

    def set_idle(self, mask: np.ndarray) -> None:
        self._idle = idle_mask(mask, self.num_envs)

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and ints. A generator's state is told as of its last start state that was used."""
        rngs = []
        for rng, used in zip(self._rngs, self._used, strict=True):
            ahead: Any = np.random.PCG64()
            ahead.state = rng.bit_generator.state
            rngs.append(ahead.advance(-4 * (AHEAD - int(used))).state)  # one draw of the stream a number
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
