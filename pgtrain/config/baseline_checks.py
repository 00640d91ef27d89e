"""Settings of `advantage/baseline=optimal` that don't fit the others. Called by `checks.check` and `checks.settle`."""

from __future__ import annotations

from dataclasses import replace

from pgtrain.config.errors import ConfigError, no_effect, shown
from pgtrain.config.schema import (
    AdvantageConfig,
    Config,
    GradientUpdateConfig,
    MonteCarloConfig,
    OptimalBaselineConfig,
    PolicyGradientConfig,
)

KEY = "advantage.baseline"


def optimal(advantage: AdvantageConfig) -> OptimalBaselineConfig | None:
    """The settings of the optimal baseline, where there is one."""
    baseline = getattr(advantage, "baseline", None)
    return baseline if isinstance(baseline, OptimalBaselineConfig) else None


def check_optimal(config: Config) -> None:
    """Raises: ConfigError naming the keys, the values and a way out."""
    baseline = optimal(config.advantage)
    if baseline is None:
        return
    if config.collect.unit != "episodes":
        raise ConfigError(
            "advantage/baseline=optimal weighs whole episodes, and collect.unit=steps cuts them: use "
            "collect.unit=episodes (with horizon=null), or advantage/baseline=mean",
            "advantage/baseline",
        )
    _check_form(config, baseline)
    if getattr(config.update, "recompute_advantages", False):
        raise ConfigError(
            "update.recompute_advantages=true does not go with advantage/baseline=optimal, which is the optimum for "
            "the policy that played: use update.recompute_advantages=false",
            "update.recompute_advantages",
        )
    if baseline.scope == "parameter":
        _check_parameter(config)


def _check_form(config: Config, baseline: OptimalBaselineConfig) -> None:
    a, form = config.advantage, baseline.form
    assert isinstance(a, MonteCarloConfig)
    if form in ("reward_to_go", "gpomdp") and a.returns == "total":
        raise ConfigError(
            f"advantage.returns=total contradicts {KEY}.form={form}: leave one of the two out", f"{KEY}.form"
        )
    if form in ("total", "gpomdp") and a.discount_states:
        raise ConfigError(
            f"advantage.discount_states=true would discount twice with {KEY}.form={form}, whose rewards are discounted "
            "from the first step already: use advantage.discount_states=false",
            "advantage.discount_states",
        )
    if form != "gpomdp":
        return
    for key, value, off in (
        ("advantage.truncation_bootstrap", a.truncation_bootstrap, "none"),
        (f"{KEY}.on_value", baseline.on_value, False),
    ):
        if value != off:
            why = f"with {KEY}.form=gpomdp, which weighs single rewards"
            raise no_effect(key, value, why, f"use {KEY}.form=reward_to_go, or {key}={shown(off)}")
    if baseline.fit == "previous_batch":
        raise ConfigError(
            f"{KEY}.fit=previous_batch does not go with {KEY}.form=gpomdp, whose baselines count for steps that one of "
            f"the batches does not reach: use {KEY}.fit=leave_one_out or =split",
            f"{KEY}.fit",
        )


def _check_parameter(config: Config) -> None:
    """The gradient is put together from whole episodes at the parameters that played them: once, and all of it."""
    update, scope = config.update, f"{KEY}.scope=parameter"
    instead = f"or another {KEY}.scope"
    if not isinstance(update, PolicyGradientConfig):
        raise ConfigError(
            f"{scope} gives a gradient, not an advantage, and update={update.name} needs one: use "
            f"update=policy_gradient {instead}",
            f"{KEY}.scope",
        )
    assert isinstance(update, GradientUpdateConfig)
    if update.epochs != 1:
        raise ConfigError(
            f"update.epochs={update.epochs}: must be 1 with {scope}, whose gradient is that of the policy that played; "
            f"use update.epochs=1 {instead}",
            "update.epochs",
        )
    if update.minibatch_size is not None:
        raise ConfigError(
            f"update.minibatch_size={update.minibatch_size}: must be null with {scope}, whose gradient is that of "
            f"whole episodes; use update.minibatch_size=null {instead}",
            "update.minibatch_size",
        )
    if config.monitor.gradient == "full":
        raise ConfigError(
            f"monitor.gradient=full measures the gradient that advantages give, and {scope} has another: use "
            f"monitor.gradient=norm {instead}",
            "monitor.gradient",
        )
    if config.advantage.normalize:
        raise no_effect(
            "advantage.normalize", True, f"with {scope}", f"use advantage.normalize=false {instead}"
        )


def settle_optimal(advantage: AdvantageConfig) -> AdvantageConfig:
    """A copy in which `form` is set, and `returns` is what it asks for."""
    baseline = optimal(advantage)
    if baseline is None:
        return advantage
    assert isinstance(advantage, MonteCarloConfig)
    form = baseline.form or advantage.returns
    returns = "total" if form == "total" else "reward_to_go"
    return replace(advantage, returns=returns, baseline=replace(baseline, form=form))
