"""Statistics of observations from first steps, made before training and then left alone."""

from __future__ import annotations

import numpy as np
import torch

from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import make_actor
from pgtrain.types import HostEnv


def calibrate_normalizer(policy: ActorCritic, env: HostEnv, steps: int, seed: int) -> int:
    """Plays at least `steps` env steps with `policy` and fixes its normaliser at the statistics of what was seen.

    The untrained policy acts almost at random, and its actions fit the env whatever they are. The env is left where it
    is: reset it before use. Rows that are no transition are left out. Returns the steps made.
    """
    assert policy.normalizer is not None
    device = next(policy.parameters()).device
    actor = make_actor(policy, env.num_envs, seed)
    obs, made = env.reset(seed), 0
    while made < steps:
        step = env.step(actor.act(obs)[0])
        actor.follow(step)
        valid = np.ones(env.num_envs, bool) if step.valid is None else np.asarray(step.valid)
        policy.observe(_on(obs, device), _on(valid, device).float())
        obs = step.obs
        made += int(valid.sum())
    policy.observing = False
    return made


def _on(array: np.ndarray, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "mps" and tensor.dtype == torch.float64:
        tensor = tensor.float()
    return tensor.to(device)
