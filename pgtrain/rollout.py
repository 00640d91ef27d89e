"""Rollouts: what the policy experienced in one iteration, and the collector that gathers it.

Dimension legend: T steps, N envs, D observation size, P size of the distribution parameters, R = T·N rows.

Two ways to collect:
- `collect_steps(T)`: a window of T steps in each env. Episodes run on across windows; estimators bootstrap at its end.
- `collect_episodes(K)`: each env plays exactly K whole episodes and then idles until the last env is done. Taking
  "the first N·K episodes to finish" instead would favour short ones and bias every estimate; idle envs are not
  stepped, so no env step is wasted or counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgtrain.columns import Columns, to_device
from pgtrain.episodes import Episodes, EpisodeTally
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import Actor, make_value
from pgtrain.types import HostEnv, Step


class Rollout(Columns):
    """One iteration's experience, valid until the next collect (buffers are reused); tensors on the policy's device.

    On a CPU most fields are kept as NumPy arrays, and `log_prob` is worked out when somebody reads it (see `Columns`).
    """

    optional = frozenset({"advantage", "value_target"})

    obs: Tensor  # [T, N, D] as the env gave it
    inputs: (
        Tensor  # [T, N, D] standardised: what the networks saw; with memory also its state before the step
    )
    action: Tensor  # [T, N, …] the policy's own variable
    params: Tensor  # [T, N, P] distribution parameters that the action was drawn from
    log_prob: Tensor  # [T, N]
    reward: Tensor  # [T, N] what training uses (raw unless reward scaling is on)
    raw_reward: Tensor  # [T, N] float64, as the env gave it
    terminated: Tensor  # [T, N] bool
    truncated: Tensor  # [T, N] bool
    weight: Tensor  # [T, N] 1 for a transition, 0 for a reset row or an idle env
    episode_start: Tensor  # [T, N] bool
    episode_step: Tensor  # [T, N] int64, steps since the episode's first, carried across windows
    value: Tensor | None  # [T, N]
    next_value: Tensor | None  # [T, N] V of the TRUE successor: of the final observation at a cut
    final_inputs: Tensor  # [C, D] standardised observations that episodes ended with
    final_index: tuple[Tensor, Tensor]  # (t, n) of each, [C]
    last_inputs: Tensor  # [N, D] standardised observations after the window's last step
    num_steps: int  # real env steps: rows of weight 1
    whole_episodes: bool
    advantage: Tensor | None  # [T, N], once it is estimated
    value_target: Tensor | None  # [T, N], likewise

    @property
    def done(self) -> Tensor:
        """[T, N] bool: the episode ended at this step, one way or the other."""
        return self.terminated | self.truncated


class _Storage:
    """Preallocated arrays of a window, env side in NumPy, policy side in the actor's kind; grows by doubling."""

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


class Collector:
    """Gathers rollouts from a host env and carries what goes on between them: observations and unfinished episodes."""

    def __init__(self, env: HostEnv, policy: ActorCritic, actor: Actor, seed: int, rows: int = 256) -> None:
        self.env, self.policy, self.actor = env, policy, actor
        self.device = next(policy.parameters()).device
        self.storage = _Storage(env, actor, policy, rows)
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
        return {"actor": self.actor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.actor.load_state_dict(state["actor"])


NOWHERE = np.zeros(0, np.int64)


def _tensors(index: tuple[np.ndarray, np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    return to_device(index[0], device), to_device(index[1], device)


@torch.no_grad()
def _log_prob(policy: ActorCritic, params: Any, action: Any) -> Tensor:
    """log π(a) [T, N] of arrays or tensors [T, N, …]."""
    params, action = (torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in (params, action))
    return policy.distribution.log_prob(params, action)


@torch.no_grad()
def revalue(policy: ActorCritic, rollout: Rollout) -> Rollout:
    """The same experience as today's critic values it."""
    r = rollout
    value, next_value = true_values(policy.value, r.inputs, r.last_inputs, r.final_inputs, r.final_index)
    return r.replace(value=value, next_value=next_value)


def true_values(
    value_of: Callable[[Any], Any],
    inputs: Any,
    last_inputs: Any,
    final_inputs: Any,
    final_index: tuple[Any, Any],
) -> tuple[Any, Any]:
    """V(o_t) and V of each step's true successor, both [T, N], from one batched forward pass. Arrays or tensors.

    next_value[t] = V(final observation) where the episode ended at t, V(o_{t+1}) otherwise (o_T after the last step).
    The value after a termination is given too; estimators give it weight 0.
    """
    steps, n, width = inputs.shape
    parts = [inputs.reshape(-1, width), last_inputs, final_inputs]
    values = value_of(torch.cat(parts) if isinstance(inputs, Tensor) else np.concatenate(parts))
    window = values[: (steps + 1) * n].reshape(steps + 1, n)
    if len(final_inputs) == 0:
        return window[:-1], window[1:]
    finals = values[(steps + 1) * n :]
    if isinstance(window, Tensor):
        next_value = window[1:].clone()
        next_value[tuple(torch.as_tensor(i, device=window.device) for i in final_index)] = finals
    else:
        next_value = window[1:].copy()
        next_value[final_index] = finals
    return window[:-1], next_value
