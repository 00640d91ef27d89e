"""The learning benchmark: its statistics, its memory of finished runs, its table, and its test of today's code."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parents[1]


def load(name: str) -> ModuleType:
    """A script of benchmarks/ as a module."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


report = load("learning_report")


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script with an empty memory and pages of its own; three rows that need no run."""
    module = load("learning")
    monkeypatch.setattr(module, "FOLDER", tmp_path / "runs")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results" / "learning.jsonl")
    monkeypatch.setattr(module.learning_report, "ROOT", tmp_path)
    monkeypatch.setattr(module.learning_report, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(module.learning_report, "CURVES", tmp_path / "curves.png")
    (tmp_path / "results.md").write_text("# T\n<!-- learning:start -->\nold\n<!-- learning:end -->\nend\n")
    rows = (
        module.Row("one", ("algo=a2c",), 5, 10.0, published="20"),
        module.Row("two", ("algo=a2c", "num_envs=2"), 5, 10.0, each=True),
        module.Row("three", ("+experiment=ppo/CartPole-v1",), 5),
    )
    monkeypatch.setattr(module, "ROWS", rows)
    monkeypatch.setattr(module, "QUICK", ("one", "two"))
    return module


def outcome(value: float) -> dict[str, Any]:
    summary = {"steps": 1000, "episodes": 7, "return_mean": 1.0, "return_std": 0.0, "eval_return_mean": value,
               "eval_return_std": 0.0, "wall_seconds": 12.0, "cpu_seconds": 8.0, "skipped_updates": 0}  # fmt: skip
    return {"summary": summary, "curve": [(100, 0.0), (1000, value)]}


def stand_in(value: Callable[[str, int], float], ran: list[tuple[str, int]]) -> Any:
    """For `run`: no training, but the given final return."""

    def run(row: Any, seed: int) -> dict[str, Any]:
        ran.append((row.name, seed))
        return outcome(value(row.name, seed))

    return run


# ---------------------------------------------------------------------------------------------------- statistics


def test_half_interval_is_students() -> None:
    rng = np.random.default_rng(0)
    for n in (2, 3, 5, 10, 16):
        values = rng.normal(size=n).tolist()
        low, high = stats.t.interval(0.95, n - 1, loc=np.mean(values), scale=stats.sem(values))
        assert report.half_interval(values) == pytest.approx((high - low) / 2, rel=1e-3)
    assert report.half_interval([3.0]) is None


def test_permutation_test_is_that_of_scipy() -> None:
    rng = np.random.default_rng(1)
    for sizes in ((5, 5), (10, 5), (3, 4)):
        before, now = rng.normal(size=sizes[0]), rng.normal(size=sizes[1]) - 1
        known = stats.permutation_test(
            (now, before), lambda x, y, axis: x.mean(axis) - y.mean(axis), alternative="less", vectorized=True,
            n_resamples=np.inf,
        )  # fmt: skip
        assert report.permutation_test(before.tolist(), now.tolist()) == pytest.approx(known.pvalue)


def test_permutation_test_at_its_ends() -> None:
    assert report.permutation_test([500.0] * 10, [500.0] * 5) == 1.0
    assert report.permutation_test([1.0] * 5, [0.0] * 5) == pytest.approx(1 / 252)
    assert report.permutation_test([0.0] * 5, [1.0] * 5) == 1.0


def test_permutation_test_of_many_values_is_sampled() -> None:
    rng = np.random.default_rng(2)
    before, now = rng.normal(size=20).tolist(), (rng.normal(size=20) - 0.6).tolist()
    t = stats.ttest_ind(now, before, alternative="less").pvalue
    assert report.permutation_test(before, now) == pytest.approx(t, abs=0.02)


# -------------------------------------------------------------------------------------------------------- memory


def test_finished_runs_are_kept_and_not_run_again(
    learning: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, int]] = []
    monkeypatch.setattr(learning, "run", stand_in(lambda name, seed: float(seed), ran))
    rows, seeds = learning.ROWS[:2], {"one": 2, "two": 1}
    learning.run_all(rows, seeds, 1, learning.read(), keep=True)
    assert ran == [("one", 0), ("two", 0), ("one", 1)], "seed by seed over the rows"
    ran.clear()
    again = learning.run_all(rows, {"one": 3, "two": 1}, 1, learning.read(), keep=True)
    assert ran == [("one", 2)]
    assert sorted(again) == [("one", 0), ("one", 1), ("one", 2), ("two", 0)]
    kept = learning.read()["one", 1]
    assert kept["summary"]["eval_return_mean"] == 1.0
    assert kept["settings"]["env.id"] == "CartPole-v1"
    assert len(learning.RESULTS.read_text().splitlines()) == 4


def test_results_of_other_settings_do_not_count(learning: ModuleType) -> None:
    row = learning.ROWS[0]
    today = learning.settings(row)
    assert "seed" not in today
    assert not learning.counts(None, today)
    assert learning.counts({"settings": today}, today)
    assert not learning.counts({"settings": today | {"gamma": 0.5}}, today)
    assert not learning.counts({"settings": today | {"gone.setting": 1}}, today)
    new = {key: value for key, value in today.items() if key != "gamma"}
    assert learning.counts({"settings": new}, today), "a setting that is new since then"


def test_a_failed_run_is_told_and_not_kept(
    learning: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learning, "run", lambda row, seed: {"error": "the env died"})
    assert learning.run_all(learning.ROWS[:1], {"one": 1}, 1, {}, keep=True) == {}
    assert "one seed 0 failed: the env died" in capsys.readouterr().out
    assert learning.read() == {}


def test_a_real_run_gives_numbers_and_a_curve(learning: ModuleType, tmp_path: Path) -> None:
    row = learning.Row("small", ("algo=a2c", "total_steps=4000", "device=cpu", "monitor.tensorboard=false"))
    learning.EVALUATION = ("eval.episodes=2",)
    found = learning.train(row, 1)
    assert found["summary"]["steps"] == 4000
    assert np.isfinite(found["summary"]["eval_return_mean"])
    steps = [step for step, _ in found["curve"]]
    assert steps == sorted(steps)
    assert 1 < len(steps) <= learning.CURVE_POINTS
    assert all(8 < value < 500 for _, value in found["curve"]), "returns of CartPole"


def test_a_curve_weighs_episodes_alike(learning: ModuleType, tmp_path: Path) -> None:
    lines = [
        {"progress/steps": 10 * (i + 1), "episode/return": float(i), "episode/count": 1 + 2 * (i % 2)}
        for i in range(2 * learning.CURVE_POINTS)
    ]
    lines.insert(0, {"progress/steps": 5, "episode/return": None, "episode/count": 0})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = learning.curve(tmp_path)
    assert len(curve) == learning.CURVE_POINTS
    assert curve[0] == (20, 0.75)  # returns 0 (once) and 1 (three times)


# --------------------------------------------------------------------------------------------- table and curves


def shown(learning: ModuleType, *values: list[float]) -> list[tuple[Any, list[dict[str, Any]]]]:
    return [(row, [outcome(v) for v in group]) for row, group in zip(learning.ROWS, values, strict=False)]


def test_the_table_says_whether_the_bar_is_reached(learning: ModuleType) -> None:
    lines = report.table(shown(learning, [8.0, 14.0], [8.0, 14.0, 14.0, 14.0, 14.0], [-3.0])).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == len(cells[0]) for row in cells)
    one, two, three = (dict(zip(cells[0], row, strict=True)) for row in cells[2:])
    assert (one["seeds"], one["at least"], one["worst seed"]) == ("2 of 5", "10: yes", "8.0")
    assert one["return, mean ± 95 % CI"] == f"11.0 ± {report.half_interval([8.0, 14.0]):.1f}"
    assert (two["seeds"], two["at least"]) == ("5", "10 on each seed: **no**")
    assert (three["env"], three["at least"], three["return, mean ± 95 % CI"]) == ("three", "", "−3.0")
    assert (one["steps"], one["s a run"], one["CPU s"], one["published"]) == ("1,000", "12", "8", "20")


def test_table_and_curves_are_written(learning: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report_of = learning.learning_report
    found = shown(learning, [1.0, 2.0], [3.0])
    report_of.write_table(found)
    report_of.draw_curves(found)
    page = (tmp_path / "results.md").read_text()
    assert "old" not in page
    assert report_of.table(found) in page
    assert page.endswith("<!-- learning:end -->\nend\n")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_without_matplotlib_there_is_one_line(
    learning: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    learning.learning_report.draw_curves(shown(learning, [1.0]))
    out = capsys.readouterr().out.splitlines()
    assert out == ["no learning curves: matplotlib is missing: pip install 'pgtrain[plot]'"]
    assert not (tmp_path / "curves.png").exists()


def test_mean_curve_covers_what_all_seeds_share() -> None:
    steps, values = report.mean_curve([[(0, 0.0), (10, 10.0)], [(2, 4.0), (8, 4.0)]], points=4)
    assert steps == [2, 4, 6, 8]
    assert values == pytest.approx([3.0, 4.0, 5.0, 6.0])


# --------------------------------------------------------------------------------------------------------- quick


@pytest.mark.parametrize(("today", "code"), [(12.0, 0), (13.0, 0), (2.0, 1)])
def test_quick_fails_when_a_row_is_clearly_worse(
    learning: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    today: float,
    code: int,
) -> None:
    ran: list[tuple[str, int]] = []
    monkeypatch.setattr(learning, "run", stand_in(lambda name, seed: 12.0 + 0.1 * seed, ran))
    learning.run_all(learning.ROWS[:2], {"one": 5, "two": 5}, 1, {}, keep=True)
    kept = learning.RESULTS.read_text()
    only_one = {"one": today, "two": 12.0}
    monkeypatch.setattr(learning, "run", stand_in(lambda name, seed: only_one[name] + 0.1 * seed, ran))
    assert learning.quick(1) == code
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" ")[2] for line in lines[-2:]] == ["WORSE" if code else "ok", "ok"]
    assert learning.RESULTS.read_text() == kept, "a test leaves the table alone"


def test_quick_needs_results_to_compare_with(
    learning: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "run", stand_in(lambda name, seed: 1.0, []))
    learning.run_all(learning.ROWS[:1], {"one": 5}, 1, {}, keep=True)
    assert learning.quick(1) == 2
    assert "--only two" in capsys.readouterr().err


def test_quick_fails_when_a_run_fails(learning: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "run", stand_in(lambda name, seed: 1.0, []))
    learning.run_all(learning.ROWS[:2], {"one": 5, "two": 5}, 1, {}, keep=True)
    monkeypatch.setattr(learning, "run", lambda row, seed: {"error": "no"})
    assert learning.quick(1) == 1


def test_rows_are_chosen_by_name(learning: ModuleType) -> None:
    def fail(text: str) -> None:
        raise SystemExit(text)

    assert [row.name for row in learning.select("t*,one", fail)] == ["two", "three", "one"]
    with pytest.raises(SystemExit, match=r"no row is named four \(rows: one, two, three\)"):
        learning.select("four", fail)


def test_the_shipped_rows_compose() -> None:
    module = load("learning")
    for row in module.ROWS:
        if "-v5" in row.name:
            pytest.importorskip("mujoco")
        assert module.settings(row)["total_steps"] > 0
    assert set(module.QUICK) <= {row.name for row in module.ROWS}
    names = [row.name for row in module.ROWS]
    assert not [a for a, b in itertools.combinations(names, 2) if a == b]
