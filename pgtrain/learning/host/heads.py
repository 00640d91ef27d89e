"""From the actor's output to log-probability, entropy and KL, and their gradients back to it, in NumPy.

Dimension legend: B rows, A action dimensions, K choices, P size of the distribution parameters.

A head's `evaluate` keeps what the others need. `backward` takes dL/dlog π, dL/dH and dL/dKL, each [B] (None: 0),
returns dL/d(actor output) [B, …] and writes the gradient of parameters that belong to no layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import HALF_LOG_2PI, Categorical, DiagonalGaussian
from pgtrain.policies.parameters import FlatParameters

Array = np.ndarray


class Head(Protocol):
    def evaluate(self, output: Array, action: Array) -> tuple[Array, Array]:
        """The actor's output and actions → log π(a|o) and entropy, [B]."""
        ...

    def kl(self, old: Array) -> Array:
        """KL(old ‖ now) for the distribution parameters old [B, P], [B]."""
        ...

    def metrics(self, old: Array, action: Array) -> dict[str, Array]:
        """As the distribution's own: what the dashboard shows of old parameters [B, P] and actions, [B] or [B, A]."""
        ...

    def backward(self, d_log_prob: Array, d_entropy: Array | None, d_kl: Array | None) -> Array: ...

    def score(self) -> tuple[Array, Array | None]:
        """∂log π/∂(actor output) [B, …], and ∂log π/∂ parameters that belong to no layer [B, p]; None without such."""
        ...

    def params(self) -> Array:
        """The distribution parameters [B, P]."""
        ...

    def fisher(self, change: Array, direction: Array, share: Array, into: Array) -> Array:
        """Fisher information × a change of the actor's output [B, A], rows weighed by `share` [B].

        `direction` and `into` are flat vectors [P]: the same for parameters that belong to no layer.
        """
        ...


class CategoricalHead:
    """π = softmax(z):  ∂log π(a)/∂z = 1_a − π,   ∂H/∂z = −π (log π + H),   ∂KL(old ‖ π)/∂z = π − old."""

    def __init__(self, policy: ActorCritic, flat: FlatParameters) -> None:
        pass

    def evaluate(self, output: Array, action: Array) -> tuple[Array, Array]:
        self.output = output
        self.log_p, self.p = log_softmax(output)
        self.flat_index = np.arange(len(action)) * output.shape[1] + action
        self.entropy = np.add.reduce(self.p * self.log_p, -1)
        np.negative(self.entropy, out=self.entropy)
        return self.log_p.ravel()[self.flat_index], self.entropy

    def kl(self, old: Array) -> Array:
        log_old, self.old_p = log_softmax(old)
        return np.einsum("bk,bk->b", self.old_p, log_old - self.log_p)

    def metrics(self, old: Array, action: Array) -> dict[str, Array]:
        return {}

    def backward(self, d_log_prob: Array, d_entropy: Array | None, d_kl: Array | None) -> Array:
        d = -d_log_prob[:, None] * self.p
        d.ravel()[self.flat_index] += d_log_prob
        if d_entropy is not None:
            d -= d_entropy[:, None] * self.p * (self.log_p + self.entropy[:, None])
        if d_kl is not None:
            d += d_kl[:, None] * (self.p - self.old_p)
        return d

    def score(self) -> tuple[Array, Array | None]:
        d = -self.p
        d.ravel()[self.flat_index] += 1
        return d, None

    def params(self) -> Array:
        return self.output

    def fisher(self, change: Array, direction: Array, share: Array, into: Array) -> Array:
        """(diag π − π πᵀ) dz."""
        weighed = self.p * change
        weighed -= self.p * weighed.sum(-1, keepdims=True)
        weighed *= share[:, None]
        return weighed


class GaussianHead:
    """μ = output (tanh of it where squashed), σ = exp(clamp(log_std)), z = (a − μ)/σ:

    ∂log π/∂μ = z/σ,   ∂log π/∂log σ = z² − 1,   ∂H/∂log σ = 1,
    ∂KL/∂μ = (μ − μ_old)/σ²,   ∂KL/∂log σ = 1 − (σ_old² + (μ_old − μ)²)/σ²
    """

    def __init__(self, policy: ActorCritic, flat: FlatParameters) -> None:
        distribution, log_std = policy.distribution, policy.log_std
        assert isinstance(distribution, DiagonalGaussian) and log_std is not None
        self.dim, self.log_half = distribution.dim, distribution.log_half
        self.low, self.high = policy.log_std_min, policy.log_std_max
        self.u_low, self.u_high = distribution.u_low, distribution.u_high
        squashed = policy.squashed.numpy()
        self.squashed = squashed.copy() if squashed.any() else None
        self.part = flat.slices["log_std"]
        self.free, self.gradient = flat.data[self.part].numpy(), flat.grad[self.part].numpy()

    def evaluate(self, output: Array, action: Array) -> tuple[Array, Array]:
        self.mean = output if self.squashed is None else np.where(self.squashed, np.tanh(output), output)
        self.log_std = self.free.clip(self.low, self.high)
        self.inverse = np.exp(-self.log_std)
        self.z = (action - self.mean) * self.inverse
        spread, constant = self.log_std.sum(), self.dim * HALF_LOG_2PI + self.log_half
        log_prob = np.einsum("ba,ba->b", self.z, self.z)
        log_prob *= -0.5
        log_prob -= float(spread) + constant
        entropy = np.full(len(output), float(spread) + constant + 0.5 * self.dim, output.dtype)
        return log_prob, entropy

    def kl(self, old: Array) -> Array:
        mean_old, log_old = old[:, : self.dim], old[:, self.dim :]
        self.shift = (self.mean - mean_old) * self.inverse
        self.ratio = np.exp(2 * (log_old - self.log_std))
        return (self.log_std - log_old + 0.5 * (self.ratio + self.shift**2 - 1)).sum(-1)

    def metrics(self, old: Array, action: Array) -> dict[str, Array]:
        low, high = self.u_low.astype(action.dtype), self.u_high.astype(action.dtype)
        clipped = (action < low) | (action > high)
        return {"policy/std": np.exp(old[:, self.dim :]), "policy/clipped_actions": clipped}

    def backward(self, d_log_prob: Array, d_entropy: Array | None, d_kl: Array | None) -> Array:
        d_mean = self.z * d_log_prob[:, None]
        d_log_std = np.einsum("ba,ba->a", d_mean, self.z) - d_log_prob.sum()
        d_mean *= self.inverse
        if d_entropy is not None:
            d_log_std += d_entropy.sum()
        if d_kl is not None:
            d_mean += d_kl[:, None] * self.shift * self.inverse
            d_log_std += d_kl @ (1 - self.ratio - self.shift**2)
        np.multiply(d_log_std, self._inside(), out=self.gradient)
        return self._through_tanh(d_mean)

    def score(self) -> tuple[Array, Array | None]:
        return self._through_tanh(self.z * self.inverse), (self.z * self.z - 1) * self._inside()

    def params(self) -> Array:
        return np.concatenate([self.mean, np.broadcast_to(self.log_std, self.mean.shape)], -1)

    def fisher(self, change: Array, direction: Array, share: Array, into: Array) -> Array:
        """dμ/σ² and, for log σ, 2 dlog σ."""
        np.multiply(direction[self.part], 2 * self._inside() * share.sum(), out=into[self.part])
        change = self._through_tanh(change)
        change *= self.inverse**2
        change *= share[:, None]
        return self._through_tanh(change)

    def _inside(self) -> Array:
        """Whether log_std is within its limits: beyond them the clamp has no gradient, [A]."""
        return (self.free >= self.low) & (self.free <= self.high)

    def _through_tanh(self, d: Array) -> Array:
        """d times ∂μ/∂output, in place."""
        if self.squashed is not None:
            d *= np.where(self.squashed, 1 - self.mean * self.mean, 1)
        return d


HEADS: dict[type, Callable[[ActorCritic, FlatParameters], Head]] = {
    Categorical: CategoricalHead,
    DiagonalGaussian: GaussianHead,
}


def log_softmax(z: Array) -> tuple[Array, Array]:
    """log softmax and softmax of z [B, K]."""
    z = z - np.maximum.reduce(z, -1, keepdims=True)
    p = np.exp(z)
    total = np.add.reduce(p, -1, keepdims=True)
    p /= total
    z -= np.log(total, out=total)
    return z, p
