"""Layer inputs and output gradients of pgtrain's own MLP policies by hand: the quickest way to norms of scores.

The same as `score_capture`, without automatic differentiation: activations and their derivatives in place, scores of
the distribution's parameters in closed form. For small networks most of a backward pass is such element-wise work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import Categorical, DiagonalGaussian


class Activation(NamedTuple):
    """y = f(x) in place, and in place d ← d · f'(x) told from y."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Any]


aten = torch.ops.aten
ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: Activation(torch.tanh_, lambda d, y: aten.tanh_backward.grad_input(d, y, grad_input=d)),
    nn.ReLU: Activation(torch.relu_, lambda d, y: aten.threshold_backward.grad_input(d, y, 0, grad_input=d)),
    nn.LeakyReLU: Activation(
        F.leaky_relu_,
        lambda d, y: aten.leaky_relu_backward.grad_input(d, y, 0.01, True, grad_input=d),
    ),
    nn.ELU: Activation(
        F.elu_, lambda d, y: aten.elu_backward.grad_input(d, 1.0, 1.0, 1.0, True, y, grad_input=d)
    ),
}


def supports(policy: ActorCritic) -> bool:
    """Whether the actor is Linear layers and activations above, with a categorical or a plain Gaussian behind."""
    stages = [*policy.network.trunk, *policy.network.actor]
    known = all(type(s) is nn.Linear or type(s) in ACTIVATIONS for s in stages)
    plain = type(policy.distribution) in (Categorical, DiagonalGaussian)
    return known and plain and type(stages[0]) is nn.Linear


@torch.no_grad()
def capture(
    policy: ActorCritic, inputs: Tensor, action: Tensor
) -> tuple[list[tuple[nn.Linear, Tensor, Tensor]], Tensor | None]:
    """(layer, its inputs [B, i], gradients of log π at its outputs [B, o]) of each Linear layer, and those with respect
    to each sample's log σ [B, A]."""
    stages = [*policy.network.trunk, *policy.network.actor]
    x, met = inputs, []
    for stage in stages:
        if isinstance(stage, nn.Linear):
            met.append(x)
            x = F.linear(x, stage.weight, stage.bias)
        else:
            x = ACTIVATIONS[type(stage)].forward(x)
    d, d_log_std = head_score(policy, x, action)
    found = []
    for stage in reversed(stages):
        if isinstance(stage, nn.Linear):
            x = met.pop()
            found.append((stage, x, d))
            d = d @ stage.weight if met else d
        else:
            ACTIVATIONS[type(stage)].backward(d, x)
    return found, d_log_std


def head_score(policy: ActorCritic, head: Tensor, action: Tensor) -> tuple[Tensor, Tensor | None]:
    """Gradients of log π with respect to the actor's outputs [B, …] and to each sample's log σ [B, A].

    categorical: 1[k = a] − π(k);   Gaussian: ∂/∂μ = (u − μ)/σ², ∂/∂ log σ = ((u − μ)/σ)² − 1
    """
    if policy.log_std is None:
        d = -torch.softmax(head, -1)
        return d.scatter_add_(-1, action[:, None], torch.ones_like(d[:, :1])), None
    inverse = torch.exp(-policy.clamped_log_std())
    mean = torch.where(policy.squashed, torch.tanh(head), head)
    z = (action - mean) * inverse
    slope = torch.where(policy.squashed, 1 - mean.square(), 1.0)
    return z * inverse * slope, z.square() - 1
