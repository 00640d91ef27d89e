"""The table and the curves of docs/pathwise.md, from the rows of benchmarks/results/pathwise.jsonl."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import readme  # beside this file  # pyright: ignore[reportMissingImports]

SHARE = 0.95
RECIPES = {"shac": "C1", "ppo": "C0"}  # and their colours
Row = dict[str, Any]


def goal(rows: list[Row]) -> float:
    """start + 0.95 (best seed of PPO's final return − start): 95 % of the way; returns may be negative.

    The best seed's, as a mean over seeds of which some never learned the task asks for nothing.
    """
    start = statistics.mean(row["curve"][0][1] for row in rows)
    final = max(row["final"] for row in rows if row["algo"] == "ppo")
    return start + SHARE * (final - start)


def steps_to(row: Row, level: float) -> int | None:
    """Env steps at the first evaluation that reaches `level`."""
    return next((steps for steps, value in row["curve"] if value >= level), None)


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def table(rows: list[Row]) -> str:
    lines = [
        "| task | recipe | seeds | env steps | final return | CPU seconds | env steps to 95 %: median (min … max) |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in dict.fromkeys(row["task"] for row in rows if row["task"] != "lqr"):
        of_task = [row for row in rows if row["task"] == task]
        if not any(row["algo"] == "ppo" for row in of_task):
            continue
        level = goal(of_task)
        medians: dict[str, float] = {}
        for algo in RECIPES:
            found = [row for row in of_task if row["algo"] == algo]
            if not found:
                continue
            reached = [steps for row in found if (steps := steps_to(row, level)) is not None]
            text = f"in none of {len(found)}"
            if reached:
                medians[algo] = statistics.median(reached)
                missed = f", not in {len(found) - len(reached)}" if len(reached) < len(found) else ""
                text = f"{medians[algo]:,.0f} ({min(reached):,} … {max(reached):,}{missed})"
            cpu = statistics.mean(row["cpu_seconds"] for row in found)
            lines.append(
                f"| {task} | `{algo}` | {len(found)} | {found[0]['steps']:,} | {spread([r['final'] for r in found])} "
                f"| {cpu:.0f} | {text} |"
            )
        if len(medians) > 1 and "ppo" in medians:
            ratio = medians["ppo"] / medians["shac"]
            lines.append(f"| | | | | 95 % is {level:.1f} | | PPO takes {ratio:.1f} times SHAC's steps |")
    lqr = [row for row in rows if row["task"] == "lqr"]
    if lqr:
        steps = [next(s for s, error in row["curve"] if error < 0.01) for row in lqr]
        lines += [
            "",
            f"LQR (two carts, γ = 0.95): backpropagation through 100 steps brings the gain within "
            f"{100 * max(row['final'] for row in lqr):.2f} % of the optimal one in {lqr[0]['steps']:,} env steps "
            f"({len(lqr)} seeds), below 1 % after {statistics.median(steps):,.0f}.",
        ]
    return "\n".join(lines)


def curves(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(row["task"] for row in rows if row["task"] != "lqr"))
    figure, axes = plt.subplots(1, len(tasks), figsize=(4.2 * len(tasks), 3.2), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        of_task = [row for row in rows if row["task"] == task]
        for algo, color in RECIPES.items():
            for i, row in enumerate(row for row in of_task if row["algo"] == algo):
                points = [(max(steps, 500), value) for steps, value in row["curve"]]
                axis.plot(
                    *zip(*points, strict=True),
                    color=color,
                    alpha=0.6,
                    linewidth=0.9,
                    label=algo if not i else None,
                )
        if any(row["algo"] == "ppo" for row in of_task):
            level, start = goal(of_task), of_task[0]["curve"][0][1]
            axis.axhline(level, color="0.5", linewidth=0.8, linestyle="--")
            axis.set_ylim(
                start - 0.5 * (level - start), level + 0.2 * (level - start)
            )  # one run goes far below
        axis.set_xscale("log")
        axis.set_title(task)
        axis.set_xlabel("env steps")
        axis.legend(frameon=False)
    axes[0][0].set_ylabel("greedy return")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def write(rows: list[Row], docs: Path) -> None:
    page = docs / "pathwise.md"
    page.write_text(
        readme.replace_block(page.read_text(encoding="utf-8"), "learning", table(rows)), encoding="utf-8"
    )
    curves(rows, docs / "pathwise.png")
    print(table(rows))
