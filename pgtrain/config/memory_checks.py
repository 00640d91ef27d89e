"""Settings of a policy with memory: which go together, and what those left to null become."""

from __future__ import annotations

import dataclasses

from pgtrain.config.errors import ConfigError, no_effect
from pgtrain.config.schema import Config, NaturalConfig, RecurrentConfig, has_critic
from pgtrain.config.update_checks import minibatch_size

# What works on one sample at a time has no gradient through time
ONE_STEP = {"advantage/baseline": "optimal", "update": "pathwise", "monitor.gradient": "full"}


def settle_memory(config: Config) -> None:
    """Fills in what was left to null; after the encoder's."""
    memory = config.policy.memory
    if isinstance(memory, RecurrentConfig) and has_critic(config) and memory.share is None:
        share = config.policy.encoder.share
        config.policy = dataclasses.replace(
            config.policy, memory=dataclasses.replace(memory, share=bool(share))
        )


def check_memory(config: Config) -> None:
    """Raises: ConfigError."""
    policy, memory = config.policy, config.policy.memory
    if not isinstance(memory, RecurrentConfig):
        return
    kind = f"policy/memory={memory.name}"
    if ":" in policy.name:
        raise ConfigError(
            f"{kind} needs policy=mlp (given: policy={policy.name}): use policy/memory=none, or policy=mlp",
            "policy/memory",
        )
    _check_learners(config, kind)
    share = memory.share
    if share is None:
        return
    if not has_critic(config):
        raise no_effect(
            "policy.memory.share", share, "without a critic", "leave it out, or use advantage/baseline=value"
        )
    if share and isinstance(config.update, NaturalConfig):
        raise ConfigError(
            f"policy.memory.share=true: update={config.update.name} moves the actor alone; use "
            "policy.memory.share=false",
            "policy.memory.share",
        )
    if share and policy.encoder.share is False:
        raise ConfigError(
            "policy.memory.share=true: one memory reads one encoder; use policy.encoder.share=true, or "
            "policy.memory.share=false",
            "policy.memory.share",
        )
    if not share and policy.share != 0:
        raise ConfigError(
            "policy.memory.share=false needs hidden layers of their own, too: use policy.share=0 "
            f"(given: {policy.share})",
            "policy.memory.share",
        )


def _check_learners(config: Config, kind: str) -> None:
    chosen = {
        "advantage/baseline": getattr(getattr(config.advantage, "baseline", None), "name", None),
        "update": config.update.name,
        "monitor.gradient": config.monitor.gradient,
    }
    for key, name in chosen.items():
        if name == ONE_STEP[key]:
            raise ConfigError(
                f"{key}={name} works on single steps and would leave out the gradient through time of {kind}: use "
                f"policy/memory=none, or another {key}",
                key,
            )


def sequence_length(config: Config) -> int | None:
    """Steps of a sequence in an update; None: as many as the longest episode of whole-episode rollouts."""
    memory = config.policy.memory
    assert isinstance(memory, RecurrentConfig)
    lengths = [x for x in (memory.sequence, config.horizon) if x is not None]
    return min(lengths, default=None)


def check_sequences(config: Config) -> None:
    """Of a settled config: sequences against the rollout and the minibatches. Raises: ConfigError."""
    memory = config.policy.memory
    if not isinstance(memory, RecurrentConfig):
        return
    if memory.sequence is not None and config.horizon is not None and memory.sequence > config.horizon:
        raise ConfigError(
            f"policy.memory.sequence={memory.sequence}: must be at most horizon={config.horizon}, the steps that a "
            "rollout has in each env, or null",
            "policy.memory.sequence",
        )
    key, size = minibatch_size(config)
    length = sequence_length(config)
    if size is not None and length is not None and size < length:
        raise ConfigError(
            f"{key}={size}: must be at least {length} with policy/memory={memory.name}, as a minibatch holds whole "
            "sequences; use more, or a smaller policy.memory.sequence",
            key,
        )


def tell_sequences(config: Config) -> list[str]:
    """What becomes of a minibatch size that is no multiple of a sequence's length."""
    key, size = minibatch_size(config)
    if not isinstance(config.policy.memory, RecurrentConfig) or size is None:
        return []
    length = sequence_length(config)
    if length is None:
        return [
            f"{key}={size}: with memory a minibatch holds whole sequences, here all steps of an env in an "
            "iteration: as many as fit, at least one"
        ]
    if size % length == 0:
        return []
    whole = size // length * length
    return [f"{key}={size}: with memory a minibatch holds whole sequences of {length} steps: {whole} steps"]
