"""Acrobot swing-up: two links, a motor at the elbow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv

GRAVITY, MASS, LENGTH, CENTRE, INERTIA, DT = 9.8, 1.0, 1.0, 0.5, 1.0, 0.05
TORQUE, FRICTION, MAX_SPEED_1, MAX_SPEED_2 = 5.0, 0.1, 4 * math.pi, 9 * math.pi


class Acrobot(DifferentiableEnv):
    """From hanging to the tip as high as it goes. State θ₁ (0: hanging), θ₂ (relative), θ̇₁, θ̇₂; action: torque / 5 Nm.

    Equations of motion of Sutton & Barto 2018, example 11.3 ("book" in Gymnasium's Acrobot-v1), stepped
    semi-implicitly with dt = 0.05, with a little friction in the joints and its limits of speed (beyond them the slope
    is 0; without them a strong push makes the steps diverge). r = height of the tip, (−cos θ₁ − cos(θ₁ + θ₂))/2 in
    [−1, 1], less 0.005·(θ̇₁² + θ̇₂²) and 0.01·a². An episode has 200 steps (10 s).
    """

    action_low, action_high = (-1.0,), (1.0,)
    max_episode_steps = 200

    def start(self, count: int) -> Tensor:
        return self.uniform(count, [-0.3, -0.3, -0.1, -0.1], [0.3, 0.3, 0.1, 0.1])

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        a1, a2, w1, w2 = state.unbind(-1)
        sin2, cos2 = a2.sin(), a2.cos()
        inner = MASS * LENGTH * CENTRE
        d1 = MASS * CENTRE**2 + MASS * (LENGTH**2 + CENTRE**2) + 2 * inner * cos2 + 2 * INERTIA
        d2 = MASS * CENTRE**2 + inner * cos2 + INERTIA
        phi2 = MASS * CENTRE * GRAVITY * (a1 + a2).sin()
        swirl = inner * sin2 * (w2.square() + 2 * w1 * w2)
        phi1 = (MASS * CENTRE + MASS * LENGTH) * GRAVITY * a1.sin() + phi2 - swirl + FRICTION * w1
        torque = TORQUE * action[:, 0] - FRICTION * w2
        inertia = MASS * CENTRE**2 + INERTIA - d2.square() / d1
        acc2 = (torque + d2 / d1 * phi1 - inner * w1.square() * sin2 - phi2) / inertia
        acc1 = -(d2 * acc2 + phi1) / d1
        w1 = (w1 + DT * acc1).clamp(-MAX_SPEED_1, MAX_SPEED_1)
        w2 = (w2 + DT * acc2).clamp(-MAX_SPEED_2, MAX_SPEED_2)
        return torch.stack([a1 + DT * w1, a2 + DT * w2, w1, w2], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        a1, a2, w1, w2 = next_state.unbind(-1)
        height = -0.5 * (a1.cos() + (a1 + a2).cos())
        return height - 0.005 * (w1.square() + w2.square()) - 0.01 * action[:, 0].square()

    def observation(self, state: Tensor) -> Tensor:
        a1, a2, w1, w2 = state.unbind(-1)
        return torch.stack([a1.cos(), a1.sin(), a2.cos(), a2.sin(), w1, w2], -1)
