"""The gradient laboratory: its statistics on samples with known answers, its rows on real episodes."""

from __future__ import annotations

import io
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pgtrain import build
from pgtrain.commands.gradients_run import Experiment, Findings, fresh
from pgtrain.commands.gradients_show import WIDE, make_table, number
from pgtrain.config.compose import compose
from pgtrain.learning.gradient_report import Reference, report

f64 = torch.float64
TRUE = torch.tensor([3.0, 0.0, 4.0], dtype=f64)
SIGMA = torch.tensor([1.0, 2.0, 0.5], dtype=f64)


def samples(n: int, shift: float = 0.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return TRUE + shift + SIGMA * torch.randn(n, 3, dtype=f64, generator=generator)


def test_variance_interval_snr_and_cosine_of_known_samples() -> None:
    """tr Σ = 5.25, |∇J|² = 25: SNR of batches of 4 is 4·25/5.25; its interval holds tr Σ."""
    found = report(samples(4000), Reference(TRUE, 0.0, True), batch=4)
    assert found.variance == pytest.approx(5.25, rel=0.05)
    assert found.low < 5.25 < found.high and found.high - found.low < 1.0
    assert found.snr == pytest.approx(4 * 25 / found.variance)
    assert 0.9 < found.cosine < 0.99  # cos ≈ 1/√(1 + noise across / signal), noise across ≈ 1.2
    assert not found.biased and found.bias_limit < 0.1


def test_bias_is_seen_where_it_is_and_sooner_beside_an_unbiased_estimate() -> None:
    reference = Reference(TRUE, 0.0, True)
    assert report(samples(2000, 0.5), reference).biased
    assert report(samples(2000, 0.5), reference).bias == pytest.approx(math.sqrt(0.75) / 5, rel=0.15)
    faint = samples(200, 0.05)
    alone, beside = report(faint, reference), report(faint, reference, unbiased=[samples(200)])
    assert not alone.biased and beside.biased
    assert beside.bias == pytest.approx(math.sqrt(3 * 0.05**2) / 5, rel=1e-3)


def test_unbiased_samples_are_seldom_called_biased() -> None:
    called = [
        report(samples(100, seed=i), Reference(TRUE, 0.0, True), resamples=10).biased for i in range(60)
    ]
    assert sum(called) <= 2  # three standard errors of a skewed distance


def test_the_limit_of_a_bias_is_that_of_chi_squared() -> None:
    """|x̄|² of n samples along k directions of equal variance σ² is σ²/n χ²_k: its 99.9 % point is scipy's."""
    stats = pytest.importorskip("scipy.stats")
    n = 1000
    for k in (1, 2, 5, 40):
        noise = torch.randn(n, k, dtype=f64, generator=torch.Generator().manual_seed(k))
        truth = torch.full((k,), 3.0, dtype=f64)
        found = report(truth + noise, Reference(truth, 0.0, True), resamples=2)
        expected = (stats.chi2.ppf(0.999, k) - k) / n / float(truth.square().sum())
        assert (found.bias_limit - 1e-5) ** 2 == pytest.approx(expected, rel=0.15), k


def test_noise_along_one_direction_is_called_a_bias_once_in_a_thousand() -> None:
    """The usual case of a bandit: few directions hold the noise, and its square has a long tail."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.tensor([1.0], dtype=f64)
    called = sum(
        report(
            truth + torch.randn(50, 1, dtype=f64, generator=generator),
            Reference(truth, 0.0, True),
            resamples=1,
        ).biased
        for _ in range(1500)
    )
    assert called <= 6  # 1.5 expected; 2 % of them, 33, by three standard errors


def test_a_reference_that_is_lost_in_noise_has_no_direction() -> None:
    lost = Reference(TRUE, 30.0, False, 16)  # |TRUE|² = 25
    found = report(samples(64), lost)
    assert math.isnan(found.cosine) and math.isnan(found.snr)
    assert not found.relative and not found.biased  # a length: it is there, and no longer than the noise
    beside = report(samples(64) + 0.5, lost, unbiased=[samples(64)])
    assert beside.bias == pytest.approx(math.sqrt(3) / 2) and beside.biased


def test_where_the_true_gradient_is_0_a_bias_is_a_length_and_there_is_no_signal() -> None:
    """Also where it is 0 but for rounding, relative to which nothing is told."""
    for zero in (Reference(torch.zeros(3), 0.0, True), Reference(1e-8 * TRUE, 0.0, True, rounding=1e-12)):
        off = report(samples(4000), zero)
        assert off.snr == 0.0 and math.isnan(off.cosine) and not off.relative
        assert off.biased and off.bias == pytest.approx(5.0, rel=0.03)  # |TRUE|
        centred = report(samples(4000) - TRUE, zero)
        assert not centred.biased and 0 < centred.bias_limit < 0.2
        nothing = report(torch.zeros(4, 3), zero)
        assert math.isnan(nothing.snr) and not nothing.biased and nothing.bias < 1e-6 + 5e-8


def test_samples_that_are_all_0_say_nothing_of_a_gradient_that_is_not() -> None:
    """No episode saw a reward: neither an SNR without end nor a bias of 100 %."""
    found = report(torch.zeros(4, 3), Reference(TRUE, 0.0, True))
    assert found.variance == 0 and found.relative
    assert all(math.isnan(x) for x in (found.snr, found.cosine, found.bias))


def test_samples_that_are_means_of_several_episodes() -> None:
    means = samples(4000).view(1000, 4, 3).mean(1)
    found = report(means, Reference(TRUE, 0.0, True), size=4, batch=8)
    assert found.variance == pytest.approx(5.25, rel=0.1) and found.episodes == 4000
    assert found.snr == pytest.approx(8 * 25 / found.variance)


def test_nothing_to_tell_is_nan_and_zero_variance_infinite() -> None:
    nothing = report(torch.zeros(4, 3), Reference(torch.zeros(3), 0.0, True))
    assert math.isnan(nothing.cosine) and math.isnan(nothing.snr) and nothing.bias == 0
    sure = report(TRUE.expand(4, 3), Reference(TRUE, 0.0, True))
    assert sure.variance == pytest.approx(0.0, abs=1e-12) and sure.snr == math.inf
    assert math.isnan(report(samples(1), Reference(TRUE, 0.0, True)).variance)


# ----------------------------------------------------------------------------------------------- real episodes


def measure(*settings: str, episodes: int, rows: str = "") -> Findings:
    cfg = compose([*settings, "seed=0"]).config
    policy = fresh(cfg, list(settings), "cpu")
    experiment = Experiment(
        cfg,
        policy,
        lambda n: build.make_env(cfg, n),
        False,
        episodes,
        episodes,
        0,
        lambda text: None,
        rows=rows,
    )
    return experiment.run()


def by_name(findings: Findings) -> dict[str, Any]:
    return {f"{line.family}: {line.name}": line.report for line in findings.lines}


def test_tabular_mdp_tells_the_story_of_the_enumeration() -> None:
    """The order of the exact variances (none 5.70 … joint 0.87 at other parameters), and who is biased."""
    found = measure("env=pgtrain/TabularMDP-v0", "policy.hidden=[]", "gamma=0.9", episodes=1024)
    assert found.reference.exact and found.shares == {"actor.0": pytest.approx(1.0)}
    r = by_name(found)
    v = {name: row.variance for name, row in r.items()}
    assert v["total return: none"] > v["total return: return_weighted (a common mistake)"]
    assert v["total return: return_weighted (a common mistake)"] > 1.5 * v["total return: optimal scalar"]
    assert v["reward to go: none"] < v["total return: none"]
    assert v["reward to go: optimal scalar"] < v["reward to go: mean"] < v["reward to go: none"]
    assert (
        v["reward to go: optimal step_joint"]
        < v["reward to go: optimal step"]
        < v["reward to go: optimal scalar"]
    )
    assert v["GAE: λ = 0"] < v["GAE: λ = 0.9"] < v["GAE: λ = 1"]
    assert v["GAE: λ = 1"] == pytest.approx(v["reward to go: value"])
    assert r["reward to go: none, no γᵗ (usual)"].biased
    for name, row in r.items():
        if "no γᵗ" not in name and "GAE" not in name:
            assert not row.biased or row.bias < 0.01, name  # (1 − 1/E) of a mean is as good as none here
        assert row.low <= row.variance <= row.high and row.cosine > 0.5


def test_cartpole_from_the_same_episodes_the_optimal_baseline_has_the_least_variance_without_a_critic() -> (
    None
):
    """The interval of each is shown beside it."""
    found = measure("env=CartPole-v1", episodes=192, rows="reward to go")
    r = by_name(found)
    for best, name in itertools.product(
        ("optimal scalar", "optimal parameter"), ("none", "mean", "leave-one-out mean")
    ):
        assert r[f"reward to go: {best}"].variance < r[f"reward to go: {name}"].variance, (best, name)
    assert r["reward to go: optimal scalar"].variance < r["reward to go: none"].low
    table = shown(found)
    for row in r.values():
        assert 0 < row.low < row.variance < row.high
        assert f"{number(row.low)}–{number(row.high)}" in table
    assert not found.reference.exact and found.reference.episodes == 192


def shown(findings: Findings) -> str:
    from rich.console import Console

    console = Console(width=WIDE, record=True, file=io.StringIO())
    console.print(make_table(findings.lines, WIDE))
    return console.export_text()


@pytest.mark.slow
def test_lqr_pathwise_has_far_less_variance_and_no_bias() -> None:
    """cos ≈ 1/√(1 + 1/SNR), were its noise alike in all 12 directions; a score function's is near that of chance."""
    found = measure("env=pgtrain/LQR-v0", "policy.hidden=[]", "policy.normalize_obs=none",
                    "env.max_episode_steps=20", episodes=128)  # fmt: skip
    assert found.reference.exact
    r = by_name(found)
    pathwise, score = r["pathwise: through the env"], r["reward to go: value"]
    assert pathwise.variance < 0.1 * score.variance and not pathwise.biased
    assert pathwise.cosine == pytest.approx(1 / math.sqrt(1 + 1 / pathwise.snr), abs=0.15)
    assert pathwise.cosine > 3 * score.cosine
