"""What several test files need: small configs, policies and rollouts, and an env that is a script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from pgtrain import build
from pgtrain.config import checks, convert, schema
from pgtrain.interrupt import Interrupt
from pgtrain.monitor.monitor import Monitor, Sink
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import Categorical, DiagonalGaussian
from pgtrain.policies.networks import MLP
from pgtrain.policies.normalizer import RunningMoments
from pgtrain.rollout import Rollout
from pgtrain.runner import Runner
from pgtrain.types import Leaf, Step

ENVS = "tests.envs_for_tests:Test/{}-v0"


def env_id(name: str) -> str:
    return ENVS.format(name)


def configure(env: str | dict[str, Any] = "CartPole-v1", **settings: Any) -> schema.Config:
    """A settled config; a plain text for `env` is its id. No files written by sinks, no final evaluation."""
    base: dict[str, Any] = {
        "monitor": {"tensorboard": False, "terminal": "none"},
        "eval": {"episodes": 0},
        "env": {"id": env} if isinstance(env, str) else env,
    }
    return checks.settle(convert.from_dict(_merged(convert.to_dict(schema.Config()), base | settings)))


def _merged(defaults: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`defaults` with `changes`; a group that is given a name is taken as it is."""
    merged = dict(defaults)
    for key, value in changes.items():
        deeper = isinstance(value, dict) and isinstance(defaults.get(key), dict) and "name" not in value
        merged[key] = _merged(defaults[key], value) if deeper else value
    return merged


def critic_only(lam: float = 0.95, lr: float = 3e-3, gamma: float = 0.9, **settings: Any) -> dict[str, Any]:
    """Settings of a small a2c."""
    return {
        "advantage": {"name": "gae", "lam": lam},
        "optim": {"lr": {"value": lr}},
        "gamma": gamma,
        **settings,
    }


class Recorder(Sink):
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.messages: list[tuple[str, str]] = []

    def log(self, step: int, metrics: Any) -> None:
        self.rows.append(dict(metrics) | {"step": step})

    def message(self, text: str, level: str) -> None:
        self.messages.append((level, text))

    def column(self, tag: str) -> list[Any]:
        return [row.get(tag) for row in self.rows]


def make_runner(cfg: schema.Config, run_dir: Path, env: Any = None) -> tuple[Runner, Recorder]:
    """A runner as `training.train` makes it, with a recorder for its only sink."""
    recorder = Recorder()
    env = build.make_env(cfg, cfg.num_envs) if env is None else env
    return build.make_runner(
        cfg, env, Monitor([recorder], cfg.monitor.log_every), run_dir, Interrupt(), []
    ), recorder


def box(low: Any, high: Any, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


def make_policy(
    obs_dim: int = 3,
    space: spaces.Space[Any] | None = None,
    *,
    critic: bool = True,
    normalizer: bool = False,
    seed: int = 0,
    gain: float = 1.0,
    hidden: tuple[int, ...] = (8, 8),
    activation: str = "tanh",
    share: int = 0,
    **settings: Any,
) -> ActorCritic:
    """A policy with decided opinions (`gain` of its last layer 1 rather than 0.01)."""
    space = spaces.Discrete(3) if space is None else space
    if isinstance(space, spaces.Box):
        distribution: Any = DiagonalGaussian(space.low, space.high)
    else:
        assert isinstance(space, spaces.Discrete)
        distribution = Categorical(int(space.n))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = MLP(
            obs_dim,
            distribution.head_dim,
            hidden=hidden,
            activation=activation,
            share=share,
            critic=critic,
            last_gain=gain,
        )
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    return ActorCritic(network, distribution, RunningMoments(obs_dim) if normalizer else None, **settings)


@dataclass
class Transition:
    """One real step of a ScriptedEnv."""

    episode: int
    step: int
    obs: np.ndarray
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    next_obs: np.ndarray  # before any reset


class ScriptedEnv:
    """A vector env whose episodes are written down: `lengths[n][e]` steps in episode e of env n (the last one repeats),
    ended by `ends[n][e]`: "terminated", "truncated" or "both".

    obs = [n, episode, step]; reward = 100·n + 10·episode + step + action / 16: all tell when they are misplaced.
    `log[n]` has every real transition.
    """

    obs_dim, obs_dtype, env_id, max_episode_steps, mask_dim = 3, np.float32, "Scripted", None, 0
    layout = (Leaf("", "vector", 0, 3, (3,), standardize=True),)
    tells_state = False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def __init__(
        self,
        lengths: list[list[int]],
        ends: list[list[str]] | None = None,
        autoreset: str = "same_step",
        space: spaces.Space[Any] | None = None,
    ) -> None:
        self.num_envs = len(lengths)
        self.lengths, self.autoreset = lengths, autoreset
        self.ends = ends or [["terminated"]] * self.num_envs
        self.action_space = spaces.Discrete(3) if space is None else space
        self.log: list[list[Transition]] = [[] for _ in lengths]
        self.idle = np.zeros(self.num_envs, bool)

    def reset(self, seed: int) -> np.ndarray:
        self.episode = np.zeros(self.num_envs, int)
        self.t = np.zeros(self.num_envs, int)
        self.pending = np.zeros(self.num_envs, bool)
        return self._obs()

    def _obs(self) -> np.ndarray:
        return np.stack([np.arange(self.num_envs), self.episode, self.t], -1).astype(np.float32)

    def set_idle(self, mask: np.ndarray) -> None:
        self.idle = np.array(mask)

    def step(self, action: np.ndarray) -> Step:
        n = self.num_envs
        before = self._obs()
        reward = np.zeros(n)
        terminated, truncated, valid = np.zeros(n, bool), np.zeros(n, bool), np.ones(n, bool)
        final = []
        for i in range(n):
            if self.idle[i]:
                valid[i] = False
                continue
            if self.pending[i]:  # NEXT_STEP: this step is the reset
                self._restart(i)
                valid[i] = False
                continue
            episode = int(self.episode[i])
            reward[i] = 100 * i + 10 * episode + self.t[i] + float(np.ravel(action[i])[0]) / 16
            self.t[i] += 1
            after = self._obs()[i]
            lengths, ends = self.lengths[i], self.ends[i]
            if self.t[i] == lengths[min(episode, len(lengths) - 1)]:
                end = ends[min(episode, len(ends) - 1)]
                terminated[i], truncated[i] = end != "truncated", end != "terminated"
                final.append(after)
            self.log[i].append(
                Transition(
                    episode,
                    int(before[i, 2]),
                    before[i],
                    action[i],
                    reward[i],
                    terminated[i],
                    truncated[i],
                    after,
                )
            )
            if terminated[i] or truncated[i]:
                if self.autoreset == "same_step":
                    self._restart(i)
                else:
                    self.pending[i] = True
        final_obs = np.stack(final) if final else None
        return Step(self._obs(), reward, terminated, truncated, final_obs, None if valid.all() else valid)

    def _restart(self, i: int) -> None:
        self.episode[i] += 1
        self.t[i] = 0
        self.pending[i] = False


def make_rollout(
    reward: Any,
    *,
    terminated: Any = None,
    truncated: Any = None,
    value: Any = None,
    next_value: Any = None,
    weight: Any = None,
    action: Tensor | None = None,
    inputs: Tensor | None = None,
    policy: ActorCritic | None = None,
    whole_episodes: bool = False,
    raw_reward: Any = None,
) -> Rollout:
    """A rollout from [T, N] lists or arrays; what is not given is 0, False or 1. Log-probabilities are `policy`'s."""
    reward = torch.as_tensor(np.array(reward, np.float64))
    steps, n = reward.shape

    def grid(x: Any, dtype: torch.dtype, fill: float = 0) -> Tensor:
        return (
            torch.full((steps, n), fill, dtype=dtype) if x is None else torch.as_tensor(np.array(x)).to(dtype)
        )

    end, cut = grid(terminated, torch.bool), grid(truncated, torch.bool)
    used = grid(weight, torch.float32, 1.0)
    start, count = torch.zeros(steps, n, dtype=torch.bool), torch.zeros(steps, n, dtype=torch.int64)
    for i in range(n):
        k = 0
        for t in range(steps):
            count[t, i] = k
            start[t, i] = bool(used[t, i] > 0) and k == 0
            k += int(used[t, i] > 0)
            if end[t, i] or cut[t, i]:
                k = 0
    inputs = torch.zeros(steps, n, 1) if inputs is None else inputs
    action = torch.zeros(steps, n, dtype=torch.int64) if action is None else action
    params, log_prob = torch.zeros(steps, n, 2), torch.zeros(steps, n)
    if policy is not None:
        with torch.no_grad():
            log_prob, _, params, _ = policy.evaluate(inputs, action)
    none = torch.zeros(0, dtype=torch.int64)
    return Rollout(
        obs=inputs,
        inputs=inputs,
        action=action,
        params=params,
        log_prob=log_prob,
        reward=reward.to(torch.float32),
        raw_reward=reward if raw_reward is None else torch.as_tensor(np.array(raw_reward, np.float64)),
        terminated=end,
        truncated=cut,
        weight=used,
        episode_start=start,
        episode_step=count,
        value=None if value is None else grid(value, torch.float32),
        next_value=None if next_value is None else grid(next_value, torch.float32),
        final_inputs=torch.zeros(0, inputs.shape[-1]),
        final_index=(none, none),
        last_inputs=torch.zeros(n, inputs.shape[-1]),
        num_steps=int((used > 0).sum()),
        whole_episodes=whole_episodes,
    )
