"""Cart-pole with two choices, equal to Gymnasium's CartPole-v1 step by step: thousands of envs on one device."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv

GRAVITY, FORCE, DT = 9.8, 10.0, 0.02
MASS_POLE, LENGTH = 0.1, 0.5  # LENGTH is half the pole's
MASS = MASS_POLE + 1.0
X_LIMIT, THETA_LIMIT = 2.4, 12 * 2 * math.pi / 360


class CartPole(DifferentiableEnv):
    """Keep the pole upright. State and observation x, ẋ, θ, θ̇; actions 0 (push left), 1 (push right); reward 1 a step.

    temp = (±F + m_p·l·θ̇²·sin θ)/m,   θ̈ = (g·sin θ − cos θ·temp) / (l·(4/3 − m_p·cos²θ/m)),
    ẍ = temp − m_p·l·θ̈·cos θ/m; one Euler step. Over where |x| > 2.4 or |θ| > 12°, after 500 steps at the latest.
    Source: Barto, Sutton & Anderson 1983; gymnasium/envs/classic_control/cartpole.py.
    """

    choices = 2
    max_episode_steps = 500

    def __init__(self, num_envs: int, **settings: Any) -> None:
        super().__init__(num_envs, **settings)
        self.limits = self.tensor([X_LIMIT, THETA_LIMIT])
        self.ones = torch.ones(num_envs, dtype=self.dtype, device=self.device)

    def start(self, count: int) -> Tensor:
        return self.uniform(count, [-0.05] * 4, [0.05] * 4)

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        x, v, theta, w = state.unbind(-1)
        force = FORCE * (2 * action - 1).to(state.dtype)
        sin, cos = theta.sin(), theta.cos()
        temp = (force + MASS_POLE * LENGTH * w.square() * sin) / MASS
        w_acc = (GRAVITY * sin - cos * temp) / (LENGTH * (4.0 / 3.0 - MASS_POLE * cos.square() / MASS))
        v_acc = temp - MASS_POLE * LENGTH * w_acc * cos / MASS
        return torch.stack([x + DT * v, v + DT * v_acc, theta + DT * w, w + DT * w_acc], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return self.ones if len(state) == len(self.ones) else torch.ones_like(state[:, 0])

    def terminated(self, state: Tensor) -> Tensor:
        return (state[:, ::2].abs() > self.limits).any(-1)
