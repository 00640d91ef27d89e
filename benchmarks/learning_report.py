"""Statistics, table and curves of `learning.py`."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from readme import replace_block  # pyright: ignore[reportMissingImports]

from pgtrain.commands.intervals import half_interval

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"
CURVES = ROOT / "docs" / "learning_curves.png"
MOST_SPLITS = 200_000

mean = statistics.fmean


def permutation_test(before: Sequence[float], now: Sequence[float]) -> float:
    """One-sided p-value of "now is no worse than before": how often a random split of all values into such groups
    has a mean of `now` as low as, or lower than, the one seen. Exact for small groups (5 and 5: at least 1/252)."""
    values, size = [*before, *now], len(now)
    seen = sum(now)
    bound = seen + 1e-9 * max(1.0, abs(seen))
    if math.comb(len(values), size) <= MOST_SPLITS:
        sums = [sum(split) for split in itertools.combinations(values, size)]
        return sum(total <= bound for total in sums) / len(sums)
    rng = random.Random(0)
    hits = sum(sum(rng.sample(values, size)) <= bound for _ in range(MOST_SPLITS))
    return (hits + 1) / (MOST_SPLITS + 1)


# -------------------------------------------------------------------------------------------------- table


def table(shown: Sequence[tuple[Any, list[dict[str, Any]]]]) -> str:
    """Markdown, one line a row."""
    heads = ("env", "`pgtrain …`", "steps", "seeds", "return, mean ± 95 % CI", "worst seed", "at least", "published",
             "s a run", "CPU s")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [line(row, results) for row, results in shown]
    return "\n".join(lines)


def line(row: Any, results: list[dict[str, Any]]) -> str:
    summaries = [result["summary"] for result in results]
    finals = [summary["eval_return_mean"] for summary in summaries]
    half = half_interval(finals)
    reached = f"{mean(finals):.1f}" + (f" ± {half:.1f}" if half is not None else "")
    at_least = "" if row.at_least is None else f"{row.at_least:g}{' on each seed' if row.each else ''}"
    if row.at_least is not None:
        met = (min(finals) if row.each else mean(finals)) >= row.at_least
        at_least += ": yes" if met else ": **no**"
    cells = [
        env_of(row), f"`{' '.join(row.overrides)}`", f"{max(s['steps'] for s in summaries):,}",
        f"{len(finals)} of {row.seeds}" if len(finals) < row.seeds else f"{len(finals)}", reached,
        f"{min(finals):.1f}", at_least, row.published,
        f"{statistics.median(s['wall_seconds'] for s in summaries):.0f}",
        f"{statistics.median(s['cpu_seconds'] for s in summaries):.0f}",
    ]  # fmt: skip
    return ("| " + " | ".join(cells) + " |").replace("| -", "| −").replace("  ", " ")


def env_of(row: Any) -> str:
    named = [override.removeprefix("env=") for override in row.overrides if override.startswith("env=")]
    return named[0] if named else row.name.rpartition("/")[2]


def write_table(shown: Sequence[tuple[Any, list[dict[str, Any]]]]) -> None:
    text = table(shown)
    print(text)
    PAGE.write_text(replace_block(PAGE.read_text(encoding="utf-8"), "learning", text), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


# ------------------------------------------------------------------------------------------------- curves


def draw_curves(shown: Sequence[tuple[Any, list[dict[str, Any]]]]) -> None:
    """One panel a row: training return over env steps, each seed thin, their mean thick; a line at the row's bar."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        print("no learning curves: matplotlib is missing: pip install 'pgtrain[plot]'")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = 4
    figure, axes = plt.subplots(
        math.ceil(len(shown) / columns), columns, figsize=(4 * columns, 2.8 * math.ceil(len(shown) / columns)),
        squeeze=False,
    )  # fmt: skip
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    for axis, (row, results) in zip(axes.flat, shown, strict=False):
        curves = [result["curve"] for result in results if result["curve"]]
        for points in curves:
            axis.plot(*zip(*points, strict=True), color="C0", alpha=0.35, linewidth=0.7)
        if curves:
            steps, average = mean_curve(curves)
            axis.plot(steps, average, color="C0", linewidth=1.6)
        if row.at_least is not None:
            axis.axhline(row.at_least, color="0.4", linewidth=0.8, linestyle="--")
        axis.set_title(f"{row.name} ({len(results)} seeds)", fontsize=9)
        axis.tick_params(labelsize=7)
        axis.ticklabel_format(axis="x", style="sci", scilimits=(3, 3))
    figure.supxlabel("environment steps", fontsize=9)
    figure.supylabel("return of training episodes", fontsize=9)
    figure.tight_layout()
    figure.savefig(CURVES, dpi=90, metadata={"Software": None})
    plt.close(figure)
    print(f"wrote {CURVES.relative_to(ROOT)}")


def mean_curve(
    curves: Sequence[Sequence[Sequence[float]]], points: int = 60
) -> tuple[list[float], list[float]]:
    """The mean over seeds on a common grid, from where all have begun to where the first ends."""
    import numpy as np

    low, high = max(c[0][0] for c in curves), min(c[-1][0] for c in curves)
    grid = np.linspace(low, high, points)
    each = [np.interp(grid, [p[0] for p in c], [p[1] for p in c]) for c in curves]
    return grid.tolist(), np.mean(each, 0).tolist()
