"""Settings that don't fit together, and settings that would have no effect beside the others.

`check` refuses them; `settle` then fills in what was left to "what fits" (`None`). Both need the config alone: no
torch, no env. What depends on the env's spaces is `refuse_unused`'s, called once the env is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from pgtrain.config.baseline_checks import check_optimal, settle_optimal
from pgtrain.config.errors import ConfigError, no_effect
from pgtrain.config.memory_checks import check_memory, check_sequences, settle_memory
from pgtrain.config.observation_checks import check_observations, settle_observations
from pgtrain.config.pathwise_checks import check_pathwise
from pgtrain.config.rank_checks import check_ranks
from pgtrain.config.schema import (
    AdvantageConfig,
    BetaConfig,
    Config,
    MonteCarloConfig,
    NStepConfig,
    StateDependentConfig,
    TanhGaussianConfig,
    WindowUpdateConfig,
    has_critic,
)
from pgtrain.config.update_checks import (
    NO_CRITIC,
    add_critic,
    check_update,
    minibatch_size,
    settle_update,
)

HORIZON = 128
EPISODES = 1
REWARD_CLIP = 10.0
KEEP = 3
LAST_LAYER_GAIN = 0.01


def settle(config: Config) -> Config:
    """A checked copy of `config` in which every setting that applies has a value. What doesn't apply stays None.

    Raises: ConfigError.
    """
    check(config)
    steps = config.collect.unit == "steps"
    replace = dataclasses.replace
    config = replace(
        config,
        horizon=(config.horizon or HORIZON) if steps else None,
        collect=replace(config.collect, episodes=None if steps else config.collect.episodes or EPISODES),
    )
    config.advantage = settle_optimal(config.advantage)
    config.update = settle_update(config)
    settle_observations(config)
    settle_memory(config)
    own = ":" in config.policy.name  # nothing is known of its last layers
    if has_critic(config) and config.policy.normalize_value is None and not own:
        plain = isinstance(config.update, WindowUpdateConfig)
        config.policy = replace(config.policy, normalize_value="none" if plain else "running")
    if config.policy.mean is None and not isinstance(config.policy.distribution, BetaConfig):
        squashes = isinstance(config.policy.distribution, TanhGaussianConfig)
        config.policy = replace(config.policy, mean="identity" if squashes else "tanh")
    if not own and config.policy.ortho_init and config.policy.last_layer_gain is None:
        config.policy = replace(config.policy, last_layer_gain=LAST_LAYER_GAIN)
    if config.reward.scaling == "running_std" and config.reward.clip is None:
        config.reward = replace(config.reward, clip=REWARD_CLIP)
    if config.checkpoint.every_steps is not None and config.checkpoint.keep is None:
        config.checkpoint = replace(config.checkpoint, keep=KEEP)
    _check_batch(config)
    check_sequences(config)
    return config


def check(config: Config) -> None:
    """Refuse settings that contradict each other or have no effect.

    Raises: ConfigError naming the keys, the values and a way out.
    """
    _check_collect(config)
    check_optimal(config)
    _check_advantage(config.advantage, config)
    _check_critic(config)
    _check_policy(config)
    check_observations(config)
    check_memory(config)
    check_update(config)
    check_pathwise(config)
    _check_env(config)
    _check_rest(config)
    check_ranks(config)


def _check_collect(config: Config) -> None:
    collect = config.collect
    if collect.unit == "episodes" and config.horizon is not None:
        raise no_effect(
            "horizon",
            config.horizon,
            "with collect.unit=episodes",
            "use horizon=null, and collect.episodes for the number of episodes, or collect.unit=steps",
        )
    if collect.unit == "steps" and collect.episodes is not None:
        raise no_effect(
            "collect.episodes",
            collect.episodes,
            "with collect.unit=steps",
            "use collect.episodes=null, and horizon for the number of steps, or collect.unit=episodes",
        )
    if collect.unit == "steps" and config.update.mean_over == "episodes":
        raise ConfigError(
            "update.mean_over=episodes needs whole episodes: use collect.unit=episodes or update.mean_over=steps",
            "update.mean_over",
        )


def _check_advantage(advantage: AdvantageConfig, config: Config) -> None:
    if not isinstance(advantage, MonteCarloConfig):
        return
    steps = config.collect.unit == "steps"
    total = advantage.returns == "total"
    if steps and total:
        raise ConfigError(
            "advantage.returns=total needs whole episodes: use collect.unit=episodes (with horizon=null) "
            "or advantage.returns=reward_to_go",
            "advantage.returns",
        )
    if steps and advantage.truncation_bootstrap == "none":
        raise ConfigError(
            "advantage.truncation_bootstrap=none would count the end of a rollout as the end of an episode: use "
            "collect.unit=episodes (with horizon=null), advantage.truncation_bootstrap=mean_return or =value",
            "advantage.truncation_bootstrap",
        )
    if total and advantage.discount_states:
        raise ConfigError(
            "advantage.discount_states=true would discount twice with advantage.returns=total, whose returns are "
            "discounted from the first step already: use advantage.discount_states=false",
            "advantage.discount_states",
        )
    if advantage.truncation_bootstrap == "value" and not has_critic(config):
        raise ConfigError(
            "advantage.truncation_bootstrap=value needs a critic: use advantage/baseline=value, or "
            "advantage.truncation_bootstrap=mean_return",
            "advantage.truncation_bootstrap",
        )


def _check_critic(config: Config) -> None:
    """Settings of the value network, where there is none."""
    if has_critic(config):
        return
    if config.policy.share != 0:
        raise no_effect("policy.share", config.policy.share, NO_CRITIC, add_critic(config))
    if config.policy.normalize_value is not None:
        value = config.policy.normalize_value
        raise no_effect("policy.normalize_value", value, NO_CRITIC, add_critic(config))


def _check_policy(config: Config) -> None:
    policy = config.policy
    layers = len(policy.hidden)
    if isinstance(policy.share, int) and policy.share > layers:
        raise ConfigError(
            f"policy.share={policy.share}: must be a whole number from 0 to {layers} (policy.hidden has {layers} "
            "layers) or all",
            "policy.share",
        )
    if policy.log_std_min >= policy.log_std_max:
        raise ConfigError(
            f"policy.log_std_min={policy.log_std_min:g} must be below policy.log_std_max={policy.log_std_max:g}",
            "policy.log_std_min",
        )
    if policy.last_layer_gain is not None and not policy.ortho_init:
        raise no_effect(
            "policy.last_layer_gain",
            policy.last_layer_gain,
            "with policy.ortho_init=false",
            "use policy.ortho_init=true, or leave it out",
        )
    if isinstance(policy.distribution, TanhGaussianConfig) and policy.mean == "tanh":
        raise ConfigError(
            "policy.mean=tanh with policy/distribution=tanh_gaussian would squash twice, and the bounds would be out "
            "of the mean's reach: use policy.mean=identity, or leave it out",
            "policy.mean",
        )
    if isinstance(policy.distribution, BetaConfig) and policy.mean is not None:
        raise no_effect("policy.mean", policy.mean, "with policy/distribution=beta", "leave it out")
    if isinstance(policy.distribution, StateDependentConfig) and policy.distribution.sample_freq == 0:
        raise ConfigError(
            "policy.distribution.sample_freq=0: must be a whole number of at least 1, or -1 for one draw a rollout",
            "policy.distribution.sample_freq",
        )


def _check_env(config: Config) -> None:
    env = config.env
    for name, count, backend in (("workers", env.workers, "process"), ("threads", env.threads, "native")):
        if count is None:
            continue
        if env.backend not in (backend, "auto"):
            raise no_effect(
                f"env.{name}", count, f"with env.backend={env.backend}", f"use env.backend={backend}"
            )
        if count > config.num_envs:
            raise ConfigError(
                f"env.{name}={count}: must be at most num_envs={config.num_envs}, as each has whole envs",
                f"env.{name}",
            )


def _check_rest(config: Config) -> None:
    if config.reward.scaling != "running_std" and config.reward.clip is not None:
        scaling = config.reward.scaling or "none"
        raise no_effect(
            "reward.clip",
            config.reward.clip,
            f"with reward.scaling={scaling}",
            "use reward.scaling=running_std",
        )
    if config.eval.episodes == 0 and not config.eval.greedy:
        raise no_effect("eval.greedy", config.eval.greedy, "with eval.episodes=0", "use eval.episodes=100")
    monitor = config.monitor
    if monitor.gradient_every is not None and monitor.gradient != "full":
        raise no_effect(
            "monitor.gradient_every",
            monitor.gradient_every,
            f"with monitor.gradient={monitor.gradient}",
            "use monitor.gradient=full",
        )
    if config.checkpoint.keep is not None and config.checkpoint.every_steps is None:
        raise no_effect(
            "checkpoint.keep",
            config.checkpoint.keep,
            "with checkpoint.every_steps=null",
            "use e.g. checkpoint.every_steps=50000",
        )


def _check_batch(config: Config) -> None:
    """What is compared with the steps of an iteration, known for collect.unit=steps alone."""
    if config.horizon is None:
        return
    batch = config.num_envs * config.horizon
    key, size = minibatch_size(config)
    if size is not None and size > batch:
        raise ConfigError(
            f"{key}={size}: must be at most the batch of {batch} steps (num_envs={config.num_envs} x "
            f"horizon={config.horizon}), or null",
            key,
        )
    advantage = config.advantage
    if isinstance(advantage, NStepConfig) and advantage.n > config.horizon:
        raise ConfigError(
            f"advantage.n={advantage.n}: must be at most horizon={config.horizon}, the steps that a rollout has",
            "advantage.n",
        )


def refuse_unused(overrides: Sequence[str], keys: Iterable[str], why: str) -> None:
    """For settings that only some envs use: refuse the ones of `keys` that the user asked for.

    `refuse_unused(overrides, ["policy.mean"], "with the discrete actions of CartPole-v1")`. A key ending in a dot
    stands for its whole group. Defaults and values of a YAML are no request.

    Raises: ConfigError.
    """
    for override in overrides:
        key = override.partition("=")[0].lstrip("+")
        for unused in keys:
            if key == unused or (unused.endswith(".") and key.startswith(unused)):
                raise ConfigError(f"{override} has no effect {why}: leave it out", key)
