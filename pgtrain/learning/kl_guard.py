"""KL guards: what to do when an update moves the policy further than meant.

After each epoch a guard may measure how far the policy is from the one that collected the rollout, mean KL(old ‖ new)
over the batch: exactly from the stored distribution parameters, or by the k3 estimate. One branch an epoch at most.
`finish` tells `update/kl_guard`, how often the guard acted in this update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pgtrain.learning.batch import Batch
from pgtrain.learning.optimizers import Optimizer
from pgtrain.learning.statistics import approx_kl_k3, double, weighted_mean
from pgtrain.policies.actor_critic import ActorCritic

Measure = Callable[[], Tensor]


@torch.no_grad()
def measure_kl(policy: ActorCritic, batch: Batch, estimate: str = "exact") -> Tensor:
    """Mean KL(rollout's policy ‖ today's) over the batch, 0-d; estimate "exact", or "k3" from the actions taken."""
    new = policy.evaluate_actor(batch.inputs, batch.action)
    if estimate == "k3":
        return approx_kl_k3(new.log_prob - batch.log_prob, batch.weight)
    return mean_kl(policy, batch, new.params)


def mean_kl(policy: ActorCritic, batch: Batch, params: Tensor) -> Tensor:
    """Mean KL(rollout's policy ‖ that of `params` [B, P]) over the batch, 0-d; in float64, for it may be tiny."""
    return weighted_mean(policy.distribution.kl(double(batch.params), double(params)), batch.weight)


class Guard:
    """Shown the run of one update: begin, after_epoch each time, finish. The base of those that do less."""

    def begin(self, optimizer: Optimizer) -> None:
        pass

    def learning_rate(self, scheduled: float | Tensor) -> float | Tensor:
        """The rate to use now."""
        return scheduled

    def after_epoch(self, measure: Measure, last: bool) -> bool:
        """True: go on with the next epoch. `measure()` costs a forward pass over the batch, once an epoch."""
        return True

    def finish(self, measure: Measure) -> Mapping[str, float | Tensor]:
        """Statistics of this update; `measure()` is the KL after its last epoch, before anything was undone."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@dataclass
class Stop(Guard):
    """Ends the epochs when KL > `limit` (or is no number)."""

    limit: float
    acted: bool = False

    def begin(self, optimizer: Optimizer) -> None:
        self.acted = False

    def after_epoch(self, measure: Measure, last: bool) -> bool:
        if not last:
            self.acted = not float(measure()) <= self.limit
        return not self.acted

    def finish(self, measure: Measure) -> Mapping[str, float | Tensor]:
        return {"update/kl_guard": float(self.acted)}


@dataclass
class Skip(Guard):
    """Undoes the whole update when KL > `limit` (or is no number) after one of its epochs.

    Parameters, moments and step count are then what they were before the update, bit for bit.
    """

    limit: float
    acted: bool = False

    def begin(self, optimizer: Optimizer) -> None:
        self.acted = False
        self.optimizer = optimizer
        self.parameters = optimizer.data.clone()
        self.moments = {name: x.clone() for name, x in optimizer.state_dict().items()}

    def after_epoch(self, measure: Measure, last: bool) -> bool:
        self.acted = not float(measure()) <= self.limit
        if self.acted:
            self.optimizer.data.copy_(self.parameters)
            self.optimizer.load_state_dict(self.moments)
        return not self.acted

    def finish(self, measure: Measure) -> Mapping[str, float | Tensor]:
        return {"update/kl_guard": float(self.acted)}


@dataclass
class LearningRate(Guard):
    """Steers the learning rate by the KL after each epoch; no branch on it. A constant schedule's rate is
    where it starts.

    KL > 2 · target: rate ← max(smallest, rate / 1.5);  0 < KL < target / 2: rate ← min(largest, 1.5 · rate).
    A KL of 0 (nothing moved) or NaN leaves it alone. Source: rsl_rl (Rudin et al. 2022), `schedule="adaptive"`.
    """

    target: float
    start: float
    smallest: float = 1e-5
    largest: float = 1e-2
    device: torch.device | str = "cpu"
    rate: Tensor = field(init=False)
    acted: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.rate = torch.tensor(self.start, dtype=torch.float32, device=self.device)
        self.acted = torch.zeros((), device=self.device)

    def begin(self, optimizer: Optimizer) -> None:
        self.acted.zero_()

    def learning_rate(self, scheduled: float | Tensor) -> Tensor:
        return self.rate

    def after_epoch(self, measure: Measure, last: bool) -> bool:
        kl = measure()
        down, up = kl > 2 * self.target, (kl > 0) & (kl < self.target / 2)
        lower, higher = (self.rate / 1.5).clamp(min=self.smallest), (self.rate * 1.5).clamp(max=self.largest)
        rate = torch.where(down, lower, torch.where(up, higher, self.rate))
        self.acted += rate != self.rate
        self.rate.copy_(rate)
        return True

    def finish(self, measure: Measure) -> Mapping[str, float | Tensor]:
        return {"update/kl_guard": self.acted.clone()}

    def state_dict(self) -> dict[str, Any]:
        return {"rate": self.rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rate.copy_(state["rate"])
