"""Every setting of a training run: name, type, default, allowed range and meaning.

The dataclasses mirror the groups in `conf/`. A group whose options have different settings (`advantage`, `optim/lr`)
has a base class with what all options share and one subclass an option; `OPTIONS` maps `name:` in the YAML to it. A
setting that only applies beside others is `None` by default ("what fits"): `checks.settle` fills it in where it
applies, and `checks.check` refuses a value where it doesn't. Nothing here imports Hydra or torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ACTIVATIONS = ("tanh", "relu", "elu", "silu", "gelu", "leaky_relu")


@dataclass(frozen=True)
class Limits:
    """What a value may be, beyond its type. Bounds hold for each element of a list."""

    low: float | None = None  # low <= value
    above: float | None = None  # above < value
    high: float | None = None  # value <= high
    choices: tuple[str, ...] = ()  # for text
    pattern: str | None = None  # for text, a regular expression (of the whole value)
    shown: str | None = None  # how `pattern` is told to people


def setting(default: Any, doc: str, **limits: Any) -> Any:
    """A dataclass field with its meaning (`doc`) and its `Limits`. A list or dict default is copied."""
    metadata = {"doc": doc, "limits": Limits(**limits)}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def group(factory: type, doc: str) -> Any:
    """A dataclass field that holds another dataclass."""
    return field(default_factory=factory, metadata={"doc": doc, "limits": Limits()})


@dataclass
class CollectConfig:
    unit: str = setting(
        "steps",
        "what an iteration collects: steps (horizon from each env) or whole episodes",
        choices=("steps", "episodes"),
    )
    episodes: int | None = setting(
        None, "whole episodes from each env in an iteration; null: 1 if unit=episodes", low=1
    )


@dataclass
class EnvConfig:
    id: str = setting("CartPole-v1", "Gymnasium id, with `module:` before it if the id is registered there")
    kwargs: dict[str, Any] = setting({}, "arguments of the env itself, e.g. env.kwargs.gravity=5")
    backend: str = setting(
        "auto",
        "how the envs run: native (batched, few ids), sync (one process), process (workers)",
        choices=("auto", "native", "sync", "process"),
    )
    workers: int | None = setting(
        None, "worker processes, for backend=process (or auto, which then takes it)", low=1
    )
    max_episode_steps: int | None = setting(None, "time limit of an episode; null: the env's own", low=1)


@dataclass
class PolicyConfig:
    name: str = setting("mlp", "kind of network", choices=("mlp",))
    hidden: list[int] = setting([64, 64], "width of each hidden layer", low=1)
    activation: str = setting("tanh", "between the layers", choices=ACTIVATIONS)
    share: int | str = setting(0, "first hidden layers that actor and critic share", low=0, choices=("all",))
    normalize_obs: str = setting(
        "running",
        "running: standardise float observations by their running mean and std",
        choices=("running", "none"),
    )
    normalize_value: str | None = setting(
        None,
        "running: the critic learns standardised value targets (Pop-Art); null: running where there is a critic",
        choices=("running", "none"),
    )
    mean: str = setting(
        "tanh",
        "mean of a Gaussian: tanh (scaled to the action bounds) or identity",
        choices=("tanh", "identity"),
    )
    log_std_init: float = setting(0.0, "Gaussian: log std at the start, held within log_std_min and _max")
    log_std_min: float = setting(-5.0, "Gaussian: smallest log std", low=-20, high=10)
    log_std_max: float = setting(2.0, "Gaussian: largest log std", low=-20, high=10)
    last_layer_gain: float = setting(0.01, "scale of the actor's last layer at the start", above=0)


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


@dataclass
class UpdateConfig:
    name: str = setting("policy_gradient", "kind of update")
    epochs: int = setting(1, "passes over the batch", low=1)
    minibatch_size: int | None = setting(None, "steps a gradient is taken from; null: the whole batch", low=1)
    value_coef: float | None = setting(
        None, "weight of the critic's loss; null: 0.5 where there is a critic", low=0
    )
    mean_over: str = setting(
        "steps",
        "the gradient is the mean over steps, or over episodes (the exact estimator)",
        choices=("steps", "episodes"),
    )
    max_skipped_in_a_row: int = setting(10, "non-finite updates skipped in a row before the run ends", low=1)


@dataclass
class PolicyGradientConfig(UpdateConfig):
    name: str = setting("policy_gradient", "kind of update")


@dataclass
class EntropyConfig:
    name: str = setting("constant", "kind of schedule")
    coef: float = setting(0.0, "weight of the entropy bonus", low=0)


@dataclass
class ConstantEntropyConfig(EntropyConfig):
    name: str = setting("constant", "kind of schedule")


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
class RewardConfig:
    scaling: str = setting(
        "none",
        "running_std: divide what the learner sees by the running std of the discounted return",
        choices=("none", "running_std"),
    )
    clip: float | None = setting(None, "largest scaled reward; null: 10 with scaling=running_std", above=0)


@dataclass
class DeviceConfig:
    name: str = setting(
        "auto",
        "where the network computes: auto, cpu, cuda, cuda:1, mps",
        pattern=r"auto|cpu|mps|cuda(:\d+)?",
        shown="auto, cpu, cuda, cuda:<number>, mps",
    )
    threads: int = setting(1, "CPU threads of torch; more only helps large networks", low=1)


@dataclass
class MonitorConfig:
    tensorboard: bool = setting(True, "write a TensorBoard event file into the run folder")
    terminal: str = setting(
        "auto",
        "live view, plain lines, nothing; auto: live if the output is a terminal",
        choices=("auto", "live", "plain", "none"),
    )
    log_every: int | None = setting(
        None, "iterations between two entries of the log files; null: about 1000 entries in a run", low=1
    )


@dataclass
class EvalConfig:
    episodes: int = setting(100, "episodes of the evaluation at the end; 0: none", low=0)
    greedy: bool = setting(True, "play the likeliest action; false: sample as in training")


@dataclass
class CheckpointConfig:
    every_steps: int | None = setting(None, "steps between two checkpoints; null: only at the end", low=1)
    keep: int | None = setting(None, "checkpoints kept besides the last; null: 3 with every_steps", low=1)


@dataclass
class Config:
    """All settings of one run. `algo` is the name of the recipe; the recipe's values are in the other fields."""

    algo: str = setting("reinforce", "recipe in conf/algo that picks the parts below")
    seed: int = setting(0, "of every random number", low=0, high=2**32 - 1)
    num_envs: int = setting(8, "envs that run side by side", low=1)
    horizon: int | None = setting(
        None, "steps of each env in an iteration; null: 128 if collect.unit=steps", low=1
    )
    total_steps: int = setting(300_000, "env steps of the whole run, over all envs", low=1)
    gamma: float = setting(0.99, "discount factor", low=0, high=1)
    collect: CollectConfig = group(CollectConfig, "what an iteration collects")
    env: EnvConfig = group(EnvConfig, "the task")
    policy: PolicyConfig = group(PolicyConfig, "the networks")
    advantage: AdvantageConfig = group(MonteCarloConfig, "how good an action was")
    update: UpdateConfig = group(PolicyGradientConfig, "how parameters change")
    entropy: EntropyConfig = group(ConstantEntropyConfig, "the entropy bonus")
    optim: OptimConfig = group(AdamConfig, "the optimiser")
    reward: RewardConfig = group(RewardConfig, "what the learner sees of the rewards")
    device: DeviceConfig = group(DeviceConfig, "where it computes")
    monitor: MonitorConfig = group(MonitorConfig, "what is shown and written")
    eval: EvalConfig = group(EvalConfig, "evaluation at the end")
    checkpoint: CheckpointConfig = group(CheckpointConfig, "checkpoints")


# base class -> name in the YAML -> class
OPTIONS: dict[type, dict[str, type]] = {
    BaselineConfig: {
        "none": NoBaselineConfig,
        "mean": MeanBaselineConfig,
        "loo": LeaveOneOutBaselineConfig,
        "value": ValueBaselineConfig,
    },
    AdvantageConfig: {
        "monte_carlo": MonteCarloConfig,
        "td": TdConfig,
        "n_step": NStepConfig,
        "gae": GaeConfig,
        "bootstrapped_return": BootstrappedReturnConfig,
    },
    UpdateConfig: {"policy_gradient": PolicyGradientConfig},
    EntropyConfig: {"constant": ConstantEntropyConfig},
    LearningRateConfig: {"constant": ConstantLearningRateConfig, "linear": LinearLearningRateConfig},
    OptimConfig: {"adam": AdamConfig},
}


def has_critic(config: Config) -> bool:
    """Whether anything in this run uses a value network."""
    advantage = config.advantage
    if isinstance(advantage, MonteCarloConfig):
        return isinstance(advantage.baseline, ValueBaselineConfig)
    return True
