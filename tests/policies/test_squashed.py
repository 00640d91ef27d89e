"""The tanh-Gaussian: its density integrates to 1, its entropy is the density's, its actions fill the box."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pgtrain.policies.distributions import DiagonalGaussian
from pgtrain.policies.squashed import TanhGaussian

LOW, HIGH = np.array([-2.0]), np.array([3.0])


def params(mean: float, std: float) -> torch.Tensor:
    return torch.tensor([[mean, np.log(std)]], dtype=torch.float64)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.4), (-1.5, 0.8)])
def test_the_density_of_the_action_integrates_to_1(mean: float, std: float) -> None:
    d = TanhGaussian(LOW, HIGH)
    a = np.linspace(-2, 3, 200_001)[1:-1]
    u = torch.from_numpy(np.arctanh((a - 0.5) / 2.5))
    p = d.log_prob(params(mean, std).expand(len(u), 2), u.unsqueeze(-1)).exp().numpy()
    assert np.trapezoid(p, a) == pytest.approx(1.0, abs=1e-4)
    log_p = np.log(np.maximum(p, 1e-300))
    assert float(d.entropy(params(mean, std))) == pytest.approx(-np.trapezoid(p * log_p, a), abs=1e-4)


def test_entropy_falls_again_where_actions_crowd_at_the_bounds() -> None:
    d = TanhGaussian(-np.ones(1), np.ones(1))
    at = {s: float(d.entropy(params(0.0, s))) for s in (0.3, 0.874, 2.5)}
    assert at[0.874] == pytest.approx(0.684, abs=1e-3)
    assert at[0.3] < at[0.874] > at[2.5]


def test_actions_stay_inside_and_a_nan_becomes_the_centre() -> None:
    d = TanhGaussian(LOW, HIGH)
    a = d.to_env(np.array([[-100.0], [0.0], [100.0], [np.nan]]))
    assert a.ravel().tolist() == [-2.0, 0.5, 3.0, 0.5]


def test_a_dimension_without_bounds_is_a_plain_gaussian() -> None:
    free, plain = (c(np.array([-np.inf]), np.array([np.inf])) for c in (TanhGaussian, DiagonalGaussian))
    u = torch.tensor([[2.5]], dtype=torch.float64)
    p = params(0.3, 0.6)
    assert torch.equal(free.log_prob(p, u), plain.log_prob(p, u))
    assert torch.allclose(free.entropy(p), plain.entropy(p))
    assert free.to_env(u.numpy()).tolist() == [[2.5]]


def test_several_dimensions_add_up() -> None:
    d = TanhGaussian(np.array([-1.0, -2.0]), np.array([1.0, 2.0]))
    one, two = TanhGaussian(-np.ones(1), np.ones(1)), TanhGaussian(-2 * np.ones(1), 2 * np.ones(1))
    p = torch.tensor([[0.3, -0.2, 0.1, -0.5]], dtype=torch.float64)
    u = torch.tensor([[0.4, -0.9]], dtype=torch.float64)
    parts = [p[:, [0, 2]], p[:, [1, 3]]]
    assert torch.allclose(d.entropy(p), one.entropy(parts[0]) + two.entropy(parts[1]))
    assert torch.allclose(
        d.log_prob(p, u), one.log_prob(parts[0], u[:, :1]) + two.log_prob(parts[1], u[:, 1:])
    )


def test_metrics_tell_how_much_the_bounds_hold() -> None:
    d = TanhGaussian(-np.ones(2), np.ones(2))
    u = torch.tensor([[0.0, 3.0], [5.0, -4.0]])
    got = d.metrics(torch.zeros(2, 4), u)
    assert got["policy/clipped_actions"].tolist() == [0.5, 1.0]
    assert got["policy/std"].tolist() == [1.0, 1.0]
