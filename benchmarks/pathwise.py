"""Pathwise recipes: what they reach in how many env steps, next to PPO on the same physics, and what a window costs.

    python benchmarks/pathwise.py learn [--only pendulum,cartpole,quadrotor] [--algos shac,ppo] [--seeds 0,1]
    python benchmarks/pathwise.py lqr [--seeds 0,1,2,3,4]
    python benchmarks/pathwise.py report
    python benchmarks/pathwise.py speed [--envs 64,1024] [--seconds 3] [--device cpu]

`learn` trains by the recipes with the overrides below, one torch thread, and plays the parameters greedily in 100 envs
on the way, at the same 100 starts each time; these episodes count neither as steps nor as seconds. A finished run is a
line of benchmarks/results/pathwise.jsonl, and is not run again. `lqr` tells how far the linear gain is from the optimal
one after backpropagation through time. `report` writes the table and the curves of docs/pathwise.md from that file.

`speed` counts env steps per CPU second (wall second on a GPU) of forward and backward through a window of 32 steps:
raw     the dynamics and reward functions alone in a hand-written loop, resets and time limits left out
env     the same through `advance`: time limits, resets, observations of both sides of a cut
policy  raw dynamics with the policy network, hand-written
window  the collector with that policy, and the loss with its critic: what training does
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pgtrain import build
from pgtrain.config.compose import compose
from pgtrain.envs.differentiable import make
from pgtrain.envs.differentiable.base import DifferentiableEnv
from pgtrain.envs.differentiable.lqr import LQR, riccati
from pgtrain.evaluation import evaluate
from pgtrain.interrupt import Interrupt
from pgtrain.learning.pathwise_gradients import Pathwise
from pgtrain.monitor.monitor import Monitor
from pgtrain.policies.reparameterized import Reparameterized
from pgtrain.runner import Runner

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "pathwise.jsonl"

PPO = ["algo=ppo", "num_envs=16", "optim.lr.value=1e-3", "policy/distribution=tanh_gaussian"]
# task → env id, then for each algorithm its overrides
TASKS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "pendulum": (
        "pgtrain/Pendulum-v0",
        {
            "shac": ["algo=shac", "total_steps=100_000"],
            "ppo": ["+experiment=ppo/Pendulum-v1", "total_steps=200_000"],
        },
    ),
    "cartpole": (
        "pgtrain/CartPoleSwingUp-v0",
        {
            "shac": ["algo=shac", "total_steps=100_000"],
            "ppo": [*PPO, "total_steps=1_000_000"],
        },
    ),
    "quadrotor": (
        "pgtrain/Quadrotor-v0",
        {"shac": ["algo=shac", "total_steps=50_000"], "ppo": [*PPO, "total_steps=1_000_000"]},
    ),
}
POINTS = 50  # evaluations of a run


# ------------------------------------------------------------------------------------------------------------ learn


class Watch:
    """A callback that plays the policy on the way, and knows how long that took."""

    def __init__(self, env_id: str, total: int) -> None:
        self.env, self.every = build.make_vector_env(env_id, 100), total / POINTS
        self.curve: list[tuple[int, float]] = []
        self.seconds = 0.0

    def after_iteration(self, runner: Runner) -> None:
        if runner.progress.steps >= self.every * (len(self.curve) + 1):
            self.play(runner)

    def at_end(self, runner: Runner) -> None:
        """The last parameters are played by `learn`."""

    def play(self, runner: Runner) -> None:
        started = time.process_time()
        mean = evaluate(runner.policy, self.env, 100, seed=12345).mean
        self.curve.append((runner.progress.steps, mean))
        self.seconds += time.process_time() - started


def learn(task: str, algo: str, seed: int) -> dict[str, Any]:
    """One run, as a row of the results."""
    env_id, choices = TASKS[task]
    quiet = ["monitor.terminal=none", "monitor.tensorboard=false", "eval.episodes=0", "device=cpu"]
    overrides = [*choices[algo], f"env={env_id}", f"seed={seed}"]
    cfg = compose([*overrides, *quiet]).config
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder, build.make_env(cfg, cfg.num_envs) as env:
        runner = build.make_runner(cfg, env, Monitor([]), Path(folder), Interrupt(), [])
        watch = Watch(env_id, cfg.total_steps)
        watch.play(runner)
        runner.callbacks = [watch]
        runner.run()
        watch.play(runner)
    return {
        "task": task,
        "algo": algo,
        "seed": seed,
        "command": " ".join(["pgtrain", *overrides]),
        "steps": runner.progress.steps,
        "final": watch.curve[-1][1],
        "cpu_seconds": round(time.process_time() - started - watch.seconds, 1),
        "skipped_updates": runner.progress.skipped_updates,
        "curve": [(steps, round(value, 3)) for steps, value in watch.curve],
    }


def learn_lqr(seed: int) -> dict[str, Any]:
    """BPTT on a linear gain, u = −K x, from K = 0: how far is it from the optimum of the endless task?"""
    env = LQR(16, masses=2, dtype=torch.float64, max_episode_steps=100)
    gamma, horizon, total = 0.95, 100, 400_000
    best, _ = riccati(env.A, env.B, env.Q, env.R, gamma)
    K = torch.zeros_like(best, requires_grad=True)
    optimizer = torch.optim.Adam([K], lr=0.1, betas=(0.9, 0.9))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-3, total // (16 * horizon))
    env.reset(seed)
    started, curve, made = time.process_time(), [], 0
    discount = gamma ** torch.arange(horizon, dtype=torch.float64).unsqueeze(-1)
    while made < total:
        env.restart()
        x, rewards = env.detach(), []
        for _ in range(horizon):
            transition = env.advance(-x @ K.T)
            rewards.append(transition.reward)
            x = transition.obs
        loss = -(discount * torch.stack(rewards)).sum(0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        made += 16 * horizon
        error = torch.linalg.matrix_norm(K.detach() - best) / torch.linalg.matrix_norm(best)
        curve.append((made, round(float(error), 5)))
    return {
        "task": "lqr",
        "algo": "bptt",
        "seed": seed,
        "command": f"python benchmarks/pathwise.py lqr --seeds {seed}",
        "steps": made,
        "final": curve[-1][1],
        "cpu_seconds": round(time.process_time() - started, 1),
        "skipped_updates": 0,
        "curve": curve[::5],
    }


def rows() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def keep(task: str, algo: str, seed: int, make_row: Callable[[], dict[str, Any]]) -> None:
    """Runs what is not in the results yet."""
    if any((row["task"], row["algo"], row["seed"]) == (task, algo, seed) for row in rows()):
        return
    row = make_row()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(f"{task} {algo} seed {seed}: {row['final']:.4g} after {row['steps']:,} steps", flush=True)


# ----------------------------------------------------------------------------------------------------------- report


def report() -> None:
    from pathwise_report import write  # beside this file

    write(rows(), ROOT / "docs")


# ------------------------------------------------------------------------------------------------------------ speed

HORIZON = 32


def _raw(env: DifferentiableEnv, actions: Tensor) -> None:
    state, rewards = env.state.detach(), []
    for action in actions:
        new = env.dynamics(state, action)
        rewards.append(env.reward(state, action, new))
        state = new
    torch.stack(rewards).sum().backward()


def _env(env: DifferentiableEnv, actions: Tensor) -> None:
    env.detach()
    steps = [env.advance(action) for action in actions]
    (torch.stack([step.reward for step in steps]).sum() + 0 * steps[-1].next_obs.sum()).backward()


def _policy(env: DifferentiableEnv, actor: Reparameterized, noise: Tensor) -> None:
    actor.begin()
    state, rewards = env.state.detach(), []
    for eps in noise:
        u, _ = actor(actor.inputs(env.observation(state)), eps)
        action = actor.to_env(u)
        new = env.dynamics(state, action)
        rewards.append(env.reward(state, action, new))
        state = new
    torch.stack(rewards).sum().backward()


ROUNDS = 6


def pace(work: Callable[[], None], steps: int, seconds: float, device: str) -> float:
    """Env steps per second of a stretch of work."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    started, count = clock(), 0
    while not count or clock() - started < seconds:
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        count += 1
    return count * steps / (clock() - started)


def measure(env_id: str, n: int, seconds: float, device: str) -> dict[str, float]:
    """Env steps a second of each kind of work."""
    cfg = compose(["algo=shac", f"env={env_id}", f"num_envs={n}", f"device={device}"]).config
    with tempfile.TemporaryDirectory() as folder, build.make_env(cfg, n) as host:
        runner: Any = build.make_runner(cfg, host, Monitor([]), Path(folder), Interrupt(), [])
    collector = runner.collector
    collector.probe = None
    env, source = make(env_id, n, device=device), Pathwise(runner.update.flat, 0.99)
    actor = Reparameterized(runner.policy)
    shape = (HORIZON, n, len(env.action_low))
    actions = torch.zeros(shape, device=device).uniform_(-1, 1).requires_grad_()
    noise = torch.randn(shape, device=device)
    work: dict[str, Callable[[], Any]] = {
        "raw": lambda: _raw(env, actions),
        "env": lambda: _env(env, actions),
        "policy": lambda: _policy(env, actor, noise),
        "window": lambda: source(collector.collect_steps(HORIZON)[0]),
    }
    paces = dict.fromkeys(work, 0.0)
    env.reset(0)
    for turn in range(
        ROUNDS + 1
    ):  # in turns, so that what else the machine does is shared; the first warms up
        for name, do in work.items():
            found = pace(do, HORIZON * n, seconds / ROUNDS if turn else 0.0, device)
            paces[name] = max(paces[name], found)
    return paces


def run_speed(envs: list[int], seconds: float, device: str, ids: list[str]) -> None:
    names = ("raw", "env", "policy", "window")
    print("| env | envs | " + " | ".join(names) + " | raw ÷ env | policy ÷ window |")
    print("|---|---|---|---|---|---|---|---|")
    for env_id in ids:
        for n in envs:
            found = measure(env_id, n, seconds, device)
            numbers = " | ".join(f"{found[name]:,.0f}" for name in names)
            ratios = f"{found['raw'] / found['env']:.2f} | {found['policy'] / found['window']:.2f}"
            print(f"| {env_id} | {n:,} | {numbers} | {ratios} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["learn", "lqr", "report", "speed"])
    parser.add_argument("--only", default=",".join(TASKS), help="tasks, with commas")
    parser.add_argument("--algos", default="shac,ppo", help="with commas")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="with commas")
    parser.add_argument("--envs", default="64,1024")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tasks, seeds = args.only.split(","), [int(seed) for seed in args.seeds.split(",")]
    if args.what == "report":
        report()
    elif args.what == "speed":
        ids = [TASKS[task][0] for task in tasks]
        run_speed([int(n) for n in args.envs.split(",")], args.seconds, args.device, ids)
    for seed in seeds:
        if args.what == "lqr":
            keep("lqr", "bptt", seed, lambda: learn_lqr(seed))  # noqa: B023
        elif args.what == "learn":
            for task in tasks:
                for algo in (name for name in TASKS[task][1] if name in args.algos.split(",")):
                    keep(task, algo, seed, lambda: learn(task, algo, seed))  # noqa: B023


if __name__ == "__main__":
    main()
