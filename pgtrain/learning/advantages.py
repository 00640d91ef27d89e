"""Advantage estimators: Rollout → Rollout with `advantage` and `value_target`, both [T, N].

Each is a small callable with plain arguments; the maths lives in `returns.py` and `baselines.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pgtrain.learning import baselines, returns
from pgtrain.learning.host import scan
from pgtrain.rollout import Rollout


@dataclass(frozen=True)
class MonteCarlo:
    """A_t = G_t − b_t with G the reward-to-go (or the episode's total return) and b the baseline.

    Where an episode is cut (a time limit, or the window's end) the return is continued by `truncation_bootstrap`:
    none: 0, as if the episode had ended there (exact for whole episodes whose time limit is part of the task);
    value: γ·V of the observation reached; mean_return: γ times the mean of the uncontinued returns (biased).
    """

    gamma: float
    form: str = "reward_to_go"  # or "total"
    truncation_bootstrap: str = "none"  # or "value", "mean_return"
    baseline: str = "none"  # or "mean", "loo", "value"
    scope: str = "scalar"  # of mean and loo: "scalar" or "step"

    @property
    def needs_critic(self) -> bool:
        return self.baseline == "value" or self.truncation_bootstrap == "value"

    def __call__(self, rollout: Rollout) -> Rollout:
        target = self._return(rollout)
        baseline = self._baseline(rollout, target)
        return rollout.replace(advantage=target - baseline, value_target=target)

    def _return(self, rollout: Rollout) -> Tensor:
        reward, done = rollout.reward * rollout.weight, rollout.done
        if self.truncation_bootstrap != "none":
            cut = rollout.truncated & ~rollout.terminated
            cut = torch.cat([cut[:-1], cut[-1:] | ~done[-1:]]) & (rollout.weight > 0)
            reward = reward + self.gamma * torch.where(cut, self._continuation(rollout, reward), 0.0)
        if self.form == "total":
            return returns.total_return(reward, self.gamma, done, weight=rollout.weight)
        return returns.reward_to_go(reward, self.gamma, done)

    def _continuation(self, rollout: Rollout, reward: Tensor) -> Tensor:
        if self.truncation_bootstrap == "value":
            assert rollout.next_value is not None
            return rollout.next_value
        so_far = returns.reward_to_go(reward, self.gamma, rollout.done)
        return (so_far * rollout.weight).sum() / rollout.weight.sum()

    def _baseline(self, rollout: Rollout, target: Tensor) -> Tensor:
        if self.baseline == "none":
            return torch.zeros_like(target)
        if self.baseline == "value":
            assert rollout.value is not None
            return rollout.value
        done = torch.cat(
            [rollout.done[:-1], torch.ones_like(rollout.done[-1:])]
        )  # a window's cut episodes count, too
        episode, step = baselines.episode_index(done, rollout.weight)
        function = baselines.leave_one_out if self.baseline == "loo" else baselines.mean
        return function(target, episode, step, scope=self.scope)


@dataclass(frozen=True)
class TD:
    """One-step TD error A_t = r_t + γ·¬terminated_t·V(o_{t+1}) − V(o_t); value target A_t + V(o_t)."""

    gamma: float
    needs_critic = True

    def __call__(self, rollout: Rollout) -> Rollout:
        value, next_value = _values(rollout)
        advantage = returns.td_error(rollout.reward, value, next_value, rollout.terminated, self.gamma)
        return rollout.replace(advantage=advantage, value_target=advantage + value)


@dataclass(frozen=True)
class NStep:
    """A_t = Q⁽ⁿ⁾_t − V(o_t), fewer terms at an episode's or the window's end; value target Q⁽ⁿ⁾_t."""

    gamma: float
    n: int
    needs_critic = True

    def __call__(self, rollout: Rollout) -> Rollout:
        value, next_value = _values(rollout)
        target = returns.n_step_return(
            rollout.reward, next_value, rollout.terminated, rollout.truncated, self.gamma, self.n
        )
        return rollout.replace(advantage=target - value, value_target=target)


@dataclass(frozen=True)
class GAE:
    """Generalised advantage estimation (Schulman et al. 2016): A_t = Σ_k (γλ)ᵏ δ_{t+k}; value target A_t + V(o_t)."""

    gamma: float
    lam: float
    needs_critic = True

    def __call__(self, rollout: Rollout) -> Rollout:
        fields = rollout.alike("reward", "value", "next_value", "terminated", "truncated")
        value = fields[1]
        gae: Any = scan.gae if isinstance(value, np.ndarray) else returns.gae
        advantage = gae(*fields, self.gamma, self.lam)
        return rollout.replace(advantage=advantage, value_target=advantage + value)


class Estimator(Protocol):
    """What the runner asks for advantages. One that adapts has `state_dict` and `load_state_dict`, too."""

    @property
    def needs_critic(self) -> bool: ...

    def __call__(self, rollout: Rollout) -> Rollout: ...


def _values(rollout: Rollout) -> tuple[Tensor, Tensor]:
    assert rollout.value is not None and rollout.next_value is not None
    return rollout.value, rollout.next_value
