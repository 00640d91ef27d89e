"""CPU seconds until CartPole-v1 is solved: the mean of the last 100 training episodes reaches 475.

    python benchmarks/solve.py [--preset ppo/CartPole-v1] [--seeds 5] [--target 475] [--steps N]

One thread, the shipped preset, its own log and checkpoint in; imports out (a short run goes before). A seed that does
not get there within the preset's steps (or `--steps`) counts as never.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from watch import train  # noqa: E402


class Solved:
    """Notes when the target is reached, and ends the run there."""

    def __init__(self, target: float) -> None:
        self.target, self.started = target, time.process_time()
        self.seconds, self.steps, self.episodes = math.inf, 0, 0

    def after_iteration(self, runner: Any) -> None:
        recent = runner.progress.recent_returns
        full = len(recent) == recent.maxlen
        if full and math.isinf(self.seconds) and sum(recent) / len(recent) >= self.target:
            self.seconds = time.process_time() - self.started
            self.steps, self.episodes = runner.progress.steps, runner.progress.episodes
            runner.plan.total_steps = self.steps

    def at_end(self, runner: Any) -> None: ...


def solve(preset: str, seed: int, target: float, steps: int | None) -> Solved:
    overrides = [f"+experiment={preset}", f"seed={seed}", "eval.episodes=0", "device=cpu"]
    probe = Solved(target)
    train(*overrides, *([] if steps is None else [f"total_steps={steps}"]), probe=probe)
    return probe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="ppo/CartPole-v1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--target", type=float, default=475.0)
    parser.add_argument("--steps", type=int, help="instead of the preset's")
    args = parser.parse_args()
    solve(args.preset, 0, math.inf, 512)  # what is imported on first use
    seconds = []
    for seed in range(1, args.seeds + 1):
        run = solve(args.preset, seed, args.target, args.steps)
        seconds.append(run.seconds)
        print(
            f"seed {seed}: {run.seconds:.1f} CPU s, {run.steps:,} steps, {run.episodes:,} episodes",
            flush=True,
        )
    solved = sum(map(math.isfinite, seconds))
    print(
        f"{args.preset}: {statistics.median(seconds):.1f} CPU s ({min(seconds):.1f} … {max(seconds):.1f}), "
        f"{solved} of {len(seconds)} seeds reached {args.target:g}"
    )


if __name__ == "__main__":
    main()
