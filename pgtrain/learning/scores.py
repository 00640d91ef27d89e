"""What optimal baselines ask of the scores s_t = ∇log π(a_t|o_t) of a rollout's steps.

Dimension legend: B steps, E episodes, L steps of the longest episode, K weightings, P parameters. `episode` [B] says
whose step it is: 0 … E−1, −1 for rows to leave out.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from pgtrain.learning import per_sample
from pgtrain.policies.actor_critic import ActorCritic


class Scores(Protocol):
    """Of one policy, as it is when asked. `inputs` [B, D] and `action` [B, …] are rows of a rollout."""

    def squared_norms(
        self, inputs: Tensor, action: Tensor, episode: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """|w_t s_t|² [B], or |Σ_t w_t s_t|² of whole episodes [E]."""
        ...

    def products(self, inputs: Tensor, action: Tensor, episode: Tensor, weights: Tensor) -> Tensor:
        """Z^k·Z^l of an episode's weighted scores Z^k = Σ_t w^k_t s_t: weights [K, B] → [E, K, K]."""
        ...

    def grams(self, inputs: Tensor, action: Tensor, episode: Tensor, weight: Tensor | None = None) -> Tensor:
        """(w_t s_t)·(w_u s_u) [E, L, L], 0 past an episode's end."""
        ...

    def gradients(
        self, inputs: Tensor, action: Tensor, episode: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """w_t s_t [B, P], or Σ_t w_t s_t of whole episodes [E, P]."""
        ...


class PolicyScores:
    """Of any policy, by `per_sample`. memory_limit: bytes of working memory."""

    def __init__(self, policy: ActorCritic, memory_limit: int = per_sample.MEMORY_LIMIT) -> None:
        self.policy, self.memory_limit = policy, memory_limit

    def squared_norms(
        self, inputs: Tensor, action: Tensor, episode: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        return per_sample.squared_norms(
            self.policy, inputs, action, episode=episode, weight=weight, prepared=True,
            memory_limit=self.memory_limit,
        )  # fmt: skip

    def products(self, inputs: Tensor, action: Tensor, episode: Tensor, weights: Tensor) -> Tensor:
        return per_sample.products(
            self.policy, inputs, action, episode, weights, prepared=True, memory_limit=self.memory_limit
        )

    def grams(self, inputs: Tensor, action: Tensor, episode: Tensor, weight: Tensor | None = None) -> Tensor:
        return per_sample.grams(
            self.policy, inputs, action, episode, weight=weight, prepared=True, memory_limit=self.memory_limit
        )

    def gradients(
        self, inputs: Tensor, action: Tensor, episode: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        return per_sample.gradients(
            self.policy, inputs, action, episode=episode, weight=weight, prepared=True,
            memory_limit=self.memory_limit,
        )  # fmt: skip
