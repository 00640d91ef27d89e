"""MLPs: counts worked out by hand, initialisation, what is shared, and NumPy's forward pass against torch's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pgtrain.policies.networks import ACTIVATIONS, MLP


def mlp(share: int, critic: bool = True, hidden: tuple[int, ...] = (5, 7), activation: str = "tanh") -> MLP:
    torch.manual_seed(0)
    return MLP(3, 2, hidden=hidden, activation=activation, share=share, critic=critic, last_gain=0.01)


# 3 inputs, hidden 5 and 7, 2 outputs: first layer 3·5+5 = 20, second 5·7+7 = 42, actor head 16, critic head 8
@pytest.mark.parametrize(
    ("share", "critic", "count"),
    [
        (0, True, 2 * (20 + 42) + 16 + 8),
        (1, True, 20 + 2 * 42 + 16 + 8),
        (2, True, 20 + 42 + 16 + 8),
        (0, False, 20 + 42 + 16),
    ],
)
def test_parameter_count(share: int, critic: bool, count: int) -> None:
    assert sum(p.numel() for p in mlp(share, critic).parameters()) == count


def test_no_hidden_layer_is_a_linear_policy() -> None:
    net = mlp(0, hidden=())
    assert sum(p.numel() for p in net.parameters()) == (3 * 2 + 2) + (3 + 1)


def test_shapes_for_any_leading_dimensions() -> None:
    net = mlp(1)
    for lead in ((), (4,), (6, 4)):
        x = torch.randn(*lead, 3)
        head, value = net(x)
        assert head.shape == (*lead, 2) and value.shape == lead
        assert torch.equal(net.value(x), value)
    head, value = mlp(0, critic=False)(torch.randn(4, 3))
    assert head.shape == (4, 2) and value is None
    with pytest.raises(ValueError, match="no critic"):
        mlp(0, critic=False).value(torch.randn(4, 3))


def test_orthogonal_weights_small_last_layer_zero_bias() -> None:
    net = mlp(0, hidden=(16, 16))

    def gram(weight: torch.Tensor) -> torch.Tensor:
        w = weight.detach()
        return w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w

    for layer in (net.actor[0], net.actor[2], net.critic[0], net.critic[2]):
        g = gram(layer.weight)
        assert torch.allclose(g, 2 * torch.eye(len(g)), atol=1e-5)  # gain √2
    assert torch.allclose(gram(net.actor[4].weight), 1e-4 * torch.eye(2), atol=1e-8)  # 0.01²
    assert torch.allclose(gram(net.critic[4].weight), torch.eye(1), atol=1e-5)
    assert all((p == 0).all() for name, p in net.named_parameters() if name.endswith("bias"))


@pytest.mark.parametrize("share", [0, 1, 2])
def test_gradients_reach_what_is_shared_and_nothing_else(share: int) -> None:
    net = mlp(share)
    x = torch.randn(6, 3)

    def touched(loss: torch.Tensor) -> set[str]:
        net.zero_grad()
        loss.backward(retain_graph=True)
        return {name for name, p in net.named_parameters() if p.grad is not None and (p.grad != 0).any()}

    head, value = net(x)
    from_actor = touched(head.sum())
    from_critic = touched(value.sum())
    names = {name for name, _ in net.named_parameters()}
    assert from_actor == {n for n in names if not n.startswith("critic")}
    assert from_critic == {n for n in names if not n.startswith("actor")}
    assert from_actor & from_critic == {n for n in names if n.startswith("trunk")}
    assert len(from_actor & from_critic) == 2 * share  # weight and bias of each shared layer


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "gelu"])
@pytest.mark.parametrize("share", [0, 1])
def test_numpy_forward_equals_torch(activation: str, share: int) -> None:
    net = mlp(share, hidden=(32, 32), activation=activation)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn_like(p))
    forward = net.actor_numpy()
    assert forward is not None
    x = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    kept = x.copy()
    for scale in (1.0, 10.0):
        with torch.no_grad():
            expected = net(torch.from_numpy(scale * x))[0].numpy()
        given = (scale * x).astype(np.float32)
        got = forward(given)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=2e-6 * max(1, np.abs(expected).max()))
        assert np.array_equal(given, (scale * x).astype(np.float32))  # the input is left alone
    assert np.array_equal(x, kept)


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "gelu"])
def test_numpy_activations_at_far_values(activation: str) -> None:
    from pgtrain.policies.networks import NUMPY_ACTIVATIONS

    module = ACTIVATIONS[activation]()
    x = np.array([-1e4, -100, -80, -20, -1, -1e-3, 0, 1e-3, 1, 20, 100, 1e4], np.float32)
    with np.errstate(over="raise", invalid="raise"):
        got = NUMPY_ACTIVATIONS[type(module)](x.copy())
    np.testing.assert_allclose(got, module(torch.from_numpy(x)).numpy(), rtol=1e-6, atol=1e-7)


def test_numpy_forward_shares_the_parameters_memory() -> None:
    net = mlp(0)
    forward = net.actor_numpy()
    x = np.ones((1, 3), np.float32)
    before = forward(x.copy())
    with torch.no_grad():
        net.actor[-1].bias += 1.5
    assert np.allclose(forward(x.copy()) - before, 1.5, atol=1e-6)


def test_what_numpy_cannot_do_is_left_to_torch() -> None:
    assert mlp(0, activation="gelu").actor_numpy() is None
    assert mlp(0).double().actor_numpy() is None


def test_activations_are_the_known_ones() -> None:
    x = torch.tensor([-1.0, 2.0])
    expected = {
        "tanh": [math.tanh(-1), math.tanh(2)],
        "relu": [0, 2],
        "elu": [math.exp(-1) - 1, 2],
        "silu": [-1 / (1 + math.e), 2 / (1 + math.exp(-2))],
        "gelu": [-0.5 * (1 + math.erf(-1 / math.sqrt(2))), 1 + math.erf(2 / math.sqrt(2))],
        "leaky_relu": [-0.01, 2],
    }
    assert expected.keys() == ACTIVATIONS.keys()
    for name, make in ACTIVATIONS.items():
        assert make()(x).tolist() == pytest.approx(expected[name], abs=1e-6)
