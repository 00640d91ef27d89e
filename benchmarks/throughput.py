"""Training speed on CartPole: env steps per CPU second, where the time goes, and the env alone beside it.

    python benchmarks/throughput.py [--steps 200000] [--repeats 5] [--write-readme]

Every repetition measures the env alone, REINFORCE and A2C one after the other, so that a drift of the machine
meets all of them alike; the medians over the repetitions and their ratios to the env alone are shown. CPU seconds
are those of the process around the training loop: imports and set-up are out, the record on disk is in. One torch
thread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

NUM_ENVS, HORIZON = 8, 128
RUNS = {
    "reinforce": ["algo=reinforce", f"num_envs={NUM_ENVS}"],  # whole episodes, one of each env an iteration
    "a2c": ["algo=a2c", f"num_envs={NUM_ENVS}", f"horizon={HORIZON}"],
}
PHASES = ("collect", "estimate", "update", "log")
COMMON = ["env=CartPole-v1", "eval.episodes=0", "monitor.terminal=none", "device=cpu"]


@dataclass
class Measurement:
    """One repetition: env steps, CPU seconds, and the share of wall time in each phase."""

    steps: int
    cpu_seconds: float
    split: dict[str, float]

    @property
    def speed(self) -> float:
        return self.steps / self.cpu_seconds


def measure_env(steps: int, seed: int) -> Measurement:
    """The vector env by itself with random actions, drawn beforehand."""
    import numpy as np

    from pgtrain.envs.vector import make_vector_env

    env = make_vector_env("CartPole-v1", NUM_ENVS)
    rounds = steps // NUM_ENVS
    actions = np.random.default_rng(seed).integers(0, 2, (rounds, NUM_ENVS))
    env.reset(seed)
    start = time.process_time()
    for action in actions:
        env.step(action)
    seconds = time.process_time() - start
    env.close()
    return Measurement(rounds * NUM_ENVS, seconds, {})


def measure_training(overrides: list[str], steps: int, seed: int) -> Measurement:
    """A whole training run through the public API."""
    import pgtrain

    result = pgtrain.train(*overrides, *COMMON, f"total_steps={steps}", f"seed={seed}")
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    spent = {phase: sum(row.get(f"time/{phase}") or 0.0 for row in rows) for phase in PHASES}
    total = sum(spent.values())
    split = {phase: seconds / total for phase, seconds in spent.items()}
    return Measurement(result.summary["steps"], result.summary["cpu_seconds"], split)


def measure_all(steps: int, repeats: int) -> dict[str, list[Measurement]]:
    """Interleaved repetitions, after one short run of each that is not counted (lazy imports, caches)."""
    import torch

    torch.set_num_threads(1)
    measure_env(20_000, seed=0)
    for overrides in RUNS.values():
        measure_training(overrides, 4096, seed=0)
    found: dict[str, list[Measurement]] = {"env alone": [], **{name: [] for name in RUNS}}
    for seed in range(1, repeats + 1):
        found["env alone"].append(measure_env(steps, seed))
        for name, overrides in RUNS.items():
            found[name].append(measure_training(overrides, steps, seed))
        print(
            "  ".join(f"{name} {runs[-1].speed:,.0f}" for name, runs in found.items()),
            "steps/CPU-s",
            flush=True,
        )
    return found


def table(found: dict[str, list[Measurement]], steps: int) -> str:
    """Markdown. The ratio is the median over repetitions of speed / speed of the env alone beside it."""
    import numpy as np
    import torch

    env_runs = found["env alone"]
    lines = [
        "| what | speed ÷ env alone | env steps per CPU second: median (min … max) | "
        + " / ".join(PHASES)
        + " |",
        "|---|---|---|---|",
    ]
    for name, runs in found.items():
        ratio = statistics.median(run.speed / env.speed for run, env in zip(runs, env_runs, strict=True))
        speeds = sorted(run.speed for run in runs)
        split = [statistics.median(run.split.get(phase, 0.0) for run in runs) for phase in PHASES]
        shares = " / ".join(f"{100 * share:.0f} %" for share in split) if runs[0].split else "–"
        lines.append(
            f"| {name} | {ratio:.3f} "
            f"| {statistics.median(speeds):,.0f} ({speeds[0]:,.0f} … {speeds[-1]:,.0f}) | {shares} |"
        )
    lines += [
        "",
        f"`make bench`: CartPole-v1, {NUM_ENVS} envs; an iteration is {HORIZON} steps of each env for a2c, one whole "
        f"episode of each for reinforce; {steps:,} steps a run, {len(env_runs)} interleaved repetitions, one "
        f"torch thread. Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}, "
        f"{platform.system()} {platform.machine()}.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000, help="env steps of each run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write-readme", action="store_true", help="put the table into README.md")
    args = parser.parse_args()
    back = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:  # the runs' folders are of no use afterwards
        os.chdir(folder)
        try:
            found = measure_all(args.steps, args.repeats)
        finally:
            os.chdir(back)
    text = table(found, args.steps)
    print(text)
    if args.write_readme:
        from readme import write_block

        write_block("bench", text)


if __name__ == "__main__":
    main()
