"""The laboratory's table and figure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pgtrain.commands.gradients_run import Findings, Line
from pgtrain.learning.gradient_report import Report

WIDE = 108  # columns of a table for a file or a pipe
SLIM = 78
BAR = 9
COLOURS = {"total return": "#c44e52", "reward to go": "#4c72b0", "GAE": "#dd8452", "pathwise": "#55a868"}


def show(findings: Findings) -> None:
    """Prints the table, and what it rests on."""
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    f = findings
    norm = math.sqrt(f.reference.squared_norm)
    truth = "exact" if f.reference.exact else f"from {f.reference.episodes:,} other episodes"
    console.print(
        escape(f"{f.env}: {f.episodes} episodes, {f.steps:,} steps, return {f.mean_return:.4g}; {f.policy}")
    )
    length = f"length {number(norm)}"
    if norm == 0 and not f.reference.exact:
        length = "no longer than their noise (more with reference=)"
    console.print(f"true gradient: {truth}, {length};  critic: {f.critic}")
    console.print(f"SNR and cosine: of a batch of {f.batch} episodes;  ms: of all {f.episodes}")
    console.print(make_table(findings.lines, console.width))
    for reason in reasons(f):
        console.print(reason)
    if f.shares:
        top = sorted(f.shares.items(), key=lambda item: -item[1])[:6]
        console.print(
            "share of the gradient by layer: " + ", ".join(f"{k} {v:.0%}" for k, v in top if v >= 0.005)
        )
    plain = {line.name: line.report for line in f.lines if line.family == "reward to go"}
    if "none" in plain and f.reference.squared_norm > 0:
        scale = plain["none"].variance / f.reference.squared_norm
        console.print(
            f"noise scale: in a batch of {number(scale)} episodes noise equals the signal (reward to go, no baseline)"
        )
    for note in f.notes:
        console.print(escape(note))


def reasons(f: Findings) -> list[str]:
    """Why a number is missing, or has another unit."""
    found = []
    if f.reference.squared_norm == 0:
        why = "is 0" if f.reference.exact else "is lost in its noise"
        found.append(
            f"the true gradient {why}: no direction, so no cosine; bias is a length, not a share of it"
        )
    silent = [line for line in f.lines if line.report.variance == 0 and math.isnan(line.report.snr)]
    if silent:
        found.append("SNR and cosine –, variance 0: these estimates are 0 in every episode played")
    return found


def make_table(lines: list[Line], width: int = WIDE) -> Any:
    """All columns from WIDE on, shortened below, and only the most telling ones below SLIM columns."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    narrow, slim = width < WIDE, width < SLIM
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), collapse_padding=True, pad_edge=False)
    table.add_column("estimator − baseline", no_wrap=not narrow, max_width=27 if narrow else None)
    if not slim:
        table.add_column("log scale" if not narrow else "log", no_wrap=True)
    for name in ("variance", "SNR", "bias") if slim else ("variance", "95 %", "SNR", "cosine", "bias", "ms"):
        table.add_column(name if not narrow else name[:6], justify="right", no_wrap=True)
    bars = bar_lengths([line.report.variance for line in lines])
    family = ""
    for line, length in zip(lines, bars, strict=True):
        if line.family != family:
            family = line.family
            table.add_row(f"[bold]{escape(family)}[/bold]")
        r = line.report
        cells = [
            bar(length, 5 if narrow else BAR), number(r.variance), f"{number(r.low)}–{number(r.high)}", number(r.snr),
            fixed(r.cosine), bias(r), number(line.milliseconds),
        ]  # fmt: skip
        if slim:
            cells = [number(r.variance), number(r.snr), bias(r)]
        style = "red" if "mistake" in line.name else None
        table.add_row(f" {escape(line.name)}", *cells, style=style)
    return table


def bar_lengths(values: list[float]) -> list[float]:
    """Share of a full bar for each value, on a log scale from a third of the least to the largest."""
    finite = [v for v in values if math.isfinite(v) and v > 0]
    if not finite:
        return [0.0 for _ in values]
    low, high = math.log(min(finite) / 3), math.log(max(finite))
    return [(math.log(v) - low) / (high - low) if math.isfinite(v) and v > 0 else 0.0 for v in values]


def bar(share: float, width: int = BAR) -> str:
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def number(x: float) -> str:
    """Three significant digits, short."""
    if math.isnan(x):
        return "–"
    if math.isinf(x):
        return "∞"
    if x != 0 and not 1e-3 <= abs(x) < 1e15:
        mantissa, _, exponent = f"{x:.1e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(x) >= 0.9995 * size:
            return f"{x / size:.3g}{unit}" if abs(x) < 999.5 * size else f"{x / size:.0f}{unit}"
    return f"{x:.3g}"


def fixed(x: float) -> str:
    return "–" if math.isnan(x) else f"{x:.3f}"


def bias(r: Report) -> str:
    if math.isnan(r.bias):
        return "–"
    share = r.bias if r.biased else max(r.bias_limit, 1e-4 if r.relative else 0.0)
    text = f"{100 * share:.2g}%" if share < 1 else f"{share:.2g}×"
    text = text if r.relative else number(share)
    return text if r.biased else f"<{text}"


# ----------------------------------------------------------------------------------------------------- figure


def draw(findings: Findings, path: Path) -> str | None:
    """Writes the figure; returns what is to be told where it cannot."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return "no figure: matplotlib is missing: pip install 'pgtrain[plot]'"
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = findings.lines
    rows, gaps = positions(lines)
    figure, axes = plt.subplots(
        1, 3, figsize=(11, 1.6 + 0.27 * (max(rows) + 1)), sharey=True, width_ratios=[2.2, 1, 1],
        layout="constrained",
    )  # fmt: skip
    _variance_panel(axes[0], lines, rows)
    _cosine_panel(axes[1], lines, rows, findings.batch)
    _bias_panel(axes[2], lines, rows)
    axes[0].set_yticks(rows, [line.name for line in lines], fontsize=9)
    axes[0].set_ylim(max(rows) + 0.7, -1.4)
    for family, y in gaps:
        axes[0].text(
            -0.02, y, family, transform=axes[0].get_yaxis_transform(), ha="right", va="center", fontsize=9,
            fontweight="bold", color=COLOURS[family],
        )  # fmt: skip
    for axis in axes:
        axis.grid(axis="x", color="0.9", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
    truth = "exact" if findings.reference.exact else f"from {findings.reference.episodes:,} other episodes"
    figure.suptitle(
        f"Gradient estimators on {findings.env}: {findings.episodes} episodes, true gradient {truth}",
        fontsize=11,
    )
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        return f"no figure: {path} cannot be written: {error.strerror}"
    finally:
        plt.close(figure)
    return None


def positions(lines: list[Line]) -> tuple[list[float], list[tuple[str, float]]]:
    """Where each line goes, with room for a heading above each family."""
    rows, gaps, y, family = [], [], -1.0, ""
    for line in lines:
        if line.family != family:
            family = line.family
            y += 0.25 if rows else 0.0
            gaps.append((family, y))
            y += 1
        rows.append(y)
        y += 1
    return rows, gaps


def _variance_panel(axis: Any, lines: list[Line], rows: list[float]) -> None:
    values = [line.report.variance for line in lines]
    finite = [v for v in values if math.isfinite(v) and v > 0]
    axis.set_title("variance of one episode's gradient, 95 % interval", fontsize=9)
    if not finite:
        return
    axis.set_xscale("log")
    lows = [
        line.report.low for line in lines if line.report.low > 0
    ]  # few episodes: an interval may reach to 0
    left = min([*lows, *finite]) / 1.6
    for line, y in zip(lines, rows, strict=True):
        r, colour = line.report, COLOURS[line.family]
        if r.variance == 0:
            axis.text(left * 1.02, y, "0", va="center", fontsize=8, color="0.25")
        if not (math.isfinite(r.variance) and r.variance > 0):
            continue
        mistake = "mistake" in line.name
        axis.barh(y, r.variance - left, left=left, height=0.7, color=colour, alpha=0.35 if mistake else 0.85,
                  hatch="///" if mistake else None, edgecolor=colour if mistake else "none")  # fmt: skip
        axis.plot([max(r.low, left), r.high], [y, y], color="0.15", linewidth=1.3)
        axis.text(
            max(r.high, r.variance) * 1.06, y, number(r.variance), va="center", fontsize=8, color="0.25"
        )
    highs = [line.report.high for line in lines if math.isfinite(line.report.high)]
    axis.set_xlim(left, max([*highs, *finite]) * 2.2)


def _cosine_panel(axis: Any, lines: list[Line], rows: list[float], batch: int) -> None:
    axis.set_title(f"cosine to the true gradient,\nbatches of {batch} episodes", fontsize=9)
    for line, y in zip(lines, rows, strict=True):
        x = line.report.cosine
        if math.isfinite(x):
            axis.plot([0.0, x], [y, y], color=COLOURS[line.family], alpha=0.35, linewidth=1.5)
            axis.plot(x, y, "o", color=COLOURS[line.family], markersize=5)
    if all(math.isnan(line.report.cosine) for line in lines):
        axis.text(0.5, 0.5, "no direction", transform=axis.transAxes, ha="center", fontsize=9, color="0.4")
    axis.axvline(1, color="0.6", linewidth=0.8, linestyle=":")
    low = min([line.report.cosine for line in lines if math.isfinite(line.report.cosine)] + [0.0])
    axis.set_xlim(low - 0.06, 1.06)


def _bias_panel(axis: Any, lines: list[Line], rows: list[float]) -> None:
    relative = all(line.report.relative for line in lines)
    unit = "share of its length" if relative else "a length"
    axis.set_title(f"bias, {unit}\n(light: what noise could hide)", fontsize=9)
    top = 0.0
    for line, y in zip(lines, rows, strict=True):
        r = line.report
        if not (math.isfinite(r.bias_limit) and math.isfinite(r.bias)):
            continue
        axis.barh(y, r.bias_limit, height=0.7, color="0.88")
        top = max(top, r.bias_limit, r.bias if r.biased else 0.0)
        if r.biased:
            axis.plot(r.bias, y, "D", color=COLOURS[line.family], markersize=5.5)
    axis.set_xlim(0, top * 1.08 or 1)
