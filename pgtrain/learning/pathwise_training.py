"""Pathwise training from Python: SHAC, BPTT and α-order on a differentiable env, in three lines.

env = make("pgtrain/Pendulum-v0", num_envs=64)
trainer = shac(env, seed=0)
trainer.run(total_steps=200_000)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv
from pgtrain.learning.batch import Coefficients
from pgtrain.learning.gradients import CriticBackprop
from pgtrain.learning.losses import SquaredError
from pgtrain.learning.optimizers import Adam
from pgtrain.learning.pathwise_update import (
    AlphaOrder,
    Pathwise,
    PathwiseUpdate,
    TargetCritic,
    TDLambda,
    WindowReturn,
)
from pgtrain.learning.updates import Update
from pgtrain.learning.window import TimeProbe, WindowCollector
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.networks import MLP
from pgtrain.policies.normalizer import RunningMoments
from pgtrain.policies.parameters import FlatParameters
from pgtrain.policies.reparameterized import Reparameterized
from pgtrain.policies.squashed import TanhGaussian
from pgtrain.rollout import Episodes, Rollout


@dataclass(frozen=True)
class Settings:
    """SHAC's, as published for small tasks (Xu et al. 2022, and their code), but for the network's size."""

    horizon: int | None = 32  # rows of a window in each env; None: whole episodes
    gamma: float = 0.99
    lam: float = 0.95  # of the critic's targets
    target_alpha: float = 0.2  # the target critic's memory
    actor_lr: float = 2e-3
    critic_lr: float = 2e-3
    last_lr: float = 1e-5  # both fall linearly to this
    betas: tuple[float, float] = (0.7, 0.95)
    max_grad_norm: float | None = 1.0
    critic_epochs: int = 16
    critic_minibatches: int = 4
    hidden: Sequence[int] = (64, 64)
    activation: str = "elu"
    log_std_init: float = -1.0
    normalize_obs: bool = True


@dataclass
class Trainer:
    """collect → estimate → update, with what a resumed run needs."""

    policy: ActorCritic
    collector: WindowCollector
    estimator: Callable[[Rollout], Rollout]
    update: PathwiseUpdate
    settings: Settings
    steps: int = 0
    total_steps: int = 0
    history: list[dict[str, float]] = field(default_factory=list)

    def run(self, total_steps: int, after: Callable[[Trainer, dict[str, float]], None] | None = None) -> None:
        """Iterations until `total_steps` env steps are made; `after` is told of each."""
        self.total_steps = total_steps
        while self.steps < total_steps:
            row = self.iterate()
            if after is not None:
                after(self, row)

    def iterate(self) -> dict[str, float]:
        """One iteration; returns its numbers."""
        collected = self._collect()
        rollout, episodes = collected
        rollout = self.estimator(rollout)
        result = self.update(rollout, Coefficients(self._rate(), 0.0))
        self.policy.observe(rollout.obs, rollout.weight)
        if bool(result.ok.any()):
            self.policy.constrain()
        self.steps += rollout.num_steps
        row = {name: float(x.detach()) for name, x in result.stats.items()}
        row |= {"steps": float(self.steps), "skipped": float((~result.ok).sum())}
        if len(episodes.returns):
            row["episode/return"] = float(np.mean(episodes.returns))
        self.history.append(row)
        return row

    def _collect(self) -> tuple[Rollout, Episodes]:
        if self.settings.horizon is not None:
            return self.collector.collect_steps(self.settings.horizon)
        collected = self.collector.collect_episodes(1)
        assert collected is not None
        return collected

    def _rate(self) -> float:
        s, share = self.settings, min(1.0, self.steps / max(self.total_steps, 1))
        return s.actor_lr + (s.last_lr - s.actor_lr) * share

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "collector": self.collector.state_dict(),
            "update": self.update.state_dict(),
            "steps": self.steps,
            "total_steps": self.total_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.collector.load_state_dict(state["collector"])
        self.update.load_state_dict(state["update"])
        self.steps, self.total_steps = state["steps"], state["total_steps"]


def make_policy(env: DifferentiableEnv, seed: int, settings: Settings, critic: bool = True) -> ActorCritic:
    """A tanh-Gaussian policy (and critic) for the env, on its device."""
    space = env.action_space
    distribution = TanhGaussian(space.low, space.high)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = MLP(
            env.obs_dim,
            distribution.head_dim,
            hidden=settings.hidden,
            activation=settings.activation,
            share=0,
            critic=critic,
            last_gain=0.01,
        )
    normalizer = RunningMoments(env.obs_dim) if settings.normalize_obs else None
    policy = ActorCritic(
        network, distribution, normalizer, mean="identity", log_std_init=settings.log_std_init
    )
    return policy.to(env.device)


def shac(env: DifferentiableEnv, seed: int = 0, settings: Settings | None = None) -> Trainer:
    """Short-horizon actor-critic (Xu et al. 2022): windows, the rest of the return by a critic."""
    s = settings or Settings()
    policy = make_policy(env, seed, s)
    flat = FlatParameters(policy)
    return _with_critic(env, policy, flat, Pathwise(flat, s.gamma, TimeProbe()), seed, s)


def alpha_order(
    env: DifferentiableEnv,
    seed: int = 0,
    settings: Settings | None = None,
    *,
    groups: int = 8,
    tolerance: float | None = None,
) -> Trainer:
    """SHAC whose actor gradient is mixed with the score function's, by α-order (Suh et al. 2022)."""
    s = settings or Settings()
    policy = make_policy(env, seed, s)
    flat = FlatParameters(policy)
    source = AlphaOrder(policy, flat, s.gamma, groups, tolerance)
    return _with_critic(env, policy, flat, source, seed, s)


def bptt(env: DifferentiableEnv, seed: int = 0, settings: Settings | None = None) -> Trainer:
    """Backpropagation through time, no critic: whole episodes (`horizon=None`), or windows blind to what follows."""
    s = settings or Settings(horizon=None)
    policy = make_policy(env, seed, s, critic=False)
    flat = FlatParameters(policy)
    probe = TimeProbe()
    update = PathwiseUpdate(
        Pathwise(flat, s.gamma, probe),
        flat,
        Adam(flat.data, betas=s.betas),
        max_grad_norm=s.max_grad_norm,
    )
    collector = WindowCollector(env, policy, _seeds(seed), probe=probe)
    return Trainer(policy, collector, WindowReturn(s.gamma), update, s)


def _with_critic(
    env: DifferentiableEnv, policy: ActorCritic, flat: FlatParameters, source: Any, seed: int, s: Settings
) -> Trainer:
    target = TargetCritic(policy, flat, s.target_alpha)
    rows = (s.horizon or env.max_episode_steps or 1) * env.num_envs
    critic = Update(
        CriticBackprop(policy, flat, SquaredError()),
        flat,
        Adam(flat.data, betas=s.betas),
        torch.Generator().manual_seed(seed),
        epochs=s.critic_epochs,
        minibatch_size=math.ceil(rows / s.critic_minibatches),
        max_grad_norm=s.max_grad_norm,
    )
    update = PathwiseUpdate(
        source,
        flat,
        Adam(flat.data, betas=s.betas),
        critic,
        target,
        s.max_grad_norm,
        critic_lr_ratio=s.critic_lr / s.actor_lr,
    )
    collector = WindowCollector(env, policy, _seeds(seed), target, getattr(source, "probe", None))
    return Trainer(policy, collector, TDLambda(s.gamma, s.lam), update, s)


def _seeds(seed: int) -> tuple[int, int]:
    env, noise = np.random.SeedSequence(seed).generate_state(2)
    return int(env), int(noise)


@torch.no_grad()
def evaluate(env: DifferentiableEnv, policy: ActorCritic, seed: int) -> Tensor:
    """Undiscounted returns [N] of one whole episode in each env, played without noise. Needs a time limit."""
    assert env.max_episode_steps is not None
    actor = Reparameterized(policy, env.dtype)
    actor.begin()
    obs = env.reset(seed)
    total, alive = torch.zeros(env.num_envs, device=env.device), torch.ones(env.num_envs, device=env.device)
    for _ in range(env.max_episode_steps):
        _, mean = actor(actor.inputs(obs), torch.zeros((), device=env.device))
        obs, reward, terminated, truncated, _ = env.advance(actor.to_env(mean))
        total = total + alive * reward
        alive = alive * (~(terminated | truncated)).float()
    return total
