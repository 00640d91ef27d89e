"""Factored discrete actions, MultiDiscrete and MultiBinary, and the temperature of a softmax.

F factors, factor f with K_f choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from pgtrain.policies.constants import Constant
from pgtrain.policies.distributions import ILLEGAL, Categorical, where


class TemperedCategorical(Categorical):
    """π = softmax(head / τ): flatter for τ > 1, sharper for τ < 1, when acting and when learning alike."""

    def __init__(self, choices: int, temperature: float) -> None:
        super().__init__(choices)
        self.temperature = temperature

    def join(self, head: Tensor, log_std: Tensor | None, features: Tensor) -> Tensor:
        return head / self.temperature

    def join_numpy(self, head: np.ndarray, spread: np.ndarray | None, features: np.ndarray) -> np.ndarray:
        return head / np.float32(self.temperature)


class MultiCategorical(TemperedCategorical):
    """F independent categorical choices; `params` are their logits side by side [..., Σ K_f], `action` int64 [..., F].

    log π(a) = Σ_f log softmax(logits_f)_{a_f}; entropy and KL are sums over f, too. The factors are laid out as a
    rectangle [..., F, max K] whose missing places have probability 0, so that all are computed at once.
    """

    name = "multi_categorical"

    def __init__(self, choices: Sequence[int], temperature: float = 1.0) -> None:
        super().__init__(sum(choices), temperature)
        self.action_shape = (len(choices),)
        sizes = np.array(choices)
        place = np.arange(sizes.max())
        self._present = place < sizes[:, None]  # [F, max K]
        self._index = np.where(self._present, (np.cumsum(sizes) - sizes)[:, None] + place, 0)
        self._present_there, self._index_there = Constant(self._present), Constant(self._index)

    def _factors(self, params: Any) -> Any:
        """[..., Σ K_f] → [..., F, max K]."""
        if isinstance(params, np.ndarray):
            return np.where(self._present, params[..., self._index], np.float32(ILLEGAL))
        index, present = self._index_there.on(params.device), self._present_there.on(params.device)
        return torch.where(present, params[..., index], ILLEGAL)

    def sample_numpy(self, params: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return super().sample_numpy(self._factors(params), rng)

    def sample(self, params: Tensor, generator: torch.Generator | None) -> Tensor:
        return super().sample(self._factors(params), generator)

    def mode(self, params: Any) -> Any:
        return super().mode(self._factors(params))

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return super().log_prob(self._factors(params), action).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return super().entropy(self._factors(params)).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        return super().kl(self._factors(old), self._factors(new)).sum(-1)


class Bernoulli(TemperedCategorical):
    """F independent bits, P(bit f = 1) = σ(l_f); `params` are the logits l [..., F], `action` int64 0 or 1 [..., F].

    A mask has one number a bit, as Gymnasium has it: 0 must be 0, 1 must be 1, 2 may be either.
    """

    name = "bernoulli"

    def __init__(self, bits: int, temperature: float = 1.0) -> None:
        super().__init__(bits, temperature)
        self.action_shape = (bits,)

    def apply_mask(self, params: Any, mask: Any) -> Any:
        return where(mask < 0.5, ILLEGAL, where(mask > 1.5, params, -ILLEGAL))

    def sample_numpy(self, params: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        # σ by tanh: it is exactly 0 or 1 where a mask has decided
        chance = 0.5 * (1.0 + np.tanh(0.5 * params))
        return (rng.random(params.shape, dtype=np.float32) < chance).astype(np.int64)

    def sample(self, params: Tensor, generator: torch.Generator | None) -> Tensor:
        uniform = torch.empty_like(params).uniform_(generator=generator)
        return (uniform < torch.sigmoid(params)).to(torch.int64)

    def mode(self, params: Any) -> Any:
        return (params > 0).to(torch.int64) if isinstance(params, Tensor) else (params > 0).astype(np.int64)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log π(a) = −Σ_f log(1 + e^{(1 − 2a_f) l_f}), [...]."""
        return -softplus((1 - 2 * action) * params).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """H = Σ_f [log(1 + e^{−|l|}) + |l| σ(−|l|)] in nats, [...]."""
        size = params.abs()
        return (softplus(-size) + size * torch.sigmoid(-size)).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old ‖ new) = Σ_f Σ_{s = ±1} σ(s l) [log σ(s l) − log σ(s l')], [...]."""
        ones = torch.sigmoid(old) * (logsigmoid(old) - logsigmoid(new))
        zeros = torch.sigmoid(-old) * (logsigmoid(-old) - logsigmoid(-new))
        return (ones + zeros).sum(-1)
