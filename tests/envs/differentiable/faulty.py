"""One env for each fault that `check` finds. The faulty line ends with a comment that names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv


class Good(DifferentiableEnv):
    """A mass on a spring, pushed."""

    action_low, action_high = (-1.0,), (1.0,)
    max_episode_steps = 5

    def start(self, count: int) -> Tensor:
        return self.uniform(count, [-1.0, -1.0], [1.0, 1.0])

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        x, v = state.unbind(-1)
        v = v + 0.1 * (action[:, 0] - x)
        return torch.stack([x + 0.1 * v, v], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -next_state.square().sum(-1)


class NumpyInReward(Good):
    def reward(self, state: Any, action: Any, next_state: Any) -> Any:
        return -np.square(next_state).sum(-1)  # FAULT


class NumpyDetached(Good):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        x = next_state.detach().numpy()  # FAULT
        return torch.from_numpy(-np.square(x).sum(-1))


class InPlaceRow(Good):
    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        new = state.clone()
        new[:, 1] = state[:, 1] + 0.1 * action[:, 0]  # FAULT
        return new


class InPlaceAdd(Good):
    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        new = state * 1.0
        new += 0.1 * action  # FAULT
        return new


class Item(Good):
    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        push = action.mean().item()  # FAULT
        return state + 0.1 * push


class Branch(Good):
    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        if (state.abs() > 100).any():  # FAULT
            return state * 0.5
        return super().dynamics(state, action)


class DetachedReward(Good):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -next_state.detach().square().sum(-1)  # FAULT


class DataReward(Good):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -next_state.data.square().sum(-1)  # FAULT


class ConstantReward(Good):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:  # FAULT
        return (next_state > 0).to(state.dtype).sum(-1)


class WrongSlope(Good):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:  # FAULT
        with torch.no_grad():
            stiffness = 1 + state[:, 0].square()
        return -stiffness * next_state.square().sum(-1)


class RootAtZero(Good):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        distance = state.square().sum(-1)
        return -distance.sqrt()  # FAULT


class MaskedTooLate(Good):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        x = state[:, 0]
        inverse = 1 / x  # FAULT
        return torch.where(x == 0, x, inverse)


class RewardColumn(Good):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:  # FAULT
        return -next_state.square().sum(-1, keepdim=True)


class FloatFlag(Good):
    def terminated(self, state: Tensor) -> Tensor:  # FAULT
        return (state[:, 0] > 1).to(state.dtype)


class SinglePrecision(Good):
    def __init__(self, num_envs: int, **settings: Any) -> None:
        super().__init__(num_envs, **settings)
        self.push = np.eye(2, dtype=np.float32)

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        return state @ torch.from_numpy(self.push)  # FAULT
