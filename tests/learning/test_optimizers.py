"""Step rules on the flat tensor against torch.optim, and the mask that skips."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from pgtrain.learning.optimizers import SGD, Adam, RMSprop

YES, NO = torch.tensor(True), torch.tensor(False)


def gradients(steps: int, size: int = 20) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(-6, 3, size)  # eps matters for the small ones
    return [scales * torch.randn(size, generator=generator) for _ in range(steps)]


@pytest.mark.parametrize("eps", [1e-8, 1e-5])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.7, 0.95)])
def test_adam_equals_torch_over_50_steps(eps: float, betas: tuple[float, float]) -> None:
    start = torch.randn(20, generator=torch.Generator().manual_seed(1))
    mine, theirs = start.clone(), torch.nn.Parameter(start.clone())
    optimizer = Adam(mine, betas=betas, eps=eps)
    reference = torch.optim.Adam([theirs], lr=1.0, betas=betas, eps=eps)
    for k, grad in enumerate(gradients(50)):
        lr = 1e-2 * (1 - k / 50)
        reference.param_groups[0]["lr"] = lr
        theirs.grad = grad.clone()
        reference.step()
        optimizer.step(grad, YES, lr)
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(mine, start, atol=0.05)


def test_first_step_is_the_learning_rate_against_the_sign() -> None:
    data = torch.zeros(3)
    Adam(data, eps=1e-12).step(torch.tensor([5.0, -0.1, 1e-3]), YES, 0.01)
    assert data.tolist() == pytest.approx([-0.01, 0.01, -0.01], rel=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1.0])
def test_a_masked_step_changes_nothing_bit_for_bit(bad: float) -> None:
    data = torch.randn(20, generator=torch.Generator().manual_seed(2))
    optimizer = Adam(data)
    for grad in gradients(3):
        optimizer.step(grad, YES, 1e-2)
    before = {name: x.clone() for name, x in {"data": data, **optimizer.state_dict()}.items()}
    assert before["count"] == 3
    grad = gradients(1)[0]
    grad[4] = bad
    optimizer.step(grad, NO, 1e-2)
    for name, x in {"data": data, **optimizer.state_dict()}.items():
        assert torch.equal(x, before[name]), name
    optimizer.step(gradients(1)[0], YES, 1e-2)  # and it goes on
    assert torch.isfinite(data).all() and not torch.equal(data, before["data"])


def test_a_skipped_step_is_as_if_it_had_never_been() -> None:
    one, two = torch.ones(20), torch.ones(20)
    skipping, plain = Adam(one), Adam(two)
    skipping.step(torch.full((20,), torch.nan), NO, 1e-2)  # also as the very first step
    for k, grad in enumerate(gradients(6)):
        skipping.step(grad, YES, 1e-2)
        plain.step(grad, YES, 1e-2)
        if k % 2:
            skipping.step(torch.full((20,), torch.nan), NO, 1e-2)
    assert torch.equal(one, two)


def test_state_goes_on_where_it_was() -> None:
    one, two = torch.ones(20), torch.ones(20)
    a, b = Adam(one), Adam(two)
    all_gradients = gradients(8)
    for grad in all_gradients[:4]:
        a.step(grad, YES, 1e-2)
    two.copy_(one)
    moments = b.m
    b.load_state_dict({name: x.clone() for name, x in a.state_dict().items()})
    assert b.m is moments  # in place
    for grad in all_gradients[4:]:
        a.step(grad, YES, 1e-2)
        b.step(grad, YES, 1e-2)
    assert torch.equal(one, two)


def test_the_tensor_is_changed_in_place() -> None:
    data = torch.ones(4)
    view = data[1:3]
    Adam(data).step(torch.ones(4), YES, 0.1)
    assert view.tolist() == pytest.approx([0.9, 0.9], rel=1e-3)


# ------------------------------------------------------------------------------------------- RMSprop, SGD, mask

RULES: dict[str, Any] = {
    "adam": Adam,
    "rmsprop": RMSprop,
    "rmsprop_tf": partial(RMSprop, tensorflow=True),
    "sgd": SGD,
    "momentum": partial(SGD, momentum=0.9),
}


def run(mine: Any, reference: torch.optim.Optimizer, theirs: torch.nn.Parameter, lr: float) -> None:
    for k, grad in enumerate(gradients(50)):
        rate = lr * (1 - k / 50)
        reference.param_groups[0]["lr"] = rate
        theirs.grad = grad.clone()
        reference.step()
        mine.step(grad, YES, rate)
        torch.testing.assert_close(mine.data, theirs.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("alpha", "eps"), [(0.99, 1e-8), (0.9, 1e-5)])
def test_rmsprop_equals_torch_over_50_steps(alpha: float, eps: float) -> None:
    start = torch.randn(20, generator=torch.Generator().manual_seed(1))
    mine, theirs = RMSprop(start.clone(), alpha=alpha, eps=eps), torch.nn.Parameter(start.clone())
    run(mine, torch.optim.RMSprop([theirs], lr=1.0, alpha=alpha, eps=eps), theirs, 1e-2)
    assert not torch.allclose(mine.data, start, atol=0.05)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_equals_torch_over_50_steps(momentum: float) -> None:
    start = torch.randn(20, generator=torch.Generator().manual_seed(1))
    mine, theirs = SGD(start.clone(), momentum=momentum), torch.nn.Parameter(start.clone())
    run(mine, torch.optim.SGD([theirs], lr=1.0, momentum=momentum), theirs, 1e-4)
    assert not torch.allclose(mine.data, start, atol=0.05)


def test_tensorflows_rmsprop_by_hand() -> None:
    """v₀ = 1, ε = 0.2 under the root: v₁ = 0.9 + 0.1 · 4 = 1.3, θ₁ = 1 − 0.1 · 2 / √1.5; at g = 0 v₂ = 0.9 v₁."""
    data = torch.ones(1, dtype=torch.float64)
    rule = RMSprop(data, alpha=0.9, eps=0.2, tensorflow=True)
    rule.step(torch.tensor([2.0], dtype=torch.float64), YES, 0.1)
    assert float(data) == pytest.approx(1 - 0.2 / 1.5**0.5) and float(rule.v) == pytest.approx(1.3)
    after = float(data)
    rule.step(torch.zeros(1, dtype=torch.float64), YES, 0.1)
    assert float(data) == after and float(rule.v) == pytest.approx(1.17)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_skips_as_if_the_step_had_never_been(rule: str) -> None:
    one, two = torch.ones(20), torch.ones(20)
    skipping, plain = RULES[rule](one), RULES[rule](two)
    bad = torch.full((20,), torch.nan)
    skipping.step(bad, NO, 1e-2)
    assert torch.equal(one, torch.ones(20))
    for grad in gradients(6):
        skipping.step(grad, YES, 1e-2)
        plain.step(grad, YES, 1e-2)
        skipping.step(bad, NO, 1e-2)
    assert torch.equal(one, two) and not torch.equal(one, torch.ones(20)) and torch.isfinite(one).all()
    assert all(torch.equal(x, plain.state_dict()[name]) for name, x in skipping.state_dict().items())


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_goes_on_from_its_state_and_takes_a_rate_on_the_device(rule: str) -> None:
    one, two = torch.ones(20), torch.ones(20)
    a, b = RULES[rule](one), RULES[rule](two)
    for grad in gradients(4):
        a.step(grad, YES, 1e-2)
    two.copy_(one)
    b.load_state_dict({name: x.clone() for name, x in a.state_dict().items()})
    for grad in gradients(4):
        a.step(grad, YES, 1e-2)
        b.step(grad, YES, torch.tensor(1e-2))
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rule", RULES)
def test_no_gradient_moves_no_parameter(rule: str) -> None:
    """Parameters that an update leaves out (the actor in a critic's pass) have a gradient of 0 and must stay."""
    start = torch.randn(20, generator=torch.Generator().manual_seed(3))
    data = start.clone()
    optimizer = RULES[rule](data)
    for grad in gradients(5):
        grad[:10] = 0.0
        optimizer.step(grad, YES, 1e-2)
    assert torch.equal(data[:10], start[:10]) and not torch.equal(data[10:], start[10:])
