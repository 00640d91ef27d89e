"""Gradient and Fisher products of a natural update in NumPy.

At θ = θ_old the Hessian of the mean KL is the Gauss–Newton matrix, F = mean Jᵀ M J with J the derivative of the
actor's output and M the Fisher information of the distribution: one pass forwards (J v) and one backwards give F v,
without differentiating twice. Source: Schraudolph 2002; Martens 2020, "New insights on the natural gradient", §9.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.gradients import ActorLoss
from pgtrain.learning.host.losses import POLICY_LOSSES
from pgtrain.learning.host.network import ACTOR, HostMLP
from pgtrain.learning.host.source import Actor, counted, has_formulas, to_rows
from pgtrain.learning.kl_guard import mean_kl
from pgtrain.learning.natural_gradient import Product, actor_parameters
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters


def make_model(policy: ActorCritic, flat: FlatParameters, actor_loss: ActorLoss) -> HostActor | None:
    """None where a part has no formula here."""
    if not has_formulas(policy, flat) or type(actor_loss.policy_loss) not in POLICY_LOSSES:
        return None
    return HostActor(policy, flat, actor_loss)


class HostActor:
    """An `ActorModel` of a small network on the host."""

    def __init__(self, policy: ActorCritic, flat: FlatParameters, actor_loss: ActorLoss) -> None:
        self.policy, self.flat = policy, flat
        self.size = sum(p.numel() for p in actor_parameters(policy, flat))
        self.network = HostMLP(policy.network, flat)
        self.actor = Actor(policy, flat, actor_loss)
        self.direction, self.product = np.zeros_like(flat.data.numpy()), np.zeros_like(flat.data.numpy())
        self.direction_layers = self.network.layers(self.direction)
        self.product_layers = self.network.layers(self.product)

    def gradient(self, batch: Batch, coefficients: Coefficients) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Left in the flat gradient, too."""
        with np.errstate(all="ignore"):  # what is not finite is looked for, and told
            rows, self.share = counted(to_rows(batch))
            output, _ = self.network.forward(rows.inputs, ACTOR)
            assert output is not None
            loss, term, stats = self.actor(output, rows, self.share, coefficients)
            self.network.backward(self.actor.backward(term, self.share, coefficients), None)
        return self._scalar(loss), {k: self._scalar(x) for k, x in stats.items()}, self.flat.grad[: self.size]

    def fisher(self, batch: Batch, damping: float) -> Product:
        def product(v: Tensor) -> Tensor:
            self.direction[: self.size] = v.numpy()
            change = self.network.tangent(self.direction_layers)
            d_output = self.actor.head.fisher(change, self.direction, self.share, self.product)
            self.network.backward(d_output, None, into=self.product_layers)
            return torch.from_numpy(self.product[: self.size] + damping * self.direction[: self.size])

        return product

    def trial(self, batch: Batch, coefficients: Coefficients) -> tuple[Tensor, Tensor]:
        with np.errstate(all="ignore"):
            rows, share = counted(to_rows(batch))
            output, _ = self.network.forward(rows.inputs, ACTOR)
            assert output is not None
            loss, _, _ = self.actor(output, rows, share, coefficients)
        params = torch.from_numpy(self.actor.head.params())
        kept = batch if len(params) == len(batch.weight) else batch.rows(batch.weight.nonzero().squeeze(-1))
        return mean_kl(self.policy, kept, params), self._scalar(loss)

    def _scalar(self, x: float) -> Tensor:
        return torch.tensor(x, dtype=self.flat.data.dtype)
