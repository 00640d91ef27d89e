"""α-order mixing against the golden numbers, and its three cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pgtrain.learning.alpha_order import bernstein_radius, mix, mix_per_parameter, variance

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "alpha_order.json").read_text(encoding="utf-8"))
INPUTS, WANT = GOLDEN["inputs"], GOLDEN["expected"]
FIRST = torch.tensor(INPUTS["first_order"], dtype=torch.float64)
ZEROTH = torch.tensor(INPUTS["zeroth_order"], dtype=torch.float64)


def test_variances_and_radius_equal_the_golden_numbers() -> None:
    assert float(variance(FIRST).sum()) == pytest.approx(WANT["var_first"], rel=1e-10)
    v0 = variance(ZEROTH).sum()
    assert float(v0) == pytest.approx(WANT["var_zeroth"], rel=1e-10)
    radius = bernstein_radius(v0, len(ZEROTH), 2, INPUTS["grad_bound"], INPUTS["delta"])
    assert float(radius) == pytest.approx(WANT["bernstein_eps"], rel=1e-10)


@pytest.mark.parametrize("key", list(WANT["by_gamma"]))
def test_mixture_equals_the_golden_numbers(key: str) -> None:
    case = WANT["by_gamma"][key]
    got = mix(FIRST, ZEROTH, case["gamma"], INPUTS["grad_bound"], INPUTS["delta"])
    assert float(got.alpha) == pytest.approx(case["alpha"], rel=1e-9)
    assert got.grad.tolist() == pytest.approx(case["grad"], rel=1e-9)
    assert float(got.disagreement) == pytest.approx(WANT["disagreement"], rel=1e-9)
    assert float(got.radius) == pytest.approx(WANT["bernstein_eps"], rel=1e-9)


def test_the_cases_of_the_vector_are_all_three() -> None:
    alphas = sorted(case["alpha"] for case in WANT["by_gamma"].values())
    assert alphas[0] == 0 and 0 < alphas[1] < WANT["alpha_bar"] and alphas[2] == WANT["alpha_bar"]


def test_weights_per_parameter_equal_the_golden_numbers() -> None:
    got = mix_per_parameter(FIRST, ZEROTH)
    assert got.alpha.tolist() == pytest.approx(WANT["per_param_alpha"], rel=1e-9)
    assert got.grad.tolist() == pytest.approx(WANT["per_param_grad"], rel=1e-9)


def test_a_pathwise_estimate_that_blew_up_is_left_out() -> None:
    broken = FIRST.clone()
    broken[0] = torch.nan
    for got in (mix(broken, ZEROTH, 100.0, 4.0), mix_per_parameter(broken, ZEROTH)):
        assert (got.alpha == 0).all()
        assert torch.equal(got.grad, ZEROTH.mean(0))


def test_a_pathwise_estimate_that_is_blind_is_mistrusted() -> None:
    """A step reward: the slope is 0 with no variance at all, which inverse variance takes for perfection."""
    zero = torch.zeros(500, 2, dtype=torch.float64)
    score = 3.0 + 0.1 * torch.randn(500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert mix_per_parameter(zero, score).grad.abs().max() == 0
    guarded = mix(zero, score, tolerance=0.2)
    assert float(guarded.alpha) < 0.05
    assert guarded.grad.tolist() == pytest.approx([3.0, 3.0], abs=0.2)


def test_without_any_noise_the_first_order_is_taken() -> None:
    same = torch.ones(4, 2, dtype=torch.float64)
    got = mix(same, same, tolerance=100.0, bound=1.0)
    assert float(got.alpha) == 1.0 and torch.equal(got.grad, same[0])


def test_the_default_bound_is_the_largest_sample() -> None:
    largest = float(torch.linalg.vector_norm(ZEROTH, dim=1).max())
    assert torch.equal(mix(FIRST, ZEROTH, 3.0).radius, mix(FIRST, ZEROTH, 3.0, bound=largest).radius)
