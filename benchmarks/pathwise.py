"""Pathwise recipes: what they reach in how many env steps, and what a window costs.

    python benchmarks/pathwise.py learn [--only pendulum,cartpole,lqr,quadrotor,acrobot] [--seeds 5] [--steps N]
    python benchmarks/pathwise.py speed [--envs 64,1024] [--seconds 3] [--device cpu]

`learn` trains each task with its settings below, one torch thread, and plays the final parameters greedily for 100
episodes; for LQR it tells how far the linear gain is from the optimal one. Finished runs go to
outputs/pathwise/results.jsonl.

`speed` counts env steps per CPU second (wall second on a GPU) of forward and backward through a window of 32 steps:
raw     the dynamics and reward functions alone in a hand-written loop, resets and time limits left out
env     the same through `advance`: time limits, resets, observations of both sides of a cut
policy  raw dynamics with the policy network, hand-written
window  the collector with that policy, and the loss with its critic: what training does
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pgtrain.envs.differentiable import make
from pgtrain.envs.differentiable.base import DifferentiableEnv
from pgtrain.envs.differentiable.lqr import LQR, riccati
from pgtrain.learning.pathwise_training import Settings, Trainer, evaluate, shac
from pgtrain.learning.pathwise_update import Pathwise
from pgtrain.policies.reparameterized import Reparameterized

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "outputs" / "pathwise" / "results.jsonl"

SWING = Settings(horizon=8, log_std_init=0.0, critic_epochs=8, actor_lr=5e-3)
# task → recipe, id, envs, env steps, settings
TASKS: dict[str, tuple[Callable[..., Trainer], str, int, int, Settings]] = {
    "pendulum": (shac, "pgtrain/Pendulum-v0", 16, 100_000, SWING),
    "cartpole": (shac, "pgtrain/CartPoleSwingUp-v0", 16, 100_000, SWING),
    "quadrotor": (shac, "pgtrain/Quadrotor-v0", 16, 50_000, SWING),
    "acrobot": (shac, "pgtrain/Acrobot-v0", 16, 100_000, SWING),
}


# ------------------------------------------------------------------------------------------------------------ learn


def learn(task: str, seed: int, steps: int | None) -> dict[str, Any]:
    """One run: its final evaluation, and the evaluations on the way, as a row for results.jsonl."""
    recipe, env_id, envs, total, settings = TASKS[task]
    total = steps or total
    env, judge = make(env_id, envs), make(env_id, 100)
    trainer = recipe(env, seed, settings)
    curve: list[tuple[int, float]] = []
    watched = 0.0  # seconds spent on evaluations
    started = time.process_time()

    def after(trainer: Trainer, row: dict[str, float]) -> None:
        nonlocal watched
        if trainer.steps >= total * (len(curve) + 1) / 10:
            before = time.process_time()
            curve.append((trainer.steps, float(evaluate(judge, trainer.policy, 1).mean())))
            watched += time.process_time() - before

    trainer.run(total, after)
    seconds = time.process_time() - started - watched
    returns = evaluate(judge, trainer.policy, 10_000 + seed)
    skipped = sum(row["skipped"] for row in trainer.history)
    return {
        "task": task,
        "seed": seed,
        "steps": trainer.steps,
        "return": float(returns.mean()),
        "cpu_seconds": seconds,
        "skipped": skipped,
        "curve": curve,
    }


def learn_lqr(seed: int, steps: int | None) -> dict[str, Any]:
    """BPTT on a linear gain, u = −K x, from K = 0: how far is it from the optimum of the endless task?"""
    env = LQR(16, masses=2, dtype=torch.float64, max_episode_steps=100)
    gamma, horizon = 0.95, 100
    best, _ = riccati(env.A, env.B, env.Q, env.R, gamma)
    K = torch.zeros_like(best, requires_grad=True)
    total = steps or 400_000
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
        curve.append(
            (made, float(torch.linalg.matrix_norm(K.detach() - best) / torch.linalg.matrix_norm(best)))
        )
    return {
        "task": "lqr",
        "seed": seed,
        "steps": made,
        "gain_error": curve[-1][1],
        "steps_to_1_percent": next((s for s, e in curve if e < 0.01), None),
        "cpu_seconds": time.process_time() - started,
    }


def run_learning(names: list[str], seeds: int, steps: int | None) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        rows = []
        for seed in range(seeds):
            row = learn_lqr(seed, steps) if name == "lqr" else learn(name, seed, steps)
            rows.append(row)
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
        key = "gain_error" if name == "lqr" else "return"
        values = [row[key] for row in rows]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(
            f"{name}: {key} {statistics.mean(values):.4g} ± {spread:.2g} over {seeds} seeds, "
            f"{rows[0]['steps']:,} env steps, "
            f"{statistics.mean(row['cpu_seconds'] for row in rows):.1f} CPU seconds a run",
            flush=True,
        )


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
    rows = [env.advance(action) for action in actions]
    (torch.stack([row.reward for row in rows]).sum() + 0 * rows[-1].next_obs.sum()).backward()


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


def pace(work: Callable[[], None], steps: int, seconds: float, device: str) -> float:
    """Env steps per second, the best of three stretches."""
    clock = time.process_time if device == "cpu" else time.perf_counter

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    best = 0.0
    for _ in range(3):
        work()
        wait()
        started, count = clock(), 0
        while clock() - started < seconds / 3:
            work()
            wait()
            count += 1
        best = max(best, count * steps / (clock() - started))
    return best


def run_speed(envs: list[int], seconds: float, device: str, names: list[str]) -> None:
    print(
        f"{'env':<26}{'envs':>6}{'raw':>12}{'env':>12}{'policy':>12}{'window':>12}{'raw/env':>9}{'policy/window':>15}"
    )
    for env_id in names:
        for n in envs:
            env = make(env_id, n, device=device)
            trainer = shac(env, 0, SWING)
            trainer.collector.probe = None
            source = Pathwise(trainer.update.flat, 0.99)
            actor = Reparameterized(trainer.policy)
            shape = (HORIZON, n, len(env.action_low))
            actions = torch.zeros(shape, device=device).uniform_(-1, 1).requires_grad_()
            noise = torch.randn(shape, device=device)
            env.reset(0)
            work: dict[str, Callable[[], Any]] = {
                "raw": lambda: _raw(env, actions),  # noqa: B023
                "env": lambda: _env(env, actions),  # noqa: B023
                "policy": lambda: _policy(env, actor, noise),  # noqa: B023
                "window": lambda: source(trainer.collector.collect_steps(HORIZON)[0]),  # noqa: B023
            }
            paces = {}
            for name, do in work.items():
                env.reset(0)
                paces[name] = pace(do, HORIZON * n, seconds, device)
            numbers = "".join(f"{paces[name]:>12,.0f}" for name in work)
            ratios = paces["raw"] / paces["env"], paces["policy"] / paces["window"]
            print(f"{env_id:<26}{n:>6}{numbers}{ratios[0]:>9.2f}{ratios[1]:>15.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["learn", "speed"])
    parser.add_argument("--only", default="", help="tasks, with commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--envs", default="64,1024")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = [n for n in args.only.split(",") if n] or [*TASKS, "lqr"]
    if args.what == "learn":
        run_learning(names, args.seeds, args.steps)
    else:
        ids = [TASKS[n][1] if n in TASKS else "pgtrain/LQR-v0" for n in names]
        run_speed([int(n) for n in args.envs.split(",")], args.seconds, args.device, ids)


if __name__ == "__main__":
    main()
