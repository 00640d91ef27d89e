"""All parameters of a module as views into one flat tensor, their gradients into another.

A snapshot, a rollback, the gradient norm, the optimiser step and, later, an all-reduce or a line search are then
one operation each, whatever the network looks like.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatParameters:
    """Moves the parameters of `module` into `data` [P] and their gradients into `grad` [P].

    The module goes on working as before: each parameter (and its `.grad`) is a view. Build it after the module has
    reached its device, for `module.to(...)` would cut the views loose.
    """

    def __init__(self, module: nn.Module) -> None:
        named = list(module.named_parameters())  # a shared parameter is listed once
        if not named:
            raise ValueError("the module has no parameters to train")
        self.data: Tensor = torch.cat([p.detach().reshape(-1) for _, p in named])
        self.grad: Tensor = torch.zeros_like(self.data)
        self.slices: dict[str, slice] = {}
        start = 0
        for name, parameter in named:
            part = slice(start, start + parameter.numel())
            self.slices[name] = part
            parameter.data = self.data[part].view(parameter.shape)
            parameter.grad = self.grad[part].view(parameter.shape)
            start = part.stop

    def __len__(self) -> int:
        return self.data.numel()

    def snapshot(self) -> Tensor:
        """A copy of all parameters, for `restore`."""
        return self.data.clone()

    def restore(self, snapshot: Tensor) -> None:
        """Puts the parameters back, bit for bit."""
        self.data.copy_(snapshot)

    def zero_grad(self) -> None:
        self.grad.zero_()

    def non_finite(self) -> list[str]:
        """The names of the tensors whose gradient holds a NaN or an infinity (syncs: for messages only)."""
        return [name for name, part in self.slices.items() if not torch.isfinite(self.grad[part]).all()]
