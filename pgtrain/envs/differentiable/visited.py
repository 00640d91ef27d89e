"""The states that random actions lead to, with ends and resets: where a rare fault can be met.

Dimension legend: K steps, E envs, M = K·E states, S numbers in a state, A in an action.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv

ENVS = 64  # that are played side by side


def random_action(env: DifferentiableEnv, rows: int) -> Tensor:
    """Actions somewhere inside the box, float64 [rows, A]: at its edge a clip has no one slope."""
    low, high = (
        torch.tensor(x, dtype=torch.float64).clamp(-1e3, 1e3) for x in (env.action_low, env.action_high)
    )
    unbounded = (high - low) > 100
    low, high = torch.where(unbounded, -1.0, low), torch.where(unbounded, 1.0, high)
    unit = torch.rand(rows, len(low), dtype=torch.float64)
    return (low + (high - low) * (0.2 + 0.6 * unit)).to(env.device)


@torch.no_grad()
def visited_states(env: DifferentiableEnv, steps: int, envs: int = ENVS) -> tuple[Tensor, Tensor]:
    """States and the actions taken in them, [M, S] and [M, A], over `steps` steps of `envs` envs.

    Episodes end as in training, with clocks that are spread out, so that states of every age are among them and those
    after a reset, too. No state in which an episode ended: no action is taken there.
    """
    state = env.start(envs).double()
    limit = env.max_episode_steps
    clock = torch.zeros(envs, dtype=torch.int64)
    if limit is not None:
        clock = torch.randint(limit, (envs,))
    states, actions = [], []
    for _ in range(steps):
        action = random_action(env, envs)
        states.append(state)
        actions.append(action)
        after, clock = env.dynamics(state, action), clock + 1
        done = terminated(env, after).cpu() | ~torch.isfinite(after).all(-1).cpu()
        if limit is not None:
            done |= clock >= limit
        clock = clock.masked_fill(done, 0)
        state = torch.where(done.to(after.device).unsqueeze(-1), env.start(envs).double(), after)
    return torch.cat(states), torch.cat(actions)


def terminated(env: DifferentiableEnv, state: Tensor) -> Tensor:
    """`env.terminated` for any number of states; never, where a task says nothing of it."""
    if type(env).terminated is DifferentiableEnv.terminated:
        return torch.zeros(len(state), dtype=torch.bool, device=state.device)
    return env.terminated(state)


def bad_rows(*tensors: Any) -> Tensor:
    """The rows [k] in which one of the tensors [M, …] (or None) is not finite."""
    found = [~torch.isfinite(x).reshape(len(x), -1).all(-1) for x in tensors if x is not None]
    return torch.stack(found).any(0).nonzero().squeeze(-1)
