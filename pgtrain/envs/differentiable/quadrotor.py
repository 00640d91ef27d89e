"""A quadrotor in a plane: fly to the origin and hover."""

from __future__ import annotations

import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv

GRAVITY, MASS, ARM, INERTIA, DT, LIMIT = 9.8, 1.0, 0.2, 0.02, 0.04, 3.0


class Quadrotor(DifferentiableEnv):
    """State x, z, φ (tilt) and their velocities; action: thrust of the left and of the right rotor, −1 none, 1 twice
    what hovering takes.

    ẍ = −F·sin φ/m,   z̈ = F·cos φ/m − g,   φ̈ = arm·(F_right − F_left)/I, stepped semi-implicitly.
    r = 1/(1 + x² + z²) + 0.2·cos φ − 0.02·(ẋ² + ż² + φ̇²) − 0.01·|a|². It ends (a crash) where |x| or |z| exceeds 3, and
    is cut after 200 steps (8 s).
    """

    action_low, action_high = (-1.0, -1.0), (1.0, 1.0)
    max_episode_steps = 200

    def start(self, count: int) -> Tensor:
        return self.uniform(count, [-1.5, -1.5, -0.5, -0.5, -0.5, -0.5], [1.5, 1.5, 0.5, 0.5, 0.5, 0.5])

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        position, velocity = state.split(3, -1)
        tilt = position[:, 2]
        left, right = (0.5 * MASS * GRAVITY * (1 + action)).unbind(-1)
        lift = (left + right) / MASS
        turn = ARM / INERTIA * (right - left)
        acceleration = torch.stack([-lift * tilt.sin(), lift * tilt.cos() - GRAVITY, turn], -1)
        velocity = velocity + DT * acceleration
        return torch.cat([position + DT * velocity, velocity], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        position, velocity = next_state.split(3, -1)
        near = 1 / (1 + position[:, :2].square().sum(-1))
        effort = 0.02 * velocity.square().sum(-1) + 0.01 * action.square().sum(-1)
        return near + 0.2 * position[:, 2].cos() - effort

    def terminated(self, state: Tensor) -> Tensor:
        return (state[:, :2].abs() > LIMIT).any(-1)

    def observation(self, state: Tensor) -> Tensor:
        tilt = state[:, 2:3]
        return torch.cat([state[:, :2], tilt.cos(), tilt.sin(), state[:, 3:]], -1)
