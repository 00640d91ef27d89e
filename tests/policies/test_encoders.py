"""Pictures, embeddings and their joining against plain PyTorch; sharing; uint8 rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from pgtrain.envs.layout import picture_axes
from pgtrain.envs.spaces import ObservationEncoder
from pgtrain.policies.encoders import EncodedMLP, Encoder, needs_encoder, split
from pgtrain.policies.networks import MLP, numpy_forward

U8 = np.uint8


def picture(*shape: int, top: float = 255, dtype: Any = U8) -> spaces.Box:
    return spaces.Box(0, top, shape, dtype)


def encoded(space: spaces.Space, rows: int = 3) -> tuple[ObservationEncoder, Any, torch.Tensor]:
    space.seed(0)
    samples = [space.sample() for _ in range(rows)]
    encode = ObservationEncoder(space)
    batch = (
        {k: np.stack([s[k] for s in samples]) for k in samples[0]}
        if isinstance(space, spaces.Dict)
        else np.stack(samples)
    )
    return encode, batch, torch.from_numpy(encode(batch))


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((8, 8, 3), (2, 0, 1)),
        ((3, 8, 8), (0, 1, 2)),
        ((7, 7, 3), (2, 0, 1)),
        ((3, 3, 3), (2, 0, 1)),
        ((4, 84, 84), (0, 1, 2)),
        ((8, 84, 84), (0, 1, 2)),
        ((16, 16), (0, 1)),
        ((4, 84, 84, 3), (0, 3, 1, 2)),
        ((4, 3, 84, 84), (0, 1, 2, 3)),
        ((7, 9), None),
        ((2, 2, 1), None),
        ((128,), None),
        ((40, 50, 60), None),
    ],
)
def test_what_counts_as_a_picture(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> None:
    assert picture_axes(picture(*shape)) == axes
    assert picture_axes(picture(*shape, top=1, dtype=np.float32)) == axes
    assert picture_axes(spaces.Box(-1, 1, shape, np.float32)) is None
    assert picture_axes(spaces.Box(0, 100, shape, U8)) is None


@pytest.mark.parametrize("shape", [(8, 6, 3), (3, 8, 6), (9, 8), (2, 8, 6, 3), (2, 3, 8, 6)])
@pytest.mark.parametrize("mixed", [False, True])
def test_pixels_reach_the_network_in_order_and_once_scaled(shape: tuple[int, ...], mixed: bool) -> None:
    space: spaces.Space = picture(*shape)
    if mixed:
        space = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float64), "p": space})
    encode, batch, row = encoded(space)
    name = "p" if mixed else ""
    raw = batch["p"] if mixed else batch
    assert row.dtype == (torch.float64 if mixed else torch.uint8)
    axes = picture_axes(picture(*shape))
    assert axes is not None
    expected = raw.transpose(0, *(a + 1 for a in axes)).astype(np.float32) / 255
    expected = expected.reshape(len(raw), -1, *expected.shape[-2:])
    got = split(encode.layout, row)[name]
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-7)
    assert got.dtype == torch.float32 and 0.9 < float(got.max()) <= 1
    stacked = split(encode.layout, row.view(1, 3, -1))[name]  # [T, N, D] as well as [B, D]
    assert torch.equal(stacked[0], got)


def test_the_convolutions_are_the_published_ones_and_orthogonal() -> None:
    torch.manual_seed(0)
    encoder = Encoder(ObservationEncoder(picture(4, 84, 84)).layout)
    layers = [m for m in encoder.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert [tuple(m.weight.shape) for m in layers] == [
        (32, 4, 8, 8),
        (64, 32, 4, 4),
        (64, 64, 3, 3),
        (512, 3136),
    ]
    assert [m.stride for m in layers[:3]] == [(4, 4), (2, 2), (1, 1)] and encoder.features == 512  # pyright: ignore
    for m in layers:
        flat = m.weight.detach().flatten(1)
        gram = flat @ flat.T if flat.shape[0] <= flat.shape[1] else flat.T @ flat
        torch.testing.assert_close(gram, 2 * torch.eye(len(gram)), atol=1e-4, rtol=0)
        assert m.bias is not None and not m.bias.any()


@pytest.mark.parametrize(
    "shape", [(3, 3, 1), (7, 7, 3), (8, 8, 3), (64, 8, 2), (35, 35, 3), (36, 36, 1), (96, 96, 3)]
)
def test_every_size_of_picture_is_encoded(shape: tuple[int, ...]) -> None:
    encode, _, row = encoded(picture(*shape), rows=2)
    encoder = Encoder(encode.layout)
    first = next(m for m in encoder.modules() if isinstance(m, nn.Conv2d))
    assert first.kernel_size == ((8, 8) if min(shape[:2]) >= 36 else (3, 3))
    features = encoder(row)
    assert features.shape == (2, encoder.features) and bool((features >= 0).all()) and bool(features.any())
    features.sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in encoder.parameters() if p.dim() > 1)


def test_parts_are_joined_in_the_order_of_the_space() -> None:
    space = spaces.Dict({"k": spaces.Discrete(3, start=5), "n": spaces.Discrete(1000), "p": picture(8, 8, 3)})
    encode, batch, row = encoded(space)
    torch.manual_seed(0)
    encoder = Encoder(encode.layout)
    parts = split(encode.layout, row)
    assert parts["n"].dtype == torch.int64 and parts["n"][:, 0].tolist() == batch["n"].tolist()
    assert parts["k"].argmax(-1).tolist() == (batch["k"] - 5).tolist()
    _, embed, convolve = encoder.parts
    by_hand = [parts["k"], embed.tables[0].weight[parts["n"][:, 0]], convolve.layers(parts["p"])]  # pyright: ignore
    torch.testing.assert_close(encoder(row), torch.cat(by_hand, -1))
    assert encoder.features == 3 + min(64, int(np.ceil(1.6 * 1000**0.56))) + 128
    trailing = torch.cat([row, torch.full((3, 2), 7.0)], -1)  # columns of others, such as a mask
    torch.testing.assert_close(encoder(trailing), encoder(row))


def test_plain_rows_need_no_encoder() -> None:
    plain = spaces.Dict(
        {"v": spaces.Box(-1, 1, (2, 2)), "k": spaces.Discrete(256), "b": spaces.MultiBinary(2)}
    )
    assert not needs_encoder(ObservationEncoder(plain).layout)
    assert needs_encoder(ObservationEncoder(spaces.Discrete(257)).layout)
    assert not needs_encoder(ObservationEncoder(spaces.Discrete(257), one_hot_max=300).layout)


def network(apart: bool, critic: bool = True) -> tuple[EncodedMLP, torch.Tensor]:
    encode, _, row = encoded(picture(8, 8, 3))
    torch.manual_seed(0)
    settings = {"hidden": [8], "activation": "tanh", "share": 0, "critic": critic, "last_gain": 1.0}
    other = Encoder(encode.layout) if apart else None
    return EncodedMLP(Encoder(encode.layout), other, 2, **settings), row


@pytest.mark.parametrize("apart", [False, True])
def test_actor_and_critic_share_the_encoder_or_not(apart: bool) -> None:
    net, row = network(apart)
    head, value = net(row)
    assert value is not None
    torch.testing.assert_close(head, net.act(row))
    torch.testing.assert_close(value, net.value(row))
    value.sum().backward()
    moved = {name for name, p in net.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert any(name.startswith("encoder") for name in moved) != apart
    names = [name.split(".")[0] for name, _ in net.named_parameters()]
    first_of_critic = min(i for i, name in enumerate(names) if name.startswith("critic"))
    assert all(name.startswith("critic") for name in names[first_of_critic:])
    assert net.actor_numpy() is None
    assert network(apart=False, critic=False)[0](row)[1] is None


def test_layer_norm_in_torch_and_numpy() -> None:
    torch.manual_seed(0)
    net = MLP(3, 2, hidden=[16, 16], activation="elu", share=1, critic=True, last_gain=1.0, layer_norm=True)
    kinds = [type(m).__name__ for m in [*net.trunk, *net.actor]]
    assert kinds == ["Linear", "LayerNorm", "ELU", "Linear", "LayerNorm", "ELU", "Linear"]
    x = torch.randn(5, 3)
    h = nn.functional.elu(nn.functional.layer_norm(net.trunk[0](x), (16,)))
    torch.testing.assert_close(net.trunk(x), h)
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, nn.LayerNorm):
                m.weight.normal_()
                m.bias.normal_()
    forward = numpy_forward([*net.trunk, *net.actor])
    assert forward is not None
    np.testing.assert_allclose(forward(x.numpy()), net.act(x).detach().numpy(), atol=1e-5)
