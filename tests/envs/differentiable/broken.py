"""Tasks that lack a part, or whose parts do not run or fit. Import it in a test, not above: it registers them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pgtrain.envs.differentiable import DifferentiableEnv, register
from tests.envs.differentiable.faulty import Good, Item


class NoMethods(DifferentiableEnv):
    action_low, action_high = (-1.0,), (1.0,)


class NoActions(Good):
    action_low = action_high = ()


class TwoSizes(Good):
    action_low, action_high = (-1.0, -1.0), (1.0,)


class Raises(Good):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -next_state[:, 7]


class Column(Good):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -next_state[:, :1].square()


class Shrinks(Good):
    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        return state[:, :1]


class FloatEnd(Good):
    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 0] * 0.0


class Number(Good):
    def reward(self, state: Any, action: Any, next_state: Any) -> Any:
        return 1.0


class Goal(Good):
    """1 where the goal is reached: no slope."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return (next_state[:, 0] > 0).float()


class Later(Good):
    """Falls over on its third step."""

    steps = 0

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        self.steps += 1
        if self.steps > 3:
            raise ZeroDivisionError("the third step")
        return super().dynamics(state, action)


for _cls in (NoMethods, NoActions, TwoSizes, Raises, Column, Shrinks, FloatEnd, Number, Goal, Later, Item):
    register(f"Broken{_cls.__name__}-v0", _cls)
