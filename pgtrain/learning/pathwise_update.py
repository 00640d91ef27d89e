"""The update of pathwise recipes: one step of the actor along the return's own gradient, then passes for the critic."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pgtrain.learning import pathwise, statistics
from pgtrain.learning.batch import Coefficients, flatten
from pgtrain.learning.optimizers import Optimizer
from pgtrain.learning.pathwise_gradients import CRITIC, ActorGradient
from pgtrain.learning.updates import Reestimate, Update, UpdateResult, joined
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.networks import numpy_forward
from pgtrain.policies.parameters import FlatParameters
from pgtrain.rollout import Rollout
from pgtrain.types import UserError


@dataclass(frozen=True)
class TDLambda:
    """Estimator: TD(λ) value targets from the target critic; the advantage (shown, and for α-order) is target − V."""

    gamma: float
    lam: float

    needs_critic = True

    def __call__(self, rollout: Rollout) -> Rollout:
        assert rollout.next_value is not None and rollout.value is not None
        target = pathwise.td_lambda_target(
            rollout.reward,
            rollout.next_value,
            rollout.terminated,
            rollout.truncated,
            self.gamma,
            self.lam,
        ).float()
        return rollout.replace(advantage=target - rollout.value, value_target=target)


@dataclass(frozen=True)
class WindowReturn:
    """Estimator of BPTT, for the dashboard only: each step's return to the end of its segment, less the mean."""

    gamma: float

    needs_critic = False

    def __call__(self, rollout: Rollout) -> Rollout:
        returns = pathwise.segment_return(
            rollout.reward.detach(), None, rollout.terminated, rollout.truncated, self.gamma
        ).float()
        mean = (returns * rollout.weight).sum() / rollout.weight.sum()
        return rollout.replace(advantage=returns - mean, value_target=returns)


class TargetCritic(nn.Module):
    """A slow copy of the policy's critic: a gradient passes through it into its inputs, never into its weights.

    Where none is asked for, on a CPU, NumPy does the same at half the cost.
    Raises: UserError where the critic shares layers with the actor, or learns standardised values.
    """

    def __init__(self, policy: ActorCritic, flat: FlatParameters, alpha: float) -> None:
        super().__init__()
        if policy.network.critic is None or len(policy.network.trunk):
            raise UserError(
                "update=pathwise: the target critic needs a critic of its own; set policy.share=0"
            )
        if policy.value_moments is not None:
            raise UserError(
                "update=pathwise: standardised values have no target critic; set policy.normalize_value=none"
            )
        self.critic = copy.deepcopy(policy.network.critic).requires_grad_(False)
        self._own = FlatParameters(self.critic)
        self._source, self.alpha = flat.data[critic_slice(flat)], alpha
        assert len(self._own) == len(self._source)
        self._host = numpy_forward(list(self.critic)) if flat.data.device.type == "cpu" else None

    def forward(self, inputs: Tensor) -> Tensor:
        if self._host is None or (torch.is_grad_enabled() and inputs.requires_grad):
            return self.critic(inputs).squeeze(-1)
        values = self._host(inputs.detach().flatten(0, -2).numpy())
        return torch.from_numpy(values).view(inputs.shape[:-1])

    def follow(self) -> None:
        """w' ← α w' + (1 − α) w; call it once an iteration."""
        pathwise.follow(self._own.data, self._source, self.alpha)


def critic_slice(flat: FlatParameters) -> slice:
    """Where the critic's parameters lie in the flat tensor: at its end, in one piece."""
    start = min(part.start for name, part in flat.slices.items() if name.startswith(CRITIC))
    assert all(name.startswith(CRITIC) == (part.start >= start) for name, part in flat.slices.items())
    return slice(start, len(flat))


@dataclass
class PathwiseUpdate:
    """Actor: gradient → finite check → norm limit → step, masked where it is not finite. Then the critic's epochs by
    `critic` (an `Update` with a CriticBackprop for its source; None: no critic), then the target critic follows.

    `critic_lr_ratio`: the critic's learning rate over the actor's.
    """

    through_time: ClassVar[bool] = True  # works on the window itself, whose rewards carry their graph

    policy: ActorCritic
    source: ActorGradient
    flat: FlatParameters
    optimizer: Optimizer
    critic: Update | None = None
    target: TargetCritic | None = None
    max_grad_norm: float | None = 1.0
    critic_lr_ratio: float = 1.0

    def __call__(
        self, rollout: Rollout, coefficients: Coefficients, reestimate: Reestimate | None = None
    ) -> UpdateResult:
        """`rollout` as the estimator left it. `ok` has the actor's step first, then each of the critic's."""
        assert reestimate is None, (
            "the critic's targets come from the target critic, which the epochs do not move"
        )
        stats = self.source(rollout)
        grad, norm = pathwise.limit_norm(self.flat.grad, self.max_grad_norm)
        ok = torch.isfinite(norm) & torch.isfinite(stats["loss"])
        self.optimizer.step(grad, ok, coefficients.learning_rate)
        stats |= {"gradient/norm": norm}
        result, made = None, ok.reshape(1)
        if self.critic is not None:
            rate = coefficients.learning_rate * self.critic_lr_ratio
            result = self.critic(flatten(rollout, None), coefficients._replace(learning_rate=rate))
            made = joined([made, result.ok])
        if self.target is not None:
            self.target.follow()

        def tell() -> dict[str, Tensor]:
            found = stats | {"policy/entropy": self._entropy(rollout)}
            if result is not None:
                found |= {name: result.stats[name] for name in ("loss/critic", "update/epochs")}
            return found

        return UpdateResult(tell, made)

    @torch.no_grad()
    def _entropy(self, rollout: Rollout) -> Tensor:
        return statistics.weighted_mean(self.policy.distribution.entropy(rollout.params), rollout.weight)

    def state_dict(self) -> dict[str, Any]:
        return {
            "source": self.source.state_dict(),
            "actor_optimizer": self.optimizer.state_dict(),
            "critic": None if self.critic is None else self.critic.state_dict(),
            "target": None if self.target is None else self.target.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state["source"])
        self.optimizer.load_state_dict(state["actor_optimizer"])
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])
        if self.target is not None:
            self.target.load_state_dict(state["target"])
