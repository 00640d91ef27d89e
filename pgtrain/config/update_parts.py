"""The settings of an update and of its inner groups: value loss, clip range, KL guard, step rule.

A base class has what all options of its group share; a name in `OPTIONS` (see `schema.py`) picks the subclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgtrain.config.fields import group, setting

ESTIMATES = ("exact", "k3")


# --------------------------------------------------------------------------------------- inner groups of update


@dataclass
class ValueLossConfig:
    """What the critic minimises. Values are standardised ones, where value targets are (policy.normalize_value)."""

    name: str = setting("squared", "kind of loss")


@dataclass
class SquaredErrorConfig(ValueLossConfig):
    name: str = setting("squared", "kind of loss")


@dataclass
class ClipMaxConfig(ValueLossConfig):
    name: str = setting("clip_max", "kind of loss")
    clip: float = setting(0.2, "how far a value may move from that of the rollout", above=0)


@dataclass
class ClipOnlyConfig(ValueLossConfig):
    name: str = setting("clip_only", "kind of loss")
    clip: float = setting(0.2, "how far a value may move from that of the rollout", above=0)


@dataclass
class HuberConfig(ValueLossConfig):
    name: str = setting("huber", "kind of loss")
    delta: float = setting(1.0, "error beyond which the loss is linear", above=0)


@dataclass
class ClipConfig:
    """How far a probability ratio may move from 1 before its gradient ends."""

    name: str = setting("constant", "kind of schedule")
    value: float = setting(0.2, "clip range (of the first update, if it changes)", above=0)


@dataclass
class ConstantClipConfig(ClipConfig):
    name: str = setting("constant", "kind of schedule")


@dataclass
class LinearClipConfig(ClipConfig):
    name: str = setting("linear", "kind of schedule")
    end: float = setting(0.0, "clip range at total_steps", low=0)


@dataclass
class KLGuardConfig:
    """What is done when an update moves the policy too far."""

    name: str = setting("none", "kind of guard")


@dataclass
class NoGuardConfig(KLGuardConfig):
    name: str = setting("none", "kind of guard")


@dataclass
class StopGuardConfig(KLGuardConfig):
    name: str = setting("stop", "kind of guard")
    limit: float | None = setting(0.02, "KL(old, new) after which no epoch follows; null: none", above=0)
    estimate: str = setting(
        "exact", "how the KL is measured: exact, or k3 from the actions", choices=ESTIMATES
    )


@dataclass
class SkipGuardConfig(KLGuardConfig):
    name: str = setting("skip", "kind of guard")
    limit: float | None = setting(0.05, "KL(old, new) above which the update is undone; null: none", above=0)
    estimate: str = setting(
        "exact", "how the KL is measured: exact, or k3 from the actions", choices=ESTIMATES
    )


@dataclass
class LearningRateGuardConfig(KLGuardConfig):
    name: str = setting("learning_rate", "kind of guard")
    target: float = setting(
        0.01, "KL(old, new) of an epoch; the rate falls above twice and rises below half of it", above=0
    )
    smallest: float = setting(1e-5, "least learning rate", above=0)
    largest: float = setting(1e-2, "largest learning rate", above=0)
    estimate: str = setting(
        "exact", "how the KL is measured: exact, or k3 from the actions", choices=ESTIMATES
    )


@dataclass
class StepConfig:
    """How far the policy goes along the natural gradient."""

    name: str = setting("fixed", "kind of step")


@dataclass
class FixedStepConfig(StepConfig):
    name: str = setting("fixed", "kind of step")
    size: float = setting(0.1, "times the natural gradient", above=0)


@dataclass
class LineSearchConfig(StepConfig):
    name: str = setting("line_search", "kind of step")
    max_kl: float = setting(0.01, "largest mean KL(old, new) of a step", above=0)
    shrink: float = setting(0.8, "factor from one trial to the next", above=0, below=1)
    trials: int = setting(10, "steps tried; if none is good, the policy stays as it is", low=0)


# ------------------------------------------------------------------------------------------------------- update


def minibatches(default: str | None) -> Any:
    doc = "steps a gradient is taken from; auto: 256, or all if there are fewer; null: the whole batch"
    return setting(default, doc, low=1, choices=("auto",))


@dataclass
class UpdateConfig:
    """What every update has."""

    name: str = setting("policy_gradient", "kind of update")
    mean_over: str = setting(
        "steps",
        "the gradient is the mean over steps, or over episodes (the exact estimator)",
        choices=("steps", "episodes"),
    )
    max_skipped_in_a_row: int = setting(
        10, "iterations in a row whose updates are all skipped as not finite, before the run ends", low=1
    )
    value_loss: ValueLossConfig = group(SquaredErrorConfig, "what the critic minimises")


@dataclass
class GradientUpdateConfig(UpdateConfig):
    """What every update by an optimiser has: one loss for actor and critic, epochs, minibatches."""

    epochs: int = setting(1, "passes over the batch", low=1)
    minibatch_size: int | str | None = minibatches(None)
    value_coef: float | None = setting(
        None, "weight of the critic's loss; null: 0.5 where there is a critic", low=0
    )
    recompute_advantages: bool = setting(
        False, "values and advantages anew before each epoch but the first, with the critic of then"
    )
    kl_guard: KLGuardConfig = group(NoGuardConfig, "what is done when an update moves the policy too far")


@dataclass
class PolicyGradientConfig(GradientUpdateConfig):
    name: str = setting("policy_gradient", "kind of update")


@dataclass
class ClippedConfig(GradientUpdateConfig):
    name: str = setting("clipped", "kind of update")
    epochs: int = setting(10, "passes over the batch", low=1)
    minibatch_size: int | str | None = minibatches("auto")
    clip: ClipConfig = group(ConstantClipConfig, "how far a probability ratio may move from 1")
    dual_clip: float | None = setting(
        None, "bound, times the advantage, of a bad action's loss; null: none", above=1
    )


@dataclass
class KLPenaltyConfig(GradientUpdateConfig):
    name: str = setting("kl_penalty", "kind of update")
    epochs: int = setting(10, "passes over the batch", low=1)
    minibatch_size: int | str | None = minibatches("auto")
    beta: float = setting(1.0, "weight of the penalty in the first update", above=0)
    target: float | None = setting(
        0.01, "KL(old, new) that the weight is adapted to; null: the weight stays", above=0
    )


@dataclass
class NaturalConfig(UpdateConfig):
    name: str = setting("natural", "kind of update")
    step: StepConfig = group(FixedStepConfig, "how far the policy goes")
    damping: float = setting(0.1, "added to the diagonal of the Fisher matrix", low=0)
    cg_iterations: int = setting(15, "most iterations of the conjugate gradient", low=1)
    cg_tolerance: float = setting(1e-10, "remainder, as a share of the gradient, at which it ends", low=0)
    critic_epochs: int | None = setting(
        None, "the critic's passes over the batch; null: 10 where there is a critic", low=1
    )
    critic_minibatch_size: int | None = setting(
        None, "steps of a gradient of the critic; null: at most 128 where there is a critic", low=1
    )


@dataclass
class TrustRegionConfig(NaturalConfig):
    """The natural update with another default, so that the recipe trpo can ask for it and another update can still
    take its place."""

    name: str = setting("trust_region", "kind of update")
    step: StepConfig = group(LineSearchConfig, "how far the policy goes")


@dataclass
class WindowUpdateConfig(UpdateConfig):
    """What every update through a differentiable env has."""

    critic_epochs: int | None = setting(
        None, "the critic's passes over the window; null: 8 where there is a critic", low=1
    )
    critic_minibatch_size: int | None = setting(
        None,
        "steps of a gradient of the critic; null: a quarter of the window where there is a critic",
        low=1,
    )
    critic_lr_ratio: float | None = setting(
        None, "the critic's learning rate over the actor's; null: 0.4 where there is a critic", above=0
    )
    target_alpha: float | None = setting(
        None,
        "memory of the target critic: its share that stays in an iteration; null: 0.2 where there is a critic",
        low=0,
        below=1,
    )


@dataclass
class PathwiseConfig(WindowUpdateConfig):
    name: str = setting("pathwise", "kind of update")
    compare_every: int | None = setting(
        50, "iterations between two comparisons with the score function's variance; null: none", low=1
    )


@dataclass
class AlphaOrderConfig(WindowUpdateConfig):
    name: str = setting("alpha_order", "kind of update")
    groups: int = setting(8, "groups of envs that each order's variance is measured over", low=2)
    tolerance: float | None = setting(
        None, "bias that may be had, for one weight of all parameters; null: each parameter's own", above=0
    )
    delta: float | None = setting(
        None, "chance that the bias is underestimated; null: 0.05 with a tolerance", above=0, below=1
    )
