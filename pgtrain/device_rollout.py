"""Rollouts of an env in torch for a policy that acts through torch: on one device, no step of it goes to the host.

Dimension legend: T steps, N envs, D observation size, P size of the distribution parameters.

What `collector.Collector` does for envs of the host, in the same order and to the same rules, with no graph (that is
`learning.window`). Between the first step of a window and its last nothing asks the device for a number; the episodes'
bookkeeping is one transfer at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgtrain.envs.base import env_seeds
from pgtrain.envs.differentiable.base import DifferentiableEnv
from pgtrain.episodes import Episodes, EpisodeTally
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import TorchActor
from pgtrain.policies.device_actions import device_actions
from pgtrain.rollout import Rollout, true_values

LOOK_EVERY = 16  # steps between two questions whether all episodes are over


class _Storage:
    """Preallocated tensors of a window; grows by doubling."""

    def __init__(self, env: DifferentiableEnv, policy: ActorCritic, rows: int) -> None:
        n, d, flags = env.num_envs, policy.distribution, torch.bool
        self.shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "obs": ((n, env.obs_dim), env.dtype),
            "next_obs": ((n, env.obs_dim), env.dtype),
            "inputs": ((n, env.obs_dim), policy.input_dtype),
            "action": ((n, *d.action_shape), d.action_dtype),
            "params": ((n, d.param_dim), torch.float32),
            "reward": ((n,), env.dtype),
            "terminated": ((n,), flags),
            "truncated": ((n,), flags),
        }
        self.device, self.rows = env.device, rows
        self.tensors = {name: self._empty(rows, name) for name in self.shapes}

    def _empty(self, rows: int, name: str) -> Tensor:
        shape, dtype = self.shapes[name]
        return torch.empty((rows, *shape), dtype=dtype, device=self.device)

    def write(self, t: int, **row: Tensor) -> None:
        if t == self.rows:
            self.tensors = {
                name: torch.cat([x, self._empty(self.rows, name)]) for name, x in self.tensors.items()
            }
            self.rows *= 2
        for name, x in row.items():
            self.tensors[name][t] = x

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


class DeviceCollector:
    """Gathers rollouts from an env on the policy's device; in shape and use like `collector.Collector`.

    Raises: ValueError for a distribution that `device_actions` does not know.
    """

    def __init__(
        self,
        env: DifferentiableEnv,
        policy: ActorCritic,
        actor: TorchActor,
        seed: int,
        rows: int = 64,
        before: int = 0,
    ) -> None:
        """`before`: envs of the run that other processes hold, and that come before these."""
        to_env = device_actions(policy.distribution, env.device, env.dtype)
        if to_env is None:
            raise ValueError(f"actions of {policy.distribution.name} have no map to the env's in torch")
        self.env, self.policy, self.actor, self.to_env = env, policy, actor, to_env
        self.device = env.device
        self.storage = _Storage(env, policy, rows)
        self.before = before
        self.restart(seed)
        self.steps_now = 0  # real env steps of the collect under way, for an interrupted one

    def restart(self, seed: int) -> None:
        """New episodes in all envs; the start states are those of the host's env."""
        self.episodes = EpisodeTally(self.env.num_envs)
        self.obs = self.env.reset(env_seeds(seed, 1, self.before)[0])

    def collect_steps(self, steps: int) -> tuple[Rollout, Episodes]:
        """A window of `steps` rows in each env."""
        self._begin()
        with torch.no_grad():
            for t in range(steps):
                self._step(t)
        return self._finish(steps, None)

    def collect_episodes(
        self, episodes: int, max_steps: int | None = None
    ) -> tuple[Rollout, Episodes] | None:
        """`episodes` whole episodes in each env, from a fresh start. Rows after the last one's end have weight 0.

        None if `max_steps` env steps did not suffice. Asks the device every `LOOK_EVERY` steps whether all are over.
        """
        n = self.env.num_envs
        self.obs = self.env.restart()
        self.episodes = EpisodeTally(n)
        self._begin()
        left = torch.full((n,), episodes, device=self.device)
        s, t = self.storage, 0
        while True:
            with torch.no_grad():
                for _ in range(LOOK_EVERY):
                    self._step(t)
                    left -= (s["terminated"][t] | s["truncated"][t]).long()
                    t += 1
            running = int((left > 0).sum())
            if running == 0:
                break
            if max_steps is not None and self._played(t, episodes) >= max_steps:
                self.steps_now = self._played(t, episodes)
                return None
        return self._finish(t, episodes)

    def _played(self, steps: int, episodes: int) -> int:
        return int(self._weight(steps, episodes).sum())

    def _weight(self, steps: int, episodes: int) -> Tensor:
        """[T, N] bool: the row is of one of the first `episodes` episodes of its env."""
        done = (self.storage["terminated"][:steps] | self.storage["truncated"][:steps]).long()
        return done.cumsum(0) - done < episodes

    def _begin(self) -> None:
        self.env.detach()
        self.actor.refresh()
        self.steps_now = 0

    def _step(self, t: int) -> None:
        obs = self.obs
        action, params, inputs = self.actor.decide(self.policy.prepare(obs))
        now = self.env.advance(self.to_env(action))
        self.storage.write(
            t,
            obs=obs,
            inputs=inputs,
            action=action,
            params=params,
            reward=now.reward,
            terminated=now.terminated,
            truncated=now.truncated,
            next_obs=now.next_obs,
        )
        self.obs = now.obs
        self.steps_now += self.env.num_envs

    @torch.no_grad()
    def _finish(self, steps: int, episodes: int | None) -> tuple[Rollout, Episodes]:
        s, policy = self.storage, self.policy
        weight = None if episodes is None else self._weight(steps, episodes)
        if weight is not None:  # no rows in which nobody plays
            steps = int(weight.any(1).sum())
            weight = weight[:steps]
        part = {name: s[name][:steps] for name in s.shapes}
        terminated, truncated, reward = part["terminated"], part["truncated"], part["reward"]
        if weight is not None:
            terminated, truncated = terminated & weight, truncated & weight
            reward = torch.where(weight, reward, 0.0)
        done = terminated | truncated
        at, which = done.nonzero(as_tuple=True)
        index = (at, which)
        final_inputs = policy.prepare(part["next_obs"][index])
        last_inputs = policy.prepare(self.obs)
        value = next_value = None
        if policy.has_critic:
            value, next_value = true_values(
                lambda x: policy.value(x), part["inputs"], last_inputs, final_inputs, index
            )
        ended, episode_step, valid = self._count(reward, done, weight)
        rollout = Rollout(
            device=self.device,
            obs=part["obs"],
            inputs=part["inputs"],
            action=part["action"],
            params=part["params"],
            log_prob=policy.distribution.log_prob(part["params"], part["action"]),
            reward=reward.to(torch.float32),
            raw_reward=_wide(reward),
            terminated=terminated,
            truncated=truncated,
            weight=torch.ones_like(reward, dtype=torch.float32) if weight is None else weight.float(),
            episode_start=(episode_step == 0) & valid,
            episode_step=episode_step,
            value=value,
            next_value=next_value,
            final_inputs=final_inputs,
            final_index=index,
            last_inputs=last_inputs,
            num_steps=int(valid.sum()),
            whole_episodes=episodes is not None,
        )
        self.steps_now = rollout.num_steps
        return rollout, ended

    def _count(
        self, reward: Tensor, done: Tensor, weight: Tensor | None
    ) -> tuple[Episodes, np.ndarray, np.ndarray]:
        """Episodes that ended, episode_step and which rows are transitions [T, N]: the window's one way to the host."""
        used = torch.ones_like(done) if weight is None else weight
        rewards, ends, valid = torch.stack([_wide(x) for x in (reward, done, used)]).cpu().numpy()
        valid = valid > 0
        transitions = None if weight is None else valid
        ended, step = self.episodes.count(rewards.astype(np.float64), transitions, ends > 0)
        return ended, step, valid

    def state_dict(self) -> dict[str, Any]:
        return {
            "env": self.env.state_dict(),
            "actor": self.actor.state_dict(),
            "obs": self.obs.clone(),
            "partial_return": self.episodes.partial_return.tolist(),
            "partial_length": self.episodes.partial_length.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state["env"])
        self.actor.load_state_dict(state["actor"])
        self.obs = state["obs"].to(self.device)
        self.episodes.partial_return = np.array(state["partial_return"])
        self.episodes.partial_length = np.array(state["partial_length"], np.int64)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.device.type == "mps" else x.double()  # Apple GPUs have no float64
