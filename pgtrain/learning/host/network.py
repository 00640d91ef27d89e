"""Forward and backward pass of the actor-critic's `MLP` in NumPy, on the memory of the flat parameters.

For networks of a few dozen units a framework's cost per operation is many times that of the arithmetic. Here a pass
is a handful of BLAS calls: actor and critic layers of the same shape are multiplied as one stack, and gradients are
written where the optimiser reads them.

Dimension legend: B rows, K branches (actor, critic), D observation size, A actor outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from torch import nn

from pgtrain.learning.host.activations import ACTIVATIONS, Activation
from pgtrain.policies.networks import MLP
from pgtrain.policies.parameters import FlatParameters

Array = np.ndarray
Kept = tuple[Array, Array, Array]  # a hidden layer's input, x Wᵀ + b, and output
ACTOR, CRITIC, BOTH = slice(0, 1), slice(1, 2), slice(0, 2)


class Layer(NamedTuple):
    """A linear layer, y = x Wᵀ + b, as views: of the parameters, or of their gradients. With a leading K if stacked."""

    weight: Array  # [(K,) out, in]
    bias: Array  # [(K,) 1, out]

    def of(self, branches: slice) -> Layer:
        return Layer(self.weight[branches], self.bias[branches])


class Layers(NamedTuple):
    """Views of one flat vector, parameters or gradient."""

    trunk: list[Layer]
    branches: list[Layer]  # stacked [K, …]
    actor_head: Layer
    critic_head: Layer | None


def plan(network: nn.Module) -> Activation | None:
    """The activation of a network that has closed formulas here; None for any other kind of network."""
    if type(network) is not MLP:
        return None
    parts = [*network.trunk, *network.actor, *(network.critic or ())]
    activations = {type(layer) for layer in parts if type(layer) is not nn.Linear}
    if not any(type(layer) is nn.Linear for layer in parts) or len(activations) > 1:
        return None
    kind = activations.pop() if activations else nn.Tanh  # without hidden layers it is not called
    return ACTIVATIONS.get(kind)


class HostMLP:
    """The passes of an `MLP` whose parameters lie in `flat`. `forward` keeps what `backward` and `tangent` need.

    An update of the parameters in place is seen at once. Raises: ValueError if `plan` gives None.
    """

    def __init__(self, network: MLP, flat: FlatParameters, prefix: str = "network.") -> None:
        activation = plan(network)
        if activation is None:
            raise ValueError("no closed formulas for this network")
        self.activation = activation
        self.network, self.flat, self.prefix = network, flat, prefix
        self.parameters = self.layers(flat.data.numpy())
        self.gradients = self.layers(flat.grad.numpy())

    def layers(self, vector: Array) -> Layers:
        """`vector` [P], cut like the flat parameters; views."""
        linear = {
            part: [
                i for i, layer in enumerate(getattr(self.network, part) or ()) if isinstance(layer, nn.Linear)
            ]
            for part in ("trunk", "actor", "critic")
        }
        trunk = [self._single(vector, f"trunk.{i}") for i in linear["trunk"]]
        both = ["actor", "critic"] if self.network.critic is not None else ["actor"]
        branches = [self._layer(vector, [f"{part}.{i}" for part in both]) for i in linear["actor"][:-1]]
        head = linear["actor"][-1]
        return Layers(
            trunk,
            branches,
            self._single(vector, f"actor.{head}"),
            self._single(vector, f"critic.{head}") if self.network.critic is not None else None,
        )

    def _single(self, vector: Array, name: str) -> Layer:
        layer = self._layer(vector, [name])
        return Layer(layer.weight[0], layer.bias[0])

    def _layer(self, vector: Array, names: Sequence[str]) -> Layer:
        """The layers of these names, all of one shape, as a stack."""
        weights = [f"{self.prefix}{name}.weight" for name in names]
        shape = self.network.get_parameter(f"{names[0]}.weight").shape
        biases = [f"{self.prefix}{name}.bias" for name in names]
        return Layer(self._stack(vector, weights, tuple(shape)), self._stack(vector, biases, (1, shape[0])))

    def _stack(self, vector: Array, names: Sequence[str], shape: tuple[int, ...]) -> Array:
        """[K, *shape] view of the parameters of these names; one stride leads from each to the next."""
        starts = [self.flat.slices[name].start for name in names]
        stride = starts[-1] - starts[0] if len(starts) > 1 else math.prod(shape)
        size = vector.itemsize
        return as_strided(
            vector[starts[0] :], (len(names), *shape), (stride * size, shape[1] * size, size), writeable=True
        )

    # ------------------------------------------------------------------------------------------------ passes

    def forward(self, x: Array, branches: slice = BOTH) -> tuple[Array | None, Array | None]:
        """Inputs [B, D] → the actor's output [B, A] and the value [B]; None for a branch that is not asked for."""
        p = self.parameters
        self.branches = branches if p.critic_head is not None else ACTOR
        self.trunk_passes, self.branch_passes = [], []
        for layer in p.trunk:
            x = self._hidden(x, layer, self.trunk_passes)
        for layer in p.branches:
            x = self._hidden(x, layer.of(self.branches), self.branch_passes)
        self.features = (
            x if p.branches else np.broadcast_to(x, (self.branches.stop - self.branches.start, *x.shape))
        )
        head = value = None
        if self.branches.start == 0:
            head = self.features[0] @ p.actor_head.weight.T
            head += p.actor_head.bias
        if self.branches.stop == 2:
            assert p.critic_head is not None
            value = self.features[-1] @ p.critic_head.weight[0]
            value += p.critic_head.bias[0, 0]
        return head, value

    def _hidden(self, x: Array, layer: Layer, passes: list[Kept]) -> Array:
        z = np.matmul(x, layer.weight.swapaxes(-1, -2))
        z += layer.bias
        y = self.activation.forward(z)
        passes.append((x, z, y))
        return y

    def backward(self, d_head: Array | None, d_value: Array | None) -> None:
        """dL/d(actor output) [B, A] and dL/dvalue [B] → dL/dparameters, written over `gradients`.

        Only the branches of the last `forward` are written; None leaves out no branch of it.
        """
        p, g, rows = self.parameters, self.gradients, self.features.shape[1]
        ones = np.ones((1, rows), self.features.dtype)  # a product sums rows faster than NumPy's own sum
        d = np.empty(self.features.shape, self.features.dtype)
        if d_head is not None:
            np.matmul(d_head.T, self.features[0], out=g.actor_head.weight)
            np.matmul(ones, d_head, out=g.actor_head.bias)
            np.matmul(d_head, p.actor_head.weight, out=d[0])
        if d_value is not None:
            assert p.critic_head is not None and g.critic_head is not None
            np.matmul(d_value, self.features[-1], out=g.critic_head.weight[0])
            np.matmul(ones[0], d_value[:, None], out=g.critic_head.bias[0])
            np.multiply(d_value[:, None], p.critic_head.weight, out=d[-1])
        for i in reversed(range(len(p.branches))):
            last = i == 0 and not p.trunk
            d = self._back(
                d,
                p.branches[i].of(self.branches),
                g.branches[i].of(self.branches),
                self.branch_passes[i],
                ones,
                last,
            )
        if p.trunk:
            d = np.add.reduce(d, axis=0)
        for i in reversed(range(len(p.trunk))):
            d = self._back(d, p.trunk[i], g.trunk[i], self.trunk_passes[i], ones, last=i == 0)

    def _back(self, d: Array, layer: Layer, grad: Layer, kept: Kept, ones: Array, last: bool) -> Array:
        x, z, y = kept
        d = self.activation.backward(d, z, y)
        np.matmul(d.swapaxes(-1, -2), x, out=grad.weight)
        np.matmul(ones, d, out=grad.bias)
        return d if last else np.matmul(d, layer.weight)

    def tangent(self, direction: Layers) -> Array:
        """The actor's output as the parameters move along `direction`: J v [B, A], after a `forward` of the actor."""
        p = self.parameters
        dx: Array | None = None
        for layer, step, kept in zip(p.trunk, direction.trunk, self.trunk_passes, strict=True):
            dx = self._ahead(dx, layer, step, kept)
        for layer, step, kept in zip(p.branches, direction.branches, self.branch_passes, strict=True):
            dx = self._ahead(dx, layer.of(ACTOR), step.of(ACTOR), kept)
        features = self.features[0]
        out = features @ direction.actor_head.weight.T
        out += direction.actor_head.bias
        if dx is not None:
            out += (dx[0] if dx.ndim == 3 else dx) @ p.actor_head.weight.T
        return out

    def _ahead(self, dx: Array | None, layer: Layer, step: Layer, kept: Kept) -> Array:
        x, z, y = kept
        dz = np.matmul(x, step.weight.swapaxes(-1, -2))
        dz += step.bias
        if dx is not None:
            dz += np.matmul(dx, layer.weight.swapaxes(-1, -2))
        return self.activation.tangent(dz, z, y)
