"""Batched envs of our own, found by id: of the Gymnasium env that they equal step by step, or of a task in torch."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Native(NamedTuple):
    """Where the class lies, whose dynamics it repeats, and the kwargs that it knows."""

    module: str
    name: str
    entry_point: str  # of the Gymnasium env under its id; another one under the same id is left alone
    kwargs: tuple[str, ...] = ()
    equals: str = "Gymnasium's"  # what it repeats step by step; "" for a task of which there is no other form


_GYMNASIUM = "gymnasium.envs.classic_control"
_CARTPOLE = Native(
    "pgtrain.envs.native.cartpole", "CartPole", f"{_GYMNASIUM}.cartpole:CartPoleEnv", ("sutton_barto_reward",)
)
_CAR = "pgtrain.envs.native.mountain_car"

NATIVE: dict[str, Native] = {
    "CartPole-v0": _CARTPOLE,
    "CartPole-v1": _CARTPOLE,
    "Acrobot-v1": Native("pgtrain.envs.native.acrobot", "Acrobot", f"{_GYMNASIUM}.acrobot:AcrobotEnv"),
    "Pendulum-v1": Native(
        "pgtrain.envs.native.pendulum", "Pendulum", f"{_GYMNASIUM}.pendulum:PendulumEnv", ("g",)
    ),
    "MountainCar-v0": Native(
        _CAR, "MountainCar", f"{_GYMNASIUM}.mountain_car:MountainCarEnv", ("goal_velocity",)
    ),
    "MountainCarContinuous-v0": Native(
        _CAR,
        "MountainCarContinuous",
        f"{_GYMNASIUM}.continuous_mountain_car:Continuous_MountainCarEnv",
        ("goal_velocity",),
    ),
}


def load(native: Native) -> Any:
    """The class, imported on first use."""
    return getattr(importlib.import_module(native.module), native.name)
