"""What a study (`+experiment=study/…`) ends with: report.md and report.png, from the records of the sweep's runs.

Runs that differ in their seed alone are one row of the table and one curve with a band. The gradient's variance grows
with the returns, so that settings are compared where their policies earn alike, not after as many steps.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pgtrain.commands.intervals import half_interval
from pgtrain.commands.sweep_report import Record, read_summary, shared_overrides, unescaped
from pgtrain.monitor.record import atomic_write

POINTS = 60  # of a curve
WIDTH = 1 / 12  # of the window that smooths a curve, as a share of its length

Array = np.ndarray


class Run(NamedTuple):
    """One seed."""

    final: float  # return of the final evaluation, nan without one
    steps: Array  # of the learning curve
    returns: Array
    earned: Array  # the iteration's own mean return, where its gradient was measured
    variance: Array
    snr: Array


class Arm(NamedTuple):
    """The runs of one setting."""

    name: str
    runs: list[Run]

    def height(self) -> list[float]:
        """The mean height of each run's learning curve: how early it rose."""
        return [float(run.returns.mean()) for run in self.runs if len(run.returns)]


class Curve(NamedTuple):
    """Mean over runs and half its 95 % interval, on a grid; nan where it is not known."""

    grid: Array
    mean: Array
    half: Array

    def level(self) -> float:
        """The mean height; nan of an empty curve."""
        return float(self.mean.mean()) if len(self.mean) else math.nan


NOWHERE = Curve(*np.zeros((3, 0)))


def write_report(folder: Path, records: Sequence[Record], title: str) -> list[str]:
    """Writes the report; the lines that tell of it."""
    key, arms = collect(records)
    if not arms:
        return ["no report: no run of the study ended"]
    problem = draw(key, arms, folder / "report.png", title)
    atomic_write(folder / "report.md", markdown(key, arms, title, figure=problem is None))
    return [f"report in {folder / 'report.md'}", *([problem] if problem else [])]


# ------------------------------------------------------------------------------------------------------- records


def collect(records: Sequence[Record]) -> tuple[str, list[Arm]]:
    """What the runs differ in but for the seed, and the runs by it, best learning curve first; failed ones are left
    out."""
    shared = shared_overrides(records)
    found: dict[tuple[str, ...], list[Run]] = {}
    for record in records:
        own = tuple(t for t in record.overrides if t not in shared and not t.startswith("seed="))
        summary = read_summary(record.folder)
        if record.error is None and summary.get("status") == "finished":
            found.setdefault(own, []).append(_read(record.folder, summary))
    keys = {tuple(text.partition("=")[0] for text in own) for own in found}
    if len(keys) == 1 and len(key := next(iter(keys))) == 1:
        arms = [Arm(unescaped(own).partition("=")[2], runs) for own, runs in found.items()]
        return key[0], _ranked(arms)
    return "setting", _ranked([Arm(unescaped(own) or "all runs", runs) for own, runs in found.items()])


def _ranked(arms: list[Arm]) -> list[Arm]:
    return sorted(arms, key=lambda arm: -(_mean(arm.height()) if arm.height() else -math.inf))


def _read(folder: Path, summary: dict[str, Any]) -> Run:
    try:
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    except (OSError, ValueError):
        rows = []
    final = summary.get("eval_return_mean")
    final = summary.get("return_mean") if final is None else final
    curve = _columns(rows, "progress/steps", "episode/return_100")
    gradient = _columns(rows, "episode/return", "gradient/variance", "gradient/snr")
    return Run(math.nan if final is None else float(final), *curve, *gradient)


def _columns(rows: Sequence[dict[str, Any]], *tags: str) -> list[Array]:
    """These metrics, of the rows that have them all."""
    there = [[row[tag] for tag in tags] for row in rows if all(row.get(tag) is not None for tag in tags)]
    return list(np.array(there, np.float64).reshape(-1, len(tags)).T)


# ------------------------------------------------------------------------------------------------------- numbers


def local_line(x: Array, y: Array, grid: Array, width: float) -> Array:
    """Least squares lines through y(x), each weighing points by a Gaussian around its place of the grid; nan outside
    of what x spans. Source: Cleveland 1979."""
    if not len(x):
        return np.full(len(grid), np.nan)
    far = x[None] - grid[:, None]
    weight = np.exp(-0.5 * (far / max(width, 1e-12)) ** 2) + 1e-12
    s0, s1, s2 = weight.sum(1), (weight * far).sum(1), (weight * far * far).sum(1)
    t0, t1 = weight @ y, (weight * far) @ y
    determinant = s0 * s2 - s1 * s1
    flat = determinant <= 1e-9 * s0 * s2
    line = (s2 * t0 - s1 * t1) / np.where(flat, 1, determinant)
    return np.where((grid < x.min()) | (grid > x.max()), np.nan, np.where(flat, t0 / s0, line))


def curve_over(grid: Array, lines: Sequence[Array]) -> Curve:
    """Where more than half the runs are there: the others' absence would bend the mean."""
    values = np.array(lines).reshape(-1, len(grid))
    known = np.isfinite(values)
    mean, half = np.full(len(grid), np.nan), np.full(len(grid), np.nan)
    for i in np.flatnonzero(2 * known.sum(0) > len(values)):
        here = values[known[:, i], i].tolist()
        mean[i] = _mean(here)
        half[i] = half_interval(here) or 0.0
    return Curve(grid, mean, half)


def learning_curve(arm: Arm) -> Curve:
    """Returns over steps, on the steps that all runs have."""
    runs = [run for run in arm.runs if len(run.steps)]
    if not runs:
        return NOWHERE
    low, high = max(run.steps[0] for run in runs), min(run.steps[-1] for run in runs)
    grid = np.linspace(low, high, POINTS)
    return curve_over(grid, [np.interp(grid, run.steps, run.returns) for run in runs])


def at_like_returns(arms: Sequence[Arm], key: str) -> list[Curve]:
    """log variance (or SNR) over returns, on the returns that most runs of all arms have been at."""
    spans = [
        [(run.earned.min(), run.earned.max()) for run in arm.runs if len(run.earned) > 1] for arm in arms
    ]
    if not all(spans):
        return [NOWHERE for _ in arms]
    low = max(statistics.median(a for a, _ in span) for span in spans)
    high = min(statistics.median(b for _, b in span) for span in spans)
    grid = np.linspace(low, max(high, low), POINTS)
    width = WIDTH * max(high - low, 1e-9)
    curves = []
    for arm in arms:
        measured = [(run.earned, run.snr if key == "snr" else _log(run.variance)) for run in arm.runs]
        curves.append(curve_over(grid, [local_line(x, y, grid, width) for x, y in measured]))
    everywhere = np.isfinite([curve.mean for curve in curves]).all(0)
    return [Curve(*(x[everywhere] for x in curve)) for curve in curves]


def _log(x: Array) -> Array:
    return np.log(np.maximum(x, 1e-30))


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


# --------------------------------------------------------------------------------------------------------- table


def markdown(key: str, arms: Sequence[Arm], title: str, figure: bool) -> str:
    variances, snrs = at_like_returns(arms, "variance"), at_like_returns(arms, "snr")
    levels = [math.exp(curve.level()) for curve in variances]
    least = min((v for v in levels if math.isfinite(v)), default=math.nan)
    lines = [f"# {title}", ""]
    lines += ["![learning curves and gradient variance](report.png)", ""] if figure else []
    lines += [
        f"| {key} | seeds | final return | mean return on the way | gradient variance | x the least | SNR |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, level, variance, snr in zip(arms, levels, variances, snrs, strict=True):
        cells = [
            f"`{arm.name}`", len(arm.runs), with_interval([run.final for run in arm.runs]), with_interval(arm.height()),
            _ranged(level, variance), number(level / least), number(snr.level()),
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    grid = variances[0].grid
    lines += [
        "",
        "Means over seeds with 95 % intervals (Student's t). Final return: of the evaluation at the end. Mean return "
        "on the way: the height of the learning curve, by which the rows are sorted. Variance of one episode's "
        "gradient (geometric mean) and SNR of an iteration's: where the policies earn alike, "
        + (f"from {grid[0]:.4g} to {grid[-1]:.4g}" if len(grid) else "which they nowhere do")
        + ", as both depend on the policy above all.",
        "",
    ]
    return "\n".join(lines)


def with_interval(values: Sequence[float]) -> str:
    """`429.8 ± 39.8`; one value alone has no interval."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return "–"
    half = half_interval(known)
    return f"{_mean(known):.1f}" + ("" if half is None else f" ± {half:.1f}")


def _ranged(level: float, curve: Curve) -> str:
    """The level of a curve of logarithms, and the factor within which it is known."""
    if not math.isfinite(level):
        return "–"
    half = float(curve.half.mean())
    return f"{number(level)} ×/÷ {math.exp(half):.2f}" if half > 0 else number(level)


def number(x: float) -> str:
    return "–" if math.isnan(x) else f"{x:.3g}"


# ------------------------------------------------------------------------------------------------------- figure


def draw(key: str, arms: Sequence[Arm], path: Path, title: str) -> str | None:
    """Learning curves and gradient variance; returns what is to be told where it cannot."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return "no figure: matplotlib is missing: pip install 'pgtrain[plot]'"
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for i, (arm, variance) in enumerate(zip(arms, at_like_returns(arms, "variance"), strict=True)):
        _band(left, learning_curve(arm), arm.name, f"C{i}")
        _band(right, variance, arm.name, f"C{i}", np.exp)
    left.set(xlabel="environment steps", title="return, last 100 episodes")
    left.ticklabel_format(axis="x", style="sci", scilimits=(3, 3))
    left.legend(fontsize=8, frameon=False, title=key, title_fontsize=8)
    right.set(xlabel="return of the iteration", yscale="log", title="variance of one episode's gradient")
    for axis in (left, right):
        axis.title.set_fontsize(10)
        axis.grid(color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{title}: mean over seeds, 95 % interval", fontsize=11)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return None


def _band(axis: Any, curve: Curve, name: str, colour: str, scale: Any = np.asarray) -> None:
    axis.plot(curve.grid, scale(curve.mean), color=colour, label=name, linewidth=1.6)
    low, high = scale(curve.mean - curve.half), scale(curve.mean + curve.half)
    axis.fill_between(curve.grid, low, high, color=colour, alpha=0.18, linewidth=0)
