"""The settings of the parts that a recipe is made of: advantage, entropy, optimiser; for update see `update_parts.py`.

A base class has what all options of its group share; a name in `OPTIONS` (see `schema.py`) picks the subclass.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgtrain.config.fields import group, setting


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
class OptimalBaselineConfig(BaselineConfig):
    name: str = setting("optimal", "kind of baseline")
    scope: str = setting(
        "scalar",
        "one for all steps, for each step (step: as if steps were unrelated; step_joint: together), each parameter",
        choices=("scalar", "step", "step_joint", "parameter"),
    )
    form: str | None = setting(
        None,
        "what the return is: reward_to_go, total, or gpomdp (discounted rewards times summed scores); null: as returns",
        choices=("reward_to_go", "total", "gpomdp"),
    )
    fit: str = setting(
        "leave_one_out",
        "the episodes that it is made of: all others, the other half, those of the iteration before, or all (biased)",
        choices=("leave_one_out", "split", "previous_batch", "pooled"),
    )
    on_value: bool = setting(False, "on top of a value network: the optimal baseline of what that leaves")
    memory_mb: int = setting(256, "working memory for the scores of single steps, in MB", low=1)


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


@dataclass
class TdLambdaConfig(AdvantageConfig):
    """Pathwise updates: what the critic learns. The actor's gradient is that of the rewards themselves."""

    name: str = setting("td_lambda", "kind of estimator")
    lam: float = setting(
        0.95, "0: one step, then the target critic; 1: all rewards of the window", low=0, high=1
    )


@dataclass
class NoAdvantageConfig(AdvantageConfig):
    """Pathwise updates without a critic: nothing follows the window's end."""

    name: str = setting("none", "kind of estimator")


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
    beta1: float = setting(0.9, "how long gradients are remembered", low=0, below=1)
    beta2: float = setting(0.999, "how long squared gradients are remembered", low=0, below=1)


@dataclass
class FastAdamConfig(AdamConfig):
    """Adam with a short memory, so that the pathwise recipes can ask for it and another optimiser can still take its
    place."""

    name: str = setting("adam_fast", "kind of optimiser")
    beta1: float = setting(0.7, "how long gradients are remembered", low=0, below=1)
    beta2: float = setting(0.95, "how long squared gradients are remembered", low=0, below=1)
    max_grad_norm: float | None = setting(1.0, "limit of the gradient's norm; null: none", above=0)
    lr: LearningRateConfig = group(LinearLearningRateConfig, "learning rate")


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
