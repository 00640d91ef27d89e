"""Config → what trains through a differentiable env: the windows' collector, the estimator and the update."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from pgtrain.build_update import make_optimizer, make_value_loss
from pgtrain.config import schema
from pgtrain.envs.differentiable import registration
from pgtrain.envs.differentiable.base import DifferentiableEnv
from pgtrain.envs.differentiable.check import check
from pgtrain.envs.differentiable.probe import carries_gradient
from pgtrain.learning.gradients import CriticBackprop
from pgtrain.learning.host.pipeline import make_pipeline
from pgtrain.learning.pathwise_gradients import AlphaOrder, BothOrders, Comparison, Pathwise
from pgtrain.learning.pathwise_update import PathwiseUpdate, TargetCritic, TDLambda, WindowReturn
from pgtrain.learning.updates import Update
from pgtrain.learning.window import TimeProbe, WindowCollector
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters
from pgtrain.types import UserError

COMPARED_GROUPS = 8  # of envs, whose gradients a variance is measured over
QUARTER = 4


class WindowParts(NamedTuple):
    collector: WindowCollector
    estimator: TDLambda | WindowReturn
    update: PathwiseUpdate


def make_window_parts(
    cfg: schema.Config, policy: ActorCritic, flat: FlatParameters, seeds: dict[str, int]
) -> WindowParts:
    """`policy` on the device where it shall train; the envs go there, too.

    Raises: UserError for an env that is not differentiable.
    """
    u, a = cfg.update, cfg.advantage
    assert isinstance(u, schema.WindowUpdateConfig)
    env = registration.make(
        cfg.env.id,
        cfg.num_envs,
        device=flat.data.device,
        max_episode_steps=cfg.env.max_episode_steps,
        **cfg.env.kwargs,
    )
    _refuse_short_budget(cfg, env)
    env.notices += _cut_gradients(env)
    probe = None if isinstance(u, schema.AlphaOrderConfig) else TimeProbe()
    target = critic = None
    if policy.has_critic:
        assert u.target_alpha is not None
        target = TargetCritic(policy, flat, u.target_alpha)
        critic = _critic(cfg, u, policy, flat, seeds["minibatch"], env.max_episode_steps)
    update = PathwiseUpdate(
        policy,
        _source(cfg, u, policy, flat, probe),
        flat,
        make_optimizer(cfg.optim, flat.data),
        critic,
        target,
        cfg.optim.max_grad_norm,
        u.critic_lr_ratio or 1.0,
    )
    collector = WindowCollector(env, policy, (seeds["env"], seeds["action"]), target, probe)
    estimator = (
        TDLambda(cfg.gamma, a.lam) if isinstance(a, schema.TdLambdaConfig) else WindowReturn(cfg.gamma)
    )
    return WindowParts(collector, estimator, update)


def _refuse_short_budget(cfg: schema.Config, env: DifferentiableEnv) -> None:
    """Whole episodes: without one iteration in the budget, a run would end untrained."""
    limit = env.max_episode_steps
    if cfg.collect.unit != "episodes" or limit is None or cfg.num_envs * limit <= cfg.total_steps:
        return
    raise UserError(
        f"total_steps={cfg.total_steps}: an iteration of collect.unit=episodes is num_envs={cfg.num_envs} episodes of "
        f"{limit} steps = {cfg.num_envs * limit:,}; use more steps, a smaller num_envs or collect.unit=steps"
    )


def _cut_gradients(env: DifferentiableEnv) -> list[str]:
    """What a quick look finds wrong with the env's gradient: training would go on without a word, and learn little.

    Raises: UserError where there is none at all.
    """
    found = check(env, rollout=0)
    more = f"`pgtrain check env={env.env_id}` tells all"
    if not carries_gradient(env):
        first = f": {found[0]}" if found else ""
        raise UserError(
            f"env={env.env_id}: no gradient leads from an action to a reward or a state{first} ({more})"
        )
    if not found:
        return []
    count = "1 fault" if len(found) == 1 else f"{len(found)} faults, the first"
    return [f"the gradient of {env.env_id} has {count}: {found[0]} ({more})"]


def _source(
    cfg: schema.Config,
    u: schema.WindowUpdateConfig,
    policy: ActorCritic,
    flat: FlatParameters,
    probe: TimeProbe | None,
) -> Pathwise | AlphaOrder:
    if isinstance(u, schema.AlphaOrderConfig):
        return AlphaOrder(policy, flat, cfg.gamma, u.groups, u.tolerance, delta=u.delta or 1.0)
    assert isinstance(u, schema.PathwiseConfig)
    comparison = None
    if u.compare_every is not None and cfg.num_envs > 1:  # of one sample there is no variance
        groups = min(COMPARED_GROUPS, cfg.num_envs)
        comparison = Comparison(BothOrders(policy, flat, cfg.gamma), groups, u.compare_every)
    return Pathwise(flat, cfg.gamma, probe, comparison)


def _critic(
    cfg: schema.Config,
    u: schema.WindowUpdateConfig,
    policy: ActorCritic,
    flat: FlatParameters,
    seed: int,
    limit: int | None,
) -> Update:
    assert u.critic_epochs is not None
    size = u.critic_minibatch_size
    if size is None and limit is not None:  # whole episodes
        size = math.ceil(cfg.num_envs * limit / QUARTER)
    source = CriticBackprop(policy, flat, make_value_loss(u.value_loss))
    optimizer = make_optimizer(cfg.optim, flat.data)
    return Update(
        source,
        flat,
        optimizer,
        torch.Generator().manual_seed(seed),
        epochs=u.critic_epochs,
        minibatch_size=size,
        max_grad_norm=cfg.optim.max_grad_norm,
        pipeline=make_pipeline(source, flat, optimizer, cfg.optim.max_grad_norm),
    )
