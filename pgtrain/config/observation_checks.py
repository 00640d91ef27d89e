"""Settings of observations and of what encodes them: which go together, and what those left to null become."""

from __future__ import annotations

import dataclasses

from pgtrain.config.errors import ConfigError, no_effect
from pgtrain.config.schema import (
    AtariConfig,
    Config,
    EncoderConfig,
    NaturalConfig,
    PolicyConfig,
    StateDependentConfig,
    WindowUpdateConfig,
    has_critic,
)

ATARI = AtariConfig(
    preprocess=True, frame_skip=4, noop_max=30, screen_size=84, grayscale=True, terminal_on_life_loss=False
)
FRAME_STACK = 4
CALIBRATION_STEPS = 5000
# Settings of pgtrain's own network, which one of the user's has no use for
OF_MLP = (
    "hidden", "activation", "layer_norm", "share", "normalize_value", "ortho_init", "last_layer_gain", "encoder",
)  # fmt: skip


def is_atari(config: Config) -> bool:
    """Whether the env is a game of ale-py's, by its id."""
    return config.env.id.rpartition(":")[2].startswith("ALE/")


def preprocesses(config: Config) -> bool:
    return is_atari(config) and config.env.atari.preprocess is not False


def settle_observations(config: Config) -> None:
    """Fills in what was left to null."""
    replace = dataclasses.replace
    atari = preprocesses(config) and not isinstance(config.update, WindowUpdateConfig)  # refused later
    if atari:
        given = {k: v for k, v in dataclasses.asdict(config.env.atari).items() if v is not None}
        config.env = replace(config.env, atari=replace(ATARI, **given))
    if config.env.frame_stack is None:
        config.env = replace(config.env, frame_stack=FRAME_STACK if atari else 1)
    if config.reward.scaling is None:
        config.reward = replace(config.reward, scaling="sign" if atari else "none")
    policy = config.policy
    if policy.normalize_obs == "calibrated" and policy.calibration_steps is None:
        policy = replace(policy, calibration_steps=CALIBRATION_STEPS)
    if has_critic(config) and policy.encoder.share is None and ":" not in policy.name:
        alone = isinstance(config.update, NaturalConfig)
        policy = replace(policy, encoder=replace(policy.encoder, share=not alone))
    config.policy = policy


def check_observations(config: Config) -> None:
    """Raises: ConfigError."""
    _check_atari(config)
    _check_own_network(config)
    policy = config.policy
    if policy.calibration_steps is not None and policy.normalize_obs != "calibrated":
        raise no_effect(
            "policy.calibration_steps",
            policy.calibration_steps,
            f"with policy.normalize_obs={policy.normalize_obs}",
            "use policy.normalize_obs=calibrated",
        )
    share = policy.encoder.share
    if share is not None and not has_critic(config):
        raise no_effect(
            "policy.encoder.share", share, "without a critic", "leave it out, or use advantage/baseline=value"
        )
    if share is False and policy.share != 0:
        raise ConfigError(
            "policy.encoder.share=false needs hidden layers of their own, too: use policy.share=0 "
            f"(given: {policy.share})",
            "policy.encoder.share",
        )
    if share and isinstance(config.update, NaturalConfig):
        raise ConfigError(
            f"policy.encoder.share=true: update={config.update.name} moves the actor alone; "
            "use policy.encoder.share=false",
            "policy.encoder.share",
        )


def _check_atari(config: Config) -> None:
    why = f"with env={config.env.id}" if not is_atari(config) else "with env.atari.preprocess=false"
    for field in dataclasses.fields(AtariConfig):
        value = getattr(config.env.atari, field.name)
        if preprocesses(config) or value is None or (field.name == "preprocess" and not value):
            continue
        raise no_effect(f"env.atari.{field.name}", value, why, "leave it out, or use an env of ALE/*")


def _check_own_network(config: Config) -> None:
    policy, default = config.policy, PolicyConfig()
    if ":" not in policy.name:
        if policy.kwargs:
            raise no_effect("policy.kwargs", policy.kwargs, "with policy=mlp", "leave it out")
        return
    for name in OF_MLP:
        value = getattr(policy, name)
        if value == getattr(default, name) or (name, value) == ("normalize_value", "none"):
            continue
        if isinstance(value, EncoderConfig):
            name, value = "encoder", dataclasses.asdict(value)
        raise no_effect(
            f"policy.{name}", value, f"with policy={policy.name}", "leave it out, or give it in policy.kwargs"
        )
    if isinstance(policy.distribution, StateDependentConfig):
        raise ConfigError(
            f"policy/distribution=gsde needs the hidden layers of policy=mlp (given: policy={policy.name})",
            "policy/distribution",
        )
    if isinstance(config.update, NaturalConfig) and has_critic(config):
        raise ConfigError(
            f"update={config.update.name} needs to know which layers are the actor's: use policy=mlp or another "
            f"update (given: policy={policy.name})",
            "policy",
        )
