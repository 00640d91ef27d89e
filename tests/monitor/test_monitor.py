"""The monitor passes numbers on, refuses unknown tags, and outlives any sink."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgtrain.monitor.monitor import Monitor, RunInfo, Sink
from pgtrain.monitor.sinks import make_sinks
from tests.monitor.run_for_tests import SUMMARY, healthy, run_info


class Recorder(Sink):
    def __init__(self, live: bool = False) -> None:
        self.live = live
        self.calls: list[tuple[Any, ...]] = []
        self.closed = 0

    def start(self, info: RunInfo) -> None:
        self.calls.append(("start", info.algo))

    def log(self, step: int, metrics: Any) -> None:
        self.calls.append(("log", step, dict(metrics)))

    def message(self, text: str, level: str) -> None:
        self.calls.append(("message", text, level))

    def finish(self, summary: Any) -> None:
        self.calls.append(("finish", summary["status"]))

    def close(self) -> None:
        self.closed += 1

    def steps(self) -> list[int]:
        return [call[1] for call in self.calls if call[0] == "log"]


class Failing(Recorder):
    """Fails in one method, as a full disk or a broken plot would."""

    def __init__(self, method: str) -> None:
        super().__init__()

        def fail(*args: Any) -> None:
            self.calls.append((method,))
            raise OSError(28, "No space left\non device")

        setattr(self, method, fail)


def test_a_run_in_order(tmp_path: Path) -> None:
    sink = Recorder()
    with Monitor([sink]) as monitor:
        monitor.start(run_info(tmp_path))
        monitor.log(1000, {"episode/return": 3.0, "critic/value": None})
        monitor.message("careful", "warning")
        monitor.finish(SUMMARY)
    assert sink.calls == [
        ("start", "a2c"),
        ("message", "env.backend=native: a notice", "info"),
        ("log", 1000, {"episode/return": 3.0, "critic/value": None}),
        ("message", "careful", "warning"),
        ("finish", "finished"),
    ]
    assert sink.closed == 1


def test_unknown_tag_is_named() -> None:
    sink = Recorder()
    with pytest.raises(ValueError, match="episode/retrun"):
        Monitor([sink]).log(1, {"episode/return": 1.0, "episode/retrun": 2.0})
    assert sink.calls == []


def test_numbers_become_plain_ones() -> None:
    sink = Recorder()
    numbers = {"loss/actor": np.float32(0.5), "episode/count": 3, "critic/value": np.float64("nan")}
    Monitor([sink]).log(1, numbers)
    got = sink.calls[0][2]
    assert type(got["loss/actor"]) is float and got["loss/actor"] == 0.5
    assert type(got["episode/count"]) is int
    assert type(got["critic/value"]) is float and math.isnan(got["critic/value"])


@pytest.mark.parametrize("method", ["start", "log", "message", "finish"])
def test_a_failing_sink_is_dropped_with_one_message_and_the_run_goes_on(method: str, tmp_path: Path) -> None:
    good, bad = Recorder(), Failing(method)
    monitor = Monitor([bad, good])
    monitor.start(run_info(tmp_path))
    for step in (1000, 2000, 3000):
        monitor.log(step, healthy())
        monitor.message("hello")
    monitor.finish(SUMMARY)
    monitor.close()
    warnings = [call for call in good.calls if call[0] == "message" and call[2] == "warning"]
    assert len(warnings) == 1
    assert "Failing failed (OSError: [Errno 28] No space left on device)" in warnings[0][1]
    assert bad.calls.count((method,)) == 1  # never called again
    assert bad.closed == 1
    assert good.steps() == [1000, 2000, 3000] and good.calls[-1] == ("finish", "finished")


def test_the_last_sink_to_fail_is_told_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor([Failing("log")])
    monitor.log(1, healthy())
    monitor.log(2, healthy())
    assert capsys.readouterr().err.count("Failing failed") == 1


def test_a_sink_that_fails_to_close_keeps_no_other_from_it() -> None:
    good = Recorder()
    monitor = Monitor([Failing("close"), good])
    monitor.close()
    monitor.close()
    assert good.closed == 1


def test_an_interrupt_is_not_swallowed() -> None:
    class Interrupted(Recorder):
        def log(self, step: int, metrics: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Monitor([Interrupted()]).log(1, healthy())


def run(monitor: Monitor, iterations: int, size: int = 1) -> None:
    for i in range(1, iterations + 1):
        if monitor.wants(i, i * size, last=i == iterations):
            monitor.log(i * size, healthy())


def test_log_every_thins_the_files_but_keeps_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Monitor, "LIVE_SECONDS", 0.0)
    files, screen = Recorder(), Recorder(live=True)
    monitor = Monitor([files, screen], log_every=3)
    monitor.start(run_info(tmp_path))
    run(monitor, 8)
    assert files.steps() == [3, 6, 8]
    assert screen.steps() == [1, 2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(ValueError, match="log_every=0"):
        Monitor([], log_every=0)


@pytest.mark.parametrize(("total", "size"), [(100_000, 10), (100_000, 64), (50_000, 5000)])
def test_a_log_holds_500_entries_at_most_and_the_first_and_last(
    tmp_path: Path, total: int, size: int
) -> None:
    files = Recorder()
    monitor = Monitor([files])
    info = run_info(tmp_path)
    info.total_steps = total
    monitor.start(info)
    run(monitor, total // size, size)
    steps = files.steps()
    assert steps[0] == size and steps[-1] == total // size * size
    spacing = max(size, math.ceil(total / 500 / size) * size)
    assert set(np.diff(steps[:-1])) <= {spacing}
    assert len(steps) <= 501


def test_without_a_live_sink_nobody_wants_numbers_between_entries(tmp_path: Path) -> None:
    info = run_info(tmp_path)
    info.total_steps = 1_000_000
    for sinks, wanted in (([Recorder()], False), ([Recorder(), Recorder(live=True)], True)):
        monitor = Monitor(sinks)
        monitor.start(info)
        assert monitor.wants(1, 8)
        assert monitor.wants(2, 16) is wanted
        monitor.log(16, healthy())
        assert sinks[0].steps() == []
        assert not monitor.wants(3, 24)  # the live sink has just got some


def test_unknown_level() -> None:
    with pytest.raises(ValueError, match="'loud'"):
        Monitor([]).message("x", "loud")


def test_make_sinks(tmp_path: Path) -> None:
    def names(**options: Any) -> list[str]:
        return [type(sink).__name__ for sink in make_sinks(tmp_path, **options)]

    assert names() == ["TextLogSink", "JsonlSink", "PlainSink", "TensorBoardSink"]  # tests have no terminal
    assert names(tensorboard=False, terminal="none") == ["TextLogSink", "JsonlSink"]
    with pytest.raises(ValueError, match=r"'loud'.*auto, live, plain, none"):
        make_sinks(tmp_path, terminal="loud")
