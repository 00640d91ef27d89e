"""A differentiable env as a batched env of the host: NumPy in and out, no graph, for every algorithm that needs none.

`host:ID` makes one for each registered id: this module has an attribute for every one of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pgtrain.envs.base import VectorEnv, env_seeds, idle_mask
from pgtrain.envs.differentiable import registration
from pgtrain.envs.differentiable.probe import refuse_broken
from pgtrain.types import Step


class HostEnv(VectorEnv):
    """N envs of a task, SAME_STEP autoreset, on the CPU in float32."""

    backend = "native"

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        max_episode_steps: int | None = None,
        reward_threshold: float | None = None,
        shown_as: str = "",
        **kwargs: Any,
    ) -> None:
        self.env = registration.make(
            env_id, num_envs, shown_as, max_episode_steps=max_episode_steps, **kwargs
        )
        refuse_broken(self.env)
        super().__init__(
            env_id,
            num_envs,
            self.env.observation_space,
            self.env.action_space,
            reward_threshold=reward_threshold,
            max_episode_steps=self.env.max_episode_steps,
        )
        self._idle: np.ndarray | None = None

    def reset(self, seed: int) -> np.ndarray:
        return self.env.reset(env_seeds(seed, 1, self.before)[0]).numpy().copy()

    @torch.no_grad()
    def step(self, action: np.ndarray) -> Step:
        env, idle = self.env, self._idle
        before, steps_before = env.state, env.episode_step
        rows = env.actions(np.ascontiguousarray(action))
        obs, reward, terminated, truncated, next_obs = env.advance(rows)
        reward = reward.to(torch.float64)
        valid = None
        if idle is not None:
            still = torch.from_numpy(idle)
            env.state = torch.where(still.unsqueeze(-1), before, env.state)
            env.episode_step = torch.where(still, steps_before, env.episode_step)
            obs = torch.where(still.unsqueeze(-1), env.observation(before), obs)
            reward = reward.masked_fill(still, 0.0)
            terminated, truncated = terminated & ~still, truncated & ~still
            valid = ~idle
        done = (terminated | truncated).numpy()
        final_obs = next_obs.numpy()[done] if np.count_nonzero(done) else None
        flags = terminated.numpy().copy(), truncated.numpy().copy()
        return Step(obs.numpy().copy(), reward.numpy(), *flags, final_obs, valid)

    def set_idle(self, mask: np.ndarray) -> None:
        self._idle = idle_mask(mask, self.num_envs)

    def state_dict(self) -> dict[str, Any]:
        return self.env.state_dict() | {"idle": None if self._idle is None else self._idle.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state)
        self._idle = None if state["idle"] is None else np.array(state["idle"])


def __getattr__(env_id: str) -> Callable[..., HostEnv]:
    if env_id not in registration.TASKS:
        raise AttributeError(f"module {__name__!r} has no attribute {env_id!r}")
    return functools.partial(_checked, env_id)


def _checked(known_as: str, env_id: str, num_envs: int, **settings: Any) -> HostEnv:
    """`env_id` may be `module:Id`; the id itself is what the class is found by."""
    env = HostEnv(known_as, num_envs, shown_as=env_id, **settings)
    env.env_id = env_id
    return env
