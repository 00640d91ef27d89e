"""What the monitor costs an iteration: `python tests/monitor/cost.py`. A measurement for people, not a timed test.

Plays 10 iterations a second (a typical run of small nets) and 100 (as short as they get), and takes the processor
time of `Monitor.log`, and apart from it that of the other threads (TensorBoard's writer).
"""

from __future__ import annotations

import io
import tempfile
import time
from pathlib import Path

from rich.console import Console

from pgtrain.monitor.dashboard import METRICS
from pgtrain.monitor.monitor import Monitor, RunInfo, Sink
from pgtrain.monitor.sinks.jsonl import JsonlSink
from pgtrain.monitor.sinks.live import LiveSink
from pgtrain.monitor.sinks.tensorboard import TensorBoardSink
from pgtrain.monitor.sinks.terminal import PlainSink
from pgtrain.monitor.sinks.textlog import TextLogSink

PACES = ((80, 0.1), (400, 0.01))  # iterations, seconds of each


class Quiet(PlainSink):
    """The plain lines, kept off this script's output."""

    def _print(self, text: str) -> None:
        io.StringIO().write(text)


def live() -> LiveSink:
    return LiveSink(
        Console(file=io.StringIO(), force_terminal=True, width=100, height=40, color_system="256")
    )


def measure(sinks: list[Sink], run_dir: Path, iterations: int, seconds: float) -> tuple[float, float]:
    """(milliseconds of processor time in `log`, in other threads), an iteration."""
    tags = [metric.tag for metric in METRICS if metric.tag != "evaluation/return"]
    monitor = Monitor(sinks)
    monitor.start(RunInfo(run_dir, "a2c", "CartPole-v1", 0, iterations * 1024, 8, reward_threshold=475.0))
    monitor.log(0, dict.fromkeys(tags, 1.0))
    spent, all_threads, this_thread = 0.0, time.process_time(), time.thread_time()
    for i in range(1, iterations + 1):
        numbers = dict.fromkeys(tags, 0.5 + i / 7)
        started = time.thread_time()
        monitor.log(i * 1024, numbers)
        spent += time.thread_time() - started
        time.sleep(seconds)
    others = (time.process_time() - all_threads) - (time.thread_time() - this_thread)
    monitor.close()
    return 1e3 * spent / iterations, 1e3 * others / iterations


def main() -> None:
    for iterations, seconds in PACES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            cases: dict[str, list[Sink]] = {
                "jsonl": [JsonlSink(path)],
                "plain": [Quiet()],
                "live": [live()],
                "tensorboard": [TensorBoardSink(path)],
                "all": [TextLogSink(path), JsonlSink(path), live(), TensorBoardSink(path)],
            }
            for name, sinks in cases.items():
                log, others = measure(sinks, path, iterations, seconds)
                share = 100 * (log + others) / (1e3 * seconds)
                print(
                    f"{seconds} s an iteration, {name:11}: {log:.3f} ms, other threads {others:.3f} ms, {share:.2f} %"
                )


if __name__ == "__main__":
    main()
