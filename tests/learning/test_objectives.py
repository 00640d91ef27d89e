"""Losses: values, gradients, and what must not reach them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pgtrain.learning.objectives import entropy_bonus, policy_gradient_loss, value_loss

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text(encoding="utf-8"))
f64 = torch.float64


def test_by_hand() -> None:
    """Case: −((−1)(1) + (−2)(0) + (−3)(−1)) / 3 = −2/3, and half of a mean squared error of 1/3."""
    case = GOLDEN["cases"]["LOSS-01"]
    log_prob = torch.tensor(case["inputs"]["log_prob"], dtype=f64)
    advantage = torch.tensor(case["inputs"]["advantages"], dtype=f64)[:, 0]
    loss = policy_gradient_loss(log_prob, advantage)
    assert float(loss) == pytest.approx(case["expected"]["policy_loss"], abs=1e-6)
    value = torch.tensor(case["inputs"]["values"], dtype=f64)[:, 0]
    loss = value_loss(value, torch.tensor(case["inputs"]["returns"], dtype=f64))
    assert 2 * float(loss) == pytest.approx(case["expected"]["value_mse"], abs=1e-6)


def test_value_loss_golden() -> None:
    value, target = (torch.tensor(GOLDEN["inputs"][key], dtype=f64) for key in ("values_new", "returns"))
    assert float(value_loss(value, target)) == pytest.approx(
        GOLDEN["expected"]["value_loss_half_mse"], abs=1e-10
    )


def test_shapes_that_would_broadcast_are_refused() -> None:
    flat, column = torch.ones(3), torch.ones(3, 1)
    with pytest.raises(ValueError, match=r"log_prob \[3\], advantage \[3, 1\]"):
        policy_gradient_loss(flat, column)
    with pytest.raises(ValueError, match=r"value \[3, 1\], target \[3\]"):
        value_loss(column, flat)
    with pytest.raises(ValueError, match="weight"):
        policy_gradient_loss(flat, flat, column)
    with pytest.raises(ValueError, match="weight"):
        entropy_bonus(flat, column)


def test_policy_gradient_is_the_score_function_estimate() -> None:
    """−∇L = Σ A_i ∇log π(a_i) / M on a softmax, with ∇log π = 1[a] − π written out."""
    logits = torch.tensor([0.2, -0.4, 0.9], dtype=f64, requires_grad=True)
    action, advantage = torch.tensor([0, 2, 2, 1]), torch.tensor([1.0, -0.5, 2.0, 3.0], dtype=f64)
    policy_gradient_loss(logits.log_softmax(0)[action], advantage).backward()
    score = torch.eye(3, dtype=f64)[action] - logits.detach().softmax(0)
    torch.testing.assert_close(logits.grad, -(advantage @ score) / 4)


def test_weights_and_denominators() -> None:
    log_prob, advantage, weight = (
        torch.tensor(x) for x in ([-1.0, -2.0, -4.0], [1.0, 1.0, 1.0], [1.0, 0.0, 1.0])
    )
    assert float(policy_gradient_loss(log_prob, advantage, weight)) == 2.5
    assert float(policy_gradient_loss(log_prob, advantage, weight, denominator=1)) == 5.0
    assert float(policy_gradient_loss(log_prob, advantage, weight, denominator=torch.tensor(10.0))) == 0.5
    assert float(value_loss(log_prob, advantage, weight)) == 0.5 * (4 + 25) / 2
    assert float(value_loss(log_prob, advantage, weight, denominator=1)) == 0.5 * (4 + 25)
    assert float(entropy_bonus(log_prob, weight)) == -2.5
    assert float(entropy_bonus(log_prob, weight, denominator=5)) == -1.0


def all_losses(x: Tensor, other: Tensor, weight: Tensor) -> list[Tensor]:
    return [policy_gradient_loss(x, other, weight), value_loss(x, other, weight), entropy_bonus(x, weight)]


def test_left_out_rows_reach_neither_loss_nor_gradient() -> None:
    weight = torch.tensor([1.0, 0.0, 1.0])
    for junk in (torch.nan, torch.inf, -torch.inf):
        for index in range(3):
            x = torch.tensor([0.5, junk, 2.0], requires_grad=True)
            clean = torch.tensor([0.5, 2.0], requires_grad=True)
            loss = all_losses(x, torch.tensor([1.0, junk, -1.0]), weight)[index]
            expected = all_losses(clean, torch.tensor([1.0, -1.0]), torch.ones(2))[index]
            loss.backward()
            expected.backward()
            assert loss.item() == expected.item()
            assert x.grad is not None and clean.grad is not None
            assert x.grad.tolist() == [clean.grad[0], 0.0, clean.grad[1]]


def test_a_bad_number_in_a_used_row_shows() -> None:
    x, bad = torch.ones(2), torch.tensor([1.0, torch.nan])
    assert policy_gradient_loss(x, bad).isnan() and value_loss(x, bad).isnan() and entropy_bonus(bad).isnan()


def test_nothing_used_gives_zero() -> None:
    x = torch.ones(2, requires_grad=True)
    for loss in all_losses(x, torch.ones(2), torch.zeros(2)):
        assert loss.item() == 0.0
        assert torch.autograd.grad(loss, x)[0].tolist() == [0.0, 0.0]


def test_advantage_and_target_are_constants() -> None:
    x, other = torch.ones(2, requires_grad=True), torch.full((2,), 3.0, requires_grad=True)
    (policy_gradient_loss(x, other) + value_loss(x, other)).backward()
    assert other.grad is None and x.grad is not None


def test_differential_entropy_may_be_negative() -> None:
    expected = GOLDEN["cases"]["LOSS-04"]["expected"]["entropy"]
    assert float(entropy_bonus(torch.full((4,), expected))) == pytest.approx(expected)


def test_gradients_and_devices() -> None:
    x, other = torch.randn(2, 3, 2, dtype=f64, generator=torch.Generator().manual_seed(0))
    weight = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], dtype=f64)
    x.requires_grad_()
    for index in range(3):
        assert torch.autograd.gradcheck(lambda x, i=index: all_losses(x, other, weight)[i], [x])
    meta = torch.empty(3, 2, device="meta")  # has no data: reading a number from it raises
    assert all(loss.shape == () for loss in all_losses(meta, meta, meta))
