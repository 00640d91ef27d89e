"""Backpropagated slopes against central differences, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv

STEP = 1e-6  # of the central differences, relative to the size of the number that is moved
KINK = 1e-2  # difference between the slopes of either side that makes it a kink, relative like the error


def disagreement(
    env: DifferentiableEnv, method: Callable[[Tensor, Tensor], Tensor], state: Tensor, action: Tensor
) -> Tensor:
    """For each row, the largest difference between Jacobian and central differences, relative to the larger of 1 and
    the Jacobian, [N]; infinite where one of them is not finite.

    Along each coordinate of state and action in turn, all rows at once; float64. The same noise each time. A kink, as
    at the very edge of a clip, has no one slope: it is left out.
    """
    worst = torch.zeros(len(state), dtype=torch.float64, device=state.device)
    state, action = state.detach().double(), action.detach().double()
    for which in (0, 1):
        arguments = [state, action]
        for j in range(arguments[which].shape[1]):
            x = arguments[which]
            h = STEP * x[:, j].abs().clamp(min=1.0)
            direction = torch.zeros_like(x)
            direction[:, j] = 1.0

            def along(z: Tensor, which: int = which, x: Tensor = x, direction: Tensor = direction) -> Tensor:
                arguments = [state, action]
                arguments[which] = x + direction * z.unsqueeze(-1)
                with same_noise(env):
                    return method(*arguments)

            with torch.no_grad():
                high, low, here = along(h), along(-h), along(torch.zeros_like(h))
            h = h.reshape(-1, *[1] * (high.ndim - 1))
            numeric, bend = (high - low) / (2 * h), (high - 2 * here + low).abs() / h
            exact = _directional(along, len(x), x, numeric)
            scale = exact.abs().clamp(min=1.0)
            error = torch.where(bend > KINK * scale, 0.0, (exact - numeric).abs() / scale).nan_to_num(
                torch.inf, torch.inf
            )
            worst = torch.maximum(worst, error.reshape(len(worst), -1).amax(-1))
    return worst


def _directional(along: Callable[[Tensor], Tensor], rows: int, like: Tensor, numeric: Tensor) -> Tensor:
    """d out/dz at z = 0 by backpropagation, each output component in turn; the shape of `numeric`."""
    zero = torch.zeros(rows, dtype=like.dtype, device=like.device, requires_grad=True)
    out = along(zero)
    columns = out.reshape(rows, -1)
    parts = []
    for i in range(columns.shape[1]):
        if not out.requires_grad:
            return torch.zeros_like(numeric)
        (grad,) = torch.autograd.grad(columns[:, i].sum(), zero, retain_graph=True, allow_unused=True)
        parts.append(torch.zeros_like(zero) if grad is None else grad)
    return torch.stack(parts, -1).reshape(numeric.shape)


class same_noise:
    """Leaves the env's randomness as it was, so that noise is the same in each call."""

    def __init__(self, env: DifferentiableEnv) -> None:
        self.env = env

    def __enter__(self) -> None:
        self.kept = self.env.generator.get_state()

    def __exit__(self, *_: Any) -> None:
        self.env.generator.set_state(self.kept)
