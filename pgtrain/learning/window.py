"""Windows of a differentiable env: experience collected with its graph, append and stack, never a write into it.

Dimension legend: T steps, N envs, D observation size, A action size, P size of the distribution parameters.

What a window gives is a `Rollout` like any other, except that its `reward` and `next_value` carry the graph of
policy and dynamics. In the loop nothing asks the device for a number; the bookkeeping of episodes is one transfer at
the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv, Transition
from pgtrain.episodes import Episodes
from pgtrain.learning.pathwise import norms_through_time, segment_starts, segment_step
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.reparameterized import Reparameterized
from pgtrain.rollout import Rollout
from pgtrain.types import UserError


def successor_values(
    value_of: Callable[[Tensor], Tensor],
    inputs_of: Callable[[Tensor], Tensor],
    next_obs: Sequence[Tensor],
    done: Tensor,
) -> Tensor:
    """V of every step's successor [T, N], with a graph where the loss reads it: at each done and in the last row.

    `next_obs`: T observations [N, D] with their graphs; `inputs_of` standardises them. On a GPU, where to pick rows
    means to wait, all rows carry the graph; the numbers and gradients are the same.
    """
    if done.device.type != "cpu":
        return value_of(inputs_of(torch.stack(tuple(next_obs))))
    cut = torch.cat([done[:-1], torch.ones_like(done[-1:])])
    rows = cut.nonzero(as_tuple=True)
    parts = zip(next_obs, rows[1].split(cut.sum(1).tolist()), strict=True)
    ends = torch.cat([obs[index] for obs, index in parts if len(index)])
    with torch.no_grad():
        values = value_of(inputs_of(torch.stack(tuple(next_obs))))
    return values.index_put(rows, value_of(inputs_of(ends)).to(values.dtype))


class TimeProbe:
    """Keeps the states of a window so that the update can tell the gradient's norm through time."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []

    def watch(self, state: Tensor) -> None:
        self.states.append(state)

    def begin(self) -> None:
        """Call it just before the window's backward pass: from then on the states keep their gradients."""
        for state in self.states:
            if state.requires_grad:
                state.retain_grad()

    def norms(self) -> Tensor:
        """‖∂L/∂s_t‖ of the window that was just backpropagated, t = 1 … T − 1; [T − 1]. Lets go of the states."""
        states, self.states = self.states, []
        return norms_through_time(states)


class WindowCollector:
    """Gathers windows from a differentiable env; in shape and use like `collector.Collector`.

    `next_value_of`: standardised inputs [..., D] → values [...], with the gradient in its inputs alone (a target
    critic); None for BPTT, which looks no further than the window.
    """

    def __init__(
        self,
        env: DifferentiableEnv,
        policy: ActorCritic,
        seeds: tuple[int, int],
        next_value_of: Callable[[Tensor], Tensor] | None = None,
        probe: TimeProbe | None = None,
        stagger: bool = True,
    ) -> None:
        """`seeds`: of the env and of the policy's noise. `stagger`: first episodes of random length (see
        `DifferentiableEnv.stagger`); they are trained on but not counted among the returns."""
        self.env, self.policy, self.next_value_of, self.probe = env, policy, next_value_of, probe
        self.actor = Reparameterized(policy, env.dtype)
        self.device = env.device
        self.generator = torch.Generator(self.device).manual_seed(seeds[1] % 2**63)
        env.reset(seeds[0])
        if stagger:
            env.stagger()
        self.counted = np.full(
            env.num_envs, not stagger
        )  # False: its episode under way began with a late clock
        self.partial_return = np.zeros(env.num_envs)  # of the episode under way
        self.partial_length = np.zeros(env.num_envs, np.int64)
        self.steps_now = 0

    def collect_steps(self, steps: int) -> tuple[Rollout, Episodes]:
        """A window of `steps` rows in each env; the graph begins at its first."""
        return self._collect(steps, whole_episodes=False)

    def collect_episodes(
        self, episodes: int = 1, max_steps: int | None = None
    ) -> tuple[Rollout, Episodes] | None:
        """One whole episode in each env, from a fresh start. Rows after its end have weight 0.

        None if it could take more than `max_steps` env steps. Raises UserError without a time limit.
        """
        limit = self.env.max_episode_steps
        if limit is None or episodes != 1:
            raise UserError(
                "collect.unit=episodes: backpropagation takes one episode of each env, and needs a time limit; "
                "set env.max_episode_steps, collect.episodes=1, or use collect.unit=steps"
            )
        if max_steps is not None and limit * self.env.num_envs > max_steps:
            return None
        self.env.restart()
        self.partial_return[:], self.partial_length[:], self.counted[:] = 0.0, 0, True
        return self._collect(limit, whole_episodes=True)

    def _collect(self, steps: int, whole_episodes: bool) -> tuple[Rollout, Episodes]:
        env, actor = self.env, self.actor
        obs = env.detach()
        actor.begin()
        shape = (steps, env.num_envs, actor.distribution.dim)
        noise = torch.randn(shape, generator=self.generator, device=self.device)
        seen, rows, policy_rows = [], [], []
        if self.probe is not None:
            self.probe.states = []
        for t in range(steps):
            inputs = actor.inputs(obs)
            u, mean = actor(inputs, noise[t])
            if self.probe is not None and t:  # the first state is where the graph begins
                self.probe.watch(env.state)
            transition = env.advance(actor.to_env(u))
            seen.append(obs)
            policy_rows.append((inputs, u, mean))
            rows.append(transition)
            obs = transition.obs
        return self._finish(seen, rows, policy_rows, whole_episodes)

    def _finish(
        self, seen: list[Tensor], rows: list[Transition], policy_rows: list[Any], whole_episodes: bool
    ) -> tuple[Rollout, Episodes]:
        _, *columns, next_obs = zip(*rows, strict=True)
        reward, terminated, truncated = (torch.stack(x) for x in columns)
        done = terminated | truncated
        next_value = None
        if self.next_value_of is not None:
            next_value = successor_values(self.next_value_of, self.actor.inputs, next_obs, done)
        weight = torch.ones_like(reward)
        if whole_episodes:  # what follows an env's first done is not its episode any more
            before = done.cumsum(0) - done.long()
            weight = (before == 0).to(reward.dtype)
        reward = torch.where(weight > 0, reward, torch.zeros_like(reward))
        inputs, action, mean = (torch.stack(x).detach() for x in zip(*policy_rows, strict=True))
        with torch.no_grad():
            obs = torch.stack(seen)
            d = self.actor.distribution
            params = d.join(mean, self.policy.clamped_log_std(), mean)
            value = None if next_value is None else self._values(inputs, next_value, done)
            last = self.actor.inputs(rows[-1].obs)
            index = done.nonzero(as_tuple=True)
            final = self.actor.inputs(torch.stack(next_obs)[index])
        host = [x.detach().cpu().numpy() for x in (reward.double(), done, weight)]
        episodes, episode_step = self._episodes(*host)
        rollout = Rollout(
            device=self.device,
            obs=obs,
            inputs=inputs,
            action=action,
            params=params,
            log_prob=d.log_prob(params, action),
            reward=reward,
            raw_reward=reward.detach().double(),
            terminated=terminated,
            truncated=truncated,
            weight=weight.to(torch.float32),
            episode_start=torch.from_numpy(episode_step == 0).to(self.device),
            episode_step=torch.from_numpy(episode_step).to(self.device),
            value=value,
            next_value=next_value,
            final_inputs=final,
            final_index=(index[0], index[1]),
            last_inputs=last,
            num_steps=int(host[2].sum()),
            whole_episodes=whole_episodes,
        )
        self.steps_now = rollout.num_steps
        return rollout, episodes

    def _values(self, inputs: Tensor, next_value: Tensor, done: Tensor) -> Tensor:
        """V of the observations acted on [T, N], by the same critic: those of the successors, evaluated anew only where
        there was none, in the first row and after each done. (On a GPU in all rows: to pick some means to wait.)"""
        assert self.next_value_of is not None
        if done.device.type != "cpu":
            return self.next_value_of(inputs)
        first = segment_starts(done)
        rows = first.nonzero(as_tuple=True)
        value = torch.cat([next_value[:1], next_value[:-1]]).detach()
        return value.index_put(rows, self.next_value_of(inputs[rows]).to(value.dtype))

    def _episodes(
        self, reward: np.ndarray, done: np.ndarray, weight: np.ndarray
    ) -> tuple[Episodes, np.ndarray]:
        """Raw returns and lengths of the episodes that ended, and each row's step within its episode."""
        ends = torch.from_numpy(done)
        step, first = segment_step(ends).numpy(), segment_starts(ends).numpy()
        opening = np.logical_not(np.cumsum(first, 0) - 1)  # rows of the episode that an earlier window began
        episode_step = step + opening * self.partial_length
        total = np.cumsum(reward, 0)
        returns, lengths = [], []
        t, n = np.nonzero(done & (weight > 0))
        for t_end, env in sorted(zip(t.tolist(), n.tolist(), strict=True)):
            if not self.counted[env]:
                self.counted[env] = True
                continue
            t_start = t_end - step[t_end, env]
            before = total[t_start - 1, env] if t_start else -self.partial_return[env]
            returns.append(total[t_end, env] - before)
            lengths.append(episode_step[t_end, env] + 1)
        tail = step[-1]
        start = len(step) - 1 - tail
        columns = np.arange(len(tail))
        before = np.where(start > 0, total[start - 1, columns], -self.partial_return)
        self.partial_return = np.where(done[-1], 0.0, total[-1] - before)
        self.partial_length = np.where(done[-1], 0, episode_step[-1] + 1)
        return Episodes(np.array(returns), np.array(lengths, np.int64)), episode_step

    def state_dict(self) -> dict[str, Any]:
        return {
            "env": self.env.state_dict(),
            "noise": self.generator.get_state(),
            "partial_return": self.partial_return.tolist(),
            "partial_length": self.partial_length.tolist(),
            "counted": self.counted.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state["env"])
        self.generator.set_state(state["noise"].cpu())
        self.partial_return = np.array(state["partial_return"])
        self.partial_length = np.array(state["partial_length"], np.int64)
        self.counted = np.array(state["counted"])
