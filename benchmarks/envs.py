"""What a step costs in pgtrain's batched envs, and in Gymnasium's single envs one after the other.

    python benchmarks/envs.py [--envs HalfCheetah-v5,…] [--num-envs 8] [--rounds 15] [--steps 60] [--threads 1,2]

With --threads instead: MuJoCo's batched tasks stepped by so many threads each, µs of wall and of CPU time.
Rounds of both by turns, random actions; µs of CPU time per env step: the median round and the least one, and the ratio
of the medians. The single envs are the sync backend's, which leaves out what Gymnasium's own SyncVectorEnv does
beside them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402

from pgtrain.envs import native  # noqa: E402
from pgtrain.envs.vector import VectorEnv, make_vector_env  # noqa: E402


def actions_for(env: VectorEnv, steps: int, seed: int) -> np.ndarray:
    """[steps, N, …], random members of the env's action space."""
    space: Any = env.action_space
    rng = np.random.default_rng(seed)
    if hasattr(space, "n"):
        return rng.integers(0, space.n, (steps, env.num_envs))
    return rng.uniform(space.low, space.high, (steps, env.num_envs, *space.shape)).astype(np.float32)


def micros(env: VectorEnv, actions: np.ndarray) -> float:
    """µs of CPU time per env step."""
    started = time.process_time()
    for action in actions:
        env.step(action)
    return 1e6 * (time.process_time() - started) / (len(actions) * env.num_envs)


def thread_table(names: list[str], num_envs: int, rounds: int, steps: int, counts: list[int]) -> None:
    """Prints a row for each env: the median round's µs of wall time (of CPU time) per env step."""
    heads = " | ".join(f"{count} thread{'s' * (count > 1)}, µs of wall (CPU)" for count in counts)
    print(f"| env, {num_envs} at once | {heads} |\n|---|" + "---|" * len(counts))
    for name in names:
        envs = [make_vector_env(name, num_envs, backend="native", threads=count) for count in counts]
        for env in envs:
            env.reset(0)
        wall: list[list[float]] = [[] for _ in envs]
        cpu: list[list[float]] = [[] for _ in envs]
        for seed in range(rounds):
            for i, env in enumerate(envs):
                actions, started = actions_for(env, steps, seed), time.perf_counter()
                cpu[i].append(micros(env, actions))
                wall[i].append(1e6 * (time.perf_counter() - started) / (steps * num_envs))
        cells = [
            f"{statistics.median(w):.1f} ({statistics.median(c):.1f})" for w, c in zip(wall, cpu, strict=True)
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        for env in envs:
            env.close()


def compare(env_id: str, num_envs: int, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    """µs per env step in each round, batched and single."""
    own = native.NATIVE[env_id].threaded
    both = [
        make_vector_env(env_id, num_envs, backend="native", threads=1 if own else None),
        make_vector_env(env_id, num_envs, backend="sync"),
    ]
    for env in both:
        env.reset(0)
        micros(env, actions_for(env, steps, 0))  # not counted: imports, caches
    found: tuple[list[float], list[float]] = ([], [])
    for seed in range(1, rounds + 1):
        for env, times in zip(both, found, strict=True):
            times.append(micros(env, actions_for(env, steps, seed)))
    for env in both:
        env.close()
    return found


def main() -> None:
    names = [name for name, own in native.NATIVE.items() if own.equals and name != "CartPole-v0"]
    parser = argparse.ArgumentParser(description="native batched envs against single ones")
    parser.add_argument("--envs", default=",".join(names))
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", default="", help="numbers of threads, joined by commas")
    args = parser.parse_args()
    if args.threads:
        counts = [int(count) for count in args.threads.split(",")]
        thread_table(args.envs.split(","), args.num_envs, args.rounds, args.steps, counts)
        return
    print("| env | batched, µs a step (least) | single envs (least) | ratio |\n|---|---|---|---|")
    for name in args.envs.split(","):
        batched, single = compare(name, args.num_envs, args.rounds, args.steps)
        own, theirs = statistics.median(batched), statistics.median(single)
        least = f"{own:.1f} ({min(batched):.1f}) | {theirs:.1f} ({min(single):.1f})"
        print(f"| {name} | {least} | {theirs / own:.2f} |", flush=True)


if __name__ == "__main__":
    main()
