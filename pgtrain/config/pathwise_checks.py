"""Settings that have no say where the gradient flows through the env. Called by `checks.check`."""

from __future__ import annotations

from pgtrain.config.errors import ConfigError, no_effect
from pgtrain.config.schema import (
    AlphaOrderConfig,
    Config,
    GaussianConfig,
    NoAdvantageConfig,
    TanhGaussianConfig,
    TdLambdaConfig,
    WindowUpdateConfig,
)


def check_pathwise(config: Config) -> None:
    """Raises: ConfigError naming the keys, the values and a way out."""
    own = isinstance(config.advantage, TdLambdaConfig | NoAdvantageConfig)
    if not isinstance(config.update, WindowUpdateConfig):
        if own:
            raise ConfigError(
                f"advantage={config.advantage.name} belongs to update=pathwise or alpha_order, not to "
                f"update={config.update.name}, which needs an advantage: use advantage=gae or monte_carlo",
                "advantage",
            )
        return
    if not own:
        raise ConfigError(
            f"advantage={config.advantage.name}: update={config.update.name} takes the gradient of the rewards "
            "themselves; use advantage=td_lambda (a critic knows what follows the window) or advantage=none",
            "advantage",
        )
    _check_ignored(config)
    _check_envs(config, config.update)


def _check_ignored(config: Config) -> None:
    why = f"with update={config.update.name}"
    advantage, entropy = config.advantage, config.entropy
    for name in ("normalize", "discount_states"):
        if getattr(advantage, name):
            raise no_effect(f"advantage.{name}", True, why, "leave it out")
    if entropy.name != "constant":
        raise no_effect(
            "entropy", entropy.name, why, "use entropy=constant, and policy.log_std_min to keep noise"
        )
    if entropy.coef:
        raise no_effect(
            "entropy.coef", entropy.coef, why, "leave it out, and use policy.log_std_min to keep noise"
        )
    if config.reward.scaling not in (None, "none"):
        raise no_effect(
            "reward.scaling", config.reward.scaling, why, "scale the reward in the env, or leave it out"
        )
    if config.monitor.gradient == "full":
        raise no_effect(
            "monitor.gradient",
            "full",
            why,
            "leave it out: gradient/variance_pathwise and _score are told anyway",
        )
    if config.update.mean_over != "steps":
        raise no_effect("update.mean_over", config.update.mean_over, why, "leave it out")
    if config.policy.normalize_value == "running":
        raise ConfigError(
            f"policy.normalize_value=running: the target critic of update={config.update.name} learns values as they "
            "are; use policy.normalize_value=none",
            "policy.normalize_value",
        )
    if not isinstance(config.policy.distribution, GaussianConfig | TanhGaussianConfig):
        raise ConfigError(
            f"policy/distribution={config.policy.distribution.name}: update={config.update.name} needs noise that is "
            "added to a mean; use policy/distribution=tanh_gaussian",
            "policy.distribution.name",
        )


def _check_envs(config: Config, update: WindowUpdateConfig) -> None:
    why = f"with update={update.name}, whose envs are one tensor"
    if config.env.backend not in ("auto", "native"):
        raise no_effect("env.backend", config.env.backend, why, "leave it out")
    for name, count in (("workers", config.env.workers), ("threads", config.env.threads)):
        if count is not None:
            raise no_effect(f"env.{name}", count, why, "leave it out")
    if (config.env.frame_stack or 1) > 1:
        raise no_effect("env.frame_stack", config.env.frame_stack, why, "leave it out")
    if config.policy.name != "mlp":
        raise ConfigError(
            f"policy={config.policy.name}: update={update.name} copies the critic of policy=mlp; use policy=mlp",
            "policy.name",
        )
    if (config.collect.episodes or 1) > 1:
        raise ConfigError(
            f"collect.episodes={config.collect.episodes}: update={update.name} goes through one episode of each env; "
            "use collect.episodes=1 and a larger num_envs",
            "collect.episodes",
        )
    if not isinstance(update, AlphaOrderConfig):
        return
    if config.num_envs < 2 * update.groups:
        raise ConfigError(
            f"num_envs={config.num_envs}: update=alpha_order needs two envs for each of its "
            f"update.groups={update.groups}: use num_envs={2 * update.groups} or more, or fewer groups",
            "num_envs",
        )
    if update.delta is not None and update.tolerance is None:
        raise no_effect(
            "update.delta", update.delta, "without update.tolerance", "use e.g. update.tolerance=0.1"
        )
