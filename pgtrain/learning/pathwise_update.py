"""The update of pathwise recipes: one step of the actor along the return's own gradient, then passes for the critic."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pgtrain.learning import alpha_order, pathwise
from pgtrain.learning.batch import Coefficients, flatten
from pgtrain.learning.optimizers import Optimizer
from pgtrain.learning.updates import Update, UpdateResult
from pgtrain.learning.window import TimeProbe
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters
from pgtrain.rollout import Rollout
from pgtrain.types import UserError

CRITIC = "network.critic."


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

    def forward(self, inputs: Tensor) -> Tensor:
        return self.critic(inputs).squeeze(-1)

    def follow(self) -> None:
        """w' ← α w' + (1 − α) w; call it once an iteration."""
        pathwise.follow(self._own.data, self._source, self.alpha)


def critic_slice(flat: FlatParameters) -> slice:
    """Where the critic's parameters lie in the flat tensor: at its end, in one piece."""
    start = min(part.start for name, part in flat.slices.items() if name.startswith(CRITIC))
    assert all(name.startswith(CRITIC) == (part.start >= start) for name, part in flat.slices.items())
    return slice(start, len(flat))


class ActorGradient(Protocol):
    """Leaves the actor's gradient in the flat tensor; returns 0-d statistics, `loss` among them."""

    def __call__(self, rollout: Rollout) -> dict[str, Tensor]: ...


@dataclass
class Pathwise:
    """∇ of SHAC's loss (with next values) or of BPTT's (without), by one backward pass through the window."""

    flat: FlatParameters
    gamma: float
    probe: TimeProbe | None = None

    def __call__(self, rollout: Rollout) -> dict[str, Tensor]:
        r = rollout
        returns = pathwise.segment_return(r.reward, r.next_value, r.terminated, r.truncated, self.gamma)
        loss = pathwise.pathwise_loss(returns, r.done, r.weight.to(returns.dtype))
        self.flat.zero_grad()
        loss.backward()
        stats = {"loss": loss.detach(), "loss/actor": loss.detach()}
        if self.probe is not None:
            norms = self.probe.norms()
            stats |= {"gradient/norm_first": norms[0], "gradient/norm_last": norms[-1]}
            stats["gradient/norm_through_time"] = norms.amax()
        return stats


@dataclass
class AlphaOrder:
    """The α-order mixture: half of the envs give pathwise gradients, the other half score-function ones.

    Each half falls into `groups` groups of envs; a group's mean gradient is one sample. `tolerance` None:
    inverse-variance weights for each parameter; else one α within that tolerance of bias. The score function's
    objective is the same as the pathwise one: Σ γ^{t−t₀} log π(u_t) (G_t − V(o_t)) / steps.
    """

    policy: ActorCritic
    flat: FlatParameters
    gamma: float
    groups: int = 8
    tolerance: float | None = None
    bound: float | None = None
    delta: float = 0.05

    def __call__(self, rollout: Rollout) -> dict[str, Tensor]:
        r, n = rollout, rollout.reward.shape[1]
        returns = pathwise.segment_return(r.reward, r.next_value, r.terminated, r.truncated, self.gamma)
        first = torch.where(pathwise.segment_starts(r.done), returns, 0.0).float()
        baseline = 0.0 if r.value is None else r.value
        discount = self.gamma ** pathwise.segment_step(r.done).float()
        log_prob = self.policy.evaluate_actor(r.inputs, r.action).log_prob
        score = discount * log_prob * (returns.detach().float() - baseline)
        names = [name for name in self.flat.slices if not name.startswith(CRITIC)]
        parameters = [p for name, p in self.policy.named_parameters() if name in set(names)]
        g1 = self._samples(first[:, : n // 2], r.weight[:, : n // 2], parameters)
        g0 = self._samples(score[:, n // 2 :], r.weight[:, n // 2 :], parameters)
        if self.tolerance is None:
            mixed = alpha_order.mix_per_parameter(g1, g0)
        else:
            mixed = alpha_order.mix(g1, g0, self.tolerance, self.bound, self.delta)
        self.flat.zero_grad()
        start = 0
        for name in names:
            part = self.flat.slices[name]
            size = part.stop - part.start
            self.flat.grad[part] = mixed.grad[start : start + size]
            start += size
        loss = -first.detach().mean()
        return {
            "loss": loss,
            "loss/actor": loss,
            "gradient/alpha": mixed.alpha.mean(),
            "gradient/variance_pathwise": mixed.variance_first,
            "gradient/variance_score": mixed.variance_zeroth,
        }

    def _samples(self, gain: Tensor, weight: Tensor, parameters: Iterable[Tensor]) -> Tensor:
        """Gradients of −(mean gain of a step), one for each group of envs, [groups, D]; one batched backward pass."""
        columns = gain.shape[1]
        if columns < self.groups:
            raise UserError(f"algo=alpha_order: num_envs must be at least 2 x {self.groups} groups")
        losses = torch.stack(
            [
                -g.sum() / w.sum()
                for g, w in zip(
                    gain.tensor_split(self.groups, 1), weight.tensor_split(self.groups, 1), strict=True
                )
            ]
        )
        grads = torch.autograd.grad(
            losses,
            list(parameters),
            torch.eye(self.groups, device=gain.device),
            retain_graph=True,
            is_grads_batched=True,
        )
        return torch.cat([g.reshape(self.groups, -1) for g in grads], 1)


@dataclass
class PathwiseUpdate:
    """Actor: gradient → finite check → norm limit → step, masked where it is not finite. Then the critic's epochs by
    `critic` (an `Update` with a CriticBackprop for its source; None: no critic), then the target critic follows.

    `critic_lr_ratio`: the critic's learning rate over the actor's.
    """

    source: ActorGradient
    flat: FlatParameters
    optimizer: Optimizer
    critic: Update | None = None
    target: TargetCritic | None = None
    max_grad_norm: float | None = 1.0
    critic_lr_ratio: float = 1.0

    def __call__(self, rollout: Rollout, coefficients: Coefficients) -> UpdateResult:
        """`rollout` as the estimator left it. `ok` has the actor's step first, then each of the critic's."""
        stats = self.source(rollout)
        grad, norm = pathwise.limit_norm(self.flat.grad, self.max_grad_norm)
        ok = torch.isfinite(norm) & torch.isfinite(stats["loss"])
        self.optimizer.step(grad, ok, coefficients.learning_rate)
        stats["gradient/norm"] = norm
        made = ok.reshape(1)
        if self.critic is not None:
            rate = coefficients.learning_rate * self.critic_lr_ratio
            result = self.critic(flatten(rollout, None), coefficients._replace(learning_rate=rate))
            stats["loss/critic"] = result.stats["loss/critic"]
            made = torch.cat([made, result.ok])
        if self.target is not None:
            self.target.follow()
        return UpdateResult(stats, made)

    def state_dict(self) -> dict[str, Any]:
        return {
            "actor_optimizer": self.optimizer.state_dict(),
            "critic": None if self.critic is None else self.critic.state_dict(),
            "target": None if self.target is None else self.target.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["actor_optimizer"])
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])
        if self.target is not None:
            self.target.load_state_dict(state["target"])
