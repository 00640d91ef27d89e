"""What a sweep ends with: a table of its runs, and the failed ones by name."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pgtrain.faults import short_path


@dataclasses.dataclass
class Record:
    """One run that ended."""

    overrides: list[str]
    folder: Path
    error: str | None = None  # None: it didn't fail


def report(records: Sequence[Record], planned: int | None, interrupted: bool = False) -> None:
    """The table at the end, and the failed runs by name."""
    shared = shared_overrides(records)
    if records:
        print()
        _print_table(records, shared)
    failed = [(number, record) for number, record in enumerate(records, 1) if record.error is not None]
    if interrupted:
        total = "" if planned is None else f" of {planned}"
        print(f"pgtrain: the sweep was interrupted, {len(records)}{total} runs had started", file=sys.stderr)
    if failed:
        print(f"pgtrain: {len(failed)} of {len(records)} runs failed:", file=sys.stderr)
    for number, record in failed:
        print(f"  run {number} ({own_overrides(record, shared)}): {record.error}", file=sys.stderr)


def _print_table(records: Sequence[Record], shared: Sequence[str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    title = "runs of the sweep" + (f", all with {unescaped(shared)}" if shared else "")
    table = Table(title=escape(title), title_justify="left")
    for column in ("#", "overrides", "status", "return", "folder"):
        table.add_column(column, overflow="fold")
    for number, record in enumerate(records, 1):
        summary = read_summary(record.folder)
        status = "failed" if record.error is not None else str(summary.get("status", "interrupted"))
        name, folder = own_overrides(record, shared), short_path(record.folder)
        cells = [str(number), name, status, shown_return(summary), folder]
        table.add_row(*map(escape, cells), style="red" if record.error is not None else None)
    console = Console()
    if not console.is_terminal:  # a file or a pipe has room
        console = Console(width=1000)
    console.print(table)


def shared_overrides(records: Sequence[Record]) -> list[str]:
    """What several runs have in common."""
    if len(records) < 2:
        return []
    return [text for text in records[0].overrides if all(text in record.overrides for record in records)]


def own_overrides(record: Record, shared: Sequence[str]) -> str:
    return unescaped(text for text in record.overrides if text not in shared) or "(no override of its own)"


def unescaped(overrides: Iterable[str]) -> str:
    """Overrides as the user wrote them: Hydra hands out `env=my_pkg\\:MyEnv-v0`."""
    return re.sub(r"\\(.)", r"\1", " ".join(overrides))


def read_summary(folder: Path) -> dict[str, Any]:
    """A run's summary.json; empty if it didn't get that far."""
    try:
        return json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def shown_return(summary: dict[str, Any]) -> str:
    """`482.1 ± 30.2 (final evaluation)`."""
    for key, source in (("eval_return", "final evaluation"), ("return", "training")):
        mean, std = summary.get(key + "_mean"), summary.get(key + "_std")
        if mean is not None:
            return f"{mean:.1f}" + (f" ± {std:.1f}" if std is not None else "") + f" ({source})"
    return "-"
