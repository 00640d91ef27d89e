"""Does the cost stay flat? Time, memory and log over a run's length; time over the number of envs and of rows.

    python benchmarks/scaling.py [--steps 1e6] [--repeats 5] [--parts length,envs,rows] [--report]

Writes benchmarks/results/scaling.json, docs/scaling.png and the table of docs/performance.md; `--report` writes the
latter two from the former. Native CartPole, one thread, each run in a process of its own.

- Run length: CPU time of an iteration and resident memory in ten slices of a run, and the size of the run folder
  against that of a run a tenth as long. Growth is the slope of a line through the slices but the first (warm-up), and
  is given for 1e7 steps.
- Envs: a collect of `ROWS` vector steps with 1 … 4,096 envs.
- Rows: an update of 4 epochs over 1,024 … 65,536 rows, in minibatches of 256 and as one batch.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from watch import train  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "scaling.json"
COMMON = ["env=CartPole-v1", "seed=1", "eval.episodes=0", "device=cpu"]
RUNS = {  # the usual case, very many short iterations, rollouts that differ in length
    "ppo": ["algo=ppo"],
    "a2c": ["algo=a2c", "horizon=5"],
    "reinforce": ["algo=reinforce"],
}
SLICES = 10
ROWS = 32  # vector steps of a collect
ENVS = (1, 4, 16, 64, 256, 1024, 4096)
BATCHES = (1024, 4096, 16_384, 65_536)
EPOCHS = 4


class Probe:
    """A callback that notes CPU seconds, iterations and resident memory each time a slice of the run is done."""

    def __init__(self, slice_steps: float) -> None:
        self.slice_steps, self.next, self.rows = slice_steps, slice_steps, []
        self.rows: list[tuple[int, int, float, float]]

    def note(self, runner: Any) -> None:
        p = runner.progress
        self.rows.append((p.steps, p.iterations, time.process_time(), resident()))

    def after_iteration(self, runner: Any) -> None:
        if not self.rows:
            self.note(runner)
        elif runner.progress.steps >= self.next:
            self.note(runner)
            self.next += self.slice_steps

    def at_end(self, runner: Any) -> None: ...


def resident() -> float:
    """MiB of this process in memory; where /proc is not there, the most it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
            2**20 if sys.platform == "darwin" else 1024
        )
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run_length(name: str, steps: int) -> dict[str, Any]:
    """The slices of one run: [steps, ms of CPU an iteration, µs of CPU a step, MiB] of each."""
    probe = Probe(steps / SLICES)
    log, size = train(*COMMON, *RUNS[name], f"total_steps={steps}", probe=probe)
    slices = []
    for (s0, i0, c0, _), (s1, i1, c1, mib) in zip(probe.rows, probe.rows[1:], strict=False):
        slices.append([s1, 1e3 * (c1 - c0) / (i1 - i0), 1e6 * (c1 - c0) / (s1 - s0), mib])
    return {"steps": probe.rows[-1][0], "slices": slices, "entries": len(log), "bytes": size}


def collect(envs: int, repeats: int) -> float:
    """Seconds of a collect of ROWS vector steps, the least of `repeats` iterations (more where they are short)."""
    repeats = max(repeats, min(60, 2048 // envs))
    overrides = ["algo=ppo", f"num_envs={envs}", f"horizon={ROWS}", "update.epochs=1", "monitor.log_every=1"]
    log, _ = train(
        *COMMON, *overrides, "update.minibatch_size=null", f"total_steps={(repeats + 1) * envs * ROWS}"
    )
    return min(row["time/collect"] for row in log[1:])


def update(rows: int, minibatch: int | None, repeats: int) -> float:
    """Seconds of an update over `rows` rows, the least of `repeats` iterations."""
    overrides = ["algo=ppo", "num_envs=64", f"horizon={rows // 64}", f"update.epochs={EPOCHS}"]
    overrides += [
        f"update.minibatch_size={minibatch or 'null'}",
        "update/kl_guard=none",
        "monitor.log_every=1",
    ]
    log, _ = train(*COMMON, *overrides, f"total_steps={(repeats + 1) * rows}")
    return min(row["time/update"] for row in log[1:])


def alone(function: Callable[..., Any], *args: Any) -> Any:
    """The function's result, from a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def versions() -> str:
    import numpy
    import torch

    system = f"{platform.system()} {platform.machine()}"
    return (
        f"Python {platform.python_version()}, torch {torch.__version__}, numpy {numpy.__version__}, {system}"
    )


def measure(part: str, steps: int, repeats: int) -> Any:
    """What goes into the results under this name."""
    if part == "envs":
        return [[envs, alone(collect, envs, repeats)] for envs in ENVS]
    if part == "rows":
        return [[n, alone(update, n, 256, repeats), alone(update, n, None, repeats)] for n in BATCHES]
    found: dict[str, Any] = {}
    for name in RUNS:
        short, long = (alone(run_length, name, length) for length in (steps // 10, steps))
        found[name] = {"long": long, "short": short}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=float, default=1e6, help="length of the long runs")
    parser.add_argument("--repeats", type=int, default=5, help="iterations of which the fastest counts")
    parser.add_argument(
        "--parts", default="length,envs,rows", help="joined by commas; the others stay as they are"
    )
    parser.add_argument("--report", action="store_true", help="only draw and write what was measured before")
    args = parser.parse_args()
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for part in [] if args.report else args.parts.split(","):
        found[part] = measure(part, int(args.steps), args.repeats)
        found |= {"date": time.strftime("%Y-%m-%d"), "versions": versions()}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{part}: measured", flush=True)
    from scaling_report import report

    report(found, ROOT)


if __name__ == "__main__":
    main()
