"""Activation functions and their derivatives in NumPy, in place where that saves a pass over memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import nn

Array = np.ndarray


class Activation(NamedTuple):
    """y = f(x) and dL/dx from dL/dy. Where `keeps_input` is False, y alone tells the derivative."""

    forward: Callable[[Array], Array]  # may overwrite x, unless `keeps_input`
    backward: Callable[[Array, Array, Array], Array]  # (dL/dy, x, y) → dL/dx, written over dL/dy
    tangent: Callable[[Array, Array, Array], Array]  # (dx, x, y) → dy, written over dx
    keeps_input: bool = False


def _from_slope(
    slope: Callable[[Array, Array], Array], forward: Callable[[Array], Array], keeps: bool
) -> Activation:
    """Of an elementwise f, whose Jacobian is diagonal: forward and reverse mode are the same product."""

    def product(d: Array, x: Array, y: Array) -> Array:
        return np.multiply(d, slope(x, y), out=d)

    return Activation(forward, product, product, keeps)


def _tanh_slope(x: Array, y: Array) -> Array:
    slope = y * y
    return np.subtract(1, slope, out=slope)


def _elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(np.minimum(-x, 80)))


def _silu_slope(x: Array, y: Array) -> Array:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


# gelu is left to torch: NumPy has no erf
ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: _from_slope(_tanh_slope, lambda x: np.tanh(x, out=x), keeps=False),
    nn.ReLU: _from_slope(lambda x, y: y > 0, lambda x: np.maximum(x, 0, out=x), keeps=False),
    nn.ELU: _from_slope(lambda x, y: np.minimum(y, 0) + 1, _elu, keeps=False),
    nn.SiLU: _from_slope(_silu_slope, lambda x: x * _sigmoid(x), keeps=True),
    nn.LeakyReLU: _from_slope(
        lambda x, y: np.where(y > 0, 1, 0.01).astype(y.dtype),
        lambda x: np.where(x > 0, x, 0.01 * x),
        keeps=False,
    ),
}
