"""Config → objects, in dependency order."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pgtrain import device
from pgtrain.callbacks import Checkpointer
from pgtrain.config import checks, convert, schema
from pgtrain.envs.vector import VectorEnv, make_vector_env
from pgtrain.interrupt import Interrupt
from pgtrain.learning import advantages
from pgtrain.learning.gradients import Backprop
from pgtrain.learning.losses import PolicyGradient, SquaredError
from pgtrain.learning.optimizers import Adam
from pgtrain.learning.schedules import SCHEDULES, Schedule
from pgtrain.learning.updates import Update
from pgtrain.monitor.monitor import Monitor
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import Categorical, DiagonalGaussian
from pgtrain.policies.networks import MLP
from pgtrain.policies.normalizer import RewardScaler, RunningMoments
from pgtrain.policies.parameters import FlatParameters
from pgtrain.rollout import Collector
from pgtrain.runner import Plan, Runner

STREAMS = ("network", "env", "action", "minibatch", "evaluation")


def streams(seed: int) -> dict[str, int]:
    """One seed per use of randomness, all from the run's seed; using one up never shifts another."""
    return dict(
        zip(STREAMS, (int(s) for s in np.random.SeedSequence(seed).generate_state(len(STREAMS))), strict=True)
    )


def make_env(cfg: schema.Config, num_envs: int) -> VectorEnv:
    env = cfg.env
    return make_vector_env(
        env.id,
        num_envs,
        kwargs=dict(env.kwargs),
        backend=env.backend,
        workers=env.workers
        and min(env.workers, num_envs),  # an evaluation may have fewer envs than the training
        max_episode_steps=env.max_episode_steps,
    )


def make_policy(cfg: schema.Config, env: VectorEnv) -> ActorCritic:
    """The policy on the CPU, initialised from the run's network stream."""
    p = cfg.policy
    space = env.action_space
    discrete = hasattr(space, "n")
    distribution = Categorical(int(space.n)) if discrete else DiagonalGaussian(space.low, space.high)  # pyright: ignore
    standardise = p.normalize_obs == "running" and env.obs_is_float_box
    with torch.random.fork_rng(devices=[]):  # neither takes from the user's global stream nor depends on it
        torch.manual_seed(streams(cfg.seed)["network"])
        network = MLP(
            env.obs_dim,
            distribution.head_dim,
            hidden=p.hidden,
            activation=p.activation,
            share=len(p.hidden) if p.share == "all" else int(p.share),
            critic=schema.has_critic(cfg),
            last_gain=p.last_layer_gain,
        )
    return ActorCritic(
        network,
        distribution,
        RunningMoments(env.obs_dim) if standardise else None,
        value_moments=RunningMoments(1, clip=math.inf, eps=1e-4) if p.normalize_value == "running" else None,
        mean=p.mean,
        log_std_init=p.log_std_init,
        log_std_min=p.log_std_min,
        log_std_max=p.log_std_max,
    )


def make_estimator(cfg: schema.Config) -> advantages.Estimator:
    a = cfg.advantage
    if isinstance(a, schema.MonteCarloConfig):
        scope = getattr(a.baseline, "scope", "scalar")
        return advantages.MonteCarlo(cfg.gamma, a.returns, a.truncation_bootstrap, a.baseline.name, scope)
    if isinstance(a, schema.TdConfig):
        return advantages.TD(cfg.gamma)
    if isinstance(a, schema.NStepConfig):
        return advantages.NStep(cfg.gamma, a.n)
    assert isinstance(a, schema.GaeConfig)
    return advantages.GAE(cfg.gamma, a.lam)


def make_update(cfg: schema.Config, policy: ActorCritic, flat: FlatParameters) -> Update:
    u = cfg.update
    source = Backprop(
        policy,
        flat,
        policy_loss=PolicyGradient(u.mean_over),
        value_loss=SquaredError(),
        value_coef=u.value_coef or 0.0,
        normalize_advantage=cfg.advantage.normalize,
    )
    assert isinstance(cfg.optim, schema.AdamConfig)
    return Update(
        source,
        flat,
        Adam(flat.data, eps=cfg.optim.eps),
        torch.Generator().manual_seed(streams(cfg.seed)["minibatch"]),
        epochs=u.epochs,
        minibatch_size=u.minibatch_size,
        max_grad_norm=cfg.optim.max_grad_norm,
    )


def make_schedule(cfg: Any) -> Schedule:
    return SCHEDULES[cfg.name](cfg.coef if isinstance(cfg, schema.EntropyConfig) else cfg.value)


def make_runner(
    cfg: schema.Config,
    env: VectorEnv,
    monitor: Monitor,
    run_dir: Path,
    interrupt: Interrupt,
    notices: list[str],
) -> Runner:
    """Everything a run needs, in dependency order. Cross-checks that need the env are made here."""
    policy = make_policy(cfg, env)
    where, notice = device.resolve(cfg.device.name, sum(p.numel() for p in policy.parameters()))
    notices += [*([notice] if notice else []), *tell(cfg, policy)]
    policy.to(where)
    flat = FlatParameters(policy)
    seeds = streams(cfg.seed)
    whole = cfg.collect.unit == "episodes"
    return Runner(
        plan=Plan(cfg.total_steps, None if whole else cfg.horizon, cfg.collect.episodes if whole else None),
        policy=policy,
        collector=Collector(
            env, policy, policy.actor(env.num_envs, seeds["action"]), seeds["env"], cfg.horizon or 512
        ),
        reward_scaler=make_reward_scaler(cfg, env, where),
        estimator=make_estimator(cfg),
        update=make_update(cfg, policy, flat),
        learning_rate=make_schedule(cfg.optim.lr),
        entropy_coef=make_schedule(cfg.entropy),
        discount=cfg.gamma if cfg.advantage.discount_states else None,
        monitor=monitor,
        callbacks=[
            Checkpointer(run_dir, cfg.checkpoint.every_steps, convert.to_dict(cfg), cfg.checkpoint.keep or 1)
        ],
        max_skipped_in_a_row=cfg.update.max_skipped_in_a_row,
        interrupt=interrupt,
    )


def tell(cfg: schema.Config, policy: ActorCritic) -> list[str]:
    """What becomes of settings that cannot be met to the letter."""
    notices, p = [], cfg.policy
    if policy.log_std is not None and not p.log_std_min <= p.log_std_init <= p.log_std_max:
        limits = f"policy.log_std_min={p.log_std_min:g} and policy.log_std_max={p.log_std_max:g}"
        notices.append(f"policy.log_std_init={p.log_std_init:g} is held between {limits}")
    size = cfg.update.minibatch_size
    if size is not None and cfg.horizon is not None and (rows := cfg.horizon * cfg.num_envs) % size:
        parts = math.ceil(rows / size)
        even = f"{rows // parts} or {rows // parts + 1}" if rows % parts else f"{rows // parts}"
        notices.append(
            f"update.minibatch_size={size} does not divide the batch of {rows}: {parts} minibatches of {even} steps"
        )
    return notices


def refuse_unused(cfg: schema.Config, overrides: list[str], env: VectorEnv) -> None:
    """Settings that this env's spaces leave without effect are refused, not ignored."""
    if hasattr(env.action_space, "n"):
        keys = ["policy.mean", "policy.log_std_init", "policy.log_std_min", "policy.log_std_max"]
        checks.refuse_unused(overrides, keys, f"with the discrete actions of {cfg.env.id}")
    if not env.obs_is_float_box and cfg.policy.normalize_obs == "running":
        why = f"with the observations of {cfg.env.id}, which are no floats"
        checks.refuse_unused(overrides, ["policy.normalize_obs"], why)


def make_reward_scaler(cfg: schema.Config, env: VectorEnv, where: torch.device) -> RewardScaler | None:
    if cfg.reward.scaling == "none":
        return None
    return RewardScaler(env.num_envs, cfg.gamma, clip=cfg.reward.clip or 10.0).to(where)
