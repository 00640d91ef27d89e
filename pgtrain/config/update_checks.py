"""Settings of update, entropy and optimiser that don't fit together. Called by `checks.check` and `checks.settle`."""

from __future__ import annotations

import math
from dataclasses import replace

from pgtrain.config.errors import ConfigError, no_effect
from pgtrain.config.schema import (
    AlphaOrderConfig,
    Config,
    GradientUpdateConfig,
    LearningRateGuardConfig,
    NaturalConfig,
    RecurrentConfig,
    SquaredErrorConfig,
    StopGuardConfig,
    TargetEntropyConfig,
    UpdateConfig,
    WindowUpdateConfig,
    has_critic,
)

VALUE_COEF = 0.5
MINIBATCH_SIZE = 256
CRITIC_EPOCHS = 10
CRITIC_MINIBATCH_SIZE = 128
WINDOW_CRITIC_EPOCHS, WINDOW_CRITIC_MINIBATCHES = 8, 4
CRITIC_LR_RATIO, TARGET_ALPHA, DELTA = 0.4, 0.2, 0.05
NO_CRITIC = "without a critic"


def add_critic(config: Config) -> str:
    """How this run can get a critic."""
    if isinstance(config.update, WindowUpdateConfig):
        return "use advantage=td_lambda, or leave it out"
    return "use advantage/baseline=value, advantage=gae, td or n_step, or leave it out"


def check_update(config: Config) -> None:
    """Raises: ConfigError naming the keys, the values and a way out."""
    _check_critic(config, config.update)
    if isinstance(config.update, GradientUpdateConfig):
        _check_epochs(config.update)
        _check_guard(config, config.update)
    elif config.policy.share != 0:
        raise ConfigError(
            f"policy.share={config.policy.share}: with update={config.update.name} a step of the actor would move the "
            "critic, too; use policy.share=0",
            "policy.share",
        )
    _check_entropy(config)


def _check_critic(config: Config, update: UpdateConfig) -> None:
    """Settings of the critic's update, where there is none."""
    if has_critic(config):
        return
    instead = add_critic(config)
    for name in ("value_coef", "critic_epochs", "critic_minibatch_size", "critic_lr_ratio", "target_alpha"):
        value = getattr(update, name, None)
        if value is not None:
            raise no_effect(f"update.{name}", value, NO_CRITIC, instead)
    if not isinstance(update.value_loss, SquaredErrorConfig):
        raise no_effect("update/value_loss", update.value_loss.name, NO_CRITIC, instead)
    if isinstance(update, GradientUpdateConfig) and update.recompute_advantages:
        raise no_effect("update.recompute_advantages", True, NO_CRITIC, instead)


def _check_epochs(update: GradientUpdateConfig) -> None:
    if update.epochs > 1:
        return
    why, instead = "with update.epochs=1", "use e.g. update.epochs=10, or leave it out"
    if update.recompute_advantages:
        raise no_effect("update.recompute_advantages", True, why, instead)
    if isinstance(update.kl_guard, StopGuardConfig):
        raise no_effect("update/kl_guard", "stop", why, "use update/kl_guard=skip, or more epochs")


def _check_guard(config: Config, update: GradientUpdateConfig) -> None:
    guard, lr = update.kl_guard, config.optim.lr
    if not isinstance(guard, LearningRateGuardConfig):
        return
    if lr.name != "constant":
        raise ConfigError(
            f"update/kl_guard=learning_rate and optim/lr={lr.name} would both set the learning rate: use "
            "optim/lr=constant, or update/kl_guard=stop",
            "update/kl_guard",
        )
    if not guard.smallest <= lr.value <= guard.largest:
        raise ConfigError(
            f"optim.lr.value={lr.value:g}: must be from update.kl_guard.smallest={guard.smallest:g} to "
            f"update.kl_guard.largest={guard.largest:g}",
            "optim.lr.value",
        )


def _check_entropy(config: Config) -> None:
    entropy = config.entropy
    if isinstance(entropy, TargetEntropyConfig):
        if not entropy.smallest <= entropy.coef <= entropy.largest:
            raise ConfigError(
                f"entropy.coef={entropy.coef:g}: must be from entropy.smallest={entropy.smallest:g} to "
                f"entropy.largest={entropy.largest:g}",
                "entropy.coef",
            )
    elif entropy.name != "constant" and entropy.coef == getattr(entropy, "end", None):
        raise no_effect(
            "entropy",
            entropy.name,
            f"with entropy.coef and entropy.end both {entropy.coef:g}",
            "use another entropy.coef, e.g. 0.01, or entropy=constant",
        )


def settle_update(config: Config) -> UpdateConfig:
    """`config.update` with a value for every setting that applies."""
    update, critic = config.update, has_critic(config)
    if isinstance(update, GradientUpdateConfig):
        coef = VALUE_COEF if critic and update.value_coef is None else update.value_coef
        size = _fitting(config, MINIBATCH_SIZE) if update.minibatch_size == "auto" else update.minibatch_size
        return replace(update, value_coef=coef, minibatch_size=size)
    if isinstance(update, NaturalConfig) and critic:
        size = update.critic_minibatch_size or _fitting(config, CRITIC_MINIBATCH_SIZE)
        return replace(
            update, critic_epochs=update.critic_epochs or CRITIC_EPOCHS, critic_minibatch_size=size
        )
    if isinstance(update, WindowUpdateConfig):
        return _settle_window(config, update)
    return update


def _settle_window(config: Config, update: WindowUpdateConfig) -> UpdateConfig:
    if isinstance(update, AlphaOrderConfig) and update.tolerance is not None:
        update = replace(update, delta=DELTA if update.delta is None else update.delta)
    if not has_critic(config):
        return update
    size = update.critic_minibatch_size
    if size is None and config.horizon is not None:
        size = math.ceil(config.num_envs * config.horizon / WINDOW_CRITIC_MINIBATCHES)
    return replace(
        update,
        critic_epochs=update.critic_epochs or WINDOW_CRITIC_EPOCHS,
        critic_minibatch_size=size,
        critic_lr_ratio=update.critic_lr_ratio or CRITIC_LR_RATIO,
        target_alpha=TARGET_ALPHA if update.target_alpha is None else update.target_alpha,
    )


def _fitting(config: Config, size: int) -> int:
    """`size`, or the batch if that is smaller (how many steps whole episodes will have is not known); with memory at
    least one sequence."""
    memory, horizon = config.policy.memory, config.horizon
    if isinstance(memory, RecurrentConfig):
        size = max(size, memory.sequence or horizon or 0)
    return min(size, config.num_envs * horizon) if horizon else size


def minibatch_size(config: Config) -> tuple[str, int | None]:
    """Of a settled config: the key of the minibatches' size, and the size; None for the whole batch."""
    update = config.update
    if isinstance(update, NaturalConfig | WindowUpdateConfig):
        return "update.critic_minibatch_size", update.critic_minibatch_size
    assert isinstance(update, GradientUpdateConfig) and not isinstance(update.minibatch_size, str)
    return "update.minibatch_size", update.minibatch_size


def learning_rate_unused(config: Config) -> bool:
    """Whether no parameter is changed by the optimiser: a natural step of an actor that has no critic."""
    return isinstance(config.update, NaturalConfig) and not has_critic(config)
