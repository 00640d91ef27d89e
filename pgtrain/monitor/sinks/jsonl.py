"""`metrics.jsonl`: one JSON object an entry (`monitor.log_every`), for pandas, jq and later plots."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgtrain.monitor.monitor import RunInfo, Sink
from pgtrain.monitor.record import json_ready

# made once (`json.dumps` with options makes one a call); a row of numbers holds no circle to look for
_encode = json.JSONEncoder(allow_nan=False, check_circular=False).encode


class JsonlSink(Sink):
    """Writes `step`, `elapsed` (seconds since the start, without pauses) and the metrics under their tags.

    Every line is strict JSON: a number that is NaN, infinite or does not apply is null. A line leaves the
    process as soon as it is logged, so that a killed run keeps its curve. A resumed run appends.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.path = Path(run_dir) / "metrics.jsonl"
        self._file = None

    def start(self, info: RunInfo) -> None:
        self._started = time.perf_counter() - info.start_seconds
        cut = _ends_mid_line(self.path)
        self._file = self.path.open("a", encoding="utf-8")
        if cut:
            self._file.write("\n")

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        if self._file is None:
            raise RuntimeError("log() before start()")
        row: dict[str, Any] = {
            "step": step,
            "elapsed": round(time.perf_counter() - self._started, 3),
            **metrics,
        }
        try:
            line = _encode(row)
        except ValueError:  # a NaN or infinity: rare, so that looking for them each time would cost more
            line = _encode(json_ready(row))
        self._file.write(line + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def cut_after(run_dir: str | Path, step: int) -> int:
    """Moves entries of steps after `step` to the end of `metrics.discarded.jsonl`; how many there were.

    A resumed run makes those steps anew. What comes before stays, byte for byte; steps never go down in the file. The
    half line that a kill may leave at the end is of a step that no checkpoint has: it is taken away.
    """
    path = Path(run_dir) / "metrics.jsonl"
    if not path.exists():
        return 0
    kept = 0
    with path.open("r+b") as file:
        for line in file:
            if _step_of(line) > step or not line.endswith(b"\n"):
                break
            kept += len(line)
        file.seek(kept)
        rest = file.read().rpartition(b"\n")
        if rest[1]:
            with (path.parent / "metrics.discarded.jsonl").open("ab") as aside:
                aside.write(rest[0] + rest[1])
                aside.flush()
                os.fsync(aside.fileno())
        file.truncate(kept)
    return (rest[0] + rest[1]).count(b"\n")


def _step_of(line: bytes) -> float:
    """The step of an entry; -1 for a line that is none."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return -1.0


def _ends_mid_line(path: Path) -> bool:
    """Whether a killed run left half a line at the end of the file."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() != b"\n"
