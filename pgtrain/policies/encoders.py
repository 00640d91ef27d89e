"""From the columns of an observation to features: what comes before the hidden layers.

Dimension legend: … any leading dimensions, D columns of an observation, F features, C channels, H × W pixels.

Pictures go through convolutions, whole numbers with many values through a learned table, all else as it is; one encoder
for each leaf of the observation space, their features joined in the order of the space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pgtrain.policies.networks import MLP, Init, orthogonal
from pgtrain.types import Leaf

NATURE_MIN = 36  # pixels: below, nothing is left after the Nature network's strides of 4 and 2
CNN = ("auto", "nature", "small", "none")
FEATURES = {"nature": 512, "small": 128}


def split(layout: Sequence[Leaf], x: Tensor) -> dict[str, Tensor]:
    """Observations [..., D] → name of each leaf → its part: vector, onehot, binary [..., width], index [..., parts]
    int64, picture [..., C, H, W] in 0..1. For networks of your own."""
    return {leaf.name: part(leaf, x) for leaf in layout}


def part(leaf: Leaf, x: Tensor) -> Tensor:
    """The columns of one leaf, as in `split`."""
    columns = x[..., leaf.start : leaf.stop]
    if leaf.kind == "picture":
        lead = columns.dim() - 1
        order = [*range(lead), *(lead + axis for axis in leaf.axes)]
        pixels = columns.unflatten(-1, leaf.shape).permute(order)
        # bytes become numbers after the permutation: a quarter of the memory is moved
        return pixels.reshape(*x.shape[:-1], *leaf.picture).to(torch.float32) / leaf.divide
    return columns.to(torch.int64) if leaf.kind == "index" else columns.to(torch.float32)


class Plain(nn.Module):
    """Numbers as they are; a picture too, flattened."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.leaf, self.features = leaf, leaf.width

    def forward(self, x: Tensor) -> Tensor:
        y = part(self.leaf, x)
        return y.flatten(-3) if self.leaf.kind == "picture" else y


class Embedding(nn.Module):
    """A learned vector for each value of each part: [..., parts] → [..., Σ widths].

    A part of n values has min(64, ⌈1.6 n^0.56⌉) numbers, drawn from N(0, 1/width) at the start: length about 1.
    """

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.leaf = leaf
        widths = [min(64, math.ceil(1.6 * n**0.56)) for n in leaf.choices]
        self.tables = nn.ModuleList(nn.Embedding(n, w) for n, w in zip(leaf.choices, widths, strict=True))
        for table, width in zip(self.tables, widths, strict=True):
            nn.init.normal_(table.weight, std=width**-0.5)  # pyright: ignore[reportArgumentType]
        self.features = sum(widths)

    def forward(self, x: Tensor) -> Tensor:
        index = part(self.leaf, x)
        return torch.cat([table(index[..., i]) for i, table in enumerate(self.tables)], -1)


class Convolutions(nn.Module):
    """A picture through convolutions and one linear layer, ReLU after each; orthogonal weights of gain √2.

    `nature`: 32 of 8 × 8 (stride 4), 64 of 4 × 4 (2), 64 of 3 × 3 (1), 512 features.
    `small`: 16 of 3 × 3, then 32 of 3 × 3 with stride 2 until at most 4 pixels are left a side; 128 features. Edges are
    padded, so that any size will do.
    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning", methods.
    """

    def __init__(self, leaf: Leaf, kind: str, init: Init) -> None:
        super().__init__()
        self.leaf, self.features = leaf, FEATURES[kind]
        channels, height, width = leaf.picture
        convolutions = nature(channels) if kind == "nature" else small(channels, max(height, width))
        layers: list[nn.Module] = []
        for convolution in convolutions:
            layers += [init(convolution, math.sqrt(2)), nn.ReLU()]
        with torch.no_grad():
            flat = nn.Sequential(*layers)(torch.zeros(1, channels, height, width)).numel()
        last = init(nn.Linear(flat, self.features), math.sqrt(2))
        self.layers = nn.Sequential(*layers, nn.Flatten(), last, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        pixels = part(self.leaf, x)
        return self.layers(pixels.flatten(0, -4) if pixels.dim() > 4 else pixels).unflatten(0, x.shape[:-1])


def nature(channels: int) -> list[nn.Conv2d]:
    return [nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]


def small(channels: int, size: int) -> list[nn.Conv2d]:
    layers = [nn.Conv2d(channels, 16, 3, 1, 1)]
    while size > 4:
        layers.append(nn.Conv2d(layers[-1].out_channels, 32, 3, 2, 1))
        size = (size + 1) // 2
    return layers


def cnn_of(leaf: Leaf, cnn: str) -> str:
    """The kind of convolutions that a picture gets."""
    size = min(leaf.picture[1:])
    if cnn == "nature" and size < NATURE_MIN:
        raise ValueError(
            f"a picture of {leaf.picture[1]} x {leaf.picture[2]} is too small for the Nature network"
        )
    return ("nature" if size >= NATURE_MIN else "small") if cnn == "auto" else cnn


class Encoder(nn.Module):
    """Observations [..., D] → features [..., F]: one encoder for each leaf, joined."""

    def __init__(self, layout: Sequence[Leaf], cnn: str = "auto", init: Init = orthogonal) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for leaf in layout:
            if leaf.kind == "index":
                parts.append(Embedding(leaf))
            elif leaf.kind == "picture" and cnn != "none":
                parts.append(Convolutions(leaf, cnn_of(leaf, cnn), init))
            else:
                parts.append(Plain(leaf))
        self.parts = nn.ModuleList(parts)
        self.features = sum(p.features for p in parts)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([encode(x) for encode in self.parts], -1)


def needs_encoder(layout: Sequence[Leaf]) -> bool:
    """Whether anything in an observation has to be encoded: else a row is what the hidden layers take."""
    return any(leaf.kind in ("picture", "index") for leaf in layout)


class EncodedMLP(MLP):
    """An MLP on the features of an encoder: one that actor and critic share, or one for each.

    Shared is the default (see `policy.encoder.share`): the encoder of a picture is nearly all of the network's work and
    memory, and what it sees serves both.
    """

    def __init__(
        self, encoder: Encoder, critic_encoder: Encoder | None, outputs: int, **settings: Any
    ) -> None:
        super().__init__(encoder.features, outputs, **settings)
        self.encoder = encoder
        self.critic_encoder = critic_encoder  # None: the actor's
        # the actor's parameters come first among the module's, as updates of one after the other rely on
        for name in ("encoder", "trunk", "actor", "critic_encoder", "critic"):
            if name in self._modules:
                self._modules[name] = self._modules.pop(name)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.critic_encoder is not None:
            return self.act(x), self.value(x)
        return super().forward(self.encoder(x))

    def act(self, x: Tensor) -> Tensor:
        return super().act(self.encoder(x))

    def value(self, x: Tensor) -> Tensor:
        return super().value(self.encoder(x) if self.critic_encoder is None else self.critic_encoder(x))

    def actor_numpy(self) -> None:
        """A framework's convolutions have no match in NumPy."""
