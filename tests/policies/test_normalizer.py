"""Running moments against one pass over all samples, and the scaling of rewards."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pgtrain.policies.normalizer import (
    ColumnMoments,
    Moments,
    RewardScaler,
    RewardSign,
    RunningMoments,
    batch_moments,
    merge_moments,
)

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "running_moments.json").read_text(encoding="utf-8")
)
f64 = torch.float64
few = settings(deadline=None, max_examples=40)


def check(moments: RunningMoments, samples: np.ndarray, tolerance: float = 1e-12) -> None:
    samples = samples.astype(np.float64)
    assert float(moments.count) == len(samples)
    np.testing.assert_allclose(moments.mean.numpy(), samples.mean(axis=0), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(moments.var.numpy(), samples.var(axis=0), rtol=1e-9, atol=tolerance)


# ---- RunningMoments -------------------------------------------------------------------------------------------------
def test_golden() -> None:
    moments = RunningMoments(2)
    for batch in GOLDEN["inputs"]["obs_batches"]:
        moments.update(torch.tensor(batch, dtype=f64))
    exact = GOLDEN["expected"]["exact_all_data"]
    torch.testing.assert_close(moments.mean, torch.tensor(exact["mean"], dtype=f64), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moments.var, torch.tensor(exact["var"], dtype=f64), rtol=1e-12, atol=1e-12)
    # The stored query comes from libraries with a prior of 1e-4 samples: equal to some 1e-5.
    query = moments.normalize(torch.tensor(GOLDEN["inputs"]["query"]))
    torch.testing.assert_close(
        query, torch.tensor(GOLDEN["expected"]["normalised_query"]), rtol=3e-5, atol=3e-5
    )


@few
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e4, -1e4]),
)
def test_any_split_equals_one_pass(sizes: list[int], seed: int, offset: float) -> None:
    rng = np.random.default_rng(seed)
    samples = rng.normal(offset, [1.0, 1e-2, 30.0], size=(sum(sizes), 3))
    moments = RunningMoments(3)
    for part in np.split(samples, np.cumsum(sizes)[:-1]):
        moments.update(torch.from_numpy(part))
    if len(samples):
        check(moments, samples, tolerance=1e-9 if offset else 1e-12)


def test_float32_samples_far_from_zero() -> None:
    """At 1e4 with a spread of 1e-2 the textbook E[x²] − E[x]² has no digit left in float32."""
    samples = np.random.default_rng(0).normal(1e4, 1e-2, size=(2000, 2)).astype(np.float32)
    moments = RunningMoments(2)
    for part in np.array_split(samples, 23):
        moments.update(torch.from_numpy(part))
    check(moments, samples, tolerance=1e-9)
    standard = moments.normalize(torch.from_numpy(samples))
    assert standard.dtype == torch.float32
    # ε = 1e-8 beside a variance of 1e-4 takes 5e-5 off the spread
    assert standard.mean(dim=0).abs().max() < 1e-4 and (standard.std(dim=0) - 1).abs().max() < 1e-3


def test_a_hundred_million_samples() -> None:
    """Counts too large for float32: later samples still count, exactly."""
    moments = RunningMoments(1)
    block = Moments(
        torch.tensor([2.0], dtype=f64), torch.tensor([3e8], dtype=f64), torch.tensor(1e8, dtype=f64)
    )
    moments.merge(block)
    for _ in range(100):
        moments.update(torch.tensor([[102.0]]))
    mean = (2.0 * 1e8 + 100 * 102.0) / (1e8 + 100)
    var = (3e8 + 1e8 * (mean - 2) ** 2 + 100 * (102 - mean) ** 2) / (1e8 + 100)
    assert float(moments.count) == 1e8 + 100
    assert float(moments.mean) == pytest.approx(mean, rel=1e-14)
    assert float(moments.var) == pytest.approx(var, rel=1e-13)


def test_merge_is_order_free_and_empty_sets_change_nothing() -> None:
    parts = [batch_moments(torch.randn(n, 2, generator=torch.Generator().manual_seed(n))) for n in (3, 0, 5)]
    one = merge_moments(merge_moments(parts[0], parts[1]), parts[2])
    two = merge_moments(parts[2], merge_moments(parts[1], parts[0]))
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(merge_moments(parts[1], parts[0]), parts[0], strict=True):
        assert torch.equal(a, b)


def test_bad_rows_are_skipped_whole() -> None:
    rows = torch.tensor(
        [[1.0, 2.0], [torch.nan, 5.0], [3.0, torch.inf], [-torch.inf, 0.0], [1e200, 0.0], [5.0, 8.0]],
        dtype=f64,
    )
    moments = RunningMoments(2)
    moments.update(rows)
    check(moments, rows[[0, 5]].numpy())
    moments.update(torch.full((3, 2), torch.nan))
    check(moments, rows[[0, 5]].numpy())


def test_rows_of_weight_zero_are_skipped() -> None:
    rows = torch.arange(24.0).reshape(3, 4, 2)  # [T, N, D]
    rows[1, 2] = torch.nan
    weight = torch.ones(3, 4)
    weight[1, 2] = weight[0, 0] = 0.0
    moments = RunningMoments(2)
    moments.update(rows, weight)
    check(moments, rows[weight > 0].numpy())


def test_identity_until_two_samples() -> None:
    moments, x = RunningMoments(2), torch.tensor([[40.0, -3.0]], dtype=f64)
    assert moments.normalize(x).tolist() == [[40.0, -3.0]] and moments.normalize(x).dtype == torch.float32
    moments.update(x)
    assert moments.normalize(x).tolist() == [[40.0, -3.0]]
    moments.update(x + 1)
    assert moments.normalize(x)[0, 0] == pytest.approx(-1, abs=1e-6)


def test_constant_dimension() -> None:
    for case in GOLDEN["cases"]["NORM-05"]:
        moments = RunningMoments(1)
        moments.update(torch.tensor(case["inputs"]["seen"], dtype=f64)[:, None])
        result = float(moments.normalize(torch.tensor([float(case["inputs"]["now"])])))
        assert result == case["expected"].get("normalised", 10.0)
    moments = RunningMoments(1)
    for _ in range(50):
        moments.update(torch.full((7, 1), 0.1))  # 0.1 is not exact: no drift may look like a spread
    assert abs(float(moments.normalize(torch.tensor([0.1])))) < 1e-6


def test_clip_and_gradient() -> None:
    moments = RunningMoments(1)
    moments.update(torch.tensor([[-1.0], [1.0]]))
    x = torch.tensor([[0.5], [500.0], [-500.0]], requires_grad=True)
    result = moments.normalize(x)
    torch.testing.assert_close(result.flatten(), torch.tensor([0.5, 10.0, -10.0]))
    result.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[1.0], [0.0], [0.0]]))
    assert moments.normalize(torch.tensor([torch.nan])).isnan(), "a bad observation must stay visible"


def test_normalize_changes_no_statistics_and_frozen_stays() -> None:
    moments = RunningMoments(1)
    moments.update(torch.tensor([[0.0], [2.0]]))
    frozen, x = moments.frozen(), torch.tensor([[3.0]])
    before = {key: value.clone() for key, value in moments.state_dict().items()}
    expected = moments.normalize(x)
    assert all(torch.equal(before[key], value) for key, value in moments.state_dict().items())
    moments.update(torch.tensor([[100.0]]))
    assert torch.equal(frozen(x), expected) and not torch.equal(moments.normalize(x), expected)


def test_saved_and_loaded_with_the_module() -> None:
    moments = RunningMoments(2)
    moments.update(torch.randn(5, 2, generator=torch.Generator().manual_seed(0)))
    file = io.BytesIO()
    torch.save(torch.nn.Sequential(moments).state_dict(), file)
    file.seek(0)
    other = RunningMoments(2)
    torch.nn.Sequential(other).load_state_dict(torch.load(file, weights_only=True))
    x = torch.ones(1, 2)
    assert torch.equal(other.normalize(x), moments.normalize(x)) and other.count == 5


@pytest.mark.parametrize("module", [RunningMoments(2), RewardScaler(2, 0.9)])
def test_stays_float64_when_the_policy_is_cast(module: torch.nn.Module) -> None:
    outer = torch.nn.Sequential(module).half().float().to("cpu", torch.float32)
    assert all(buffer.dtype == f64 for buffer in outer.buffers())
    assert all(buffer.device.type == "meta" for buffer in outer.to("meta").buffers())


def test_never_waits_for_a_device() -> None:
    """A meta tensor has no data: reading a number from it, or branching on one, raises."""
    x = torch.empty(4, 3, device="meta")
    moments, scaler = RunningMoments(3).to("meta"), RewardScaler(3, 0.9).to("meta")
    moments.update(x, x[:, 0])
    assert moments.normalize(x).shape == (4, 3)
    assert scaler.scale(x, x, x).shape == (4, 3)


# ---- RewardScaler ---------------------------------------------------------------------------------------------------
def column(values: list) -> Tensor:
    return torch.tensor(values, dtype=f64)[:, None]


@pytest.mark.parametrize("split", [8, 1, 2, 3])
def test_accumulator_cases(split: int) -> None:
    """1, 1.5, 1.75 again and again, whatever windows the stream comes in, with and without reset rows."""
    plain, with_reset_rows = GOLDEN["cases"]["NORM-01"]
    for case, used in ((plain, [1] * 6), (with_reset_rows, [1, 1, 1, 0] * 2)):
        scaler = RewardScaler(1, case["inputs"]["gamma"])
        streams = [column(x).split(split) for x in (case["inputs"]["rewards"], case["inputs"]["done"], used)]
        running = torch.cat([scaler.update(*window) for window in zip(*streams, strict=True)])
        expected = case["expected"].get("accumulator") or case["expected"]["accumulator_of_real_rows"]
        assert running[column(used) > 0].tolist() == expected
        assert float(scaler.moments.count) == case["expected"]["count"]
        assert float(scaler.accumulator) == 0.0  # the stream ends with an episode's end


@few
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 3), st.integers(1, 9))
def test_scaler_is_its_definition(seed: int, steps: int, envs: int, split: int) -> None:
    rng = np.random.default_rng(seed)
    reward, done = rng.normal(1, 2, (steps, envs)), rng.random((steps, envs)) < 0.3
    weight = (rng.random((steps, envs)) < 0.8).astype(float)
    reward[rng.random((steps, envs)) < 0.1] = np.nan
    seen = []
    for n in range(envs):
        running = 0.0
        for t in range(steps):
            if weight[t, n] and np.isfinite(reward[t, n]):
                running = 0.9 * running + reward[t, n]
                seen.append(running)
            if done[t, n]:
                running = 0.0
    scaler = RewardScaler(envs, 0.9)
    parts = [torch.from_numpy(x).split(split) for x in (reward, done, weight)]
    for window in zip(*parts, strict=True):
        result = scaler.scale(*window)
    assert float(scaler.moments.count) == len(seen)
    if len(seen) < 2:
        return
    std = np.sqrt(np.var(seen) + 1e-8)
    assert float(scaler.std) == pytest.approx(std, rel=1e-9)
    expected = np.clip(parts[0][-1].numpy() / std, -10, 10)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-9, equal_nan=True)


def test_scaler_golden_variance() -> None:
    inputs = GOLDEN["inputs"]
    scaler = RewardScaler(2, inputs["gamma"])
    scaler.update(torch.tensor(inputs["rewards"]), torch.tensor(inputs["dones"]))
    # The stored figure starts from 1e-4 made-up samples of variance 1: equal to some 1e-5.
    assert float(scaler.moments.var) == pytest.approx(GOLDEN["expected"]["return_var"], rel=2e-5)


def test_scaler_divides_only() -> None:
    case = GOLDEN["cases"]["NORM-04"][0]
    scaler = RewardScaler(1, 0.9)
    scaler.moments.merge(
        Moments(
            torch.tensor([7.0]), torch.tensor([case["inputs"]["return_std"] ** 2 * 1e6]), torch.tensor(1e6)
        )
    )
    result = scaler.apply_scale(torch.tensor(case["inputs"]["rewards"], dtype=f64))
    assert result.tolist() == pytest.approx(case["expected"]["normalised"], abs=1e-8)


def test_scaler_keeps_the_input_dtype_and_bad_rewards() -> None:
    scaler = RewardScaler(1, 0.5)
    reward = torch.tensor([[1.0], [torch.nan], [torch.inf], [-2.0], [1000.0]])
    before = reward.clone()
    result = scaler.scale(reward, torch.zeros(5, 1))
    assert torch.equal(reward.nan_to_num(), before.nan_to_num()) and result.dtype == torch.float32
    assert result[1].isnan() and result[2].isinf(), "clipping would hide an infinite reward"
    assert result[[0, 3, 4]].isfinite().all() and float(scaler.moments.count) == 3
    assert RewardScaler(1, 0.5).apply_scale(reward)[0] == 1.0, "unscaled until two steps were seen"


def test_scaler_clips() -> None:
    scaler = RewardScaler(1, 0.0)
    result = scaler.scale(column([0.0] * 999 + [1e3]), torch.zeros(1000, 1))
    assert float(result[-1]) == 10.0


# ------------------------------------------------------------------------------------------- columns, and signs


def test_columns_have_their_own_statistics_and_the_others_pass() -> None:
    columns = [1, 3]
    whole, some = RunningMoments(2), ColumnMoments(5, columns)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        x = 1e4 + 5 * torch.randn(40, 5, generator=generator, dtype=torch.float64)
        weight = (torch.rand(40, generator=generator) < 0.7).double()
        whole.update(x[:, columns], weight)
        some.update(x.view(4, 10, 5), weight.view(4, 10))
    assert torch.equal(some.mean, whole.mean) and torch.equal(some.m2, whole.m2)
    y = some.normalize(x)
    assert (
        torch.equal(y[:, columns], whole.normalize(x[:, columns])) and float(y[:, columns].abs().max()) < 10
    )
    others = [0, 2, 4]
    assert torch.equal(y[:, others], x[:, others].float())  # far beyond the clip, and untouched
    again = ColumnMoments(5, columns)
    again.load_state_dict(some.state_dict())
    assert torch.equal(again.normalize(x), y) and set(some.state_dict()) == {"mean", "m2", "count"}
    assert torch.equal(ColumnMoments(5, columns).normalize(x), x.float())  # nothing seen: identity


def test_signs_of_rewards() -> None:
    reward = torch.tensor([[-7.5, 0.0], [0.25, torch.nan]])
    scaled = RewardSign().scale(reward, torch.zeros(2, 2))
    assert scaled[:, 0].tolist() == [-1, 1] and scaled[0, 1] == 0 and scaled[1, 1].isnan()
    assert reward[0, 0] == -7.5 and RewardSign().state_dict() == {}
