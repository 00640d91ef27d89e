"""Config → what is seen of the envs: their preprocessing, the networks, the normaliser of observations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from pgtrain.build_memory import make_recurrent_network
from pgtrain.calibration import calibrate_normalizer
from pgtrain.config import checks, observation_checks, schema
from pgtrain.distributed import Ranks
from pgtrain.envs.preprocessing import Atari
from pgtrain.envs.vector import VectorEnv
from pgtrain.learning.over_ranks import merge_calibration
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.encoders import NATURE_MIN, EncodedMLP, Encoder, needs_encoder
from pgtrain.policies.masks import MaskedNetwork
from pgtrain.policies.memory import RecurrentNetwork
from pgtrain.policies.networks import MLP, as_made, orthogonal
from pgtrain.policies.normalizer import ColumnMoments, RunningMoments
from pgtrain.policies.registry import UserNetwork, find_policy
from pgtrain.types import Leaf, UserError


def observation_settings(cfg: schema.Config) -> dict[str, Any]:
    """Arguments of `make_vector_env`."""
    env, atari = cfg.env, None
    if observation_checks.preprocesses(cfg):
        a = env.atari
        assert a.frame_skip and a.screen_size and a.noop_max is not None
        atari = Atari(
            a.frame_skip, a.noop_max, a.screen_size, bool(a.grayscale), bool(a.terminal_on_life_loss)
        )
    return {"atari": atari, "frame_stack": env.frame_stack or 1, "one_hot_max": env.one_hot_max}


def make_network(
    cfg: schema.Config, layout: tuple[Leaf, ...], outputs: int, features: str | None, mask_dim: int = 0
) -> Any:
    """The network that `policy.name` asks for, and `mask_dim` columns of action masks behind the observation's; weights
    from torch's global generator."""
    if isinstance(cfg.policy.memory, schema.RecurrentConfig):
        return make_recurrent_network(cfg, layout, outputs, _mlp_settings(cfg, features), mask_dim)
    network = _of_observation(cfg, layout, outputs, features)
    return MaskedNetwork(network, layout[-1].stop) if mask_dim else network


def _mlp_settings(cfg: schema.Config, features: str | None) -> dict[str, Any]:
    p = cfg.policy
    return {
        "hidden": p.hidden,
        "activation": p.activation,
        "share": len(p.hidden) if p.share == "all" else int(p.share),
        "critic": schema.has_critic(cfg),
        "last_gain": p.last_layer_gain or 1.0,  # not used without ortho_init
        "ortho_init": p.ortho_init,
        "features": features,
        "layer_norm": p.layer_norm,
    }


def _of_observation(cfg: schema.Config, layout: tuple[Leaf, ...], outputs: int, features: str | None) -> Any:
    p, critic = cfg.policy, schema.has_critic(cfg)
    if ":" in p.name:
        return UserNetwork(p.name, layout, outputs, critic, p.kwargs)
    settings = _mlp_settings(cfg, features)
    if not needs_encoder(layout):
        return MLP(layout[-1].stop, outputs, **settings)
    init = orthogonal if p.ortho_init else as_made
    encoder = Encoder(layout, p.encoder.cnn, init)
    apart = critic and not p.encoder.share
    return EncodedMLP(encoder, Encoder(layout, p.encoder.cnn, init) if apart else None, outputs, **settings)


def last_width(cfg: schema.Config, layout: tuple[Leaf, ...]) -> int:
    """Numbers that the actor's last layer takes."""
    if cfg.policy.hidden:
        return cfg.policy.hidden[-1]
    if isinstance(cfg.policy.memory, schema.RecurrentConfig):
        return cfg.policy.memory.size
    if not needs_encoder(layout):
        return layout[-1].stop
    with torch.random.fork_rng(devices=[]):
        return Encoder(layout, cfg.policy.encoder.cnn).features


def make_normalizer(cfg: schema.Config, layout: tuple[Leaf, ...], rest: int) -> RunningMoments | None:
    """Statistics of the columns that may be standardised; None if there are none, or there shall be none.

    `rest`: columns that follow those of the layout (an action mask) and stay as they are.
    """
    columns = [i for leaf in layout if leaf.standardize for i in range(leaf.start, leaf.stop)]
    if cfg.policy.normalize_obs == "none" or not columns:
        return None
    dim = layout[-1].stop + rest
    return RunningMoments(dim) if len(columns) == dim else ColumnMoments(dim, columns)


def calibrate(cfg: schema.Config, env: VectorEnv, policy: ActorCritic, ranks: Ranks) -> list[str]:
    """Fixes the normaliser's statistics where that is asked for; what to tell the user."""
    if cfg.policy.normalize_obs != "calibrated" or policy.normalizer is None:
        return []
    assert cfg.policy.calibration_steps is not None
    seed = int(
        np.random.SeedSequence([cfg.seed, 0xCA11B]).generate_state(1)[0]
    )  # shifts no stream of the run's
    here = calibrate_normalizer(policy, env, math.ceil(cfg.policy.calibration_steps / ranks.size), seed)
    merge_calibration(policy.normalizer, ranks)
    steps = sum(ranks.gather(here))
    return [
        f"policy.normalize_obs=calibrated: {steps:,} steps of the untrained policy fixed the statistics of the "
        "observations; they are not counted in total_steps"
    ]


def refuse_unused_of_observations(cfg: schema.Config, overrides: list[str], env: VectorEnv) -> None:
    """Settings that the observations of this env leave without effect, or that do not fit them."""
    layout, env_id = env.layout, cfg.env.id
    if not any(leaf.standardize for leaf in layout):
        keys = ["policy.normalize_obs", "policy.calibration_steps"]
        if cfg.policy.normalize_obs != "none":
            checks.refuse_unused(
                overrides, keys, f"with the observations of {env_id}, which hold no numbers to standardise"
            )
    if ":" in cfg.policy.name:
        find_policy(cfg.policy.name)
        return
    pictures = [leaf for leaf in layout if leaf.kind == "picture"]
    if not pictures:
        checks.refuse_unused(
            overrides, ["policy.encoder.cnn"], f"with the observations of {env_id}: no pictures"
        )
    if not needs_encoder(layout):
        checks.refuse_unused(
            overrides, ["policy.encoder.share"], f"with the observations of {env_id}: nothing to encode"
        )
    for leaf in pictures:
        _, height, width = leaf.picture
        if cfg.policy.encoder.cnn == "nature" and min(height, width) < NATURE_MIN:
            raise UserError(
                f"policy.encoder.cnn=nature needs pictures of at least {NATURE_MIN} x {NATURE_MIN}, and those of "
                f"{env_id} have {height} x {width}: use policy.encoder.cnn=small"
            )


def parameter_counts(policy: ActorCritic) -> dict[str, int]:
    """How many numbers each part of the policy learns: actor, critic, shared (used by both)."""
    network = policy.network
    if isinstance(network, MaskedNetwork):
        network = network.inner
    if isinstance(network, UserNetwork):
        return {"network": _count(network), "spread": _count(policy) - _count(network)}
    if isinstance(network, RecurrentNetwork):
        return _recurrent_counts(policy, network)
    encoder, apart = getattr(network, "encoder", None), getattr(network, "critic_encoder", None)
    counts = {
        "actor": _count(network.actor),
        "critic": _count(network.critic),
        "shared layers": _count(network.trunk),
    }
    if encoder is not None:
        owner = "actor" if apart is not None or network.critic is None else "shared encoder"
        counts[owner] = counts.get(owner, 0) + _count(encoder)
        counts["critic"] += _count(apart)
    if network.critic is None:  # then the trunk is empty
        counts["actor"] += counts.pop("shared layers")
    counts["actor"] += _count(policy) - _count(network)
    return counts


def _recurrent_counts(policy: ActorCritic, network: RecurrentNetwork) -> dict[str, int]:
    """As `parameter_counts`, with the memory in the part of those that use it."""
    apart = network.critic is None or network.critic_core is not None
    counts = {"actor": _count(network.actor), "critic": 0, "shared": 0}
    counts["critic"] += _count(network.critic) + _count(network.critic_core) + _count(network.critic_encoder)
    counts["actor" if apart else "shared"] += _count(network.core)
    alone = network.critic is None or network.critic_encoder is not None
    counts["actor" if alone else "shared"] += _count(network.encoder)
    counts["actor" if network.critic is None else "shared"] += _count(network.trunk)
    counts["actor"] += _count(policy) - _count(network)
    return counts


def _count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())
