"""The settings of the parts that a recipe is made of: advantage, update, entropy, optimiser and their inner groups.

A base class has what all options of its group share; a name in `OPTIONS` (see `schema.py`) picks the subclass.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgtrain.config.fields import group, setting

ESTIMATES = ("exact", "k3")


@dataclass
class BaselineConfig:
    """What is subtracted from the return of a whole episode."""

    name: str = setting("none", "kind of baseline")


@dataclass
class NoBaselineConfig(BaselineConfig):
    name: str = setting("none", "kind of baseline")


@dataclass
class MeanBaselineConfig(BaselineConfig):
    name: str = setting("mean", "kind of baseline")
    scope: str = setting(
        "scalar", "one mean for all steps, or one for each time step", choices=("scalar", "step")
    )


@dataclass
class LeaveOneOutBaselineConfig(BaselineConfig):
    name: str = setting("loo", "kind of baseline")
    scope: str = setting(
        "scalar", "one mean for all steps, or one for each time step", choices=("scalar", "step")
    )


@dataclass
class ValueBaselineConfig(BaselineConfig):
    name: str = setting("value", "kind of baseline")


@dataclass
class AdvantageConfig:
    """What every advantage estimator has."""

    name: str = setting("monte_carlo", "kind of estimator")
    normalize: bool = setting(False, "shift and scale the advantages of a batch to mean 0, std 1")
    discount_states: bool = setting(
        False, "weigh step t of an episode by gamma^t: the exact gradient of the discounted return"
    )


@dataclass
class MonteCarloConfig(AdvantageConfig):
    name: str = setting("monte_carlo", "kind of estimator")
    returns: str = setting(
        "reward_to_go",
        "reward_to_go: rewards from this step on; total: those of the whole episode",
        choices=("reward_to_go", "total"),
    )
    truncation_bootstrap: str = setting(
        "none",
        "what stands for the rewards after a cut: none (0), mean_return or value",
        choices=("none", "mean_return", "value"),
    )
    baseline: BaselineConfig = group(LeaveOneOutBaselineConfig, "what is subtracted from the return")


@dataclass
class TdConfig(AdvantageConfig):
    name: str = setting("td", "kind of estimator")


@dataclass
class NStepConfig(AdvantageConfig):
    name: str = setting("n_step", "kind of estimator")
    n: int = setting(5, "rewards before the critic takes over", low=1)


@dataclass
class GaeConfig(AdvantageConfig):
    name: str = setting("gae", "kind of estimator")
    lam: float = setting(0.95, "0: one-step TD error, 1: all rewards of the rollout", low=0, high=1)


@dataclass
class BootstrappedReturnConfig(GaeConfig):
    """GAE with another default, so that the recipe a2c can ask for it and `advantage=td` can still take its place."""

    name: str = setting("bootstrapped_return", "kind of estimator")
    lam: float = setting(1.0, "0: one-step TD error, 1: all rewards of the rollout", low=0, high=1)


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


@dataclass
class UpdateConfig:
    """What every update has."""

    name: str = setting("policy_gradient", "kind of update")
    mean_over: str = setting(
        "steps",
        "the gradient is the mean over steps, or over episodes (the exact estimator)",
        choices=("steps", "episodes"),
    )
    max_skipped_in_a_row: int = setting(10, "non-finite updates skipped in a row before the run ends", low=1)
    value_loss: ValueLossConfig = group(SquaredErrorConfig, "what the critic minimises")


@dataclass
class GradientUpdateConfig(UpdateConfig):
    """What every update by an optimiser has: one loss for actor and critic, epochs, minibatches."""

    epochs: int = setting(1, "passes over the batch", low=1)
    minibatch_size: int | None = setting(None, "steps a gradient is taken from; null: the whole batch", low=1)
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
    minibatch_size: int | None = setting(256, "steps a gradient is taken from; null: the whole batch", low=1)
    clip: ClipConfig = group(ConstantClipConfig, "how far a probability ratio may move from 1")
    dual_clip: float | None = setting(
        None, "bound, times the advantage, of a bad action's loss; null: none", above=1
    )


@dataclass
class KLPenaltyConfig(GradientUpdateConfig):
    name: str = setting("kl_penalty", "kind of update")
    epochs: int = setting(10, "passes over the batch", low=1)
    minibatch_size: int | None = setting(256, "steps a gradient is taken from; null: the whole batch", low=1)
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


# ----------------------------------------------------------------------------------------------------- entropy


@dataclass
class EntropyConfig:
    name: str = setting("constant", "kind of schedule")
    coef: float = setting(0.0, "weight of the entropy bonus", low=0)


@dataclass
class ConstantEntropyConfig(EntropyConfig):
    name: str = setting("constant", "kind of schedule")


@dataclass
class LinearEntropyConfig(EntropyConfig):
    name: str = setting("linear", "kind of schedule")
    coef: float = setting(0.01, "weight of the entropy bonus in the first update", low=0)
    end: float = setting(0.0, "weight at total_steps", low=0)


@dataclass
class CosineEntropyConfig(EntropyConfig):
    name: str = setting("cosine", "kind of schedule")
    coef: float = setting(0.01, "weight of the entropy bonus in the first update", low=0)
    end: float = setting(0.0, "weight at total_steps", low=0)


@dataclass
class ReturnGatedEntropyConfig(EntropyConfig):
    name: str = setting("return_gated", "kind of schedule")
    coef: float = setting(0.01, "weight of the entropy bonus until the return has risen", low=0)
    end: float = setting(0.0, "weight at total_steps", low=0)
    rise: float = setting(
        1.0, "how far the mean return must rise, in standard deviations of the first episodes", above=0
    )
    episodes: int = setting(20, "first episodes that the return is compared with", low=2)


@dataclass
class TargetEntropyConfig(EntropyConfig):
    name: str = setting("target", "kind of schedule")
    coef: float = setting(0.01, "weight of the entropy bonus in the first update", above=0)
    target: float = setting(0.5, "entropy to hold, in nats; of continuous actions it may be negative")
    rate: float = setting(
        0.05, "how fast the weight follows: at most this share an iteration", above=0, high=1
    )
    smallest: float = setting(1e-6, "least weight", above=0)
    largest: float = setting(1.0, "largest weight", above=0)


# --------------------------------------------------------------------------------------------------- optimiser


@dataclass
class LearningRateConfig:
    name: str = setting("constant", "kind of schedule")
    value: float = setting(1e-3, "learning rate (of the first update, if it changes)", above=0)


@dataclass
class ConstantLearningRateConfig(LearningRateConfig):
    name: str = setting("constant", "kind of schedule")


@dataclass
class LinearLearningRateConfig(LearningRateConfig):
    name: str = setting("linear", "kind of schedule")
    end: float = setting(0.0, "learning rate at total_steps", low=0)


@dataclass
class CosineLearningRateConfig(LearningRateConfig):
    name: str = setting("cosine", "kind of schedule")
    end: float = setting(0.0, "learning rate at total_steps", low=0)


@dataclass
class PlateauLearningRateConfig(LearningRateConfig):
    name: str = setting("plateau", "kind of schedule")
    factor: float = setting(
        0.5, "what the rate is multiplied by when the return stands still", above=0, below=1
    )
    patience: int = setting(20, "iterations without a new best mean return that are stood", low=1)
    threshold: float = setting(0.01, "what counts as a new best, as a share of the best's size", low=0)
    smallest: float = setting(1e-6, "least learning rate", above=0)


@dataclass
class OptimConfig:
    name: str = setting("adam", "kind of optimiser")
    lr: LearningRateConfig = group(ConstantLearningRateConfig, "learning rate")
    max_grad_norm: float | None = setting(0.5, "limit of the gradient's norm; null: none", above=0)


@dataclass
class AdamConfig(OptimConfig):
    name: str = setting("adam", "kind of optimiser")
    eps: float = setting(1e-5, "added to the denominator of a step", above=0)


@dataclass
class RMSpropConfig(OptimConfig):
    name: str = setting("rmsprop", "kind of optimiser")
    alpha: float = setting(0.99, "how long squared gradients are remembered", low=0, below=1)
    eps: float = setting(1e-5, "added to the denominator of a step, outside the root", above=0)


@dataclass
class RMSpropTFConfig(OptimConfig):
    name: str = setting("rmsprop_tf", "kind of optimiser")
    alpha: float = setting(0.99, "how long squared gradients are remembered", low=0, below=1)
    eps: float = setting(1e-5, "added to the denominator of a step, inside the root", above=0)


@dataclass
class SGDConfig(OptimConfig):
    name: str = setting("sgd", "kind of optimiser")
    momentum: float = setting(0.0, "share of the last step that is added to the next", low=0, below=1)
