"""`metrics.jsonl` and `run.log`."""

from __future__ import annotations

import json
import math
from pathlib import Path

from pgtrain.monitor.monitor import Monitor
from pgtrain.monitor.sinks.jsonl import JsonlSink
from pgtrain.monitor.sinks.textlog import TextLogSink
from tests.monitor.run_for_tests import NAN, SUMMARY, healthy, run_info


def strict(line: str) -> dict[str, float | None]:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(line, parse_constant=refuse)


def test_each_iteration_is_a_line_of_strict_json(tmp_path: Path) -> None:
    monitor = Monitor([JsonlSink(tmp_path)])
    monitor.start(run_info(tmp_path))
    monitor.log(1000, healthy(critic__value=NAN, loss__actor=math.inf, reward__scale=None, episode__count=7))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()  # before close: it is on disk at once
    row = strict(lines[0])
    assert len(lines) == 1 and row["step"] == 1000 and row["episode/count"] == 7
    assert row["critic/value"] is None and row["loss/actor"] is None and row["reward/scale"] is None
    assert set(row) == {"step", "elapsed", *healthy()}
    assert isinstance(row["elapsed"], float) and 0.0 <= row["elapsed"] < 60.0
    monitor.close()


def test_a_resumed_run_appends_after_a_cut_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "episo')
    monitor = Monitor([JsonlSink(tmp_path)])
    monitor.start(run_info(tmp_path))
    monitor.log(3, healthy())
    monitor.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines[:2] == ['{"step": 1}', '{"step": 2, "episo'] and strict(lines[2])["step"] == 3


def test_run_log_has_messages_with_time_and_level(tmp_path: Path) -> None:
    monitor = Monitor([TextLogSink(tmp_path)])
    monitor.start(run_info(tmp_path))
    monitor.message("a loss was NaN at env 3 → skipped", "warning")
    monitor.finish({**SUMMARY, "status": "failed", "error": "env 3 died"})
    monitor.close()
    lines = (tmp_path / "run.log").read_text(encoding="utf-8").splitlines()
    assert [line[20:27].strip() for line in lines] == ["INFO", "INFO", "WARNING", "INFO", "ERROR"]
    assert "a2c on CartPole-v1, seed 3" in lines[0] and lines[2].endswith("a loss was NaN at env 3 → skipped")
    assert "failed at step 3,000" in lines[3] and lines[4].endswith("env 3 died")
    assert all(line[:2] == "20" and line[10] == " " and line[13] == ":" for line in lines)
