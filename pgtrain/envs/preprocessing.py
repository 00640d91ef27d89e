"""What is put around a single env before the policy sees it: Atari preprocessing, ends at lost lives, frame stacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from pgtrain.types import UserError


@dataclass(frozen=True)
class Atari:
    """The standard preprocessing of Atari games; see `atari.py`."""

    frame_skip: int = 4
    noop_max: int = 30
    screen_size: int = 84
    grayscale: bool = True
    terminal_on_life_loss: bool = False


def frame_skip_of(kwargs: dict[str, Any], atari: Atari) -> int:
    """Raises UserError where the env's own arguments speak against the preprocessing."""
    for name, key in (("frameskip", "env.atari.frame_skip"), ("obs_type", "env.atari.grayscale")):
        if name in kwargs:
            raise UserError(
                f"env.kwargs.{name}={kwargs[name]}: the Atari preprocessing decides this; "
                f"use {key}, or env.atari.preprocess=false for the bare game"
            )
    return atari.frame_skip


def atari_env(env: gym.Env[Any, Any], atari: Atari, max_episode_steps: int | None) -> gym.Env[Any, Any]:
    """The game `env` (made with frameskip=1) with its preprocessing. Needs opencv."""
    env = gym.wrappers.AtariPreprocessing(
        env,
        noop_max=atari.noop_max,
        frame_skip=atari.frame_skip,
        screen_size=atari.screen_size,
        grayscale_obs=atari.grayscale,
    )
    return env if max_episode_steps is None else gym.wrappers.TimeLimit(env, max_episode_steps)


def stack(env: gym.Env[Any, Any], frames: int, env_id: str, padding: str = "reset") -> gym.Env[Any, Any]:
    """The last `frames` observations together, [frames, …]; at a reset the first one, or padding="zero", fills up."""
    if not isinstance(env.observation_space, spaces.Box):
        raise UserError(
            f"env.frame_stack={frames}: needs a Box observation, and that of env={env_id} is "
            f"{type(env.observation_space).__name__}; use env.frame_stack=1"
        )
    return gym.wrappers.FrameStackObservation(env, frames, padding_type=padding)


class LifeLoss(gym.Wrapper[Any, Any, Any, Any]):
    """A lost life ends an episode for the learner, while the game goes on: `goes_on` tells so until the next step.

    The reset that follows does not touch the game; its observation is the one that the lost life came with, so that no
    frame and no reward of the game is missed.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.goes_on = False
        self._lives = 0
        self._obs: Any = None

    def _now(self) -> int:
        return int(self.unwrapped.ale.lives())  # pyright: ignore[reportAttributeAccessIssue]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if self.goes_on and seed is None:
            return self._obs, {}
        self.goes_on = False
        obs, info = self.env.reset(seed=seed, options=options)
        self._lives = self._now()
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self._now()
        lost = 0 < lives < self._lives
        self._lives = lives
        self.goes_on = lost and not (terminated or truncated)
        return self._obs, reward, terminated or self.goes_on, truncated, info
