"""Squared gradient norms of log π for each of 2,048 samples: time and memory, relative to one ordinary backward pass.

    python benchmarks/per_sample.py [--batch 2048] [--hidden 64 256] [--repeats 15] [--only NAME …]
    python benchmarks/per_sample.py --training   (iterations of REINFORCE with each baseline, and gradient=full)

All methods take turns in one process with one torch thread: CPU seconds, and the median and range of their ratios to
the backward pass of the same turn. Memory is the most that torch holds at once beyond what it held before.
opacus and BackPACK take part where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.profiler import ProfilerActivity, profile

from pgtrain.learning import per_sample
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import DiagonalGaussian
from pgtrain.policies.networks import MLP

OBS, ACTIONS = 17, 6
Method = Callable[[], Tensor | None]


def make_policy(hidden: int) -> ActorCritic:
    one = np.ones(ACTIONS)
    network = MLP(OBS, ACTIONS, hidden=[hidden] * 2, activation="tanh", share=0, critic=False, last_gain=1.0)
    return ActorCritic(network, DiagonalGaussian(-one, one), None, mean="identity")


def methods(hidden: int, batch: int) -> dict[str, Method]:
    """Name → a call that gives |∇log π|² [B]; `backward` is the ordinary pass of the batch, without them."""
    torch.manual_seed(0)
    policy = make_policy(hidden)
    obs, action = torch.randn(batch, OBS), torch.randn(batch, ACTIONS)

    def log_prob(module: Any, o: Tensor, a: Tensor) -> Tensor:
        return module.distribution.log_prob(module.params(module.network.act(o)), a)

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = policy

        def forward(self, o: Tensor, a: Tensor) -> Tensor:
            return log_prob(self.policy, o, a)

    scored = Scored()
    parameters = {name: p.detach() for name, p in scored.named_parameters()}
    each = vmap(grad(lambda p, o, a: functional_call(scored, p, (o, a))), in_dims=(None, 0, 0))

    def backward() -> None:
        policy.zero_grad()
        log_prob(policy, obs, action).sum().backward()

    def by_vmap() -> Tensor:
        return sum(g.flatten(1).square().sum(1) for g in each(parameters, obs, action).values())  # type: ignore

    found: dict[str, Method] = {
        "backward": backward,
        "squared_norms": lambda: per_sample.squared_norms(policy, obs, action),
        "squared_norms, any module": lambda: per_sample.squared_norms(policy, obs, action, log_prob=log_prob),
        "moments": lambda: per_sample.moments(policy, obs, action, torch.ones(batch)) and None,
        "gradients": lambda: torch.linalg.vector_norm(
            per_sample.gradients(policy, obs, action), dim=1
        ).square(),
        "vmap(grad)": by_vmap,
    }
    return found | others(policy, obs, action)


def others(policy: ActorCritic, obs: Tensor, action: Tensor) -> dict[str, Method]:
    """Libraries with per-sample gradients, on the network alone with σ = 1 (their hooks know no free parameter)."""
    found: dict[str, Method] = {}
    body = nn.Sequential(*(m for m in make_policy(policy.network.actor[0].out_features).network.actor))
    body.load_state_dict(policy.network.actor.state_dict())
    if importlib.util.find_spec("opacus"):
        from opacus import GradSampleModule

        wrapped = GradSampleModule(body, loss_reduction="sum")

        def opacus() -> Tensor:
            for p in wrapped.parameters():
                p.grad = p.grad_sample = None
            (-0.5 * (action - wrapped(obs)).square()).sum().backward()
            return sum(p.grad_sample.flatten(1).square().sum(1) for p in wrapped.parameters())  # type: ignore

        found["opacus"] = opacus
    if importlib.util.find_spec("backpack"):
        from backpack import backpack, extend
        from backpack.extensions import BatchL2Grad

        extended, loss = extend(body), extend(nn.MSELoss(reduction="sum"))

        def l2() -> Tensor:
            extended.zero_grad()
            with backpack(BatchL2Grad()):
                loss(extended(obs), action).backward()
            return sum(p.batch_l2 for p in extended.parameters()) / 4  # type: ignore

        found["backpack BatchL2Grad"] = l2
    return found


def measure(taken: dict[str, Method], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each turn, by method."""
    seconds: dict[str, list[float]] = {name: [] for name in taken}
    for turn in range(repeats + 2):
        for name, method in taken.items():
            start = time.process_time()
            method()
            if turn >= 2:
                seconds[name].append(time.process_time() - start)
    return seconds


def memory(method: Method) -> float:
    """The most that torch holds at once during a call, beyond what it held before, in MB."""
    method()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        method()
    events: Any = prof.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(itertools.accumulate(nbytes for _, nbytes in changes), default=0) / 2**20


# ------------------------------------------------------------------------------------------------ training

TRAINED = {
    "mean": ["advantage/baseline=mean"],
    "optimal scalar": ["advantage/baseline=optimal"],
    "optimal step": ["advantage/baseline=optimal", "advantage.baseline.scope=step"],
    "optimal step_joint": ["advantage/baseline=optimal", "advantage.baseline.scope=step_joint"],
    "optimal parameter": ["advantage/baseline=optimal", "advantage.baseline.scope=parameter"],
    "mean, monitor.gradient=full": ["advantage/baseline=mean", "monitor.gradient=full"],
}
TASKS = {
    "CartPole-v1, 8 x 1 episodes": ["env=CartPole-v1"],
    "CartPole-v1, 8 x 8 episodes": ["env=CartPole-v1", "collect.episodes=8"],
    "Acrobot-v1, 8 x 1 episodes": ["env=Acrobot-v1", "env.max_episode_steps=200"],
}


def iterations(task: list[str], turns: int) -> dict[str, list[float]]:
    """CPU seconds of an iteration by baseline, turn by turn; a learning rate near 0 keeps the episodes alike."""
    from pgtrain import build
    from pgtrain.config.compose import compose
    from pgtrain.interrupt import Interrupt
    from pgtrain.monitor.monitor import Monitor

    runners = {}
    for name, extra in TRAINED.items():
        cfg = compose(
            ["algo=reinforce", *task, *extra, "optim.lr.value=1e-9", "total_steps=1_000_000_000"]
        ).config
        env = build.make_env(cfg, cfg.num_envs)
        runners[name] = build.make_runner(cfg, env, Monitor([]), Path("."), Interrupt(), [])
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    each = 20  # an iteration in which gradients are measured among those in which they are not
    for turn in range(turns + 1):
        for name, runner in runners.items():
            start = time.process_time()
            for _ in range(each):
                runner._iterate()
            if turn:
                seconds[name].append((time.process_time() - start) / each)
    return seconds


def training(turns: int) -> None:
    print("| task | baseline | ms an iteration | x mean (median, range of turns) |\n|-|-|-|-|")
    for task, overrides in TASKS.items():
        seconds = iterations(overrides, turns)
        for name, times in seconds.items():
            ratios = sorted(a / b for a, b in zip(times, seconds["mean"], strict=True))
            spread = f"{statistics.median(ratios):.2f} ({ratios[1]:.2f}-{ratios[-2]:.2f})"
            print(f"| {task} | {name} | {statistics.median(times) * 1e3:.1f} | {spread} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--training", action="store_true", help="measure iterations of training instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.training:
        training(args.repeats)
        return
    print(
        f"{args.batch} samples, {OBS}-H-H-{ACTIONS} Gaussian policy, float32, 1 thread, torch {torch.__version__}"
    )
    print("| hidden | method | ms | x backward (median, range of turns) | peak MB |\n|-|-|-|-|-|")
    for hidden in args.hidden:
        taken = methods(hidden, args.batch)
        if args.only:
            taken = {name: taken[name] for name in ["backward", *args.only]}
        seconds = measure(taken, args.repeats)
        for name, times in seconds.items():
            ratios = sorted(a / b for a, b in zip(times, seconds["backward"], strict=True))
            middle, ms = statistics.median(ratios), statistics.median(times) * 1e3
            spread = f"{middle:.2f} ({ratios[1]:.2f}-{ratios[-2]:.2f})"
            grown = memory(taken[name])
            print(f"| {hidden}-{hidden} | {name} | {ms:.1f} | {spread} | {grown:.0f} |", flush=True)


if __name__ == "__main__":
    main()
