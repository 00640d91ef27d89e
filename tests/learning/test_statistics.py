"""Normalisation of advantages and the dashboard's numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtrain.learning import statistics
from pgtrain.learning.statistics import approx_kl_k1, approx_kl_k3, explained_variance, normalize, r2

f64 = torch.float64


def golden(name: str) -> dict:
    return json.loads((Path(__file__).parents[1] / "golden" / f"{name}.json").read_text(encoding="utf-8"))


LOSSES, CRITIC, NORMAL = golden("losses"), golden("critic_metrics"), golden("advantage_normalisation")


# ---- normalize ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, f64])
@pytest.mark.parametrize("index", range(len(NORMAL["inputs"])))
def test_normalize_golden(index: int, dtype: torch.dtype) -> None:
    case = NORMAL["inputs"][index]
    x, mask = torch.tensor(case["advantages"], dtype=dtype), torch.tensor(case["mask"], dtype=dtype)
    result = normalize(x, mask)
    torch.testing.assert_close(
        result, torch.tensor(NORMAL["expected"][index], dtype=dtype), rtol=1e-6, atol=1e-6
    )
    if mask.all():
        assert torch.equal(normalize(x), result)


def test_normalize_golden_batches() -> None:
    x = torch.tensor(LOSSES["inputs"]["advantages"], dtype=f64)
    expected = torch.tensor(LOSSES["expected"]["adv_normalised_ddof1"], dtype=f64)
    torch.testing.assert_close(normalize(x), expected)
    ranks = NORMAL["over_ranks"]
    x = torch.tensor([ranks["rank0"], ranks["rank1"]])
    expected = torch.tensor(NORMAL["over_ranks_expected"])
    torch.testing.assert_close(normalize(x).flatten(), expected, rtol=1e-5, atol=1e-5)


def test_normalize_degenerate_batches() -> None:
    assert normalize(torch.tensor([3.7])).tolist() == [pytest.approx(3.7)]
    assert normalize(torch.tensor([2.0, 2.0, 2.0, 2.0])).tolist() == [0.0] * 4
    # Seven times 0.1: mean and variance round, the entries are equal all the same.
    assert normalize(torch.full((7,), 0.1, dtype=f64)).tolist() == [0.0] * 7
    assert normalize(torch.tensor([1.0, 2.0]), torch.zeros(2)).tolist() == [0.0, 0.0]
    # What is left out may be anything, and comes out 0.
    junk = torch.tensor([5.0, torch.nan, 1.0, torch.inf, -2.0])
    result = normalize(junk, torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0]))
    torch.testing.assert_close(result, torch.tensor([1.04407379, 0.0, -0.09491580, 0.0, -0.94915799]))
    assert normalize(torch.tensor([torch.nan, 7.0]), torch.tensor([0.0, 1.0])).tolist() == [0.0, 7.0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_normalize_does_not_hide_a_bad_advantage(bad: float) -> None:
    assert normalize(torch.tensor([1.0, bad, 2.0])).isnan().any()


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**6), st.integers(2, 30), st.sampled_from([0.0, 1e4]), st.sampled_from([1e-3, 1.0, 1e6])
)
def test_normalize_laws(seed: int, count: int, offset: float, scale: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, generator=rng, dtype=f64)
    weight = (torch.rand(count, generator=rng) < 0.7).to(f64)
    weight[:2] = 1.0
    result = normalize(offset + scale * x, weight)
    used = scale * x[weight > 0]
    expected = (used - used.mean()) / (used.std() + 1e-8)
    torch.testing.assert_close(result[weight > 0], expected, rtol=1e-6, atol=1e-6)
    assert (result[weight == 0] == 0).all()


def test_normalize_gradient_and_shape() -> None:
    x = torch.randn(3, 2, dtype=f64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weight = torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 1.0]], dtype=f64)
    assert torch.autograd.gradcheck(lambda x: normalize(x, weight), [x])
    same = torch.full((3,), 2.0, requires_grad=True)
    normalize(same).sum().backward()
    assert same.grad is not None and same.grad.isfinite().all()
    with pytest.raises(ValueError, match="shapes differ"):
        normalize(x, weight[:, :1])


# ---- critic ---------------------------------------------------------------------------------------------------------
def test_critic_metrics_golden() -> None:
    target, value = (torch.tensor(CRITIC["inputs"][key], dtype=f64) for key in ("returns", "values"))
    offset = value + CRITIC["inputs"]["value_offset"]
    actual = {
        "explained_variance": explained_variance(value, target),
        "explained_variance_offset": explained_variance(offset, target),
        "r2": r2(value, target),
        "r2_offset": r2(offset, target),
    }
    assert {key: float(x) for key, x in actual.items()} == pytest.approx(CRITIC["expected"], abs=1e-9)


def test_critic_metrics_are_nan_where_targets_do_not_vary() -> None:
    value = torch.arange(7.0)
    for target in (torch.tensor(CRITIC["inputs"]["constant_returns"]), torch.full((7,), 0.1, dtype=f64)):
        assert explained_variance(value, target).isnan() and r2(value, target).isnan()
    assert explained_variance(value[:1], value[:1]).isnan()
    assert explained_variance(value, value, torch.zeros(7)).isnan()


def test_critic_metrics_leave_out_rows_and_broadcast_nothing() -> None:
    target, value = torch.tensor([1.0, torch.nan, 3.0, 2.0]), torch.tensor([1.5, 7.0, 2.0, 2.0])
    weight, keep = torch.tensor([1.0, 0.0, 1.0, 1.0]), [0, 2, 3]
    for metric in (explained_variance, r2):
        torch.testing.assert_close(metric(value, target, weight), metric(value[keep], target[keep]))
        with pytest.raises(ValueError, match="value"):
            metric(value[:, None], target)
    assert float(explained_variance(target[keep], target[keep])) == 1.0


# ---- KL -------------------------------------------------------------------------------------------------------------
def test_kl_golden() -> None:
    new, old = (torch.tensor(LOSSES["inputs"][key], dtype=f64) for key in ("logp_new", "logp_old"))
    assert float(approx_kl_k1(new - old)) == pytest.approx(LOSSES["expected"]["k1"], abs=1e-10)
    assert float(approx_kl_k3(new - old)) == pytest.approx(LOSSES["expected"]["k3"], abs=1e-10)
    case = LOSSES["cases"]["KL-01"]
    log_ratio = torch.tensor(case["inputs"]["log_ratio"])
    assert float(approx_kl_k1(log_ratio)) == pytest.approx(case["expected"]["k1"], abs=1e-6)
    assert float(approx_kl_k3(log_ratio)) == pytest.approx(case["expected"]["k3"], abs=1e-6)


def test_kl_estimates_the_kl_of_old_to_new() -> None:
    """E_old[k1] = E_old[k3] = KL(old ‖ new), with probabilities as weights."""
    old, new = torch.tensor([0.5, 0.3, 0.2], dtype=f64), torch.tensor([0.2, 0.2, 0.6], dtype=f64)
    exact = (old * (old / new).log()).sum()
    torch.testing.assert_close(approx_kl_k1((new / old).log(), old), exact)
    torch.testing.assert_close(approx_kl_k3((new / old).log(), old), exact)


def test_kl_k3_at_small_and_large_ratios() -> None:
    for tiny in (1e-6, 3e-6, 7e-7):  # exp(x) − 1 − x gives 0 in float32, and three digits in float64
        assert float(approx_kl_k3(torch.tensor([tiny, -tiny]))) == pytest.approx(
            tiny**2 / 2, rel=1e-6, abs=0.0
        )
    assert float(approx_kl_k3(torch.tensor([100.0]))) == pytest.approx(
        math.exp(100), rel=1e-6
    )  # inf in float32
    weight = torch.tensor([1.0, 0.0])
    assert float(approx_kl_k3(torch.tensor([0.0, torch.nan]), weight)) == 0.0


# ---- plain ----------------------------------------------------------------------------------------------------------
def test_weighted_statistics_are_those_of_the_used_entries() -> None:
    x = torch.tensor([[1.0, torch.nan], [5.0, -3.0], [torch.inf, 2.0]])
    weight = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    used = torch.tensor([1.0, 5.0, -3.0, 2.0])
    torch.testing.assert_close(statistics.weighted_mean(x, weight), used.mean())
    torch.testing.assert_close(statistics.weighted_std(x, weight), used.std())
    assert statistics.weighted_min(x, weight) == -3 and statistics.weighted_max(x, weight) == 5
    torch.testing.assert_close(statistics.weighted_std(used), used.std())


def test_autoreset_stream_statistics() -> None:
    expected = golden("autoreset")["expected"]
    x, weight = (torch.tensor(expected[key], dtype=f64) for key in ("advantages", "valid_mask"))
    assert float(statistics.weighted_mean(x, weight)) == pytest.approx(expected["mean_adv_valid"])
    assert float(statistics.weighted_std(x, weight)) == pytest.approx(expected["std_adv_valid_ddof1"])


def test_whole_numbers_become_floats() -> None:
    lengths = torch.tensor([1, 2, 6])
    assert float(statistics.weighted_mean(lengths, torch.tensor([0.5, 0.5, 0.0]))) == 1.5
    assert normalize(lengths).dtype == torch.float32


def test_weighted_statistics_of_too_little() -> None:
    x, none = torch.tensor([1.0, 2.0]), torch.zeros(2)
    for name in ("mean", "std", "min", "max"):
        assert getattr(statistics, f"weighted_{name}")(x, none).isnan()
    assert statistics.weighted_std(x[:1]).isnan() and statistics.weighted_mean(x[:1]) == 1


def test_never_waits_for_a_device() -> None:
    """A meta tensor has no data: reading a number from it, or branching on one, raises."""
    x = torch.empty(3, 2, device="meta")
    assert normalize(x, x).shape == (3, 2)
    for name in (
        "weighted_mean",
        "weighted_std",
        "weighted_min",
        "weighted_max",
        "approx_kl_k1",
        "approx_kl_k3",
    ):
        assert getattr(statistics, name)(x, x).shape == ()
    assert explained_variance(x, x, x).shape == r2(x, x, x).shape == ()
