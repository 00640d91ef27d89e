"""Gradient sources: (policy, batch) → a gradient in the flat tensor and statistics of it.

Dimension legend: B rows (transitions) of a batch.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from pgtrain.learning import objectives
from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.losses import PolicyLoss, ValueLoss
from pgtrain.learning.statistics import normalize
from pgtrain.policies.actor_critic import ActorCritic, Evaluation
from pgtrain.policies.parameters import FlatParameters


class Source(Protocol):
    """What an update asks for a gradient."""

    def __call__(self, batch: Batch, coefficients: Coefficients) -> dict[str, Tensor]:
        """Leaves the gradient in the flat tensor; returns 0-d statistics, `loss` among them."""
        ...


class Backprop:
    """The gradient of one scalar loss by automatic differentiation:

        loss = policy loss + value_coef · value loss − entropy_coef · mean entropy

    The value loss is that of standardised values where the critic's targets are, so that one learning rate
    (and one clip range) serves every scale of reward; the loss shown is in the reward's units. The entropy is
    that of the distribution that actions are drawn from.
    """

    def __init__(
        self,
        policy: ActorCritic,
        flat: FlatParameters,
        *,
        policy_loss: PolicyLoss,
        value_loss: ValueLoss,
        value_coef: float,
        normalize_advantage: bool,
    ) -> None:
        self.policy, self.flat = policy, flat
        self.actor = ActorLoss(policy_loss, normalize_advantage)
        self.critic = CriticLoss(policy, value_loss)
        self.value_coef = value_coef

    def __call__(self, batch: Batch, coefficients: Coefficients) -> dict[str, Tensor]:
        new = self.policy.evaluate(batch.inputs, batch.action)
        loss, stats = self.actor(new, batch, coefficients)
        if new.value is not None:
            critic, shown = self.critic(new.value, batch, coefficients)
            loss = loss + self.value_coef * critic
            stats |= shown
        self.flat.zero_grad()
        loss.backward()
        return {name: x.detach() for name, x in stats.items()} | {"loss": loss.detach()}


class ActorLoss:
    """Policy loss − entropy_coef · mean entropy, with the advantages made ready for it: normalised, times γᵗ."""

    def __init__(self, policy_loss: PolicyLoss, normalize_advantage: bool) -> None:
        self.policy_loss, self.normalize = policy_loss, normalize_advantage

    def __call__(
        self, new: Evaluation, batch: Batch, coefficients: Coefficients
    ) -> tuple[Tensor, dict[str, Tensor]]:
        advantage = normalize(batch.advantage, batch.weight) if self.normalize else batch.advantage
        actor, stats = self.policy_loss(
            new, batch.replace(advantage=advantage * batch.discount), coefficients
        )
        entropy = objectives.entropy_bonus(new.entropy, batch.weight)
        return actor - coefficients.entropy_coef * entropy, stats | {
            "loss/actor": actor,
            "policy/entropy": entropy,
        }


class CriticLoss:
    """A value loss applied in standardised units: value, value at rollout time and target, each (x − μ)/σ."""

    def __init__(self, policy: ActorCritic, value_loss: ValueLoss) -> None:
        self.policy, self.value_loss = policy, value_loss

    def __call__(
        self, value: Tensor, batch: Batch, coefficients: Coefficients
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, 0-d, and its size in the reward's units."""
        unit = self.policy.standardize_value
        loss = self.value_loss(
            unit(value), unit(batch.value), unit(batch.value_target), batch.weight, coefficients
        )
        return loss, {"loss/critic": loss / self.policy.value_loss_weight()}


class CriticBackprop:
    """The gradient of the critic's loss alone: for passes over the batch that leave the actor as it is."""

    def __init__(self, policy: ActorCritic, flat: FlatParameters, value_loss: ValueLoss) -> None:
        self.policy, self.flat = policy, flat
        self.critic = CriticLoss(policy, value_loss)

    def __call__(self, batch: Batch, coefficients: Coefficients) -> dict[str, Tensor]:
        loss, stats = self.critic(self.policy.value(batch.inputs), batch, coefficients)
        self.flat.zero_grad()
        loss.backward()
        return {name: x.detach() for name, x in stats.items()} | {"loss": loss.detach()}
