"""The benchmarks that no other test runs: they work at a tiny size, and their arithmetic is right."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


def script(name: str, *arguments: str) -> str:
    """What the script prints; it must end well."""
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_gpu_script_runs_on_a_cpu() -> None:
    lines = script(
        "gpu", "--device", "cpu", "--envs", "8", "--iterations", "2", "--horizon", "4"
    ).splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    assert [row[0].split(",")[0] for row in rows[1:]] == ["PPO", "PPO", "PPO", "SHAC"]
    assert all(len(row) == 6 and row[1] == "8" and float(row[2].replace(",", "")) > 0 for row in rows[1:])
    assert float(rows[1][5].replace(",", "")) > 1  # no update is faster than its arithmetic


def test_solve_prints_its_median() -> None:
    lines = script("solve", "--seeds", "1", "--target", "12", "--steps", "4096").splitlines()
    assert lines[-1].endswith("1 of 1 seeds reached 12")
    assert 100 * 12 <= int(lines[0].split(" CPU s, ")[1].split(" steps")[0].replace(",", "")) <= 4096


def test_solved_means_the_mean_of_a_hundred_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from solve import Solved

    returns = deque([500.0] * 99, maxlen=100)
    progress = SimpleNamespace(recent_returns=returns, steps=7000, episodes=99)
    runner = SimpleNamespace(progress=progress, plan=SimpleNamespace(total_steps=100_000))
    probe = Solved(475.0)
    probe.after_iteration(runner)  # one episode is missing
    returns.append(-2001.0)  # mean 474.99
    probe.after_iteration(runner)
    assert math.isinf(probe.seconds) and runner.plan.total_steps == 100_000
    returns.extend([475.0] * 100)
    probe.after_iteration(runner)
    assert probe.seconds >= 0 and math.isfinite(probe.seconds) and runner.plan.total_steps == 7000


def test_growth_and_exponent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import scaling_report

    # 2 MiB per 1e6 steps; the first slice, of the warm-up, must not count
    slices = [[1e5, 1.0, 9.0, 500.0], *([s, 1.0, 5.0, 100 + 2e-6 * s] for s in (2e5, 3e5, 7e5, 1e6))]
    assert scaling_report.growth(slices, 3) == pytest.approx(20.0)
    assert scaling_report.growth(slices, 2) == pytest.approx(0.0, abs=1e-6)
    assert scaling_report.exponent([(2, 3.0), (4, 0.0), (8, 48.0)]) == pytest.approx(2.0)  # 48 = 3 · 4²
