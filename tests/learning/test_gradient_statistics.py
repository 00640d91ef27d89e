"""Gradient statistics against stored numbers, other ways to the same number, and ill cases."""

from __future__ import annotations

import math

import pytest
import torch

from pgtrain.learning import gradient_statistics as gs
from tests.learning.exact import f64, golden, tensor

INPUTS, EXPECTED = golden("gradient_metrics")
G = tensor(INPUTS["per_sample_grads"])


def test_golden() -> None:
    found = gs.noise(G)
    assert float(found.trace) == pytest.approx(EXPECTED["trace_sigma"], rel=1e-6)
    assert float(found.squared_norm) == pytest.approx(EXPECTED["g2_unbiased"], rel=1e-6)
    assert float(found.noise_scale) == pytest.approx(EXPECTED["b_simple"], rel=1e-6)
    assert float(found.variance_of_mean) == pytest.approx(EXPECTED["var_of_mean"], rel=1e-6)
    assert float(found.snr) == pytest.approx(EXPECTED["snr"], rel=1e-6)
    assert gs.variance(G).tolist() == pytest.approx(EXPECTED["per_param_var"], rel=1e-6)
    from_norms = gs.noise_from_norms(G.square().sum(1).mean(), G.mean(0).square().sum(), len(G))
    for a, b in zip(found, from_norms, strict=True):
        torch.testing.assert_close(a, b)


def test_two_batches_golden() -> None:
    small, big = INPUTS["b_small"], INPUTS["b_big"]
    pairs = G.view(-1, small, 3).mean(1).square().sum(1).mean()
    found = gs.noise_from_two_batches(pairs, G.mean(0).square().sum(), small, big)
    expected = EXPECTED["two_batch"]
    assert float(found.squared_norm) == pytest.approx(expected["g2"], rel=1e-6)
    assert float(found.trace) == pytest.approx(expected["trace_sigma"], rel=1e-6)
    assert float(found.noise_scale) == pytest.approx(expected["b_simple"], rel=1e-6)
    with pytest.raises(ValueError, match="bigger"):
        gs.noise_from_two_batches(pairs, pairs, 2, 2)


def test_noise_scale_of_samples_without_signal_is_nan() -> None:
    _, samples = golden("optimal_baseline_samples")
    s, r = (tensor(golden("optimal_baseline_samples")[0][k]) for k in ("scores", "rewards"))
    returns = r @ (0.9 ** torch.arange(3, dtype=f64))
    found = gs.noise(s.sum(1) * returns[:, None])
    expected = samples["noise"]
    assert float(found.trace) == pytest.approx(expected["trace_sigma"], rel=1e-6)
    assert float(found.squared_norm) == pytest.approx(expected["g2_unbiased"], rel=1e-6)
    assert float(found.snr) == pytest.approx(expected["snr_batch"], rel=1e-6)  # negative
    assert math.isnan(float(found.noise_scale))


def test_estimates_are_unbiased_on_average() -> None:
    """Over many batches of 6 of known mean and covariance."""
    generator = torch.Generator().manual_seed(0)
    mean, std = tensor([0.3, -0.2, 0.1]), tensor([1.0, 0.5, 2.0])
    batches = mean + std * torch.randn(20_000, 6, 3, generator=generator, dtype=f64)
    found = [gs.noise(b) for b in batches[:4000]]
    trace = torch.stack([f.trace for f in found])
    squared = torch.stack([f.squared_norm for f in found])
    for x, truth in ((trace, std.square().sum()), (squared, mean.square().sum())):
        assert abs(float((x.mean() - truth) / (x.std() / len(x) ** 0.5))) < 4.5


def test_too_little_to_tell() -> None:
    one = gs.noise(torch.ones(1, 3))
    assert (
        all(x.isnan() for x in (one.trace, one.snr, one.noise_scale))
        and gs.variance(torch.ones(1, 3)).isnan().all()
    )
    same = gs.noise(torch.ones(4, 3))
    assert float(same.trace) == 0 and float(same.noise_scale) == 0 and same.snr.isnan()
    assert all(x.dim() == 0 for x in same)
    zero = gs.noise(torch.zeros(4, 3))
    assert float(zero.trace) == 0 and zero.noise_scale.isnan()
    assert gs.noise(1e8 * torch.randn(5, 3)).trace.isfinite()


def test_cosine() -> None:
    a, b = tensor([3.0, 4.0]), tensor([4.0, 3.0])
    assert float(gs.cosine(a, b)) == pytest.approx(0.96)
    assert float(gs.cosine(a, -2 * a)) == pytest.approx(-1.0)
    assert float(gs.cosine(a * 1e-200, b * 1e200)) == pytest.approx(0.96)
    assert gs.cosine(a, torch.zeros(2)).isnan()


def test_shares() -> None:
    slices = {"a.weight": slice(0, 2), "a.bias": slice(2, 3), "log_std": slice(3, 4)}
    g = tensor([1.0, 2.0, 2.0, 4.0])
    found = gs.shares(g, slices)
    assert [float(x) for x in found.values()] == pytest.approx([0.2, 0.16, 0.64])
    layers = gs.layer_shares(g * 1e300, slices)
    assert {k: float(v) for k, v in layers.items()} == pytest.approx({"a": 0.36, "log_std": 0.64})
    assert all(x.isnan() for x in gs.shares(torch.zeros(4), slices).values())


def test_running_noise_scale_is_a_quotient_of_averages() -> None:
    running = gs.RunningNoiseScale(decay=0.5)
    assert math.isnan(running.value)
    running.update(4.0, -1.0)
    assert math.isnan(running.value)
    running.update(8.0, 3.0)
    assert running.value == pytest.approx((0.25 * 4 + 0.5 * 8) / (-0.25 + 0.5 * 3))
    other = gs.RunningNoiseScale(decay=0.5)
    other.load_state_dict(running.state_dict())
    for r in (running, other):
        r.update(float("nan"), 1.0)
        r.update(float("inf"), 1.0)
        r.update(1.0, 1.0)
    assert running.value == other.value and running.count == 3
