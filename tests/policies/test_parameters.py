"""FlatParameters: views that survive everything a run does to a module."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pgtrain.learning.optimizers import Adam
from pgtrain.policies.parameters import FlatParameters
from tests.support import box, make_policy


def assert_views(module: nn.Module, flat: FlatParameters) -> None:
    """Each parameter and its gradient lie in the flat tensors, one after the other, without gaps."""
    offset = 0
    for name, p in module.named_parameters():
        assert p.data_ptr() == flat.data.data_ptr() + 4 * offset, name
        assert p.grad is not None and p.grad.data_ptr() == flat.grad.data_ptr() + 4 * offset, name
        assert flat.slices[name] == slice(offset, offset + p.numel())
        offset += p.numel()
    assert offset == len(flat)


def test_values_and_shapes_stay_and_the_module_works_as_before() -> None:
    policy = make_policy(space=box([-1, 0], [1, 5]), share=1)
    x = torch.randn(7, 3)
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    out = policy(x)
    flat = FlatParameters(policy)
    assert_views(policy, flat)
    for name, p in policy.named_parameters():
        assert torch.equal(p, before[name])
    for a, b in zip(out, policy(x), strict=True):
        assert torch.equal(a, b)
    flat.data.zero_()
    assert all((p == 0).all() for p in policy.parameters())


def test_views_survive_backward_optimiser_and_load_state_dict() -> None:
    policy, other = make_policy(seed=1), make_policy(seed=2)
    flat = FlatParameters(policy)
    optimizer = Adam(flat.data)
    for _ in range(3):
        flat.zero_grad()
        policy(torch.randn(5, 3))[0].square().sum().backward()
        optimizer.step(flat.grad, torch.tensor(True), 1e-2)
    assert_views(policy, flat)
    policy.load_state_dict(other.state_dict())
    assert_views(policy, flat)
    expected = torch.cat([p.detach().flatten() for p in other.parameters()])
    assert torch.equal(flat.data, expected)


def test_gradient_is_that_of_autograd_on_a_copy() -> None:
    policy = make_policy(share=1)
    twin = copy.deepcopy(policy)
    flat = FlatParameters(policy)
    x = torch.randn(6, 3)

    def loss(p: nn.Module) -> torch.Tensor:
        head, value = p(x)
        return head.sin().sum() + value.square().sum()

    flat.grad.fill_(1e9)  # zero_grad must clear it: backward adds
    flat.zero_grad()
    loss(policy).backward()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss(twin), list(twin.parameters()))])
    assert torch.allclose(flat.grad, expected, rtol=1e-6, atol=1e-7)


def test_snapshot_restores_bit_for_bit_and_is_a_copy() -> None:
    policy = make_policy()
    flat = FlatParameters(policy)
    before = flat.snapshot()
    flat.data.add_(1.0)
    assert not torch.equal(flat.snapshot(), before)
    flat.restore(before)
    assert torch.equal(torch.cat([p.detach().flatten() for p in policy.parameters()]), before)
    assert_views(policy, flat)


def test_a_shared_parameter_is_kept_once() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    module = nn.Sequential(first, second)
    flat = FlatParameters(module)
    assert len(flat) == 9 + 3 + 3
    assert first.weight.data_ptr() == second.weight.data_ptr()


def test_non_finite_names_the_tensors() -> None:
    policy = make_policy()
    flat = FlatParameters(policy)
    assert flat.non_finite() == []
    flat.grad[flat.slices["network.critic.0.bias"]][1] = torch.nan
    flat.grad[flat.slices["network.actor.0.weight"]][0] = torch.inf
    assert flat.non_finite() == ["network.actor.0.weight", "network.critic.0.bias"]


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameters"):
        FlatParameters(nn.Tanh())
