"""The step rules of `optimizers` in NumPy: on the memory of an optimiser's own tensors, which stay its state.

A non-finite gradient never gets here (the host can look before it steps), so there is no mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pgtrain.learning.optimizers import SGD, Adam, Optimizer, RMSprop

Array = np.ndarray
Rule = Callable[[Array, float], None]  # gradient [P] (may be overwritten), learning rate


def make_rule(optimizer: Optimizer) -> Rule | None:
    """The step of `optimizer`; None for a kind without a formula here."""
    make = RULES.get(type(optimizer))
    return None if make is None else make(optimizer)


def _adam(o: Adam) -> Rule:
    data, m, v, count = (x.numpy() for x in (o.data, o.m, o.v, o.count))
    b1, b2 = o.betas
    square, root = np.empty_like(data), np.empty_like(data)

    def step(grad: Array, lr: float) -> None:
        np.add(count, 1, out=count)
        t = float(count)
        np.multiply(grad, grad, out=square)
        _lerp(m, grad, 1 - b1)
        _lerp(v, square, 1 - b2)
        scale = math.sqrt(1 - b2**t)  # m̂ / (√v̂ + ε) = scale · m / ((1 − β₁ᵗ)(√v + scale · ε)): a pass less
        np.add(np.sqrt(v, out=root), scale * o.eps, out=root)
        np.divide(m, root, out=root)
        np.multiply(root, lr * scale / (1 - b1**t), out=root)
        np.subtract(data, root, out=data)

    return step


def _rmsprop(o: RMSprop) -> Rule:
    data, v = o.data.numpy(), o.v.numpy()
    root = np.empty_like(data)

    def step(grad: Array, lr: float) -> None:
        _lerp(v, np.multiply(grad, grad, out=root), 1 - o.alpha)
        if o.tensorflow:
            np.sqrt(np.add(v, o.eps, out=root), out=root)
        else:
            np.add(np.sqrt(v, out=root), o.eps, out=root)
        np.divide(grad, root, out=root)
        np.multiply(root, lr, out=root)
        np.subtract(data, root, out=data)

    return step


def _sgd(o: SGD) -> Rule:
    data, velocity = o.data.numpy(), o.velocity.numpy()

    def step(grad: Array, lr: float) -> None:
        np.multiply(velocity, o.momentum, out=velocity)
        np.add(velocity, grad, out=velocity)
        np.subtract(data, lr * velocity, out=data)

    return step


def _lerp(x: Array, towards: Array, by: float) -> None:
    """x ← x + by · (towards − x); `towards` is overwritten."""
    np.subtract(towards, x, out=towards)
    np.multiply(towards, by, out=towards)
    np.add(x, towards, out=x)


RULES: dict[type, Callable[..., Rule]] = {Adam: _adam, RMSprop: _rmsprop, SGD: _sgd}
