"""Gradient sources: (policy, batch) → a gradient in the flat tensor and statistics of it.

Dimension legend: B rows (transitions) of a batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pgtrain.learning import objectives
from pgtrain.learning.statistics import normalize
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters
from pgtrain.rollout import Rollout


class Batch(NamedTuple):
    """Rows of a rollout, flattened; only real transitions (weight 1)."""

    inputs: Tensor  # [B, D]
    action: Tensor  # [B, …]
    params: Tensor  # [B, P] distribution parameters at rollout time
    log_prob: Tensor  # [B] at rollout time
    advantage: Tensor  # [B]
    value_target: Tensor  # [B]
    weight: Tensor  # [B]
    discount: Tensor  # [B] γᵗ of the step within its episode, or 1
    episodes: float  # whole episodes in the rollout that the rows come from (times the rows' share of it)

    def rows(self, index: Tensor) -> Batch:
        share = len(index) / len(self.weight)
        return Batch._make([*(x[index] for x in self[:-1]), self.episodes * share])


def flatten(rollout: Rollout, gamma: float | None) -> Batch:
    """The rollout's transitions as one batch; `gamma` gives the rows their γᵗ (None: 1, the usual practice)."""
    assert rollout.advantage is not None and rollout.value_target is not None
    weight = rollout.weight.flatten()
    discount = (
        torch.ones_like(weight) if gamma is None else gamma ** rollout.episode_step.flatten().to(weight.dtype)
    )
    batch = Batch(
        rollout.inputs.flatten(0, 1),
        rollout.action.flatten(0, 1),
        rollout.params.flatten(0, 1),
        rollout.log_prob.flatten(),
        rollout.advantage.flatten(),
        rollout.value_target.flatten(),
        weight,
        discount,
        float(rollout.done.sum()) if rollout.whole_episodes else 0.0,
    )
    if rollout.num_steps == len(weight):
        return batch
    index = weight.nonzero().squeeze(-1)  # idle envs and reset rows are no transitions
    return Batch._make([*(x[index] for x in batch[:-1]), batch.episodes])


class Backprop:
    """The gradient of one scalar loss by automatic differentiation:

        loss = policy loss + value_coef · value loss / σ² − entropy_coef · mean entropy

    policy loss = −Σ γᵗ A log π / (steps, or whole episodes for mean_over="episodes": the exact estimator of ∇J).
    σ is the running std of the value targets where they are standardised, else 1; the loss shown is in the reward's
    units.
    """

    def __init__(
        self,
        policy: ActorCritic,
        flat: FlatParameters,
        *,
        value_coef: float,
        normalize_advantage: bool,
        mean_over: str = "steps",
    ) -> None:
        self.policy, self.flat = policy, flat
        self.value_coef, self.normalize, self.mean_over = value_coef, normalize_advantage, mean_over

    def __call__(self, batch: Batch, entropy_coef: float) -> dict[str, Tensor]:
        """Leaves the gradient in `flat.grad`; returns 0-d statistics, `loss` among them."""
        new = self.policy.evaluate(batch.inputs, batch.action)
        advantage = normalize(batch.advantage, batch.weight) if self.normalize else batch.advantage
        denominator = batch.episodes if self.mean_over == "episodes" else None
        actor = objectives.policy_gradient_loss(
            new.log_prob, advantage * batch.discount, batch.weight, denominator=denominator
        )
        entropy = objectives.entropy_bonus(new.entropy, batch.weight)
        loss = actor - entropy_coef * entropy
        stats = {"loss/actor": actor, "policy/entropy": entropy}
        if new.value is not None:
            critic = objectives.value_loss(new.value, batch.value_target, batch.weight)
            loss = loss + self.value_coef * self.policy.value_loss_weight() * critic
            stats["loss/critic"] = critic
        self.flat.zero_grad()
        loss.backward()
        return {name: x.detach() for name, x in stats.items()} | {"loss": loss.detach()}
