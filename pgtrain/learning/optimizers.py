"""Step rules on one flat parameter tensor, each with a mask instead of a branch.

`step(grad, ok, lr)`: `ok` is a 0-d bool tensor; where it is False nothing moves, neither a parameter nor a moment nor
the step count, so that a non-finite gradient is skipped without asking the device (no host sync).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Adam:
    """Adam (Kingma & Ba 2015): θ ← θ − lr · m̂ / (√v̂ + ε), m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ)."""

    name = "adam"

    def __init__(self, data: Tensor, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-5) -> None:
        self.data, self.betas, self.eps = data, betas, eps
        self.m, self.v = torch.zeros_like(data), torch.zeros_like(data)
        dtype = torch.float32 if data.device.type == "mps" else torch.float64
        self.count = torch.zeros((), dtype=dtype, device=data.device)

    def step(self, grad: Tensor, ok: Tensor, lr: float) -> None:
        b1, b2 = self.betas
        grad = torch.where(ok, grad, 0.0)
        go = ok.to(grad.dtype)
        self.count += ok
        t = self.count.clamp(min=1)
        self.m.lerp_(grad, go * (1 - b1))
        self.v.lerp_(grad * grad, go * (1 - b2))
        scale = (lr * go / (1 - b1**t)).to(grad.dtype)
        root = (self.v / (1 - b2**t).to(grad.dtype)).sqrt_().add_(self.eps)
        self.data.sub_(scale * self.m / root)

    def state_dict(self) -> dict[str, Any]:
        return {"m": self.m, "v": self.v, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("m", "v", "count"):
            getattr(self, name).copy_(state[name])
