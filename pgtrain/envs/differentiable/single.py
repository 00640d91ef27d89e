"""A differentiable env as an ordinary Gymnasium env: one env, NumPy in and out, the time limit left to Gymnasium.

`single:ID` is the entry point of each registered id: this module has an attribute for every one of them.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from pgtrain.envs.differentiable import registration


class SingleEnv(gym.Env[np.ndarray, Any]):
    """One env of the task `env_id` names."""

    metadata = {"render_modes": []}  # noqa: RUF012
    env_id: str

    def __init__(self, render_mode: str | None = None, **kwargs: Any) -> None:
        self.render_mode = render_mode
        self.env = registration.make(self.env_id, 1, dtype=torch.float32, **kwargs)
        self.env.max_episode_steps = None
        self.action_space, self.observation_space = self.env.action_space, self.env.observation_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.env.reset(int(self.np_random.integers(2**31)))[0].numpy(), {}

    @torch.no_grad()
    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        row = self.env.actions(np.asarray(action))
        transition = self.env.advance(row)
        return (
            transition.next_obs[0].numpy(),
            float(transition.reward),
            bool(transition.terminated),
            False,
            {},
        )


def __getattr__(env_id: str) -> type[SingleEnv]:
    if env_id not in registration.TASKS:
        raise AttributeError(f"module {__name__!r} has no attribute {env_id!r}")
    name = env_id.rpartition("/")[-1].replace("-", "_")
    return type(name, (SingleEnv,), {"env_id": env_id, "__module__": __name__})
