"""What a study (`+experiment=study/…`) ends with: report.md and report.png, from the records of the sweep's runs.

Runs that differ in their seed alone are one row of the table and one curve with a band.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pgtrain.commands.sweep_report import Record, read_summary, shared_overrides, unescaped
from pgtrain.monitor.record import atomic_write

POINTS = 60  # of a curve


class Arm(NamedTuple):
    """The runs of one setting."""

    name: str
    returns: list[float]  # of the final evaluations
    curves: dict[str, list[list[tuple[float, float]]]]  # metric → (steps, value) of each run


METRICS = {"return": "episode/return_100", "variance": "gradient/variance", "snr": "gradient/snr"}


def write_report(folder: Path, records: Sequence[Record], title: str) -> list[str]:
    """Writes the report; the lines that tell of it."""
    arms = collect(records)
    if not arms:
        return ["no report: no run of the study ended"]
    problem = draw(arms, folder / "report.png", title)
    atomic_write(folder / "report.md", markdown(arms, title, figure=problem is None))
    return [f"report in {folder / 'report.md'}", *([problem] if problem else [])]


def collect(records: Sequence[Record]) -> list[Arm]:
    """Runs by what they differ in but for the seed, in the order in which they ran; failed ones are left out."""
    shared = shared_overrides(records)
    arms: dict[str, Arm] = {}
    for record in records:
        own = [text for text in record.overrides if text not in shared and not text.startswith("seed=")]
        name = unescaped(own) or "all runs"
        summary = read_summary(record.folder)
        if record.error is not None or summary.get("status") != "finished":
            continue
        arm = arms.setdefault(name, Arm(name, [], {key: [] for key in METRICS}))
        value = summary.get("eval_return_mean")
        value = summary.get("return_mean") if value is None else value
        arm.returns.append(math.nan if value is None else float(value))
        rows = _rows(record.folder / "metrics.jsonl")
        for key, tag in METRICS.items():
            points = [(row["progress/steps"], row[tag]) for row in rows if row.get(tag) is not None]
            arm.curves[key].append(points)
    return list(arms.values())


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []


# ------------------------------------------------------------------------------------------------------ numbers


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error over seeds; nan where there is nothing to tell."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return math.nan, math.nan
    error = statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else math.nan
    return statistics.fmean(known), error


def median_of(points: Sequence[tuple[float, float]]) -> float:
    return statistics.median(y for _, y in points) if points else math.nan


def average(points: Sequence[tuple[float, float]]) -> float:
    """The mean height of a curve: how early it rose."""
    return statistics.fmean(y for _, y in points) if points else math.nan


def markdown(arms: Sequence[Arm], title: str, figure: bool) -> str:
    lines = [f"# {title}", ""]
    lines += ["![learning curves and gradient variance](report.png)", ""] if figure else []
    lines += [
        "| setting | seeds | final return | mean return on the way | gradient variance | gradient SNR |",
        "|---|---|---|---|---|---|",
    ]
    for arm in arms:
        final = shown(*mean_and_error(arm.returns))
        way = shown(*mean_and_error([average(c) for c in arm.curves["return"]]))
        variance = mean_and_error([median_of(c) for c in arm.curves["variance"]])[0]
        snr = mean_and_error([median_of(c) for c in arm.curves["snr"]])[0]
        lines.append(
            f"| `{arm.name}` | {len(arm.returns)} | {final} | {way} | {_number(variance)} | {_number(snr)} |"
        )
    lines += [
        "",
        "Final return: of the evaluation at the end; mean return on the way: the height of the learning curve. Both "
        "are means over seeds ± standard error. Variance (of one episode's gradient) and SNR (of an iteration's): "
        "the median of a run, then the mean over seeds; they are those of the policies that each setting has led to, "
        "so only the first measurements are of like policies.",
        "",
    ]
    return "\n".join(lines)


def shown(mean: float, error: float) -> str:
    if math.isnan(mean):
        return "–"
    return f"{mean:.1f}" + ("" if math.isnan(error) else f" ± {error:.1f}")


def _number(x: float) -> str:
    return "–" if math.isnan(x) else f"{x:.3g}"


# ------------------------------------------------------------------------------------------------------- figure


def draw(arms: Sequence[Arm], path: Path, title: str) -> str | None:
    """Learning curves and gradient variance; returns what is to be told where it cannot."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return "no figure: matplotlib is missing: pip install 'pgtrain[plot]'"
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for axis, key, label in zip(
        axes, ("return", "variance"), ("return, last 100 episodes", "variance of one episode's gradient"), strict=True
    ):  # fmt: skip
        for i, arm in enumerate(arms):
            _band(axis, [c for c in arm.curves[key] if len(c) > 1], arm.name, f"C{i}", log=key == "variance")
        axis.set_xlabel("environment steps")
        axis.set_title(label, fontsize=10)
        axis.grid(color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
        axis.ticklabel_format(axis="x", style="sci", scilimits=(3, 3))
    axes[1].set_yscale("log")
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(f"{title}: mean over seeds ± standard error", fontsize=11)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return None


def _band(axis: Any, curves: Sequence[Any], name: str, colour: str, log: bool) -> None:
    """The mean of the curves on a common grid, and its standard error; of logarithms for a log scale."""
    import numpy as np

    if not curves:
        return
    low, high = max(c[0][0] for c in curves), min(c[-1][0] for c in curves)
    grid = np.linspace(low, high, POINTS)
    values = []
    for curve in curves:
        steps, y = np.array(curve, np.float64).T
        y = np.log(np.maximum(y, 1e-12)) if log else y
        width = max(1, len(y) // (15 if log else POINTS))  # single measurements of a variance are noisy
        smooth = np.convolve(np.pad(y, width, mode="edge"), np.ones(2 * width + 1) / (2 * width + 1), "valid")
        values.append(np.interp(grid, steps, smooth))
    mean = np.mean(values, 0)
    error = np.std(values, 0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0 * mean
    transform = np.exp if log else (lambda x: x)
    axis.plot(grid, transform(mean), color=colour, label=name, linewidth=1.6)
    axis.fill_between(
        grid, transform(mean - error), transform(mean + error), color=colour, alpha=0.18, linewidth=0
    )
