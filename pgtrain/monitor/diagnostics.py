"""What a rollout and an update say about the state of training, as 0-d tensors under the dashboard's tags."""

from __future__ import annotations

import torch
from torch import Tensor

from pgtrain.learning import statistics
from pgtrain.learning.batch import Batch
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.rollout import Rollout


def rollout_metrics(rollout: Rollout) -> dict[str, Tensor]:
    """Advantages as estimated (before any normalisation) and the critic that they were estimated with."""
    assert rollout.advantage is not None and rollout.value_target is not None
    advantage, weight = rollout.advantage, rollout.weight
    metrics = {
        "advantage/mean": statistics.weighted_mean(advantage, weight),
        "advantage/std": statistics.weighted_std(advantage, weight),
        "advantage/min": statistics.weighted_min(advantage, weight),
        "advantage/max": statistics.weighted_max(advantage, weight),
    }
    if rollout.value is not None:
        metrics["critic/value"] = statistics.weighted_mean(rollout.value, weight)
        explained = statistics.explained_variance(rollout.value, rollout.value_target, weight)
        metrics["critic/explained_variance"] = explained
    return metrics


@torch.no_grad()
def policy_metrics(policy: ActorCritic, batch: Batch) -> dict[str, Tensor]:
    """How far the update moved the policy, measured after it: KL(old ‖ new) exactly and by the k3 estimate."""
    new = policy.evaluate(batch.inputs, batch.action)
    kl = policy.distribution.kl(batch.params, new.params)
    metrics = {
        "policy/kl": statistics.weighted_mean(kl, batch.weight),
        "policy/approx_kl": statistics.approx_kl_k3(new.log_prob - batch.log_prob, batch.weight),
    }
    for name, value in policy.distribution.metrics(batch.params, batch.action).items():
        metrics[name] = statistics.weighted_mean(value, batch.weight)
    return metrics


def locate_non_finite(rollout: Rollout) -> str | None:
    """Where the first NaN or infinity of a rollout lies: what, env index, step and reward; None if all is finite.

    Looked for in the order in which one spoils the next: observation, reward, value, log-probability, advantage.
    """
    parts = {
        "observation": rollout.obs,
        "reward": rollout.raw_reward,
        "value": rollout.value,
        "log-probability": rollout.log_prob,
        "advantage": rollout.advantage,
    }
    valid = rollout.weight > 0
    for name, tensor in parts.items():
        if tensor is None or not tensor.is_floating_point():
            continue
        bad = ~torch.isfinite(tensor.reshape(*valid.shape, -1)).all(-1) & valid
        where = bad.nonzero()
        if len(where):
            t, n = (int(i) for i in where[0])
            episode_step = int(rollout.episode_step[t, n])
            return (
                f"first non-finite {name} in env {n} at step {t} of the rollout (step {episode_step} of its episode; "
                f"reward {float(rollout.raw_reward[t, n]):g}; {int(bad.sum())} such steps)"
            )
    finals = ~torch.isfinite(rollout.final_inputs).all(-1)
    if finals.any():
        c = int(finals.nonzero()[0])
        t, n = int(rollout.final_index[0][c]), int(rollout.final_index[1][c])
        reward = float(rollout.raw_reward[t, n])
        return f"non-finite final observation in env {n} at step {t} of the rollout (reward {reward:g})"
    return None
