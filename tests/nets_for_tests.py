"""Networks of a user's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import pgtrain
from pgtrain.policies.encoders import split
from pgtrain.types import Leaf


@pgtrain.register_policy("Wide")
class Wide(nn.Module):
    """As the example of docs/spaces.md."""

    def __init__(self, layout: tuple[Leaf, ...], outputs: int, critic: bool, width: int = 256) -> None:
        super().__init__()
        self.layout = layout
        numbers = sum(leaf.stop - leaf.start for leaf in layout)
        self.body = nn.Sequential(nn.Linear(numbers, width), nn.ReLU())
        self.actor = nn.Linear(width, outputs)
        self.critic = nn.Linear(width, 1) if critic else None

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        parts = split(self.layout, obs)
        h = self.body(torch.cat([part.flatten(1) for part in parts.values()], -1))
        return self.actor(h), None if self.critic is None else self.critic(h).squeeze(-1)


@pgtrain.register_policy("WrongShape")
class WrongShape(nn.Module):
    def __init__(self, layout: Any, outputs: int, critic: bool) -> None:
        super().__init__()
        self.actor = nn.Linear(layout[-1].stop, outputs + 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, None]:
        return self.actor(obs), None
