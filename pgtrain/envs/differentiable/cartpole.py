"""Cart-pole swing-up with a continuous force."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv

GRAVITY, MASS_CART, MASS_POLE, LENGTH, DT, FORCE = 9.8, 1.0, 0.1, 0.5, 0.04, 10.0


class CartPoleSwingUp(DifferentiableEnv):
    """From hanging to upright (θ = 0) with the cart near the middle. State x, ẋ, θ, θ̇; action: force / 10 N.

    Barto, Sutton & Anderson's cart-pole (LENGTH is half the pole), θ̈ and ẍ as in `native/cartpole.py`, stepped
    semi-implicitly: first the velocities, then the positions with them.
    r = cos θ − 0.1·x² − 0.01·ẋ² − 0.01·θ̇² − 0.01·a². An episode has 200 steps (8 s). Smooth everywhere.
    """

    action_low, action_high = (-1.0,), (1.0,)
    max_episode_steps = 200

    def start(self, count: int) -> Tensor:
        return self.uniform(count, [-0.5, -0.1, math.pi - 0.5, -0.1], [0.5, 0.1, math.pi + 0.5, 0.1])

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        x, v, theta, w = state.unbind(-1)
        mass = MASS_CART + MASS_POLE
        sin, cos = theta.sin(), theta.cos()
        temp = (FORCE * action[:, 0] + MASS_POLE * LENGTH * w.square() * sin) / mass
        w_acc = (GRAVITY * sin - cos * temp) / (LENGTH * (4.0 / 3.0 - MASS_POLE / mass * cos.square()))
        v_acc = temp - MASS_POLE * LENGTH / mass * w_acc * cos
        v, w = v + DT * v_acc, w + DT * w_acc
        return torch.stack([x + DT * v, v, theta + DT * w, w], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        x, v, theta, w = next_state.unbind(-1)
        effort = 0.01 * (v.square() + w.square() + action[:, 0].square())
        return theta.cos() - 0.1 * x.square() - effort

    def observation(self, state: Tensor) -> Tensor:
        x, v, theta, w = state.unbind(-1)
        return torch.stack([x, v, theta.cos(), theta.sin(), w], -1)
