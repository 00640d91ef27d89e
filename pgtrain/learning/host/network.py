"""Forward and backward pass of the actor-critic's `MLP` in NumPy, on the memory of the flat parameters.

For networks of a few dozen units a framework's cost per operation is many times that of the arithmetic. Here a pass
is a handful of BLAS calls: actor and critic layers of the same shape are multiplied as one stack, and gradients are
written where the optimiser reads them.

Dimension legend: B rows, K branches (actor, critic), D observation size, A actor outputs, H hidden units.
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
Branches = tuple[int, int]  # first and last + 1 of those that take part
ACTOR, CRITIC, BOTH = (0, 1), (1, 2), (0, 2)


class Layer(NamedTuple):
    """A linear layer, y = x Wᵀ + b, as views: of the parameters, or of their gradients. With a leading K if stacked."""

    weight: Array  # [(K,) out, in]
    transposed: Array  # [(K,) in, out]
    bias: Array  # [(K,) 1, out]


class Layers(NamedTuple):
    """The layers of an `MLP` as views of one flat vector, parameters or gradient."""

    hidden: dict[Branches, list[Layer]]  # the trunk's, then those of the branches that take part, stacked
    actor_head: Layer
    critic_head: Layer | None


class Pass(NamedTuple):
    """What a hidden layer's forward pass leaves for the others."""

    input: Array
    before: Array  # x Wᵀ + b
    output: Array


def plan(network: nn.Module) -> Activation | None:
    """The activation of a network that has closed formulas here; None for any other kind of network."""
    if type(network) is not MLP:
        return None
    parts = [*network.trunk, *network.actor, *(network.critic or ())]
    activations = {type(layer) for layer in parts if type(layer) is not nn.Linear}
    kind = activations.pop() if activations else nn.Tanh  # without hidden layers it is not called
    return None if activations else ACTIVATIONS.get(kind)


class HostMLP:
    """The passes of an `MLP` whose parameters lie in `flat`. `forward` keeps what `backward` and `tangent` need.

    A change of the parameters in place is seen at once. Two passes of one object must not be mixed: `forward` of a
    second batch takes the place of the first.
    Raises: ValueError if `plan` gives None.
    """

    def __init__(self, network: nn.Module, flat: FlatParameters, prefix: str = "network.") -> None:
        activation = plan(network)
        if activation is None or not isinstance(network, MLP):
            raise ValueError("no closed formulas for this network")
        self.activation = activation
        self.network, self.flat, self.prefix = network, flat, prefix
        self.trunk_depth = sum(isinstance(layer, nn.Linear) for layer in network.trunk)
        self.parameters = self.layers(flat.data.numpy())
        self.gradients = self.layers(flat.grad.numpy())
        self.space = _Space(self.parameters.actor_head.weight.dtype)
        self.ones = np.ones((1, 0))

    def layers(self, vector: Array) -> Layers:
        """`vector` [P], cut like the flat parameters; views."""
        both = ["actor", "critic"] if self.network.critic is not None else ["actor"]
        trunk = [self._one(vector, f"trunk.{i}") for i in _linear(self.network.trunk)]
        *body, head = _linear(self.network.actor)
        stacks = [self._stack(vector, [f"{part}.{i}" for part in both]) for i in body]
        hidden = {
            (a, b): trunk + [Layer(*(x[a:b] for x in layer)) for layer in stacks]
            for a, b in (ACTOR, CRITIC, BOTH)
        }
        critic_head = self._one(vector, f"critic.{head}") if self.network.critic is not None else None
        return Layers(hidden, self._one(vector, f"actor.{head}"), critic_head)

    def _one(self, vector: Array, name: str) -> Layer:
        return Layer(*(x[0] for x in self._stack(vector, [name])))

    def _stack(self, vector: Array, names: Sequence[str]) -> Layer:
        """Layers of one shape, one stride apart."""
        out, inputs = self.network.get_parameter(f"{names[0]}.weight").shape
        weight = self._views(vector, [f"{self.prefix}{name}.weight" for name in names], (out, inputs))
        bias = self._views(vector, [f"{self.prefix}{name}.bias" for name in names], (1, out))
        return Layer(weight, weight.swapaxes(-1, -2), bias)

    def _views(self, vector: Array, names: Sequence[str], shape: tuple[int, int]) -> Array:
        """[K, *shape] view of the parameters of these names."""
        starts = [self.flat.slices[name].start for name in names]
        stride = starts[-1] - starts[0] if len(starts) > 1 else math.prod(shape)
        size = vector.itemsize
        return as_strided(vector[starts[0] :], (len(names), *shape), (stride * size, shape[1] * size, size))

    # ------------------------------------------------------------------------------------------------ passes

    def forward(self, x: Array, branches: Branches = BOTH) -> tuple[Array | None, Array | None]:
        """Inputs [B, D] → the actor's output [B, A] and the value [B]; None for a branch that does not take part."""
        p = self.parameters
        self.branches = branches if p.critic_head is not None else ACTOR
        self.passes: list[Pass] = []
        self.slopes: list[Array | None] = []
        for i, layer in enumerate(p.hidden[self.branches]):
            x = self._hidden(i, x, layer)
        count = self.branches[1] - self.branches[0]
        self.features = x if x.ndim == 3 else np.broadcast_to(x, (count, *x.shape))
        output = value = None
        if self.branches[0] == 0:
            output = self.features[0] @ p.actor_head.transposed
            output += p.actor_head.bias
        if self.branches[1] == 2:
            assert p.critic_head is not None
            value = self.features[-1] @ p.critic_head.weight[0]
            value += p.critic_head.bias[0, 0]
        return output, value

    def _hidden(self, i: int, x: Array, layer: Layer) -> Array:
        shape = (*layer.weight.shape[:-2], x.shape[-2], layer.weight.shape[-2])
        z = np.matmul(x, layer.transposed, out=self.space("before", i, shape))
        z += layer.bias
        y = self.activation.forward(z, self.space("output", i, shape) if self.activation.keeps_input else z)
        self.passes.append(Pass(x, z, y))
        self.slopes.append(None)
        return y

    def backward(self, d_output: Array | None, d_value: Array | None, into: Layers | None = None) -> None:
        """dL/d(actor's output) [B, A] and dL/dvalue [B] → dL/dparameters, written over `into` (`gradients`).

        Of the branches that took part in the last `forward`, each with its derivative given; the rest is not written.
        """
        p, g, rows = self.parameters, into or self.gradients, self.features.shape[1]
        if self.ones.shape[1] != rows:
            self.ones = np.ones((1, rows), self.features.dtype)
        ones = self.ones  # a product sums rows faster than NumPy's own sum
        d = self.space("features", 0, self.features.shape)
        if d_output is not None:
            np.matmul(d_output.T, self.features[0], out=g.actor_head.weight)
            np.matmul(ones, d_output, out=g.actor_head.bias)
            np.matmul(d_output, p.actor_head.weight, out=d[0])
        if d_value is not None:
            assert p.critic_head is not None and g.critic_head is not None
            np.matmul(d_value, self.features[-1], out=g.critic_head.weight[0])
            np.matmul(ones[0], d_value[:, None], out=g.critic_head.bias[0])
            np.multiply(d_value[:, None], p.critic_head.weight, out=d[-1])
        for i in reversed(range(len(self.passes))):
            if i == self.trunk_depth - 1:  # what the branches ask of the trunk adds up
                d = np.add.reduce(d, axis=0)
            layer, grad = p.hidden[self.branches][i], g.hidden[self.branches][i]
            np.multiply(d, self._slope(i), out=d)
            np.matmul(d.swapaxes(-1, -2), self.passes[i].input, out=grad.weight)
            np.matmul(ones, d, out=grad.bias)
            if i > 0:
                shape = (*d.shape[:-1], layer.weight.shape[-1])
                d = np.matmul(d, layer.weight, out=self.space("back", i, shape))

    def deltas(self, d_output: Array) -> list[tuple[Array, Array]]:
        """dL/d(actor's output) [B, A] → (inputs [B, i], dL/d(outputs) [B, o]) of the actor's layers, the last first.

        What weight gradients are made of, before rows are summed. After `forward` of the actor alone; valid until the
        next pass.
        """
        found = [(self.features[0], d_output)]
        d = np.matmul(d_output, self.parameters.actor_head.weight)
        for i in reversed(range(len(self.passes))):
            d *= _rows(self._slope(i))
            found.append((_rows(self.passes[i].input), d))
            if i > 0:
                d = np.matmul(d, _rows(self.parameters.hidden[ACTOR][i].weight))
        return found

    def tangent(self, direction: Layers) -> Array:
        """How the actor's output moves as the parameters move along `direction`: J v [B, A]. After `forward`."""
        p, change = self.parameters, None
        for i, kept in enumerate(self.passes):
            layer, step = p.hidden[ACTOR][i], direction.hidden[ACTOR][i]
            dz = np.matmul(kept.input, step.transposed)
            dz += step.bias
            if change is not None:
                dz += np.matmul(change, layer.transposed)
            change = np.multiply(dz, self._slope(i), out=dz)
        output = self.features[0] @ direction.actor_head.transposed
        output += direction.actor_head.bias
        if change is not None:
            output += (change[0] if change.ndim == 3 else change) @ p.actor_head.transposed
        return output

    def _slope(self, i: int) -> Array:
        """f′ of hidden layer i at the last forward pass, worked out once."""
        slope = self.slopes[i]
        if slope is None:
            _, z, y = self.passes[i]
            slope = self.slopes[i] = self.activation.slope(z, y, self.space("slope", i, y.shape))
        return slope


class _Space:
    """Memory for the passes. Small arrays come back from the allocator warm; large ones come as fresh pages, which
    cost more than the arithmetic in them, so they are kept from pass to pass."""

    LARGE = 65_536  # numbers

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.kept: dict[tuple[str, int], Array] = {}

    def __call__(self, what: str, i: int, shape: tuple[int, ...]) -> Array:
        if math.prod(shape) < self.LARGE:
            return np.empty(shape, self.dtype)
        space = self.kept.get((what, i))
        if space is None or space.shape != shape:
            space = self.kept[what, i] = np.empty(shape, self.dtype)
        return space


def _rows(x: Array) -> Array:
    """Without the leading 1 of a single branch; a view."""
    return x.reshape(x.shape[-2:])


def _linear(layers: nn.Sequential) -> list[int]:
    return [i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
