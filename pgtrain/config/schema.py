"""Every setting of a training run: name, type, default, allowed range and meaning.

The dataclasses mirror the groups in `conf/`. A group whose options have different settings (`advantage`, `optim/lr`)
has a base class with what all options share and one subclass an option; `OPTIONS` maps `name:` in the YAML to it. A
setting that only applies beside others is `None` by default ("what fits"): `checks.settle` fills it in where it
applies, and `checks.check` refuses a value where it doesn't. Nothing here imports Hydra or torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgtrain.config.fields import group, setting
from pgtrain.config.parts import (
    AdamConfig,
    AdvantageConfig,
    BaselineConfig,
    BootstrappedReturnConfig,
    ConstantEntropyConfig,
    ConstantLearningRateConfig,
    CosineEntropyConfig,
    CosineLearningRateConfig,
    EntropyConfig,
    FastAdamConfig,
    GaeConfig,
    LearningRateConfig,
    LeaveOneOutBaselineConfig,
    LinearEntropyConfig,
    LinearLearningRateConfig,
    MeanBaselineConfig,
    MonteCarloConfig,
    NoAdvantageConfig,
    NoBaselineConfig,
    NStepConfig,
    OptimalBaselineConfig,
    OptimConfig,
    PlateauLearningRateConfig,
    ReturnGatedEntropyConfig,
    RMSpropConfig,
    RMSpropTFConfig,
    SGDConfig,
    TargetEntropyConfig,
    TdConfig,
    TdLambdaConfig,
    ValueBaselineConfig,
)
from pgtrain.config.update_parts import (
    AlphaOrderConfig,
    ClipConfig,
    ClipMaxConfig,
    ClipOnlyConfig,
    ClippedConfig,
    ConstantClipConfig,
    FixedStepConfig,
    HuberConfig,
    KLGuardConfig,
    KLPenaltyConfig,
    LearningRateGuardConfig,
    LinearClipConfig,
    LineSearchConfig,
    NaturalConfig,
    NoGuardConfig,
    PathwiseConfig,
    PolicyGradientConfig,
    SkipGuardConfig,
    SquaredErrorConfig,
    StepConfig,
    StopGuardConfig,
    TrustRegionConfig,
    UpdateConfig,
    ValueLossConfig,
)
from pgtrain.config.update_parts import (
    GradientUpdateConfig as GradientUpdateConfig,
)
from pgtrain.config.update_parts import (
    WindowUpdateConfig as WindowUpdateConfig,
)

ACTIVATIONS = ("tanh", "relu", "elu", "silu", "gelu", "leaky_relu")


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
class AtariConfig:
    """Preprocessing of the games ALE/*; null everywhere: the standard for them, nothing for other envs."""

    preprocess: bool | None = setting(None, "the settings below; null: true for ALE/* ids")
    frame_skip: int | None = setting(None, "frames that an action is held for; null: 4", low=1)
    noop_max: int | None = setting(None, "an episode starts with up to so many idle frames; null: 30", low=0)
    screen_size: int | None = setting(None, "pixels a side of the picture; null: 84", low=8)
    grayscale: bool | None = setting(None, "grey pictures; null: true")
    terminal_on_life_loss: bool | None = setting(
        None, "a lost life is an end for the learner (returns shown stay those of the game); null: false"
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
    threads: int | None = setting(
        None, "threads of a native batch of MuJoCo tasks or Atari games; null: by what a step costs", low=1
    )
    max_episode_steps: int | None = setting(None, "time limit of an episode; null: the env's own", low=1)
    action_mask: str = setting(
        "auto",
        "where the env tells which actions it allows: info (info['action_mask']), a key of Dict observations, none; "
        "auto: the key action_mask if there is one, else info if it has one at reset",
    )
    frame_stack: int | None = setting(
        None,
        "latest observations that the policy sees together; null: 4 for ALE/* ids, else 1",
        low=1,
        high=32,
    )
    one_hot_max: int = setting(
        256, "Discrete observations of more values get a learned embedding, not a one-hot", low=1
    )
    atari: AtariConfig = group(AtariConfig, "preprocessing of ALE/* games")


@dataclass
class DistributionConfig:
    """What continuous actions are drawn from. Discrete ones have a categorical distribution."""

    name: str = setting("gaussian", "kind of distribution")


@dataclass
class GaussianConfig(DistributionConfig):
    name: str = setting("gaussian", "kind of distribution")


@dataclass
class StateDependentConfig(DistributionConfig):
    name: str = setting("gsde", "kind of distribution")
    sample_freq: int = setting(-1, "steps between two draws of the noise; -1: one draw a rollout", low=-1)
    expln: bool = setting(False, "std grows slower than exp(log_std) above 1")
    learn_features: bool = setting(False, "the std's gradient also moves the hidden layers")


@dataclass
class TanhGaussianConfig(DistributionConfig):
    name: str = setting("tanh_gaussian", "kind of distribution")


@dataclass
class BetaConfig(DistributionConfig):
    name: str = setting("beta", "kind of distribution")


@dataclass
class EncoderConfig:
    """What pictures and numbers of many values go through before the hidden layers."""

    cnn: str = setting(
        "auto",
        "convolutions for pictures: nature (from 36 pixels on) or small; none: pixels as plain numbers",
        choices=("auto", "nature", "small", "none"),
    )
    share: bool | None = setting(
        None,
        "actor and critic have one encoder; null: true, but false where the actor must be alone (update=natural)",
    )


@dataclass
class MemoryConfig:
    """What a policy remembers from one step of an episode to the next."""

    name: str = setting("none", "kind of memory")


@dataclass
class NoMemoryConfig(MemoryConfig):
    name: str = setting("none", "kind of memory")


@dataclass
class RecurrentConfig(MemoryConfig):
    size: int = setting(64, "numbers that the memory gives at each step", low=1)
    sequence: int | None = setting(
        None, "steps that a gradient goes back through time; null: to the start of the rollout", low=1
    )
    share: bool | None = setting(None, "actor and critic have one memory; null: as policy.encoder.share")


@dataclass
class GruConfig(RecurrentConfig):
    name: str = setting("gru", "kind of memory")


@dataclass
class LstmConfig(RecurrentConfig):
    name: str = setting("lstm", "kind of memory")


@dataclass
class PolicyConfig:
    name: str = setting(
        "mlp",
        "kind of network: mlp, or module:Name of one of yours",
        pattern=r"mlp|[\w.]+:\w+",
        shown="mlp, <module>:<name>",
    )
    kwargs: dict[str, Any] = setting({}, "arguments of a network of yours")
    hidden: list[int] = setting([64, 64], "width of each hidden layer", low=1)
    activation: str = setting("tanh", "between the layers", choices=ACTIVATIONS)
    layer_norm: bool = setting(False, "normalise each hidden layer's outputs before the activation")
    encoder: EncoderConfig = group(EncoderConfig, "what comes before the hidden layers")
    share: int | str = setting(0, "first hidden layers that actor and critic share", low=0, choices=("all",))
    normalize_obs: str = setting(
        "running",
        "running: standardise numbers in observations by their running mean and std; calibrated: by those of the "
        "first steps, made before training",
        choices=("running", "calibrated", "none"),
    )
    calibration_steps: int | None = setting(
        None, "steps of the untrained policy for normalize_obs=calibrated; null: 5000", low=2
    )
    normalize_value: str | None = setting(
        None,
        "running: the critic learns standardised value targets (Pop-Art); null: running where there is a critic",
        choices=("running", "none"),
    )
    mean: str | None = setting(
        None,
        "mean of a Gaussian: tanh (scaled to the action bounds) or identity; null: tanh, or identity where the "
        "distribution itself squashes",
        choices=("tanh", "identity"),
    )
    log_std_init: float = setting(0.0, "Gaussian: log std at the start, held within log_std_min and _max")
    log_std_min: float = setting(-5.0, "Gaussian: smallest log std", low=-20, high=10)
    log_std_max: float = setting(2.0, "Gaussian: largest log std", low=-20, high=10)
    temperature: float = setting(
        1.0, "of the softmax over discrete actions: its logits are divided by it", above=0
    )
    ortho_init: bool = setting(True, "orthogonal weights at the start; false: PyTorch's own initialisation")
    last_layer_gain: float | None = setting(
        None, "scale of the actor's last layer at the start; null: 0.01 with ortho_init=true", above=0
    )
    distribution: DistributionConfig = group(GaussianConfig, "what continuous actions are drawn from")
    memory: MemoryConfig = group(NoMemoryConfig, "what is remembered from step to step")


@dataclass
class RewardConfig:
    scaling: str | None = setting(
        None,
        "running_std: divide what the learner sees by the running std of the discounted return; sign: -1, 0 or 1; "
        "null: sign with the Atari preprocessing, else none",
        choices=("none", "running_std", "sign"),
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
    threads: int = setting(1, "CPU threads of torch and NumPy; more only helps large networks", low=1)
    ranks: int = setting(1, "processes that train together, each with num_envs / ranks envs", low=1)


@dataclass
class MonitorConfig:
    tensorboard: bool = setting(True, "write a TensorBoard event file into the run folder")
    terminal: str = setting(
        "auto",
        "live view, plain lines, nothing; auto: live if the output is a terminal",
        choices=("auto", "live", "plain", "none"),
    )
    log_every: int | None = setting(
        None, "iterations between two entries of the log files; null: about 500 entries in a run", low=1
    )
    gradient: str = setting(
        "norm",
        "what is told of the gradient: its norm, or full (variance, SNR, noise scale, directions, layers)",
        choices=("norm", "full"),
    )
    gradient_every: int | None = setting(
        None, "iterations between two measurements; null: as often as takes 3 % of the time", low=1
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
        "optimal": OptimalBaselineConfig,
    },
    AdvantageConfig: {
        "monte_carlo": MonteCarloConfig,
        "td": TdConfig,
        "n_step": NStepConfig,
        "gae": GaeConfig,
        "bootstrapped_return": BootstrappedReturnConfig,
        "td_lambda": TdLambdaConfig,
        "none": NoAdvantageConfig,
    },
    ValueLossConfig: {
        "squared": SquaredErrorConfig,
        "clip_max": ClipMaxConfig,
        "clip_only": ClipOnlyConfig,
        "huber": HuberConfig,
    },
    ClipConfig: {"constant": ConstantClipConfig, "linear": LinearClipConfig},
    KLGuardConfig: {
        "none": NoGuardConfig,
        "stop": StopGuardConfig,
        "skip": SkipGuardConfig,
        "learning_rate": LearningRateGuardConfig,
    },
    StepConfig: {"fixed": FixedStepConfig, "line_search": LineSearchConfig},
    UpdateConfig: {
        "policy_gradient": PolicyGradientConfig,
        "clipped": ClippedConfig,
        "kl_penalty": KLPenaltyConfig,
        "natural": NaturalConfig,
        "trust_region": TrustRegionConfig,
        "pathwise": PathwiseConfig,
        "alpha_order": AlphaOrderConfig,
    },
    EntropyConfig: {
        "constant": ConstantEntropyConfig,
        "linear": LinearEntropyConfig,
        "cosine": CosineEntropyConfig,
        "return_gated": ReturnGatedEntropyConfig,
        "target": TargetEntropyConfig,
    },
    LearningRateConfig: {
        "constant": ConstantLearningRateConfig,
        "linear": LinearLearningRateConfig,
        "cosine": CosineLearningRateConfig,
        "plateau": PlateauLearningRateConfig,
    },
    OptimConfig: {
        "adam": AdamConfig,
        "adam_fast": FastAdamConfig,
        "rmsprop": RMSpropConfig,
        "rmsprop_tf": RMSpropTFConfig,
        "sgd": SGDConfig,
    },
    DistributionConfig: {
        "gaussian": GaussianConfig,
        "tanh_gaussian": TanhGaussianConfig,
        "beta": BetaConfig,
        "gsde": StateDependentConfig,
    },
    MemoryConfig: {"none": NoMemoryConfig, "gru": GruConfig, "lstm": LstmConfig},
}


def has_critic(config: Config) -> bool:
    """Whether anything in this run uses a value network."""
    advantage = config.advantage
    if isinstance(advantage, MonteCarloConfig):
        baseline = advantage.baseline
        return isinstance(baseline, ValueBaselineConfig) or getattr(baseline, "on_value", False)
    return not isinstance(advantage, NoAdvantageConfig)
