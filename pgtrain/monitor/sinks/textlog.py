"""`run.log`: the run's messages with time stamps."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pgtrain.monitor.monitor import RunInfo, Sink


class TextLogSink(Sink):
    """One line a message, `2025-01-31 12:00:00 WARNING text`; begins and ends with what run this is."""

    def __init__(self, run_dir: str | Path) -> None:
        self.path = Path(run_dir) / "run.log"
        self._file = None

    def start(self, info: RunInfo) -> None:
        verb = f"resume at step {info.start_step:,}" if info.start_step else "start"
        self.message(
            f"{verb}: {info.algo} on {info.env_id}, seed {info.seed}, {info.total_steps:,} steps, "
            f"{info.num_envs} envs, {info.device}, {info.parameters}",
            "info",
        )

    def message(self, text: str, level: str) -> None:
        if self._file is None:  # opened by what comes first: a run that fails before its start tells why, too
            self._file = self.path.open("a", encoding="utf-8", errors="replace")
        stamp = datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        self._file.write(f"{stamp} {level.upper():7} {text}\n")
        self._file.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.message(f"end: {summary.get('status', 'unknown')} at step {summary.get('steps', 0):,}", "info")
        if summary.get("error"):
            self.message(f"the run failed: {summary['error']}", "error")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
