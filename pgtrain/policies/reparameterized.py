"""A Gaussian policy as a smooth function of observation and noise."""

from __future__ import annotations

import torch
from torch import Tensor

from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import DiagonalGaussian
from pgtrain.policies.gsde import StateDependentGaussian
from pgtrain.policies.squashed import action_map
from pgtrain.types import UserError


class Reparameterized:
    """The policy as a smooth map of observation and noise: u = μ(o) + σ·ε, and the env's action as a function of u."""

    def __init__(self, policy: ActorCritic, dtype: torch.dtype = torch.float32) -> None:
        d = policy.distribution
        if not isinstance(d, DiagonalGaussian) or isinstance(d, StateDependentGaussian):
            raise UserError(
                f"policy: a pathwise gradient needs a Gaussian policy (noise added to a mean), not {d.name}; "
                "use a Box action space and no gSDE"
            )
        self.policy, self.distribution = policy, d
        self.to_env = action_map(d, next(policy.parameters()).device, dtype)
        self.squashes_mean = bool(policy.squashed.any())

    def begin(self) -> None:
        """Fixes the standardisation and the spread for a window (with the spread's graph)."""
        policy = self.policy
        self.std = policy.clamped_log_std().exp()
        self.standardizer = None
        if policy.normalizer is not None:
            shift, scale, limit = policy.normalizer.frozen()
            device = self.std.device
            self.standardizer = shift.float().to(device), scale.float().to(device), float(limit)

    def inputs(self, obs: Tensor) -> Tensor:
        """`policy.prepare` with its graph and in float32 throughout."""
        x = obs.to(torch.float32)
        if self.standardizer is None:
            return x
        shift, scale, limit = self.standardizer
        return ((x - shift) * scale).clamp(-limit, limit)

    def __call__(self, inputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """inputs [N, D], noise [N, A] → u [N, A] and μ [N, A]."""
        mean = self.policy.network.act(inputs)
        if self.squashes_mean:
            mean = torch.where(self.policy.squashed, torch.tanh(mean), mean)
        return torch.addcmul(mean, self.std, noise), mean
