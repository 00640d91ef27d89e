"""Envs through which gradients flow: the contract, and a base class with which a task is some 40 lines.

Dimension legend: N envs, S numbers in a state, A in an action, D in an observation, k envs that are done.

A task says four or five things, each a pure function of batched tensors: `start`, `dynamics`, `reward`, `observation`
and, where an episode can end, `terminated`. The rest is done here: time limits, ends, resets, randomness, detaching,
saving. See docs/differentiable.md for a task built from an empty file.

Resets write nothing in place: each env's next state is selected, torch.where(done, fresh, next), so that no gradient
crosses a reset and none is lost on the way. Fresh states are drawn `AHEAD` steps at a time, whether they are needed or
not: to ask whether they are would make the host wait for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from pgtrain.envs.differentiable.trace import raised_at
from pgtrain.types import Step, TrainingError

AHEAD = 32  # steps whose fresh states are drawn together


class Transition(NamedTuple):
    """One step of all envs, with its graph. Dense, so that nothing of it needs the host."""

    obs: Tensor  # [N, D] what to act on next: of the fresh state where an episode ended
    reward: Tensor  # [N]
    terminated: Tensor  # [N] bool
    truncated: Tensor  # [N] bool
    next_obs: Tensor  # [N, D] of the true successor, before any reset


class DifferentiableEnv:
    """N envs as one tensor of states [N, S], on any device and in any float type.

    A subclass sets `action_low`, `action_high` [A] (±inf: no bound) and, if it has one, `max_episode_steps`, and
    defines the methods of the first block. What they use must be torch, and must not write into its arguments. They
    have `self.uniform` and `self.normal` for randomness, `self.tensor` for constants.

    In the place of a box a task may set `choices`: its actions are then whole numbers 0 … choices − 1, int64 [N]. No
    gradient leads through a choice, but every other recipe has the env on its device.
    """

    action_low: ClassVar[Sequence[float]]
    action_high: ClassVar[Sequence[float]]
    choices: ClassVar[int | None] = None
    max_episode_steps: int | None = None

    differentiable = True
    autoreset = "same_step"
    backend = "differentiable"
    obs_is_float_box = True
    reward_threshold: float | None = None

    # ------------------------------------------------------------------------------------------ what a task defines

    def start(self, count: int) -> Tensor:
        """`count` start states [count, S]."""
        raise NotImplementedError

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        """The next state [N, S]."""
        raise NotImplementedError

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        """The reward of the step [N]."""
        raise NotImplementedError

    def observation(self, state: Tensor) -> Tensor:
        """What the policy sees [N, D]; the state itself unless a task says otherwise."""
        return state

    def terminated(self, state: Tensor) -> Tensor:
        """bool [N]: has the episode ended in this state, so that nothing that follows counts? Never, by default."""
        return self._never

    # ---------------------------------------------------------------------------------------------------- the rest

    def __init__(
        self,
        num_envs: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        max_episode_steps: int | None = None,
        env_id: str = "",
    ) -> None:
        self.num_envs, self.device, self.dtype = num_envs, torch.device(device), dtype
        self.env_id = env_id or type(self).__name__
        self.max_episode_steps = max_episode_steps or type(self).max_episode_steps
        self.notices: list[str] = []
        self.generator = torch.Generator(self.device)
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._obs_dim: int | None = None
        self.state: Tensor  # [N, S]
        self.episode_step: Tensor  # [N] int64
        self._fresh: Tensor  # [AHEAD, N, S]
        self._fresh_obs: Tensor  # [AHEAD, N, D]
        self._used = AHEAD
        self._quiet = 0  # steps to come in which no episode can end, as far as the host knows

    def reset(self, seed: int) -> Tensor:
        """All envs anew; the same seed gives the same start states and noise. → obs [N, D]"""
        self.generator.manual_seed(seed % 2**63)
        self._used = AHEAD
        return self.restart()

    @torch.no_grad()
    def restart(self) -> Tensor:
        """A new episode in each env, from the randomness as it stands. → obs [N, D]"""
        self._quiet = 0
        self.state = self.start(self.num_envs)
        self.episode_step = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        return self.observation(self.state)

    def stagger(self) -> None:
        """Sets each env's clock to a random step of its time limit, so that they are not all cut in the same step: else
        a window holds one phase of the episode alone, and the critic forgets the others."""
        if self.max_episode_steps is not None:
            self.episode_step = torch.randint(
                self.max_episode_steps, (self.num_envs,), generator=self.generator, device=self.device
            )
            self._quiet = 0

    def detach(self) -> Tensor:
        """Cuts the graph behind the present states: a window begins. → obs [N, D]"""
        self.state = self.state.detach()
        self._quiet = self._quiet_steps()
        with torch.no_grad():
            return self.observation(self.state)

    def _quiet_steps(self) -> int:
        """On a CPU, where it costs nothing to ask: how many steps are sure to be free of resets."""
        if self.device.type != "cpu" or type(self).terminated is not DifferentiableEnv.terminated:
            return 0
        if self.max_episode_steps is None:
            return 2**62
        return self.max_episode_steps - 1 - int(self.episode_step.max())

    def advance(self, action: Tensor) -> Transition:
        """One step with its graph and without a host sync: what a window is made of. `action` [N, A] or choices [N]."""
        state = self.state
        try:
            next_state = self.dynamics(state, action)
            reward = self.reward(state, action, next_state)
            next_obs = self.observation(next_state)
        except Exception as error:
            raise TrainingError(f"env={self.env_id}: {raised_at('a step', error)}") from error
        step = self.episode_step + 1
        if self._quiet > 0:
            self._quiet -= 1
            self.state, self.episode_step = next_state, step
            return Transition(next_obs, reward, self._never, self._never, next_obs)
        terminated = self.terminated(next_state)
        truncated = self._never if self.max_episode_steps is None else step >= self.max_episode_steps
        done = terminated | truncated
        row = done.unsqueeze(-1)
        fresh, fresh_obs = self._next_fresh()
        self.state = torch.where(row, fresh, next_state)
        self.episode_step = step.masked_fill(done, 0)
        obs = self.state if next_obs is next_state else torch.where(row, fresh_obs, next_obs)
        return Transition(obs, reward, terminated, truncated, next_obs)

    def step(self, action: Tensor) -> Step:
        """As `advance`, with the last observations of the envs that are done as compact rows (waits for a GPU)."""
        obs, reward, terminated, truncated, next_obs = self.advance(action)
        index = (terminated | truncated).nonzero().squeeze(-1)
        return Step(obs, reward, terminated, truncated, next_obs[index] if len(index) else None)

    @torch.no_grad()
    def _next_fresh(self) -> tuple[Tensor, Tensor]:
        if self._used == AHEAD:
            states = self.start(AHEAD * self.num_envs)
            self._fresh_obs = self.observation(states).view(AHEAD, self.num_envs, -1)
            self._fresh = states.view(AHEAD, self.num_envs, -1)
            self._used = 0
        self._used += 1
        return self._fresh[self._used - 1], self._fresh_obs[self._used - 1]

    # --------------------------------------------------------------------------------------------- helpers of a task

    def uniform(self, count: int, low: Any, high: Any) -> Tensor:
        """Numbers [count, S], uniform between `low` [S] and `high` [S], from the env's own randomness."""
        low, high = self.tensor(low), self.tensor(high)
        unit = torch.rand((count, *low.shape), generator=self.generator, device=self.device, dtype=self.dtype)
        return low + (high - low) * unit

    def normal(self, count: int, dim: int) -> Tensor:
        """Standard normal numbers [count, dim] from the env's own randomness."""
        return torch.randn((count, dim), generator=self.generator, device=self.device, dtype=self.dtype)

    def tensor(self, x: Any) -> Tensor:
        """A constant in the env's float type, on its device. Make those of `dynamics` once, in `__init__`."""
        return torch.as_tensor(x, dtype=self.dtype, device=self.device)

    def actions(self, x: Any) -> Tensor:
        """The host's actions of all envs as `advance` takes them: [N, A], or int64 [N] for choices."""
        if self.choices is not None:
            return torch.as_tensor(x, dtype=torch.int64, device=self.device).reshape(-1)
        return self.tensor(x).reshape(self.num_envs, -1)

    # ------------------------------------------------------------------------------------------------- descriptions

    @property
    def obs_dim(self) -> int:
        """D, found by looking at one start state."""
        if self._obs_dim is None:
            kept = self.generator.get_state()
            with torch.no_grad():
                self._obs_dim = self.observation(self.start(1)).shape[-1]
            self.generator.set_state(kept)
        return self._obs_dim

    @property
    def obs_dtype(self) -> Any:
        return np.float64 if self.dtype == torch.float64 else np.float32

    @property
    def action_space(self) -> spaces.Box | spaces.Discrete:
        if self.choices is not None:
            return spaces.Discrete(self.choices)
        return spaces.Box(np.array(self.action_low, np.float32), np.array(self.action_high, np.float32))

    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, (self.obs_dim,), self.obs_dtype)

    # -------------------------------------------------------------------------------------------------------- saving

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs to go on from this very step, bit for bit."""
        drawn = self._used < AHEAD
        return {
            "state": self.state.detach().clone(),
            "episode_step": self.episode_step.clone(),
            "fresh": self._fresh.clone() if drawn else None,
            "used": self._used,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["state"]) != self.num_envs:
            raise ValueError(f"the state is of {len(state['state'])} envs, this has {self.num_envs}")
        self.state = self.tensor(state["state"]).clone()
        self.episode_step = state["episode_step"].to(self.device).clone()
        self._quiet = 0
        self._used = state["used"]
        if state["fresh"] is not None:
            self._fresh = self.tensor(state["fresh"]).clone()
            with torch.no_grad():
                flat = self._fresh.reshape(AHEAD * self.num_envs, -1)
                self._fresh_obs = self.observation(flat).view(AHEAD, self.num_envs, -1)
        self.generator.set_state(state["generator"].cpu())

    def close(self) -> None:
        """Nothing to free."""

    def __enter__(self) -> DifferentiableEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
