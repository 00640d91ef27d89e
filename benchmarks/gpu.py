"""Thousands of envs on a GPU: env steps per second, and update time against what the arithmetic alone would take.

    python benchmarks/gpu.py [--device cuda] [--envs 4096,65536] [--iterations 6] [--horizon 16]

PPO on cart-pole and pendulum in torch, SHAC on the pendulum: envs, rollout and update all on the device. For comparison
PPO on the batched cart-pole in NumPy, where each step of all envs carries actions to the host and observations back.
One update epoch of PPO is 4 minibatches.

The bound: 6 FLOPs per parameter, row and pass (2 forward, 4 backward), at the rate that a product of two square
matrices reaches on this device in float32. `--device cpu --envs 64 --iterations 2` tries the script anywhere.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from watch import train

EPOCHS, MINIBATCHES = 4, 4
HIDDEN = "policy.hidden=[64,64]"


@dataclass(frozen=True)
class Task:
    title: str
    algo: str
    env: str
    passes: (
        int | None
    )  # of each row through the networks in an update; None: it also goes back through the envs

    def overrides(self, envs: int, horizon: int) -> list[str]:
        common = [f"algo={self.algo}", f"env={self.env}", f"num_envs={envs}", f"horizon={horizon}", HIDDEN]
        if self.algo != "ppo":
            return common
        size = max(1, envs * horizon // MINIBATCHES)
        return [*common, f"update.epochs={EPOCHS}", f"update.minibatch_size={size}", "update/kl_guard=none"]


TASKS = [
    Task("PPO, CartPole-v1 (envs on the host)", "ppo", "CartPole-v1", EPOCHS),
    Task("PPO, pgtrain/CartPole-v0 (envs on the device)", "ppo", "pgtrain/CartPole-v0", EPOCHS),
    Task("PPO, pgtrain/Pendulum-v0 (envs on the device)", "ppo", "pgtrain/Pendulum-v0", EPOCHS),
    Task("SHAC, pgtrain/Pendulum-v0 (envs on the device)", "shac", "pgtrain/Pendulum-v0", None),
]


class Size:
    """Counts the parameters that the update moves."""

    parameters = 0

    def after_iteration(self, runner: Any) -> None:
        self.parameters = len(runner.update.flat)

    def at_end(self, runner: Any) -> None: ...


def peak(device: str) -> float:
    """FLOPs per second of a large product in float32, the best of some."""
    import torch

    size = 4096 if device.startswith("cuda") else 512
    a = torch.randn(size, size, device=device)
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        product = a @ a
        product[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def measure(task: Task, envs: int, horizon: int, iterations: int, device: str) -> dict[str, float]:
    """Medians over the iterations but the first."""
    size = Size()
    common = [
        f"device={device}",
        "seed=1",
        "eval.episodes=0",
        "monitor.log_every=1",
        "checkpoint.every_steps=null",
    ]
    steps = envs * horizon * iterations
    log, _ = train(*task.overrides(envs, horizon), *common, f"total_steps={steps}", probe=size)
    phases = {
        name: statistics.median(row.get(f"time/{name}") or 0.0 for row in log[1:])
        for name in ("collect", "estimate", "update")
    }
    return phases | {
        "steps_per_second": envs * horizon / sum(phases.values()),
        "flops": 6.0 * size.parameters * envs * horizon * (task.passes or 0),
    }


def row(task: Task, envs: int, found: dict[str, float], rate: float) -> str:
    bound = found["flops"] / rate
    shown = f"{1e3 * bound:,.2f} | {found['update'] / bound:,.1f}" if bound else "– | –"
    phases = " / ".join(f"{1e3 * found[name]:,.1f}" for name in ("collect", "estimate", "update"))
    return f"| {task.title} | {envs:,} | {found['steps_per_second']:,.0f} | {phases} | {shown} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--envs", default="4096,65536", help="numbers, joined by commas")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--horizon", type=int, default=16)
    args = parser.parse_args()
    if args.iterations < 2:
        parser.error("--iterations: at least 2, as the first is not counted")
    import torch

    rate = peak(args.device)
    name = torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else "CPU, one thread"
    print(f"{name}, torch {torch.__version__}, {rate / 1e12:.2f} TFLOP/s in float32\n")
    columns = ["task", "envs", "env steps per second", "collect / estimate / update, ms"]
    print(f"| {' | '.join([*columns, 'bound of the update, ms', 'update ÷ bound'])} |")
    print("|---|---|---|---|---|---|", flush=True)
    for task in TASKS:
        for envs in map(int, args.envs.split(",")):
            found = measure(task, envs, args.horizon, args.iterations, args.device)
            print(row(task, envs, found, rate), flush=True)


if __name__ == "__main__":
    main()
