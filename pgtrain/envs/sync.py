"""SyncEnv: single envs stepped one after the other, in this process."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from pgtrain.envs import masks
from pgtrain.envs.adapters import encode_rows
from pgtrain.envs.base import VectorEnv, env_seeds, idle_mask
from pgtrain.envs.guard import Guard
from pgtrain.envs.preprocessing import LifeLoss
from pgtrain.envs.registry import EnvFactory
from pgtrain.types import Step, UserError


class SyncEnv(VectorEnv):
    """N envs, each inside a Guard; one that is done is reset in the same step.

    As Gymnasium's SyncVectorEnv in SAME_STEP mode, whose loop gathers infos that nobody reads. `before`: envs of
    the run that come before these (a worker process, and a rank, hold some of them); errors name the run's index.
    """

    backend = "sync"

    def __init__(
        self,
        factory: EnvFactory,
        num_envs: int,
        *,
        before: int = 0,
        now: np.ndarray | None = None,
        action_mask: str = "none",
        look_for_masks: bool = True,
    ) -> None:
        guards: list[Guard] = []
        warned: list[str] = []
        for i in range(num_envs):
            env, warnings = factory.make_with_warnings()
            warned.extend(warnings)
            guards.append(Guard(env, factory.env_id, before + i, now))
            _check_same_spaces(factory.env_id, guards[0], guards[-1])
        self._guards, self.before = guards, before
        self._idle: np.ndarray | None = None
        super().__init__(
            factory.env_id,
            num_envs,
            guards[0].observation_space,
            guards[0].action_space,
            reward_threshold=factory.spec.reward_threshold,
            max_episode_steps=time_limit(guards[0]),
            action_mask=action_mask,
            one_hot_max=factory.one_hot_max,
        )
        found = [find_wrapper(guard, LifeLoss) for guard in guards]
        self._lives = [lives for lives in found if lives is not None]  # all of them, or none
        self.notices += dict.fromkeys(warned)
        self._factory = factory
        self._actions = batch_space(self.action_space, num_envs)
        self._latest: list[Any] = [None] * num_envs  # raw observation of each env
        self._batch = create_empty_array(self.observation_space, num_envs)
        for guard in guards:
            guard.masks = self._masks
        if look_for_masks and self.masks_unknown:
            self.masks_in_info(self.info_has_masks())

    def info_has_masks(self) -> bool:
        """Tried on an env made for it, so that those of the run stay as they are."""
        probe, _ = dataclasses.replace(self._factory, show=None).make_with_warnings()
        try:
            return masks.in_info(probe)
        finally:
            probe.close()

    def masks_in_info(self, found: bool) -> None:
        super().masks_in_info(found)
        for guard in self._guards:
            guard.masks = self._masks or masks.NoMask()

    def reset(self, seed: int) -> np.ndarray:
        return self.reset_each(env_seeds(seed, self.num_envs, self.before))

    def reset_each(self, seeds: list[int]) -> np.ndarray:
        """Reset env i with seeds[i]."""
        for i, (guard, seed) in enumerate(zip(self._guards, seeds, strict=True)):
            self._latest[i] = guard.reset(seed=seed)[0]
        return self._observe()

    def _observe(self) -> np.ndarray:
        """The latest raw observations → [N, D + M]."""
        self._batch = concatenate(self.observation_space, self._latest, self._batch)
        encoded = self._encode(self._batch)
        return self._with_masks(encoded, [g.mask for g in self._guards]) if self.mask_dim else encoded

    def step(self, action: np.ndarray) -> Step:
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        finals: list[Any] = []
        for i, act in enumerate(iterate(self._actions, self._decode(action, self.before))):
            guard = self._guards[i]
            if guard.idle:
                continue
            obs, reward[i], ended, cut, _ = guard.step(act)
            if ended or cut:
                terminated[i], truncated[i] = ended, cut
                finals.append(obs)
                obs = guard.reset()[0]
            self._latest[i] = obs
        final_obs = None
        if finals:
            encoded = encode_rows(self.observation_space, self._encode, finals)
            final_obs = self._with_masks(encoded, 1.0)
        valid = None if self._idle is None else ~self._idle
        goes_on = None
        if self._lives and final_obs is not None:
            goes_on = np.array([lives.goes_on for lives in self._lives]) & terminated
        return Step(self._observe(), reward, terminated, truncated, final_obs, valid, goes_on)

    def set_idle(self, mask: np.ndarray) -> None:
        self._idle = idle_mask(mask, self.num_envs)
        for guard, idle in zip(self._guards, np.asarray(mask).tolist(), strict=True):
            guard.idle = bool(idle)

    def close(self) -> None:
        guards, self._guards = self._guards, []
        for guard in guards:
            guard.close()


def _check_same_spaces(env_id: str, one: Guard, other: Guard) -> None:
    for name in ("observation_space", "action_space"):
        first, second = getattr(one, name), getattr(other, name)
        if first != second:
            raise UserError(f"env={env_id}: its envs differ in their {name}: {first} and {second}")


def find_wrapper(env: gym.Env[Any, Any], kind: type) -> Any:
    """The outermost wrapper of this kind around `env`; None without one."""
    at: Any = env
    while isinstance(at, gym.Wrapper):
        if isinstance(at, kind):
            return at
        at = at.env
    return None


def time_limit(env: gym.Env[Any, Any]) -> int | None:
    """The shortest time limit among the env's wrappers; None when it has none."""
    limits: list[int] = []
    at: Any = env
    while isinstance(at, gym.Wrapper):
        if isinstance(at, gym.wrappers.TimeLimit):
            limits.append(int(at._max_episode_steps))
        at = at.env
    return min(limits, default=None)
