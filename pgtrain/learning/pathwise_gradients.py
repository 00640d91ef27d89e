"""Gradient sources of pathwise recipes: a window's return by backpropagation, alone or mixed with the score function's.

Dimension legend: T steps, N envs, G groups of envs (each a sample of the gradient), D parameters of the actor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from pgtrain.learning import alpha_order, pathwise
from pgtrain.learning.window import TimeProbe
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters
from pgtrain.rollout import Rollout
from pgtrain.types import UserError

CRITIC = "network.critic."


class ActorGradient(Protocol):
    """Leaves the actor's gradient in the flat tensor; returns 0-d statistics, `loss` among them."""

    def __call__(self, rollout: Rollout) -> dict[str, Tensor]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class BothOrders:
    """What either order of gradient estimates climbs, step by step, and samples of its gradient.

    first:  G_{t₀} at each segment's first row, with its graph          (0 elsewhere)
    zeroth: γ^{t−t₀} log π(u_t) (G_t − V(o_t)), without the critic the mean return for V

    The sums of both over a window have the same expected gradient.
    """

    def __init__(self, policy: ActorCritic, flat: FlatParameters, gamma: float) -> None:
        self.policy, self.gamma = policy, gamma
        names = [name for name in flat.slices if not name.startswith(CRITIC)]
        by_name = dict(policy.named_parameters())
        self.parameters = [by_name[name] for name in names]
        self.parts = [flat.slices[name] for name in names]

    def gains(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """first, zeroth: [T, N] with graphs."""
        r = rollout
        returns = pathwise.segment_return(r.reward, r.next_value, r.terminated, r.truncated, self.gamma)
        first = torch.where(pathwise.segment_starts(r.done), returns, 0.0).float()
        known = returns.detach().float()
        baseline = (known * r.weight).sum() / r.weight.sum() if r.value is None else r.value
        discount = self.gamma ** pathwise.segment_step(r.done).float()
        log_prob = self.policy.evaluate_actor(r.inputs, r.action).log_prob
        return first, discount * log_prob * (known - baseline)

    def samples(self, gain: Tensor, weight: Tensor, groups: int) -> Tensor:
        """Gradients of −(mean gain of a step), one for each group of envs, [G, D]; one batched backward pass."""
        parts = zip(gain.tensor_split(groups, 1), weight.tensor_split(groups, 1), strict=True)
        losses = torch.stack([-(g * w).sum() / w.sum() for g, w in parts])
        grads = torch.autograd.grad(
            losses,
            self.parameters,
            torch.eye(groups, device=gain.device),
            retain_graph=True,
            is_grads_batched=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return torch.cat([g.reshape(groups, -1) for g in grads], 1)


@dataclass
class Comparison:
    """How much a window's gradient would vary, by either order, on the same states: every `every` iterations."""

    orders: BothOrders
    groups: int
    every: int
    iterations: int = 0
    found: dict[str, Tensor] = field(default_factory=dict)

    def due(self) -> bool:
        return self.iterations % self.every == 0

    def measure(self, rollout: Rollout) -> None:
        """Before the window's own backward pass, which frees its graph."""
        first, zeroth = self.orders.gains(rollout)
        names = "gradient/variance_pathwise", "gradient/variance_score"
        for name, gain in zip(names, (first, zeroth), strict=True):
            g = self.orders.samples(gain, rollout.weight, self.groups)
            self.found[name] = alpha_order.variance(g).sum() / self.groups

    def state_dict(self) -> dict[str, Any]:
        return {"iterations": self.iterations, "found": dict(self.found)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = next(self.orders.policy.parameters()).device
        self.iterations = state["iterations"]
        self.found = {name: x.to(device) for name, x in state["found"].items()}


@dataclass
class Pathwise:
    """∇ of SHAC's loss (with next values) or of BPTT's (without), by one backward pass through the window."""

    flat: FlatParameters
    gamma: float
    probe: TimeProbe | None = None
    comparison: Comparison | None = None

    def __call__(self, rollout: Rollout) -> dict[str, Tensor]:
        r, stats = rollout, {}
        if self.comparison is not None:
            if self.comparison.due():
                self.comparison.measure(r)
            self.comparison.iterations += 1
            stats |= self.comparison.found
        if self.probe is not None:
            self.probe.begin()
        returns = pathwise.segment_return(r.reward, r.next_value, r.terminated, r.truncated, self.gamma)
        loss = pathwise.pathwise_loss(returns, r.done, r.weight.to(returns.dtype))
        self.flat.zero_grad()
        loss.backward()
        stats |= {"loss": loss.detach(), "loss/actor": loss.detach()}
        if self.probe is not None and len(norms := self.probe.norms()):
            largest, where = norms.max(0)
            stats |= {"gradient/norm_first": norms[0], "gradient/norm_last": norms[-1]}
            stats |= {"gradient/norm_through_time": largest, "gradient/norm_peak_step": where + 1}
        return stats

    def state_dict(self) -> dict[str, Any]:
        return {} if self.comparison is None else self.comparison.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.comparison is not None:
            self.comparison.load_state_dict(state)


@dataclass
class AlphaOrder:
    """The α-order mixture: half of the envs give pathwise gradients, the other half score-function ones.

    Each half falls into `groups` groups of envs; a group's mean gradient is one sample. `tolerance` None:
    inverse-variance weights for each parameter; else one α within that tolerance of bias.
    """

    policy: ActorCritic
    flat: FlatParameters
    gamma: float
    groups: int = 8
    tolerance: float | None = None
    bound: float | None = None
    delta: float = 0.05

    def __post_init__(self) -> None:
        self.orders = BothOrders(self.policy, self.flat, self.gamma)

    def __call__(self, rollout: Rollout) -> dict[str, Tensor]:
        half = rollout.reward.shape[1] // 2
        if half < self.groups:
            raise UserError(f"update=alpha_order: num_envs must be at least 2 x {self.groups} groups")
        first, zeroth = self.orders.gains(rollout)
        weight = rollout.weight
        g1 = self.orders.samples(first[:, :half], weight[:, :half], self.groups)
        g0 = self.orders.samples(zeroth[:, half:], weight[:, half:], self.groups)
        if self.tolerance is None:
            mixed = alpha_order.mix_per_parameter(g1, g0)
        else:
            mixed = alpha_order.mix(g1, g0, self.tolerance, self.bound, self.delta)
        self.flat.zero_grad()
        _write(self.flat.grad, self.orders.parts, mixed.grad)
        loss = -(first.detach() * weight).sum() / weight.sum()
        return {
            "loss": loss,
            "loss/actor": loss,
            "gradient/alpha": mixed.alpha.mean(),
            "gradient/variance_pathwise": mixed.variance_first / self.groups,
            "gradient/variance_score": mixed.variance_zeroth / self.groups,
        }

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is kept from one iteration to the next."""


def _write(flat: Tensor, parts: Sequence[slice], grad: Tensor) -> None:
    """Lays the actor's gradient [D] into the parts of the flat tensor that are the actor's."""
    sizes = [part.stop - part.start for part in parts]
    for part, piece in zip(parts, grad.split(sizes), strict=True):
        flat[part] = piece
