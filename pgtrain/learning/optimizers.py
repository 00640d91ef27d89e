"""Step rules on one flat parameter tensor, each with a mask instead of a branch.

`step(grad, ok, lr)`: `ok` is a 0-d bool tensor; where it is False nothing moves, neither a parameter nor a
moment nor the step count, so that a non-finite gradient is skipped without asking the device (no host sync).
`lr` may be a 0-d tensor, for a rate that follows a measurement.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor


class Optimizer(Protocol):
    """What an update asks of a step rule."""

    name: ClassVar[str]
    data: Tensor  # [P] the parameters, changed in place

    def step(self, grad: Tensor, ok: Tensor, lr: float | Tensor) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """Tensors by name, not copies."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class _Stateful:
    """The tensors named in `moments` are the state."""

    moments: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.moments:
            getattr(self, name).copy_(state[name])


class Adam(_Stateful):
    """Adam (Kingma & Ba 2015): θ ← θ − lr · m̂ / (√v̂ + ε), m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ)."""

    name: ClassVar[str] = "adam"
    moments = ("m", "v", "count")

    def __init__(self, data: Tensor, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-5) -> None:
        self.data, self.betas, self.eps = data, betas, eps
        self.m, self.v = torch.zeros_like(data), torch.zeros_like(data)
        dtype = torch.float32 if data.device.type == "mps" else torch.float64
        self.count = torch.zeros((), dtype=dtype, device=data.device)

    def step(self, grad: Tensor, ok: Tensor, lr: float | Tensor) -> None:
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


class RMSprop(_Stateful):
    """RMSprop (Tieleman & Hinton 2012): v ← α v + (1 − α) g²,  θ ← θ − lr · g / (√v + ε), v₀ = 0.

    tensorflow=True divides by √(v + ε) with v₀ = 1: small first steps. Results published for A2C were made
    with it, and the two forms learn differently.
    """

    name: ClassVar[str] = "rmsprop"
    moments = ("v",)

    def __init__(
        self, data: Tensor, *, alpha: float = 0.99, eps: float = 1e-5, tensorflow: bool = False
    ) -> None:
        self.data, self.alpha, self.eps, self.tensorflow = data, alpha, eps, tensorflow
        self.v = torch.ones_like(data) if tensorflow else torch.zeros_like(data)

    def step(self, grad: Tensor, ok: Tensor, lr: float | Tensor) -> None:
        grad = torch.where(ok, grad, 0.0)
        go = ok.to(grad.dtype)
        self.v.lerp_(grad * grad, go * (1 - self.alpha))
        root = (self.v + self.eps).sqrt_() if self.tensorflow else self.v.sqrt().add_(self.eps)
        self.data.sub_((lr * go).to(grad.dtype) * grad / root)


class SGD(_Stateful):
    """Gradient descent with momentum: u ← μ u + g,  θ ← θ − lr · u (Polyak 1964; μ = 0: plain)."""

    name: ClassVar[str] = "sgd"
    moments = ("velocity",)

    def __init__(self, data: Tensor, *, momentum: float = 0.0) -> None:
        self.data, self.momentum = data, momentum
        self.velocity = torch.zeros_like(data)

    def step(self, grad: Tensor, ok: Tensor, lr: float | Tensor) -> None:
        grad = torch.where(ok, grad, 0.0)
        go = ok.to(grad.dtype)
        self.velocity.copy_(torch.where(ok, self.momentum * self.velocity + grad, self.velocity))
        self.data.sub_((lr * go).to(grad.dtype) * self.velocity)
