"""Small policies with memory, and envs that only memory solves: `tests.memory_support:Test/TMaze-v0` and others."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import Categorical, DiagonalGaussian
from pgtrain.policies.memory import RecurrentNetwork
from pgtrain.policies.networks import MLP
from pgtrain.policies.normalizer import RunningMoments
from pgtrain.policies.recurrence import CORES


def memory_env(name: str) -> str:
    return f"tests.memory_support:Test/{name}-v0"


class TMaze(gym.Env[Any, Any]):
    """A cue at the first step tells the way at the end of a corridor: obs = [cue, at the junction].

    At the junction action 0 or 1 must match a cue of -1 or 1: reward 1, else -1. Without memory: 0 on average.
    Source: Bakker 2001, "Reinforcement learning with long short-term memory".
    """

    def __init__(self, length: int = 8, render_mode: str | None = None) -> None:
        self.length, self.render_mode, self.t, self.cue = length, render_mode, 0, 1
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _obs(self) -> np.ndarray:
        return np.array([self.cue if self.t == 0 else 0, self.t == self.length], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.cue = 0, 2 * int(self.np_random.integers(2)) - 1
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.t == self.length:
            return self._obs(), 1.0 if 2 * int(action) - 1 == self.cue else -1.0, True, False, {}
        self.t += 1
        return self._obs(), 0.0, False, False, {}


class RepeatPrevious(gym.Env[Any, Any]):
    """Four symbols; reward 1/16 for the one of `back` steps ago; cut after 16 + `back` steps. Without memory: 0.25."""

    def __init__(self, back: int = 2, render_mode: str | None = None) -> None:
        self.back, self.render_mode, self.seen = back, render_mode, [0]
        self.observation_space, self.action_space = spaces.Discrete(4), spaces.Discrete(4)

    def _draw(self) -> int:
        self.seen.append(int(self.np_random.integers(4)))
        return self.seen[-1]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = []
        return self._draw(), {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        t = len(self.seen) - 1
        right = t >= self.back and int(action) == self.seen[t - self.back]
        return self._draw(), float(right) / 16, False, t + 1 >= 16 + self.back, {}


_ENVS: tuple[Any, ...] = (TMaze, RepeatPrevious)
for _cls in _ENVS:
    if f"Test/{_cls.__name__}-v0" not in gym.registry:
        gym.register(f"Test/{_cls.__name__}-v0", entry_point=_cls)


def make_recurrent(
    obs_dim: int = 3,
    space: spaces.Space[Any] | None = None,
    *,
    kind: str = "gru",
    size: int = 5,
    critic: bool = True,
    share: bool = True,
    mask_dim: int = 0,
    normalizer: bool = False,
    seed: int = 0,
) -> ActorCritic:
    """A policy with memory and decided opinions: PyTorch's own weights, three times as large in the core."""
    space = spaces.Discrete(3) if space is None else space
    distribution: Any = (
        DiagonalGaussian(space.low, space.high)
        if isinstance(space, spaces.Box)
        else Categorical(int(space.n))  # pyright: ignore[reportAttributeAccessIssue]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        heads = MLP(
            size, distribution.head_dim, hidden=[6], activation="tanh", share=0, critic=critic, last_gain=1.0,
            ortho_init=False,
        )  # fmt: skip
        apart = critic and not share
        network = RecurrentNetwork(
            CORES[kind](obs_dim, size, False),
            heads,
            obs_dim=obs_dim,
            mask_dim=mask_dim,
            critic_core=CORES[kind](obs_dim, size, False) if apart else None,
        )
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if "core" in name:
                    parameter.mul_(3)
    return ActorCritic(network, distribution, RunningMoments(obs_dim) if normalizer else None)


def random_inputs(policy: ActorCritic, steps: int, side: int, obs_dim: int = 3, seed: int = 0) -> Tensor:
    """Rows [T, n, D + 1 + S] with random states and an episode start in three of ten."""
    g = torch.Generator().manual_seed(seed)
    dtype = next(policy.parameters()).dtype
    x = torch.randn(steps, side, obs_dim + policy.memory_dim, generator=g, dtype=dtype)
    x[..., obs_dim] = (torch.rand(steps, side, generator=g) < 0.3).to(dtype)
    return x
