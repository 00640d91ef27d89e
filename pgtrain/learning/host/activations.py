"""Activation functions and their slopes in NumPy, written into given memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import nn

Array = np.ndarray


class Activation(NamedTuple):
    """y = f(x), elementwise, and f′(x). Both write into their last argument and return it."""

    forward: Callable[[Array, Array], Array]  # (x, out); out may be x itself, unless `keeps_input`
    slope: Callable[[Array, Array, Array], Array]  # (x, y, out)
    keeps_input: bool = False  # False: y alone tells the slope


def _tanh_slope(x: Array, y: Array, out: Array) -> Array:
    np.multiply(y, y, out=out)
    return np.subtract(1, out, out=out)


def _elu(x: Array, out: Array) -> Array:
    below = np.expm1(np.minimum(x, 0))
    np.maximum(x, 0, out=out)
    return np.add(out, below, out=out)


def _elu_slope(x: Array, y: Array, out: Array) -> Array:
    np.minimum(y, 0, out=out)
    return np.add(out, 1, out=out)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(np.minimum(-x, 80)))


def _silu_slope(x: Array, y: Array, out: Array) -> Array:
    s = _sigmoid(x)
    return np.multiply(s, 1 + x * (1 - s), out=out)


def _leaky_relu_slope(x: Array, y: Array, out: Array) -> Array:
    np.greater(y, 0, out=out, casting="unsafe")
    return np.maximum(out, 0.01, out=out)


# gelu is left to torch: NumPy has no erf
ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: Activation(lambda x, out: np.tanh(x, out=out), _tanh_slope),
    nn.ReLU: Activation(
        lambda x, out: np.maximum(x, 0, out=out),
        lambda x, y, out: np.greater(y, 0, out=out, casting="unsafe"),
    ),
    nn.ELU: Activation(_elu, _elu_slope),
    nn.SiLU: Activation(lambda x, out: np.multiply(x, _sigmoid(x), out=out), _silu_slope, keeps_input=True),
    nn.LeakyReLU: Activation(lambda x, out: np.maximum(x, 0.01 * x, out=out), _leaky_relu_slope),
}
