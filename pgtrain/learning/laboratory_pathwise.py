"""The pathwise gradient in the laboratory: the return's derivative through the env itself, no score and no baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.reparameterized import Reparameterized


def pathwise_gradients(
    env: DifferentiableEnv, policy: ActorCritic, samples: int, gamma: float, seed: int
) -> Tensor:
    """Gradients [samples, P], each the mean over `env.num_envs` whole episodes: dJ/dθ of Σ_{t<H} γᵗ r_t.

    u = μ(o) + σ ε with ε held fixed; rewards after an episode's end do not count, and the time of that end is taken
    as given. Raises: UserError for a policy that is no plain Gaussian.
    """
    act = Reparameterized(policy, env.dtype)
    parameters = list(policy.parameters())
    width = policy.distribution.head_dim
    generator = torch.Generator(env.device).manual_seed(seed % 2**63)
    env.reset(seed)
    found = []
    for _ in range(samples):
        act.begin()
        obs, total = env.restart(), torch.zeros((), device=env.device)
        alive = torch.ones(env.num_envs, device=env.device)
        for t in range(env.max_episode_steps or 1000):
            noise = torch.randn(env.num_envs, width, generator=generator, device=env.device)
            u, _ = act(act.inputs(obs), noise)
            step = env.advance(act.to_env(u))
            total = total + gamma**t * (step.reward * alive).sum()
            alive = alive * ~(step.terminated | step.truncated)
            obs = step.obs
        parts = torch.autograd.grad(
            total / env.num_envs, parameters, allow_unused=True, materialize_grads=True
        )
        found.append(torch.cat([g.flatten() for g in parts]))
    return torch.stack(found)
