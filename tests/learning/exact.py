"""Policies without networks and batches of all outcomes with their probabilities, for exact tests in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pgtrain.learning.batch import Batch
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import Categorical, DiagonalGaussian

f64 = torch.float64


def golden(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and expected values of tests/golden/<name>.json."""
    data = json.loads((Path(__file__).parents[1] / "golden" / f"{name}.json").read_text(encoding="utf-8"))
    return data["inputs"], data["expected"]


def tensor(x: Any) -> Tensor:
    return torch.tensor(x, dtype=f64)


class Table(nn.Module):
    """One-hot states [B, S] → row θ_s of a table [S, A]: a softmax policy's logits, or a Gaussian's mean (S = 1)."""

    critic = None

    def __init__(self, theta: Tensor) -> None:
        super().__init__()
        self.theta = nn.Parameter(theta.clone())

    def act(self, x: Tensor) -> Tensor:
        return x @ self.theta

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.act(x), None


def softmax_policy(theta: Tensor) -> ActorCritic:
    """π(a|s) = softmax(θ_s)_a with θ [S, A]."""
    return ActorCritic(Table(theta), Categorical(theta.shape[1]), None)  # pyright: ignore[reportArgumentType]


def gaussian_policy(mu: float, sigma: float) -> ActorCritic:
    """a ~ N(μ, σ²); parameters in the order of the flat tensor: log σ, μ."""
    distribution = DiagonalGaussian(np.array([-np.inf]), np.array([np.inf]))
    policy = ActorCritic(
        Table(tensor([[mu]])),  # pyright: ignore[reportArgumentType]
        distribution,
        None,
        mean="identity",
    ).double()
    assert policy.log_std is not None
    nn.init.constant_(policy.log_std, float(np.log(sigma)))
    return policy


@torch.no_grad()
def outcomes(
    policy: ActorCritic, state: Tensor, action: Tensor, weight: Tensor, advantage: Tensor, **given: Any
) -> Batch:
    """A batch with a row for each outcome; state [B] is turned into one-hot inputs, weight [B] its probability."""
    network: Any = policy.network
    inputs = torch.eye(len(network.theta), dtype=f64)[state]
    new = policy.evaluate(inputs, action)
    zero, one = torch.zeros_like(weight), torch.ones_like(weight)
    columns = (inputs, action, new.params, new.log_prob, advantage, zero, zero, weight, one)
    return Batch(**dict(zip(Batch.COLUMNS, columns, strict=True)), episodes=0.0).replace(**given)


def bandit(policy: ActorCritic, rewards: Tensor) -> Batch:
    """Every arm with its probability; the advantage is the reward."""
    arms = torch.arange(len(rewards))
    network: Any = policy.network
    chance = network.theta.detach()[0].softmax(0)
    return outcomes(policy, torch.zeros_like(arms), arms, chance, rewards)


def quadrature(policy: ActorCritic, reward: Any, nodes: int = 40) -> Batch:
    """A one-dimensional Gaussian policy's actions at Gauss–Hermite nodes: exact for polynomials up to degree 79."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    network: Any = policy.network
    assert policy.log_std is not None
    action = network.theta.detach()[0] + policy.log_std.detach().exp() * tensor(x)
    weight = tensor(w / w.sum())
    state = torch.zeros(nodes, dtype=torch.int64)
    return outcomes(policy, state, action[:, None], weight, reward(action))
