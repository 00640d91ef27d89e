"""What a rollout and an update say about the state of training, under the dashboard's tags: numbers, or 0-d tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgtrain.distributed import Ranks
from pgtrain.learning import statistics
from pgtrain.learning.batch import Batch
from pgtrain.learning.host.heads import HEADS, Head
from pgtrain.learning.host.source import has_formulas
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import where
from pgtrain.policies.parameters import FlatParameters
from pgtrain.rollout import Rollout


def transitions(batch: Batch, x: Tensor) -> Tensor:
    """The entries of x that belong to real transitions, [B]: sequences [T, n] may have rows of weight 0."""
    return x if x.ndim == 1 else x[batch.weight > 0]


@np.errstate(all="ignore")  # what is not finite is shown as it is
def experience_metrics(batch: Batch, critic: bool) -> dict[str, Any]:
    """Advantages as estimated (before any normalisation) and the critic that they were estimated with."""
    columns = [transitions(batch, x) for x in (batch.advantage, batch.value, batch.value_target)]
    count = columns[0].numel()
    mean, squares, low, high = (_host_sums if columns[0].device.type == "cpu" else _sums)(columns)
    metrics = {
        "advantage/mean": mean[0],
        "advantage/std": (squares[0] / (count - 1)) ** 0.5 if count > 1 else torch.nan,
        "advantage/min": low[0],
        "advantage/max": high[0],
    }
    if critic:
        metrics["critic/value"] = mean[1]
        varies = (high[2] > low[2]) & (squares[2] > 0)
        metrics["critic/explained_variance"] = where(varies, 1 - squares[3] / squares[2], torch.nan)
    return metrics


def _sums(columns: Sequence[Tensor]) -> tuple[Any, Any, Any, Any]:
    """Mean, sum of squared deviations, least and greatest of advantage, value, target and target − value, [B] each."""
    advantage, value, target = columns
    x = statistics.double(torch.stack([advantage, value, target, target - value]))
    mean = x.mean(1)
    low, high = torch.aminmax(x, dim=1)
    return mean, (x - mean[:, None]).square().sum(1), low, high


def _host_sums(columns: Sequence[Tensor]) -> tuple[Any, Any, Any, Any]:
    """The same for the few rows of a short iteration, where a framework's operations cost four times as much."""
    x = np.empty((4, len(columns[0])))
    x[0], x[1], x[2] = (column.numpy() for column in columns)
    np.subtract(x[2], x[1], out=x[3])
    mean = np.add.reduce(x, 1) / x.shape[1]
    d = x - mean[:, None]
    return mean, np.add.reduce(d * d, 1), np.minimum.reduce(x, 1), np.maximum.reduce(x, 1)


@torch.no_grad()
def policy_metrics(policy: ActorCritic, batch: Batch) -> dict[str, Any]:
    """How far the update moved the policy, measured after it: KL(old ‖ new) exactly and by the k3 estimate."""
    params = policy.params(policy.network.act(batch.inputs))
    log_prob = policy.distribution.log_prob(params, batch.action)
    log_ratio = statistics.double(transitions(batch, log_prob - batch.log_prob))
    metrics = {
        "policy/kl": transitions(batch, policy.distribution.kl(batch.params, params)).mean(),
        "policy/approx_kl": (torch.expm1(log_ratio) - log_ratio).mean(),
    }
    for name, value in policy.distribution.metrics(batch.params, batch.action).items():
        metrics[name] = transitions(batch, value).mean()
    return metrics


PolicyMetrics = Callable[[Batch], dict[str, Any]]


def make_policy_metrics(policy: ActorCritic, flat: FlatParameters) -> PolicyMetrics:
    """The quickest way to `policy_metrics` of this policy; made when its parameters lie where they will stay."""
    forward = policy.network.actor_numpy() if has_formulas(policy, flat) else None
    if forward is None:
        return partial(policy_metrics, policy)
    return HostPolicyMetrics(forward, HEADS[type(policy.distribution)](policy, flat))


@dataclass
class HostPolicyMetrics:
    """`policy_metrics` in NumPy, on the memory of the policy's own parameters."""

    forward: Callable[[np.ndarray], np.ndarray]
    head: Head

    @np.errstate(all="ignore")
    def __call__(self, batch: Batch) -> dict[str, Any]:
        action, old = batch.array("action"), batch.array("params")
        log_prob, _ = self.head.evaluate(self.forward(batch.array("inputs")), action)
        log_ratio = (log_prob - batch.array("log_prob")).astype(np.float64)
        found = {"policy/kl": self.head.kl(old), "policy/approx_kl": np.expm1(log_ratio) - log_ratio}
        found |= self.head.metrics(old, action)
        return {name: np.add.reduce(x, None) / x.size for name, x in found.items()}


def cause_of_skips(rollout: Rollout, flat: FlatParameters, ranks: Ranks) -> str:
    """Why updates were skipped for non-finite numbers: the same words on all ranks."""
    causes = ranks.gather(locate_non_finite(rollout, ranks.rank * rollout.weight.shape[1]))
    told = [(f"rank {rank}: " if ranks.size > 1 else "") + x for rank, x in enumerate(causes) if x]
    if told:
        return told[0]
    names = flat.non_finite()
    return f"the gradient of {', '.join(names)}" if names else "the loss or its gradient overflowed"


def locate_non_finite(rollout: Rollout, before: int = 0) -> str | None:
    """Where the first NaN or infinity of a rollout lies: what, env index, step and reward; None if all is finite.

    `before`: envs of the run that come before these, so that the index is the run's.
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
                f"first non-finite {name} in env {before + n} at step {t} of the rollout "
                f"(step {episode_step} of its episode; "
                f"reward {float(rollout.raw_reward[t, n]):g}; {int(bad.sum())} such steps)"
            )
    finals = ~torch.isfinite(rollout.final_inputs).all(-1)
    if finals.any():
        c = int(finals.nonzero()[0])
        t, n = int(rollout.final_index[0][c]), int(rollout.final_index[1][c])
        reward = float(rollout.raw_reward[t, n])
        return (
            f"non-finite final observation in env {before + n} at step {t} of the rollout (reward {reward:g})"
        )
    return None
