"""Differentiable envs: `make` builds one by its id, `register` gives one of yours an id. Torch comes on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgtrain.envs.differentiable.base import DifferentiableEnv as DifferentiableEnv
    from pgtrain.envs.differentiable.registration import make as make
    from pgtrain.envs.differentiable.registration import register as register

_LAZY = {"DifferentiableEnv": "base", "make": "registration", "register": "registration"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
