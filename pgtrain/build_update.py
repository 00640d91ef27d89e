"""Config → the update and its schedules."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from torch import Tensor

from pgtrain.config import schema
from pgtrain.config.update_checks import minibatch_size
from pgtrain.distributed import Ranks
from pgtrain.learning import kl_guard, losses, over_ranks
from pgtrain.learning.advantages import Estimator
from pgtrain.learning.gradients import ActorLoss, Backprop, CriticBackprop, Source
from pgtrain.learning.host.natural import make_model
from pgtrain.learning.host.pipeline import make_pipeline
from pgtrain.learning.natural_gradient import FixedStep, LineSearch, NaturalUpdate, StepRule
from pgtrain.learning.optimal_advantage import ParameterAdvantage, ParameterGradient
from pgtrain.learning.optimizers import SGD, Adam, Optimizer, RMSprop
from pgtrain.learning.schedules import SCHEDULES, Schedule
from pgtrain.learning.updates import Update
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters


def make_update(
    cfg: schema.Config,
    policy: ActorCritic,
    flat: FlatParameters,
    seed: int,
    estimator: Estimator | None = None,
    ranks: Ranks | None = None,
) -> Update | NaturalUpdate:
    """`estimator`: asked for where the gradient is its own (a baseline for each parameter)."""
    if isinstance(cfg.update, schema.NaturalConfig):
        return _natural(cfg, cfg.update, policy, flat, seed)
    assert isinstance(cfg.update, schema.GradientUpdateConfig)
    return _gradient(cfg, cfg.update, policy, flat, seed, estimator, ranks or Ranks())


def _gradient(
    cfg: schema.Config,
    u: schema.GradientUpdateConfig,
    policy: ActorCritic,
    flat: FlatParameters,
    seed: int,
    estimator: Estimator | None,
    ranks: Ranks,
) -> Update:
    several, normalize = ranks.size > 1, cfg.advantage.normalize
    policy_loss = _policy_loss(u, policy, flat.data.device)
    source: Source = Backprop(
        policy,
        flat,
        policy_loss=policy_loss,
        value_loss=make_value_loss(u.value_loss),
        value_coef=u.value_coef or 0.0,
        normalize_advantage=normalize and not several,
    )
    if isinstance(estimator, ParameterAdvantage):
        source = ParameterGradient(source, estimator, u.mean_over)
    optimizer = make_optimizer(cfg.optim, flat.data)
    guard = _guard(u.kl_guard, cfg.optim.lr.value, flat.data.device)
    penalty = policy_loss if isinstance(policy_loss, losses.KLPenalty) else None
    pipeline = make_pipeline(source, flat, optimizer, cfg.optim.max_grad_norm)
    measure = partial(kl_guard.measure_kl, policy, estimate=getattr(u.kl_guard, "estimate", "exact"))
    if several:
        pipeline = over_ranks.share_gradient(pipeline, flat.grad, ranks, normalize)
        measure = over_ranks.share_measure(measure, ranks)
    return Update(
        source,
        flat,
        optimizer,
        torch.Generator().manual_seed(seed),
        epochs=u.epochs,
        minibatch_size=minibatch_size(cfg)[1],
        max_grad_norm=cfg.optim.max_grad_norm,
        guards=[g for g in (penalty, guard) if g is not None],
        measure_kl=measure,
        pipeline=pipeline,
        ranks=ranks,
    )


def _natural(
    cfg: schema.Config, u: schema.NaturalConfig, policy: ActorCritic, flat: FlatParameters, seed: int
) -> NaturalUpdate:
    critic = None
    if policy.has_critic:
        assert u.critic_epochs is not None
        source, optimizer = (
            CriticBackprop(policy, flat, make_value_loss(u.value_loss)),
            make_optimizer(cfg.optim, flat.data),
        )
        critic = Update(
            source,
            flat,
            optimizer,
            torch.Generator().manual_seed(seed),
            epochs=u.critic_epochs,
            minibatch_size=u.critic_minibatch_size,
            max_grad_norm=cfg.optim.max_grad_norm,
            pipeline=make_pipeline(source, flat, optimizer, cfg.optim.max_grad_norm),
        )
    actor_loss = ActorLoss(losses.Surrogate(u.mean_over), cfg.advantage.normalize)
    return NaturalUpdate(
        policy,
        flat,
        actor_loss,
        _step_rule(u.step),
        critic,
        damping=u.damping,
        cg_iterations=u.cg_iterations,
        cg_tolerance=u.cg_tolerance,
        model=make_model(policy, flat, actor_loss),
    )


def _policy_loss(
    u: schema.GradientUpdateConfig, policy: ActorCritic, device: torch.device
) -> losses.PolicyLoss:
    if isinstance(u, schema.ClippedConfig):
        return losses.ClippedSurrogate(u.mean_over, u.dual_clip)
    if isinstance(u, schema.KLPenaltyConfig):
        return losses.KLPenalty(
            policy.distribution, beta=u.beta, target=u.target, mean_over=u.mean_over, device=device
        )
    return losses.PolicyGradient(u.mean_over)


def make_value_loss(v: schema.ValueLossConfig) -> losses.ValueLoss:
    if isinstance(v, schema.HuberConfig):
        return losses.HuberError(v.delta)
    if isinstance(v, schema.ClipMaxConfig | schema.ClipOnlyConfig):
        return losses.ClippedError(v.name)
    return losses.SquaredError()


def _guard(g: schema.KLGuardConfig, lr: float, device: torch.device) -> kl_guard.Guard | None:
    if isinstance(g, schema.StopGuardConfig):
        return None if g.limit is None else kl_guard.Stop(g.limit)
    if isinstance(g, schema.SkipGuardConfig):
        return None if g.limit is None else kl_guard.Skip(g.limit)
    if isinstance(g, schema.LearningRateGuardConfig):
        return kl_guard.LearningRate(g.target, lr, g.smallest, g.largest, device)
    return None


def _step_rule(s: schema.StepConfig) -> StepRule:
    if isinstance(s, schema.LineSearchConfig):
        return LineSearch(s.max_kl, s.shrink, s.trials)
    assert isinstance(s, schema.FixedStepConfig)
    return FixedStep(s.size)


def make_optimizer(o: schema.OptimConfig, data: Tensor) -> Optimizer:
    if isinstance(o, schema.SGDConfig):
        return SGD(data, momentum=o.momentum)
    if isinstance(o, schema.RMSpropConfig | schema.RMSpropTFConfig):
        return RMSprop(data, alpha=o.alpha, eps=o.eps, tensorflow=isinstance(o, schema.RMSpropTFConfig))
    assert isinstance(o, schema.AdamConfig)
    return Adam(data, betas=(o.beta1, o.beta2), eps=o.eps)


def make_schedule(s: schema.EntropyConfig | schema.LearningRateConfig | schema.ClipConfig) -> Schedule:
    """The schedule of that name, with the option's settings; `coef` is an entropy bonus' `value`."""
    settings = dataclasses.asdict(s)
    name = settings.pop("name")
    start = settings.pop("coef") if isinstance(s, schema.EntropyConfig) else settings.pop("value")
    return SCHEDULES[name](start, **settings)
