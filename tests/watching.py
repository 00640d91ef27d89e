"""Modes that note what makes the host wait for a device, so that a test without a GPU can look for it."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Questions(TorchDispatchMode):
    """Notes the operations that make the host wait for a number."""

    ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if name in self.ASKING or by_mask:  # a mask's rows must be counted
            self.asked.append(name)
        return func(*args, **(kwargs or {}))


class Crossings(TorchFunctionMode):
    """Notes the calls that carry numbers between host and device."""

    CROSSING = ("cpu", "numpy", "tolist", "item", "tensor", "as_tensor", "cuda")

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in self.CROSSING:
            self.made.append(func.__name__)
        return func(*args, **(kwargs or {}))
