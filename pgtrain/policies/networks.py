"""Networks: multi-layer perceptrons with orthogonal weights, and the same forward pass in NumPy for small batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
}


def _elu(x: np.ndarray) -> np.ndarray:
    below = np.minimum(x, 0)
    np.expm1(below, out=below)
    return np.add(below, np.maximum(x, 0), out=below)  # np.where takes five times as long


# gelu is left to torch: NumPy has no erf
NUMPY_ACTIVATIONS: dict[type[nn.Module], Callable[[np.ndarray], np.ndarray]] = {
    nn.Tanh: lambda x: np.tanh(x, out=x),
    nn.ReLU: lambda x: np.maximum(x, 0, out=x),
    nn.ELU: _elu,
    nn.SiLU: lambda x: x / (1 + np.exp(np.minimum(-x, 80))),
    nn.LeakyReLU: lambda x: np.where(x > 0, x, 0.01 * x),
}


class Init(Protocol):
    """Sets the weights of a layer and gives it back."""

    def __call__(self, layer: Any, gain: float, /) -> Any: ...


def hidden_layers(
    sizes: Sequence[int], activation: str, init: Init, layer_norm: bool = False
) -> list[nn.Module]:
    """Linear(sizes[0], sizes[1]), activation, Linear(sizes[1], sizes[2]), activation, … ; gain √2, zero bias.

    layer_norm: each Linear's outputs are brought to mean 0 and variance 1, then scaled and shifted by what is learned.
    """
    layers: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise(sizes):
        layers.append(init(nn.Linear(width_in, width_out), math.sqrt(2)))
        layers += [nn.LayerNorm(width_out)] if layer_norm else []
        layers.append(ACTIVATIONS[activation]())
    return layers


def orthogonal(layer: Any, gain: float) -> Any:
    """Orthogonal weights times `gain`, zero bias, of a linear or a convolution layer (Saxe et al. 2014)."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def as_made(layer: Any, gain: float) -> Any:
    """PyTorch's own initialisation: weights and bias uniform within ±1/√inputs; no gain."""
    return layer


BLOCK_ROWS = 512


def numpy_forward(layers: Sequence[nn.Module]) -> Callable[[np.ndarray], np.ndarray] | None:
    """The forward pass of Linear and activation layers in NumPy, sharing the parameters' memory; None if it cannot.

    Framework overhead dominates small batches: for a 4-64-64-2 net and 8 rows torch takes about 70 µs and NumPy 29 µs.
    Large ones go through in blocks, whose activations stay in the cache and in memory that need not be fetched anew:
    half the time from 8,192 rows on. An optimiser step in place is seen at once.
    """
    plan: list[tuple[np.ndarray, np.ndarray] | Callable[[np.ndarray], np.ndarray]] = []
    for layer in layers:
        if isinstance(layer, WithFeatures):
            head = numpy_forward([layer.head])
            if head is None:
                return None
            plan.append(lambda x, head=head: np.concatenate([head(x), x], -1))
        elif (
            isinstance(layer, nn.Linear)
            and layer.weight.device.type == "cpu"
            and layer.weight.dtype == torch.float32
        ):
            plan.append((layer.weight.detach().numpy().T, layer.bias.detach().numpy()))
        elif type(layer) is nn.LayerNorm and layer.weight.device.type == "cpu":
            plan.append(_layer_norm(layer))
        elif type(layer) in NUMPY_ACTIVATIONS:
            plan.append(NUMPY_ACTIVATIONS[type(layer)])
        else:
            return None

    def block(x: np.ndarray) -> np.ndarray:
        for stage in plan:
            if isinstance(stage, tuple):
                x = x.dot(stage[0])  # less overhead than @
                x += stage[1]
            else:
                x = stage(x)
        return x

    def forward(x: np.ndarray) -> np.ndarray:
        if x.ndim != 2 or len(x) <= BLOCK_ROWS:
            return block(x)
        return np.concatenate([block(x[i : i + BLOCK_ROWS]) for i in range(0, len(x), BLOCK_ROWS)])

    return forward


def _layer_norm(layer: nn.LayerNorm) -> Callable[[np.ndarray], np.ndarray]:
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()

    def forward(x: np.ndarray) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + layer.eps) * weight + bias

    return forward


class WithFeatures(nn.Module):
    """A linear head [..., A] with its own inputs beside it, [..., A + L]: for noise that depends on them."""

    def __init__(self, head: nn.Linear, detach: bool) -> None:
        super().__init__()
        self.head, self.detach = head, detach

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([self.head(features), features.detach() if self.detach else features], -1)


class MLP(nn.Module):
    """Trunk (shared), actor and critic heads; `share` = number of hidden layers, counted from the input, that both use.

    share=0: two separate networks; share=len(hidden): one body with two linear heads. Without a critic the value is
    None. The actor's last layer is scaled by `last_gain` (a nearly uniform first policy), the critic's by 1;
    ortho_init=False leaves PyTorch's own initialisation (then `last_gain` is not used). `features`: the actor gives
    the activations of its last hidden layer [..., L] after its outputs, "detached" (no gradient from them into the
    network) or "learned". `layer_norm`: see `hidden_layers`.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        hidden: Sequence[int],
        activation: str,
        share: int,
        critic: bool,
        last_gain: float,
        ortho_init: bool = True,
        features: str | None = None,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        init: Init = orthogonal if ortho_init else as_made
        sizes = [inputs, *hidden]
        own = sizes[share:]
        self.trunk = nn.Sequential(*hidden_layers(sizes[: share + 1], activation, init, layer_norm))
        body = hidden_layers(own, activation, init, layer_norm)
        head = init(nn.Linear(own[-1], outputs), last_gain)
        self.actor = nn.Sequential(
            *body, head if features is None else WithFeatures(head, detach=features == "detached")
        )
        self.critic = (
            nn.Sequential(*hidden_layers(own, activation, init, layer_norm), init(nn.Linear(own[-1], 1), 1.0))
            if critic
            else None
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """[..., D] → actor output [..., A], value [...] (None without a critic)."""
        features = self.trunk(x)
        value = self.critic(features).squeeze(-1) if self.critic is not None else None
        return self.actor(features), value

    def act(self, x: Tensor) -> Tensor:
        """The actor's output alone."""
        return self.actor(self.trunk(x))

    def value(self, x: Tensor) -> Tensor:
        if self.critic is None:
            raise ValueError("this policy has no critic: no baseline or estimator asked for one")
        return self.critic(self.trunk(x)).squeeze(-1)

    def actor_numpy(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """The actor's forward pass for small host batches (see `numpy_forward`)."""
        return numpy_forward([*self.trunk, *self.actor])

    def critic_numpy(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """The critic's, [..., D] → [..., 1]."""
        return None if self.critic is None else numpy_forward([*self.trunk, *self.critic])
