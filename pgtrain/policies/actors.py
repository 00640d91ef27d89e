"""Actors: a policy that acts in an env, step by step, with a stream of randomness of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.exploration import Exploration, HeldMatrix, Independent
from pgtrain.policies.gsde import StateDependentGaussian
from pgtrain.types import Step

NUMPY_ROWS = 1024  # up to this batch NumPy acts faster than torch on a CPU, for networks of any usual width


def make_actor(policy: ActorCritic, num_envs: int, seed: int) -> Actor:
    """The quickest actor for this policy, device and number of envs.

    Make it when the policy's parameters lie where they will stay (see FlatParameters): it works on their memory.
    """
    if policy.memory_dim:
        return RecurrentActor(policy, num_envs, seed)
    device = next(policy.parameters()).device
    if device.type == "cpu" and num_envs <= NUMPY_ROWS:
        forward = policy.network.actor_numpy()
        if forward is not None:
            return NumpyActor(policy, forward, seed)
    return TorchActor(policy, seed)


def make_value(policy: ActorCritic) -> Callable[[Any], Any]:
    """inputs [R, D] → V [R] in the reward's units, without a graph; arrays or tensors in, whichever is quicker out."""
    forward = policy.network.critic_numpy() if next(policy.parameters()).device.type == "cpu" else None
    if forward is None:

        @torch.no_grad()
        def by_torch(inputs: Any) -> Tensor:
            return policy.value(torch.from_numpy(inputs) if isinstance(inputs, np.ndarray) else inputs)

        return by_torch

    def by_numpy(inputs: Any) -> np.ndarray:
        value = forward(inputs if isinstance(inputs, np.ndarray) else inputs.numpy())[..., 0]
        if policy.value_moments is None:
            return value
        shift, std = policy.value_scale()
        return value * std.numpy() + shift.numpy()

    return by_numpy


class Actor(Protocol):
    """Acts in a host env (NumPy in, NumPy out); what it returns beside the env's action is of its own kind."""

    def refresh(self) -> None:
        """Takes over the policy's normaliser statistics and starts its noise anew; called once before each rollout."""
        ...

    def act(self, obs: np.ndarray, greedy: bool = False) -> tuple[np.ndarray, Any, Any, Any]:
        """obs [N, D] → the env's action, own action [N, …], params [N, P], inputs [N, D + memory columns]."""
        ...

    def follow(self, step: Step) -> None:
        """Told of what came of its action."""
        ...

    def prepare(self, obs: np.ndarray) -> Any:
        """Raw observations [R, D] → standardised ones, of its own kind."""
        ...

    def recall(self, prepared: Any) -> Any:
        """The inputs that prepared observations [N, D] make now: with what is remembered behind them."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        """An array of the actor's kind, for a rollout's storage."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def _exploration(policy: ActorCritic, sample: Any, std: Any, normal: Any) -> Exploration:
    d = policy.distribution
    if isinstance(d, StateDependentGaussian):
        return HeldMatrix(d.dim, std, normal, d.sample_freq)
    return Independent(sample)


class NumpyActor:
    """Acts through NumPy on the memory of the policy's own parameters: no framework call in a step."""

    def __init__(self, policy: ActorCritic, forward: Any, seed: int) -> None:
        self.policy, self.forward = policy, forward
        self.rng = np.random.default_rng(seed)
        self.distribution = policy.distribution
        self.log_std = None if policy.log_std is None else policy.log_std.detach().numpy()
        squashes = policy.log_std is not None and bool(policy.squashed.any())
        self.squashed = policy.squashed.numpy() if squashes else None
        self.spread: np.ndarray | None = None
        self.exploration = _exploration(
            policy,
            lambda params: self.distribution.sample_numpy(params, self.rng),
            lambda: policy.noise_std().numpy(),
            lambda shape: self.rng.standard_normal(shape, dtype=np.float32),
        )
        self.refresh()

    def refresh(self) -> None:
        policy, moments = self.policy, self.policy.normalizer
        self.standardizer = None
        if moments is not None:
            frozen = moments.frozen()
            self.standardizer = frozen.shift.numpy(), frozen.scale.numpy(), frozen.limit.numpy()
        if self.log_std is not None:
            clamped = self.log_std.clip(policy.log_std_min, policy.log_std_max)
            self.spread = policy.distribution.spread_numpy(clamped)
        self.exploration.restart()

    def prepare(self, obs: np.ndarray) -> np.ndarray:
        if self.standardizer is None:
            return obs.astype(np.float32, copy=False)
        shift, scale, limit = self.standardizer
        x = obs - shift  # float64: exact also where the observations lie far from 0
        x *= scale
        return np.clip(x, -limit, limit, out=x).astype(np.float32)

    def act(
        self, obs: np.ndarray, greedy: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        inputs = self.prepare(obs)
        head = self.forward(inputs)
        d = self.distribution
        own = head[..., : d.head_dim]
        if self.squashed is not None:
            own = np.where(self.squashed, np.tanh(own), own)
        params = d.join_numpy(own, self.spread, head[..., d.head_dim :])
        action = d.mode(params) if greedy else self.exploration(params, head)
        return d.to_env(action), action, params, inputs

    def follow(self, step: Step) -> None:
        pass

    def recall(self, prepared: np.ndarray) -> np.ndarray:
        return prepared

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
        return np.empty(shape, {torch.int64: np.int64, torch.float32: np.float32}[dtype])

    def state_dict(self) -> dict[str, Any]:
        return {"numpy": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["numpy"]


class TorchActor:
    """Acts on the policy's device: any network, big batches; the env's side stays on the host."""

    def __init__(self, policy: ActorCritic, seed: int) -> None:
        self.policy = policy
        self.device = next(policy.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed % 2**63)
        self.exploration = _exploration(
            policy,
            lambda params: policy.distribution.sample(params, self.generator),
            policy.noise_std,
            lambda shape: torch.empty(shape, device=self.device).normal_(generator=self.generator),
        )

    def refresh(self) -> None:
        self.exploration.restart()

    @torch.no_grad()
    def act(self, obs: np.ndarray, greedy: bool = False) -> tuple[np.ndarray, Tensor, Tensor, Tensor]:
        action, params, inputs = self.decide(self.prepare(obs), greedy)
        return self.policy.distribution.to_env(action.cpu().numpy()), action, params, inputs

    @torch.no_grad()
    def decide(self, prepared: Tensor, greedy: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Prepared observations [N, D] → own action [N, …], params [N, P], inputs; nothing of it leaves the device."""
        inputs, head = self._look(prepared)
        params = self.policy.params(head)
        action = self.policy.distribution.mode(params) if greedy else self.exploration(params, head)
        return action, params, inputs

    @torch.no_grad()
    def prepare(self, obs: np.ndarray) -> Tensor:
        return self.policy.prepare(torch.from_numpy(obs).to(self.device))

    def _look(self, prepared: Tensor) -> tuple[Tensor, Tensor]:
        """Prepared observations [N, D] → inputs, the actor network's output."""
        return prepared, self.policy.network.act(prepared)

    def follow(self, step: Step) -> None:
        pass

    def recall(self, prepared: Tensor) -> Tensor:
        return prepared

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        return {"torch": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["torch"])


class RecurrentActor(TorchActor):
    """Acts with a policy that has memory: carries the state of each env from step to step and from window to window.

    An env's memory starts anew at the first real step of an episode, however the one before ended; a row that is no
    transition (the reset row of some envs, an idle env) does not use that start up.
    """

    def __init__(self, policy: ActorCritic, num_envs: int, seed: int) -> None:
        super().__init__(policy, seed)
        self.state = torch.zeros(num_envs, policy.memory_dim - 1, device=self.device)
        self.start = np.ones(num_envs, bool)

    def _look(self, prepared: Tensor) -> tuple[Tensor, Tensor]:
        inputs = self.recall(prepared)
        head, self.state = self.policy.network.advance(inputs)  # pyright: ignore[reportCallIssue]
        return inputs, head

    def follow(self, step: Step) -> None:
        done = step.terminated | step.truncated
        self.start = done if step.valid is None else done | (self.start & ~step.valid)

    def recall(self, prepared: Tensor) -> Tensor:
        start = torch.from_numpy(self.start[:, None]).to(prepared)
        return torch.cat([prepared, start, self.state], -1)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"memory": self.state, "episode_start": torch.from_numpy(self.start)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.state = state["memory"].to(self.device)
        self.start = state["episode_start"].cpu().numpy()
