"""Batched envs of our own, found by the id of the Gymnasium env that they equal step by step."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Native(NamedTuple):
    """Where the class lies, whose dynamics it repeats, and the kwargs that it knows."""

    module: str
    name: str
    entry_point: str  # of the Gymnasium env that it equals; another one under the same id is left alone
    kwargs: tuple[str, ...] = ()


_CARTPOLE = Native(
    "pgtrain.envs.native.cartpole",
    "CartPole",
    "gymnasium.envs.classic_control.cartpole:CartPoleEnv",
    ("sutton_barto_reward",),
)

NATIVE: dict[str, Native] = {"CartPole-v0": _CARTPOLE, "CartPole-v1": _CARTPOLE}


def load(native: Native) -> Any:
    """The class, imported on first use."""
    return getattr(importlib.import_module(native.module), native.name)
