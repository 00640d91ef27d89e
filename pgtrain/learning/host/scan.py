"""Recursions of `learning.returns` in NumPy: the same operations on the same numbers, without a framework's calls."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


@np.errstate(all="ignore")  # what is not finite stays so, and the update looks for it
def discounted_sum(x: Array, decay: Array) -> Array:
    """y_t = x_t + decay_t · y_{t+1} by doubling; see `returns.discounted_sum`. Both [T, …], decay float64."""
    return _sum(x.copy(), decay[:-1])


@np.errstate(all="ignore")
def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: float,
    lam: float,
) -> Array:
    """See `returns.gae`; flags are bool."""
    delta = reward + gamma * np.where(terminated, 0, next_value) - value
    return _sum(delta, gamma * lam * ~(terminated | truncated)[:-1])


def _sum(y: Array, c: Array) -> Array:
    """`discounted_sum` in the memory of y = x, with c = decay_0 … decay_{T−2}."""
    steps, step = len(y), 1
    while step < steps:
        y[:-step] += c.astype(y.dtype) * y[step:]  # the product is made before a row is written
        c = c[:-step] * c[step:]
        step *= 2
    return y
