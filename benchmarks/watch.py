"""A training run with a callback of a benchmark's own, in a folder that is removed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def train(*overrides: str, probe: Any = None) -> tuple[list[dict[str, Any]], int]:
    """The lines of the run's log, and the bytes of its folder. `probe`: a `pgtrain.callbacks.Callback`."""
    import pgtrain
    from pgtrain import build

    make_runner: Callable[..., Any] = build.make_runner

    def watched(*args: Any) -> Any:
        runner = make_runner(*args)
        runner.callbacks = [*runner.callbacks, *([probe] if probe else [])]
        return runner

    build.make_runner = watched  # a run has no setting for callbacks of others
    back = Path.cwd()
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            run_dir = pgtrain.train(*overrides, "monitor.terminal=none").run_dir
            lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            size = sum(path.stat().st_size for path in run_dir.rglob("*") if path.is_file())
            return [json.loads(line) for line in lines], size
    finally:
        os.chdir(back)
        build.make_runner = make_runner
