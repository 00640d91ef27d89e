"""Pendulum swing-up, equal to Gymnasium's Pendulum-v1 step by step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv

MAX_SPEED, MAX_TORQUE, DT, MASS, LENGTH = 8.0, 2.0, 0.05, 1.0, 1.0


def wrap(angle: Tensor) -> Tensor:
    """The angle in [−π, π); slope 1 everywhere but at the jump."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


class Pendulum(DifferentiableEnv):
    """A rod on a weak motor, from anywhere to upright (θ = 0). State θ, θ̇; observation cos θ, sin θ, θ̇; action: torque.

    θ̇' = clip(θ̇ + (3g/(2l)·sin θ + 3/(ml²)·u)·dt, ±8),   θ' = θ + θ̇'·dt,   r = −(θ² + 0.1·θ̇² + 0.001·u²),
    u = clip(action, ±2), θ taken in [−π, π). Beyond a clip the slope is 0, as it is in truth.
    Source: gymnasium/envs/classic_control/pendulum.py.
    """

    action_low, action_high = (-MAX_TORQUE,), (MAX_TORQUE,)
    max_episode_steps = 200

    def __init__(self, num_envs: int, *, g: float = 10.0, **settings: Any) -> None:
        super().__init__(num_envs, **settings)
        self.g = g

    def start(self, count: int) -> Tensor:
        return self.uniform(count, [-math.pi, -1.0], [math.pi, 1.0])

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        theta, speed = state.unbind(-1)
        torque = action[:, 0].clamp(-MAX_TORQUE, MAX_TORQUE)
        push = 3 * self.g / (2 * LENGTH) * theta.sin() + 3.0 / (MASS * LENGTH**2) * torque
        speed = (speed + push * DT).clamp(-MAX_SPEED, MAX_SPEED)
        return torch.stack([theta + speed * DT, speed], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        theta, speed = state.unbind(-1)
        torque = action[:, 0].clamp(-MAX_TORQUE, MAX_TORQUE)
        return -(wrap(theta).square() + 0.1 * speed.square() + 0.001 * torque.square())

    def observation(self, state: Tensor) -> Tensor:
        theta, speed = state.unbind(-1)
        return torch.stack([theta.cos(), theta.sin(), speed], -1)
