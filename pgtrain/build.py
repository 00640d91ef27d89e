"""Config → objects, in dependency order."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch

from pgtrain import device
from pgtrain.build_collector import make_collector
from pgtrain.build_distribution import features_of, make_distribution, refuse_unused_actions
from pgtrain.build_observations import (
    calibrate,
    make_network,
    make_normalizer,
    observation_settings,
    refuse_unused_of_observations,
)
from pgtrain.build_pathwise import make_window_parts
from pgtrain.build_update import make_schedule, make_update
from pgtrain.callbacks import Checkpointer
from pgtrain.config import checks, convert, memory_checks, schema, update_checks
from pgtrain.config.notices import lonely_episode
from pgtrain.distributed import Ranks
from pgtrain.entries import Entries
from pgtrain.envs.differentiable import registration
from pgtrain.envs.differentiable.probe import refuse_choices
from pgtrain.envs.show import Show
from pgtrain.envs.vector import VectorEnv, make_vector_env
from pgtrain.interrupt import Interrupt
from pgtrain.learning import advantages, over_ranks
from pgtrain.learning.batch import flatten, sequences
from pgtrain.learning.host.scores import make_scores
from pgtrain.learning.optimal_advantage import OptimalAdvantage, ParameterAdvantage
from pgtrain.learning.optimal_baselines import make_fit
from pgtrain.learning.optimal_estimator import OptimalBaseline, ParameterBaseline
from pgtrain.learning.schedules import constant
from pgtrain.monitor.diagnostics import make_policy_metrics
from pgtrain.monitor.gradient_health import GradientHealth, NoHealth
from pgtrain.monitor.monitor import Monitor
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import make_actor
from pgtrain.policies.distributions import Distribution
from pgtrain.policies.masks import Masked
from pgtrain.policies.normalizer import RewardScaler, RewardSign, RunningMoments
from pgtrain.policies.parameters import FlatParameters
from pgtrain.progress import Plan
from pgtrain.runner import Runner

STREAMS = ("network", "env", "action", "minibatch", "evaluation")


def streams(seed: int, rank: int = 0) -> dict[str, int]:
    """One seed per use of randomness, all from the run's seed; using one up never shifts another.

    Ranks above 0 draw actions and minibatches of their own, and share the rest.
    """
    seeds = [int(s) for s in np.random.SeedSequence(seed).generate_state(len(STREAMS))]
    named: dict[str, int] = dict(zip(STREAMS, seeds, strict=True))
    for name in ("action", "minibatch") if rank else ():
        named[name] = int(np.random.SeedSequence([named[name], rank]).generate_state(1)[0])
    return named


def make_env(
    cfg: schema.Config, num_envs: int, before: int = 0, ranks: int = 1, show: Show | None = None
) -> VectorEnv:
    """`before`: envs of the run that other ranks hold and that come before these; `ranks`: that step at once."""
    env = cfg.env
    # an evaluation may have fewer envs than the training
    workers, threads = (count and min(count, num_envs) for count in (env.workers, env.threads))
    if show is not None:
        workers = threads = None
    return make_vector_env(
        env.id,
        num_envs,
        kwargs=dict(env.kwargs),
        backend=env.backend if show is None else "sync",
        workers=workers,
        threads=threads,
        max_episode_steps=env.max_episode_steps,
        action_mask=env.action_mask,
        before=before,
        ranks=ranks,
        show=show,
        **observation_settings(cfg),
    )


def make_share(cfg: schema.Config, ranks: Ranks) -> VectorEnv:
    """This rank's part of the run's envs."""
    count = cfg.num_envs // ranks.size
    return make_env(cfg, count, ranks.rank * count, ranks.size)


def make_policy(cfg: schema.Config, env: VectorEnv) -> ActorCritic:
    """The policy on the CPU, initialised from the run's network stream."""
    p = cfg.policy
    distribution = make_distribution(cfg, env)
    with torch.random.fork_rng(devices=[]):  # neither takes from the user's global stream nor depends on it
        torch.manual_seed(streams(cfg.seed)["network"])
        network = make_network(
            cfg, env.layout, distribution.head_dim, features_of(p.distribution), env.mask_dim
        )
    return ActorCritic(
        network,
        cast(Distribution, Masked(distribution)) if env.mask_dim else distribution,
        make_normalizer(cfg, env.layout, env.mask_dim),
        value_moments=RunningMoments(1, clip=math.inf, eps=1e-4) if p.normalize_value == "running" else None,
        input_dtype=torch.uint8 if env.obs_dtype == np.uint8 and not remembers(cfg) else torch.float32,
        mean=p.mean or "identity",
        log_std_init=p.log_std_init,
        log_std_min=p.log_std_min,
        log_std_max=p.log_std_max,
    )


def make_estimator(
    cfg: schema.Config, policy: ActorCritic | None = None, flat: FlatParameters | None = None
) -> advantages.Estimator:
    """`policy`: for the baselines that depend on its scores, which are had more quickly given its flat parameters."""
    a = cfg.advantage
    if isinstance(a, schema.MonteCarloConfig):
        if isinstance(a.baseline, schema.OptimalBaselineConfig):
            assert policy is not None
            return make_optimal(cfg, a, a.baseline, policy, flat)
        scope = getattr(a.baseline, "scope", "scalar")
        return advantages.MonteCarlo(cfg.gamma, a.returns, a.truncation_bootstrap, a.baseline.name, scope)
    if isinstance(a, schema.TdConfig):
        return advantages.TD(cfg.gamma)
    if isinstance(a, schema.NStepConfig):
        return advantages.NStep(cfg.gamma, a.n)
    assert isinstance(a, schema.GaeConfig)
    return advantages.GAE(cfg.gamma, a.lam)


def make_optimal(
    cfg: schema.Config,
    a: schema.MonteCarloConfig,
    b: schema.OptimalBaselineConfig,
    policy: ActorCritic,
    flat: FlatParameters | None,
) -> OptimalAdvantage | ParameterAdvantage:
    assert b.form is not None
    below = "value" if b.on_value else "none"
    returns = advantages.MonteCarlo(cfg.gamma, a.returns, a.truncation_bootstrap, below)
    fit, scores = make_fit(b.fit), make_scores(policy, flat, b.memory_mb * 2**20)
    if b.scope == "parameter":
        each = ParameterBaseline(cfg.gamma, b.form, fit, a.discount_states)
        return ParameterAdvantage(returns, scores, each)
    baseline = OptimalBaseline(cfg.gamma, b.scope, b.form, fit, a.discount_states)
    return OptimalAdvantage(returns, scores, baseline)


def make_health(cfg: schema.Config, policy: ActorCritic, flat: FlatParameters) -> NoHealth:
    if cfg.monitor.gradient != "full":
        return NoHealth()
    a = cfg.advantage
    gamma = cfg.gamma if a.discount_states else None
    return GradientHealth(policy, flat, cfg.monitor.gradient_every, gamma, a.normalize)


def make_runner(
    cfg: schema.Config,
    env: VectorEnv,
    monitor: Monitor,
    run_dir: Path,
    interrupt: Interrupt,
    notices: list[str],
    ranks: Ranks | None = None,
) -> Runner:
    """Everything a run needs, in dependency order. Cross-checks that need the env are made here."""
    ranks = ranks or Ranks()
    policy = make_policy(cfg, env)
    name = cfg.device.name if ranks.size == 1 else "cpu"
    where, notice = device.resolve(name, sum(p.numel() for p in policy.parameters()))
    notices += [*([notice] if notice else []), *tell(cfg, policy)]
    policy.to(where)
    notices += calibrate(cfg, env, policy, ranks)
    flat = FlatParameters(policy)  # before the actor, which works on the parameters' memory
    ranks.copy_from_first_(flat.data)
    seeds = streams(cfg.seed, ranks.rank)
    whole = cfg.collect.unit == "episodes"
    u, value_clip = cfg.update, getattr(cfg.update.value_loss, "clip", None)
    if isinstance(u, schema.WindowUpdateConfig):
        collector, estimator, update = make_window_parts(cfg, policy, flat, seeds)
        notices += collector.env.notices
    else:
        actor = make_actor(policy, env.num_envs, seeds["action"])
        collector = make_collector(cfg, env, policy, actor, seeds["env"], notices)
        estimator = make_estimator(cfg, policy, flat)
        update = make_update(cfg, policy, flat, seeds["minibatch"], estimator, ranks)
    reward_scaler = make_reward_scaler(cfg, env, where)
    to_batch = partial(sequences, length=cfg.policy.memory.sequence) if remembers(cfg) else flatten  # pyright: ignore
    if ranks.size > 1:
        estimator = over_ranks.share_estimator(estimator, ranks)
        to_batch = over_ranks.share_episodes(to_batch, ranks)
        over_ranks.share_moments([policy, reward_scaler], ranks)
    checkpointer = Checkpointer(
        run_dir, cfg.checkpoint.every_steps, convert.to_dict(cfg), cfg.checkpoint.keep or 1
    )
    return Runner(
        plan=Plan(cfg.total_steps, None if whole else cfg.horizon, cfg.collect.episodes if whole else None),
        policy=policy,
        collector=collector,
        reward_scaler=reward_scaler,
        estimator=estimator,
        update=update,
        learning_rate=make_schedule(cfg.optim.lr),
        entropy_coef=make_schedule(cfg.entropy),
        clip=make_schedule(u.clip) if isinstance(u, schema.ClippedConfig) else None,
        value_clip=constant(value_clip) if value_clip is not None else None,
        health=make_health(cfg, policy, flat),
        recompute_advantages=getattr(u, "recompute_advantages", False),
        discount=cfg.gamma if cfg.advantage.discount_states else None,
        entries=Entries(make_policy_metrics(policy, flat)),
        monitor=monitor,
        callbacks=[checkpointer] if ranks.leads else [],
        to_batch=to_batch,
        max_skipped_in_a_row=cfg.update.max_skipped_in_a_row,
        interrupt=interrupt,
        ranks=ranks,
    )


def tell(cfg: schema.Config, policy: ActorCritic) -> list[str]:
    """What becomes of settings that cannot be met to the letter."""
    notices, p = lonely_episode(cfg), cfg.policy
    if policy.log_std is not None and not p.log_std_min <= p.log_std_init <= p.log_std_max:
        limits = f"policy.log_std_min={p.log_std_min:g} and policy.log_std_max={p.log_std_max:g}"
        notices.append(f"policy.log_std_init={p.log_std_init:g} is held between {limits}")
    if remembers(cfg):
        return notices + memory_checks.tell_sequences(cfg)
    key, size = update_checks.minibatch_size(cfg)
    if size is not None and cfg.horizon is not None and (rows := cfg.horizon * cfg.num_envs) % size:
        parts = math.ceil(rows / size)
        even = f"{rows // parts} or {rows // parts + 1}" if rows % parts else f"{rows // parts}"
        notices.append(
            f"{key}={size} does not divide the batch of {rows}: {parts} minibatches of {even} steps"
        )
    return notices


def remembers(cfg: schema.Config) -> bool:
    return isinstance(cfg.policy.memory, schema.RecurrentConfig)


def refuse_unused(cfg: schema.Config, overrides: list[str], env: VectorEnv) -> None:
    """Settings that this env leaves without effect are refused, not ignored; so is an env that an update cannot use."""
    if isinstance(cfg.update, schema.WindowUpdateConfig):
        refuse_choices(registration.load(cfg.env.id), cfg.env.id)
    refuse_unused_actions(cfg, overrides, env)
    refuse_unused_of_observations(cfg, overrides, env)
    if update_checks.learning_rate_unused(cfg):
        why = f"with update={cfg.update.name} and no critic, as the optimiser is the critic's"
        checks.refuse_unused(overrides, ["optim", "optim/lr", "optim."], why)


def make_reward_scaler(
    cfg: schema.Config, env: VectorEnv, where: torch.device
) -> RewardScaler | RewardSign | None:
    if cfg.reward.scaling == "running_std":
        return RewardScaler(env.num_envs, cfg.gamma, clip=cfg.reward.clip or 10.0).to(where)
    return RewardSign() if cfg.reward.scaling == "sign" else None
