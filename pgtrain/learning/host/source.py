"""The gradient of `gradients.Backprop` and `CriticBackprop` in closed form, for small networks on the host.

    loss = policy loss + value_coef · value loss − entropy_coef · mean entropy

Where a policy, its distribution and its losses all have formulas here, `make_source` gives the same gradient as
automatic differentiation, to rounding, at a fraction of the cost: no graph is built and no operation dispatched.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.gradients import ActorLoss, Backprop, CriticBackprop, CriticLoss, Source
from pgtrain.learning.host.heads import HEADS, Head
from pgtrain.learning.host.losses import POLICY_LOSSES, VALUE_LOSSES, PolicyTerm, Rows
from pgtrain.learning.host.network import BOTH, CRITIC, HostMLP, plan
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters

Array = np.ndarray


class HostSource(Protocol):
    """A gradient source on NumPy arrays."""

    gradient: Array  # [P], the memory of the flat gradient

    def __call__(self, rows: Rows, coefficients: Coefficients) -> dict[str, float]:
        """Leaves the gradient in the flat tensor; returns statistics, `loss` among them."""
        ...


def make_source(source: Source) -> HostSource | None:
    """The twin of a `Backprop` or `CriticBackprop`; None where a part of it has no formula here."""
    if not isinstance(source, Backprop | CriticBackprop) or not on_host(source.policy, source.flat):
        return None
    if type(source.critic.value_loss) not in VALUE_LOSSES:
        return None
    if isinstance(source, CriticBackprop):  # whatever the actor's distribution
        return CriticGradient(source)
    if type(source.policy.distribution) not in HEADS or type(source.actor.policy_loss) not in POLICY_LOSSES:
        return None
    return PolicyGradient(source)


def has_formulas(policy: ActorCritic, flat: FlatParameters) -> bool:
    """Whether network and distribution have closed forms here."""
    return on_host(policy, flat) and type(policy.distribution) in HEADS


def on_host(policy: ActorCritic, flat: FlatParameters) -> bool:
    """Whether the network has closed forms here."""
    return (
        type(policy) is ActorCritic
        and flat.data.device.type == "cpu"
        and flat.data.dtype in (torch.float32, torch.float64)
        and plan(policy.network) is not None
    )


class PolicyGradient:
    """As `Backprop`: the whole loss of actor and, if there is one, critic."""

    def __init__(self, source: Backprop) -> None:
        policy, flat = source.policy, source.flat
        self.source = source
        self.gradient = flat.grad.numpy()
        self.network = HostMLP(policy.network, flat)
        self.actor = Actor(policy, flat, source.actor)
        self.critic = _Critic(source.critic) if policy.has_critic else None

    def __call__(self, rows: Rows, coefficients: Coefficients) -> dict[str, float]:
        rows, share = counted(rows)
        output, value = self.network.forward(rows.inputs, BOTH)
        assert output is not None
        loss, term, stats = self.actor(output, rows, share, coefficients)
        d_output, d_value = self.actor.backward(term, share, coefficients), None
        if self.critic is not None:
            assert value is not None
            critic, d_value = self.critic(value, rows, share, coefficients, stats)
            loss += self.source.value_coef * critic
            d_value *= self.source.value_coef
        self.network.backward(d_output, d_value)
        stats["loss"] = loss
        return stats


class Actor:
    """As `ActorLoss`: policy loss − entropy_coef · mean entropy, from the actor's output."""

    def __init__(self, policy: ActorCritic, flat: FlatParameters, loss: ActorLoss) -> None:
        self.loss = loss
        self.head: Head = HEADS[type(policy.distribution)](policy, flat)

    def __call__(
        self, output: Array, rows: Rows, share: Array, coefficients: Coefficients
    ) -> tuple[float, PolicyTerm, dict[str, float]]:
        policy_loss = self.loss.policy_loss
        log_prob, entropy = self.head.evaluate(output, rows.action)
        advantage = normalize(rows.advantage, rows.weight) if self.loss.normalize else rows.advantage
        formula = POLICY_LOSSES[type(policy_loss)]
        term = formula(policy_loss, self.head, log_prob, advantage * rows.discount, rows, share, coefficients)
        mean_entropy = float(share @ entropy)
        stats = term.stats | {"loss/actor": term.loss, "policy/entropy": mean_entropy}
        return term.loss - coefficients.entropy_coef * mean_entropy, term, stats

    def backward(self, term: PolicyTerm, share: Array, coefficients: Coefficients) -> Array:
        """dL/d(actor's output)."""
        coef = coefficients.entropy_coef
        return self.head.backward(term.d_log_prob, -coef * share if coef else None, term.d_kl)


class CriticGradient:
    """As `CriticBackprop`: the critic's loss alone; the actor's gradient is 0."""

    def __init__(self, source: CriticBackprop) -> None:
        self.gradient = source.flat.grad.numpy()
        self.network = HostMLP(source.policy.network, source.flat)
        self.critic = _Critic(source.critic)

    def __call__(self, rows: Rows, coefficients: Coefficients) -> dict[str, float]:
        rows, share = counted(rows)
        _, value = self.network.forward(rows.inputs, CRITIC)
        assert value is not None
        stats: dict[str, float] = {}
        loss, d_value = self.critic(value, rows, share, coefficients, stats)
        self.gradient.fill(0)
        self.network.backward(None, d_value)
        return stats | {"loss": loss}


class _Critic:
    """A value loss in standardised units, which are those of the network's output (see `CriticLoss`)."""

    def __init__(self, critic: CriticLoss) -> None:
        self.policy, self.loss = critic.policy, critic.value_loss
        self.formula = VALUE_LOSSES[type(self.loss)]

    def __call__(
        self, value: Array, rows: Rows, share: Array, coefficients: Coefficients, stats: dict[str, float]
    ) -> tuple[float, Array]:
        """The loss and dL/dvalue; its size in the reward's units goes into `stats`."""
        old, target, weight = rows.value, rows.value_target, 1.0
        if self.policy.value_moments is not None:
            shift, std = (float(x) for x in self.policy.value_scale())
            old, target, weight = (old - shift) / std, (target - shift) / std, std**-2
        loss, d_value = self.formula(self.loss, value, old, target, share, coefficients)
        stats["loss/critic"] = loss / weight
        return loss, d_value


def to_rows(batch: Batch) -> Rows:
    """The batch's own memory as NumPy arrays."""
    return Rows(batch.array, batch.episodes)


def counted(rows: Rows) -> tuple[Rows, Array]:
    """The rows of weight above 0 (what the others hold, even NaN, does not matter), and weight / Σ weight, [B]."""
    if not rows.weight.all():
        rows = rows[np.flatnonzero(rows.weight)]
    return rows, rows.weight / np.add.reduce(rows.weight)


def normalize(advantage: Array, weight: Array, eps: float = 1e-8) -> Array:
    """`statistics.normalize` for rows of weights above 0, in NumPy."""
    count = len(advantage)
    if count == 1:
        return advantage
    x = advantage.astype(np.float64)
    share = weight / np.add.reduce(weight, dtype=np.float64)
    spread = x.max() - x.min()
    x -= share @ x
    variance = float(share @ (x * x)) * count / (count - 1)
    if not np.isfinite(spread):
        return np.full_like(advantage, np.nan)  # must stay visible to the finite check
    if not (spread > 0 and variance > 0):
        return np.zeros_like(advantage)
    x /= np.sqrt(variance) + eps
    return x.astype(advantage.dtype)
