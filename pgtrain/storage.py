"""Preallocated arrays that a window of steps with host envs is written to, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import Actor
from pgtrain.types import HostEnv, Step


class Storage:
    """Env side in NumPy, policy side in the actor's kind; grows by doubling."""

    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    inputs: Any
    action: Any
    params: Any

    def __init__(self, env: HostEnv, actor: Actor, policy: ActorCritic, rows: int) -> None:
        self.env, self.actor, self.policy = env, actor, policy
        self.rows = 0
        self.all_valid = True
        self._allocate(rows)

    def _allocate(self, rows: int) -> None:
        n, d, dist = self.env.num_envs, self.env.obs_dim, self.policy.distribution
        new = {
            "obs": np.empty((rows, n, d), self.env.obs_dtype),
            "reward": np.empty((rows, n)),
            "terminated": np.empty((rows, n), bool),
            "truncated": np.empty((rows, n), bool),
            "valid": np.ones((rows, n), bool),
            "inputs": self.actor.empty((rows, n, d + self.policy.memory_dim), self.policy.input_dtype),
            "action": self.actor.empty((rows, n, *dist.action_shape), dist.action_dtype),
            "params": self.actor.empty((rows, n, dist.param_dim), torch.float32),
        }
        for name, array in new.items():
            if self.rows:
                array[: self.rows] = getattr(self, name)
            setattr(self, name, array)
        self.rows = rows

    def start(self) -> None:
        if not self.all_valid:
            self.valid.fill(True)
        self.all_valid = True  # so far each row is a transition
        self.final_t: list[np.ndarray] = []
        self.final_n: list[np.ndarray] = []
        self.final_obs: list[np.ndarray] = []
        self.goes_on: list[tuple[int, np.ndarray]] = []  # done for the learner alone: (t, [N] bool)

    def write(self, t: int, obs: np.ndarray, step: Step, action: Any, params: Any, inputs: Any) -> None:
        if t == self.rows:
            self._allocate(2 * self.rows)
            self.valid[t:] = True
        self.obs[t] = obs
        self.inputs[t] = inputs
        self.action[t] = action
        self.params[t] = params
        self.reward[t] = step.reward
        self.terminated[t] = step.terminated
        self.truncated[t] = step.truncated
        if step.valid is not None:
            self.valid[t], self.all_valid = step.valid, False
        if step.goes_on is not None:
            self.goes_on.append((t, step.goes_on))
        if step.final_obs is not None:
            index = np.flatnonzero(step.terminated | step.truncated)
            self.final_t.append(np.full(len(index), t))
            self.final_n.append(index)
            self.final_obs.append(step.final_obs)
