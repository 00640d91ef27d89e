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


class GlobalNoise(Good):
    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        noise = torch.randn(len(state), 2, dtype=state.dtype)  # FAULT
        return super().dynamics(state, action) + 0.01 * noise


class GlobalNoiseInPlace(Good):
    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        noise = torch.empty(len(state), 2, dtype=state.dtype)
        noise.normal_()  # FAULT
        return super().dynamics(state, action) + 0.01 * noise


class NumpyNoise(Good):
    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:  # FAULT
        return super().dynamics(state, action) + 0.01 * np.random.normal()  # noqa: NPY002 (that is the point)


class Remembers(Good):
    calls = 0

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:  # FAULT
        self.calls += 1
        return super().reward(state, action, next_state) - 0.1 * self.calls


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


class RareValue(Good):
    """One start state in a hundred: the logarithm of a negative number."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return (0.98 - state[:, 0]).log()  # FAULT


class RareSlope(Good):
    """In one start state in a hundred: the root of a positive part, whose slope is ∞ · 0 where that is 0."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        left = 0.98 - state[:, 0]
        return -(left + left.abs()).sqrt()  # FAULT


class LateValue(Good):
    """Only after many steps in one direction."""

    max_episode_steps = 100

    def start(self, count: int) -> Tensor:
        return self.uniform(count, [-0.1, 0.0], [0.1, 0.1])

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        return state + torch.cat([action * 0.01, action.square() * 0.05], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return (0.3 - next_state[:, 1]).log()  # FAULT


class EndObservation(Good):
    """Only in states in which an episode ends."""

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 0] > 1.0

    def observation(self, state: Tensor) -> Tensor:
        return (1.0 - state).sqrt()  # FAULT

    def start(self, count: int) -> Tensor:
        return self.uniform(count, [0.5, 0.5], [0.9, 0.9])


class StateAfterReset(Good):
    """Only from the fourth draw of start states on, which no env begins with: after a reset."""

    def start(self, count: int) -> Tensor:
        self.draws = getattr(self, "draws", 0) + 1
        return super().start(count) + 3 * (self.draws > 3)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return (3 - next_state[:, 1]).log()  # FAULT


class RareWrongSlope(Good):
    """The slope is right in one half of the states, in one row of a batch, and wrong in the other."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:  # FAULT
        with torch.no_grad():
            stiffness = state[:, 0].clamp(min=0.0)
        return -(1 + stiffness) * next_state.square().sum(-1)
