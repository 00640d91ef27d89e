"""The report of a study: what is compared, on which returns, with which intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pgtrain.commands import study
from pgtrain.commands.sweep_report import Record


def seed_of(rng: np.random.Generator, variance: float, low: float, high: float) -> study.Run:
    """A run whose gradient has `variance` times the squared return, between two returns."""
    steps, returns = np.arange(50.0), np.linspace(low, high, 50)
    noise = np.exp(0.05 * rng.normal(size=50))
    return study.Run(
        returns[-1], steps, returns, returns, variance * returns**2 * noise, 10 / variance + 0 * returns
    )


def test_settings_are_compared_where_they_earn_alike() -> None:
    """The setting that earns more has the larger variance after as many steps, and the smaller at like returns."""
    rng = np.random.default_rng(0)
    noisy = study.Arm("noisy", [seed_of(rng, 8.0, 20.0, 100.0 + i) for i in range(5)])
    quiet = study.Arm("quiet", [seed_of(rng, 2.0, 50.0, 400.0 + i) for i in range(5)])
    first, second = study.at_like_returns([noisy, quiet], "variance")
    assert first.grid.min() >= 50 and first.grid.max() <= 102 and (first.grid == second.grid).all()
    assert np.exp(first.mean - second.mean) == pytest.approx(4.0, rel=0.1)
    assert 0 < first.half.mean() < 0.1
    rows = [line for line in study.markdown("b", [quiet, noisy], "t", False).splitlines() if "| `" in line]
    assert [float(row.split("|")[6]) for row in rows] == pytest.approx([1.0, 4.0], rel=0.1)
    assert [float(row.split("|")[7]) for row in rows] == pytest.approx([5.0, 1.25])
    apart = study.Arm("apart", [seed_of(rng, 1.0, 900.0, 999.0)])
    assert all(len(c.grid) == 0 for c in study.at_like_returns([quiet, apart], "variance"))
    assert "nowhere" in study.markdown("b", [quiet, apart], "t", False)


def test_a_line_through_a_line_is_itself_and_a_window_forgets_what_is_far() -> None:
    x, grid = np.linspace(0, 10, 40) ** 1.3, np.linspace(1, 18, 9)
    assert study.local_line(x, 3 - 2 * x, grid, 0.7) == pytest.approx(3 - 2 * grid)
    y, width = np.sin(x), 0.7
    for at, found in zip(grid, study.local_line(x, y, grid, width), strict=True):
        weight = np.exp(-0.25 * ((x - at) / width) ** 2)  # polyfit squares it
        assert found == pytest.approx(np.polyval(np.polyfit(x, y, 1, w=weight), at), abs=1e-6)
    assert np.isnan(study.local_line(x, y, np.array([-1.0, 30.0]), width)).all()
    assert study.local_line(np.ones(3), np.array([1.0, 2.0, 6.0]), np.ones(1), width) == pytest.approx(3.0)


def test_numbers_of_a_study() -> None:
    """Student's t at 95 %: 12.706 for two seeds, 2.262 for ten."""
    assert study.with_interval([1.0, 3.0, float("nan")]) == "2.0 ± 12.7"
    assert study.with_interval([float("nan")]) == "–" and study.with_interval([2.0]) == "2.0"
    assert study.with_interval([0.0, 2.0] * 5) == f"1.0 ± {2.262 * (10 / 9) ** 0.5 / 10**0.5:.1f}"


def test_a_study_of_several_settings_has_them_all_in_its_rows(tmp_path: Path) -> None:
    records = []
    for i, words in enumerate((["a=1", "b=2"], ["a=1"], [])):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "summary.json").write_text('{"status": "finished", "return_mean": 5.0}')
        records.append(Record([*words, "c=3", f"seed={i}"], folder))
    records.append(Record(["a=9", "c=3", "seed=0"], tmp_path / "none", "failed"))
    key, arms = study.collect(records)
    assert key == "setting" and {arm.name for arm in arms} == {"a=1 b=2", "a=1", "all runs"}
    assert "–" in study.markdown(key, arms, "t", False)  # no curve, no interval, no gradient
