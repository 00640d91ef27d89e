"""The plot and the table of what `scaling.py` measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from readme import replace_block

FAR = 1e7  # steps that growth is given for
INK, GRID = "#333333", "#dddddd"


def growth(slices: list[list[float]], column: int) -> float:
    """Slope of the line through the slices but the first, times `FAR`: what 1e7 steps would add."""
    table = np.array(slices)[1:]
    return float(np.polyfit(table[:, 0], table[:, column], 1)[0]) * FAR


def exponent(pairs: list[tuple[float, float]]) -> float:
    """b of the power law y = a·xᵇ through two points: the first and the last."""
    (x0, y0), (x1, y1) = pairs[0], pairs[-1]
    return math.log(y1 / y0) / math.log(x1 / x0)


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    lines = [
        "| run | CPU per step, second tenth → last | memory, second tenth → last | slope, per 1e7 steps "
        "| run folder, of one a tenth as long → of this |",
        "|---|---|---|---|---|",
    ]
    for name, runs in found["length"].items():
        slices = runs["long"]["slices"]
        (_, ms, first, before), (_, _, last, after) = slices[1], slices[-1]
        kib = runs["short"]["bytes"] / 1024, runs["long"]["bytes"] / 1024
        lines.append(
            f"| {name}, {runs['long']['steps']:,} steps, {ms:.1f} ms an iteration | {first:.1f} → {last:.1f} µs "
            f"| {before:.0f} → {after:.0f} MiB | {growth(slices, 3):+.0f} MiB "
            f"| {kib[0]:,.0f} KiB, {runs['short']['entries']} entries → {kib[1]:,.0f} KiB, {runs['long']['entries']} |"
        )
    envs, rows = found["envs"], found["rows"]
    steps = [f"{1e6 * seconds / 32:,.0f}" for _, seconds in envs]
    lines += [
        "",
        "A vector step (act, env, store; the rollout's tensors shared out) with "
        f"{', '.join(f'{n:,}' for n, _ in envs)} envs takes {', '.join(steps)} µs: "
        f"{1e6 * envs[0][1] / 32:.0f} µs per env step with one env, "
        f"{1e6 * envs[-1][1] / 32 / envs[-1][0]:.2f} with {envs[-1][0]:,}.",
        "",
        f"An update of 4 epochs over {rows[0][0]:,} … {rows[-1][0]:,} rows grows with rows^"
        f"{exponent([(r[0], r[1]) for r in rows]):.2f} in minibatches of 256 "
        f"({1e6 * rows[0][1] / rows[0][0] / 4:.2f} → {1e6 * rows[-1][1] / rows[-1][0] / 4:.2f} µs a row and pass), "
        f"with rows^{exponent([(r[0], r[2]) for r in rows]):.2f} as one batch "
        f"({1e6 * rows[0][2] / rows[0][0] / 4:.2f} → {1e6 * rows[-1][2] / rows[-1][0] / 4:.2f}).",
        "",
        f"`make bench-scaling`, {found['date']}: native CartPole, one thread. {found['versions']}.",
    ]
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """Four panels: time and memory along a run, time over envs and over rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), dpi=110)
    time_axis, memory_axis, env_axis, row_axis = axes.ravel()
    for name, runs in found["length"].items():
        slices = np.array(runs["long"]["slices"])
        time_axis.plot(slices[:, 0] / 1e6, slices[:, 2], "o-", label=name, markersize=4)
        memory_axis.plot(slices[:, 0] / 1e6, slices[:, 3], "o-", label=name, markersize=4)
    _label(time_axis, "CPU time along a run", "million env steps", "µs per env step")
    _label(memory_axis, "Memory along a run", "million env steps", "resident MiB")
    for axis in (time_axis, memory_axis):
        axis.set_ylim(0, 1.25 * axis.get_ylim()[1])  # room for the legend
    n, seconds = np.array(found["envs"]).T
    per_step = 1e6 * seconds / 32 / n
    env_axis.loglog(n, per_step, "o-", label="measured", markersize=4)
    env_axis.loglog(n, per_step[0] / n, "--", color="grey", label="free envs (slope −1)")
    env_axis.loglog(
        n, np.full(len(n), per_step[0]), ":", color="grey", label="no gain from batching (slope 0)"
    )
    _label(env_axis, "Collecting, by number of envs", "envs", "µs per env step")
    rows, small, whole = np.array(found["rows"]).T
    row_axis.loglog(rows, 1e3 * small, "o-", label="minibatches of 256", markersize=4)
    row_axis.loglog(rows, 1e3 * whole, "o-", label="one batch", markersize=4)
    row_axis.loglog(rows, 1e3 * small[-1] * rows / rows[-1], "--", color="grey", label="linear")
    _label(row_axis, "Update of 4 epochs, by rows", "rows", "ms")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _label(axis: Any, title: str, x: str, y: str) -> None:
    axis.set_title(title, color=INK, loc="left")
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(color=GRID, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)


def report(found: dict[str, Any], root: Path) -> None:
    page = root / "docs" / "performance.md"
    text = replace_block(page.read_text(encoding="utf-8"), "scaling", table(found))
    page.write_text(text, encoding="utf-8")
    draw(found, root / "docs" / "scaling.png")
    print(table(found))
