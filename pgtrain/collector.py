"""Gathering rollouts from envs of the host.

Dimension legend: T steps, N envs, D observation size, P size of the distribution parameters.

Two ways to collect:
- `collect_steps(T)`: a window of T steps in each env. Episodes run on across windows; estimators bootstrap at its end.
- `collect_episodes(K)`: each env plays exactly K whole episodes and then idles until the last env is done. Taking
  "the first N·K episodes to finish" instead would favour short ones and bias every estimate; idle envs are not
  stepped, so no env step is wasted or counted.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgtrain.columns import to_device
from pgtrain.episodes import Episodes, EpisodeTally
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import Actor, make_value
from pgtrain.rollout import Rollout, true_values
from pgtrain.storage import Storage
from pgtrain.types import HostEnv, Step


class Collector:
    """Gathers rollouts from a host env and carries what goes on between them: observations and unfinished episodes."""

    def __init__(self, env: HostEnv, policy: ActorCritic, actor: Actor, seed: int, rows: int = 256) -> None:
        self.env, self.policy, self.actor = env, policy, actor
        self.device = next(policy.parameters()).device
        self.storage = Storage(env, actor, policy, rows)
        self.value = make_value(policy) if policy.has_critic else None
        self.obs = env.reset(seed)
        self.episodes = EpisodeTally(env.num_envs)
        self.games: EpisodeTally | None = (
            None  # where an episode may end for the learner while the game goes on
        )
        self.some_idle = True  # for all we know: somebody else may have played with these envs before
        self.steps_now = 0  # real env steps of the collect under way, for an interrupted one

    def collect_steps(self, steps: int) -> tuple[Rollout, Episodes]:
        """A window of `steps` rows in each env."""
        self._begin()
        for t in range(steps):
            self._step(t)
        return self._finish(steps, whole_episodes=False)

    def collect_episodes(
        self, episodes: int, max_steps: int | None = None
    ) -> tuple[Rollout, Episodes] | None:
        """`episodes` whole episodes in each env. None if `max_steps` env steps did not suffice (nothing may be learned
        from the part that did finish: it holds the short episodes)."""
        self.some_idle = True  # whatever state the envs were given meanwhile
        self._begin()
        left = np.full(self.env.num_envs, episodes)
        t = 0
        while True:
            step = self._step(t)
            t += 1
            if step.final_obs is not None:
                left -= step.terminated | step.truncated
                idle = left <= 0
                if idle.all():
                    break
                self.env.set_idle(idle)
                self.some_idle = True
            if max_steps is not None and self.steps_now >= max_steps:
                return None
        return self._finish(t, whole_episodes=True)

    def _begin(self) -> None:
        if self.some_idle:
            self.env.set_idle(np.zeros(self.env.num_envs, bool))
        self.some_idle = False
        self.actor.refresh()
        self.storage.start()
        self.steps_now = 0

    def _step(self, t: int) -> Step:
        obs = self.obs
        env_action, action, params, inputs = self.actor.act(obs)
        step = self.env.step(env_action)
        self.actor.follow(step)
        self.storage.write(t, obs, step, action, params, inputs)
        self.obs = step.obs
        self.steps_now += self.env.num_envs if step.valid is None else int(step.valid.sum())
        return step

    def _finish(self, steps: int, whole_episodes: bool) -> tuple[Rollout, Episodes]:
        """Everything that needs no env (values, episode statistics) for the whole window at once."""
        s = self.storage
        reward, valid = s.reward[:steps], s.valid[:steps]
        terminated, truncated = s.terminated[:steps], s.truncated[:steps]
        if s.goes_on and self.games is None:
            self.games = self.episodes.copy()  # up to now the two were the same
        done = terminated | truncated
        transitions = None if s.all_valid else valid
        episodes, step_index = self.episodes.count(reward, transitions, done)
        if self.games is not None:
            for t, goes_on in s.goes_on:
                done[t] &= ~goes_on
            episodes = self.games.count(reward, transitions, done)[0]
        action, params, inputs = s.action[:steps], s.params[:steps], s.inputs[:steps]
        last_inputs = self.actor.recall(self.actor.prepare(self.obs))
        final_inputs, final_index = self._finals(inputs, last_inputs)
        value = next_value = None
        if self.value is not None:
            value, next_value = true_values(self.value, inputs, last_inputs, final_inputs, final_index)
        rollout = Rollout(
            device=self.device,
            obs=s.obs[:steps],
            inputs=inputs,
            action=action,
            params=params,
            log_prob=partial(_log_prob, self.policy, params, action),
            reward=reward.astype(np.float32),
            raw_reward=reward,
            terminated=terminated,
            truncated=truncated,
            weight=valid.astype(np.float32),
            episode_start=lambda: (step_index == 0) & valid,
            episode_step=step_index,
            value=value,
            next_value=next_value,
            final_inputs=final_inputs,
            final_index=partial(_tensors, final_index, self.device),
            last_inputs=last_inputs,
            num_steps=int(np.count_nonzero(valid)),
            whole_episodes=whole_episodes,
        )
        return rollout, episodes

    def _finals(self, inputs: Any, last_inputs: Any) -> tuple[Any, tuple[np.ndarray, np.ndarray]]:
        """The observations that episodes ended with, and (t, n) of each; with the memory after the episode's last step,
        which the row that follows has stored (and does not use, as an episode starts there)."""
        s = self.storage
        if not s.final_obs:
            return inputs[0, :0], (NOWHERE, NOWHERE)
        t, n = np.concatenate(s.final_t), np.concatenate(s.final_n)
        prepared = self.actor.prepare(np.concatenate(s.final_obs))
        if not self.policy.memory_dim:
            return prepared, (t, n)
        memory = inputs.shape[-1] - self.policy.memory_dim
        after = torch.cat([inputs[1:, :, memory:], last_inputs[None, :, memory:]])[
            _tensors((t, n), self.device)
        ]
        after[:, :1] = 0  # no episode starts at its own end
        return torch.cat([prepared, after], -1), (t, n)

    def state_dict(self) -> dict[str, Any]:
        """`env` is empty where the envs cannot tell; what else belongs to their episodes is of no use then."""
        return {
            "actor": self.actor.state_dict(),
            "env": self.env.state_dict(),
            "obs": torch.from_numpy(np.array(self.obs)),
            "episodes": self.episodes.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there; where `state` holds no envs, the actor alone does (see `restart`)."""
        self.actor.load_state_dict(state["actor"])
        self.some_idle = True  # as far as the envs' state tells
        if state["env"] and self.env.tells_state:
            self.env.load_state_dict(state["env"])
            self.obs = state["obs"].numpy()
            self.episodes.load_state_dict(state["episodes"])

    def restart(self, seed: int) -> None:
        """New episodes in all envs, in the place of those that are lost."""
        n = self.env.num_envs
        self.obs = self.env.reset(seed)
        self.episodes, self.games, self.some_idle = EpisodeTally(n), None, True
        ended = np.ones(n, bool)
        self.actor.follow(Step(self.obs, np.zeros(n), ended, ~ended))


NOWHERE = np.zeros(0, np.int64)


def _tensors(index: tuple[np.ndarray, np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    return to_device(index[0], device), to_device(index[1], device)


@torch.no_grad()
def _log_prob(policy: ActorCritic, params: Any, action: Any) -> Tensor:
    """log π(a) [T, N] of arrays or tensors [T, N, …]."""
    params, action = (torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in (params, action))
    return policy.distribution.log_prob(params, action)
