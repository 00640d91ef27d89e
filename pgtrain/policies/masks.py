"""Action masks: the choices that an env rules out at this very step.

A mask travels as the last M columns of an observation row [D + M]. The network sees the first D and hands the mask on
behind its outputs; there the distribution rules choices out. So all that works on stored inputs (the update, a line
search, a KL guard, an evaluation) has the mask as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pgtrain.policies.distributions import Distribution
from pgtrain.policies.networks import MLP


class Masked:
    """`inner`, with the choices that the mask rules out at probability 0: never drawn, no gradient, 0·log 0 = 0.

    The mask is what comes after the actor's outputs, [..., M]; params hold it as the logit −10³⁰. Everything else is
    `inner`'s.
    Source: Huang & Ontañón 2022, "A closer look at invalid action masking in policy gradient algorithms".
    """

    def __init__(self, inner: Distribution) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # a copy under way, which has nothing yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def join(self, head: Tensor, log_std: Tensor | None, features: Tensor) -> Tensor:
        mask = features[..., : self.inner.mask_dim]
        return self.inner.apply_mask(self.inner.join(head, log_std, features), mask)

    def join_numpy(self, head: np.ndarray, spread: np.ndarray | None, features: np.ndarray) -> np.ndarray:
        mask = features[..., : self.inner.mask_dim]
        return self.inner.apply_mask(self.inner.join_numpy(head, spread, features), mask)


class MaskedNetwork(nn.Module):
    """`inner` on the first D inputs; the actor's outputs are followed by the other inputs, [..., A + M]."""

    def __init__(self, inner: MLP, obs_dim: int) -> None:
        super().__init__()
        self.inner, self.obs_dim = inner, obs_dim

    @property
    def trunk(self) -> nn.Sequential:
        return self.inner.trunk

    @property
    def actor(self) -> nn.Sequential:
        return self.inner.actor

    @property
    def critic(self) -> nn.Sequential | None:
        return self.inner.critic

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        head, value = self.inner(x[..., : self.obs_dim])
        return torch.cat([head, x[..., self.obs_dim :]], -1), value

    def act(self, x: Tensor) -> Tensor:
        return torch.cat([self.inner.act(x[..., : self.obs_dim]), x[..., self.obs_dim :]], -1)

    def value(self, x: Tensor) -> Tensor:
        return self.inner.value(x[..., : self.obs_dim])

    def actor_numpy(self) -> Callable[[np.ndarray], np.ndarray] | None:
        forward = self.inner.actor_numpy()
        if forward is None:
            return None
        d = self.obs_dim
        return lambda x: np.concatenate([forward(x[..., :d]), x[..., d:]], -1)
