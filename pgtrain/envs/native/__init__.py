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
    equals: str = ""  # the env of Gymnasium's own that it repeats step by step, if there is one


_CARTPOLE = Native(
    "pgtrain.envs.native.cartpole",
    "CartPole",
    "gymnasium.envs.classic_control.cartpole:CartPoleEnv",
    ("sutton_barto_reward",),
    "CartPole",
)

NATIVE: dict[str, Native] = {"CartPole-v0": _CARTPOLE, "CartPole-v1": _CARTPOLE}


def load(native: Native) -> Any:
    """The class, imported on first use."""
    return getattr(importlib.import_module(native.module), native.name)
