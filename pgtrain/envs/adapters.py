"""Gymnasium's vector envs behind pgtrain's interface: SyncEnv (one env after the other) and GuestEnv (any other)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from pgtrain.envs import masks
from pgtrain.envs.base import VectorEnv, env_seeds, idle_mask
from pgtrain.envs.guard import Guard
from pgtrain.envs.layout import ONE_HOT_MAX
from pgtrain.envs.preprocessing import LifeLoss
from pgtrain.envs.registry import EnvFactory, one_line
from pgtrain.envs.spaces import ObservationEncoder
from pgtrain.types import Step, TrainingError, UserError


class SyncEnv(VectorEnv):
    """Gymnasium's SyncVectorEnv in SAME_STEP mode, each env inside a Guard.

    `first` is the index of the first env among all envs of the run (a worker process holds some of them).
    """

    backend = "sync"

    def __init__(
        self,
        factory: EnvFactory,
        num_envs: int,
        *,
        first: int = 0,
        now: np.ndarray | None = None,
        action_mask: str = "none",
        look_for_masks: bool = True,
    ) -> None:
        guards: list[Guard] = []
        warned: list[str] = []

        def make() -> Guard:
            env, warnings = factory.make_with_warnings()
            warned.extend(warnings)
            guards.append(Guard(env, factory.env_id, first + len(guards), now))
            return guards[-1]

        try:
            self._vec = SyncVectorEnv([make] * num_envs, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        except RuntimeError as error:
            raise UserError(
                f"env={factory.env_id}: its envs differ in their spaces: {one_line(str(error))}"
            ) from error
        assert_autoreset(self._vec, AutoresetMode.SAME_STEP)
        self._guards = guards
        self._idle: np.ndarray | None = None
        super().__init__(
            factory.env_id,
            num_envs,
            self._vec.single_observation_space,
            self._vec.single_action_space,
            reward_threshold=factory.spec.reward_threshold,
            max_episode_steps=time_limit(guards[0]),
            action_mask=action_mask,
            one_hot_max=factory.one_hot_max,
        )
        found = [find_wrapper(guard, LifeLoss) for guard in guards]
        self._lives = [lives for lives in found if lives is not None]  # all of them, or none
        self.notices += dict.fromkeys(warned)
        self._factory = factory
        for guard in guards:
            guard.masks = self._masks
        if look_for_masks and self.masks_unknown:
            self.masks_in_info(self.info_has_masks())

    def info_has_masks(self) -> bool:
        """Tried on an env made for it, so that those of the run stay as they are."""
        probe, _ = self._factory.make_with_warnings()
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
        obs, _ = self._vec.reset(seed=list(seeds))
        return self._observe(obs)

    def _observe(self, obs: Any) -> np.ndarray:
        """Raw observations → [N, D + M]."""
        encoded = self._encode(obs)
        return self._with_masks(encoded, [g.mask for g in self._guards]) if self.mask_dim else encoded

    def step(self, action: np.ndarray) -> Step:
        obs, reward, terminated, truncated, info = self._vec.step(self._decode(action))
        final_obs = None
        if "final_obs" in info:
            index = (terminated | truncated).nonzero()[0]
            final_obs = encode_rows(self.observation_space, self._encode, info["final_obs"], index)
            final_obs = self._with_masks(final_obs, 1.0)
        valid = None if self._idle is None else ~self._idle
        goes_on = None
        if self._lives and final_obs is not None:
            goes_on = np.array([lives.goes_on for lives in self._lives]) & terminated
        return Step(self._observe(obs), reward, terminated, truncated, final_obs, valid, goes_on)

    def set_idle(self, mask: np.ndarray) -> None:
        self._idle = idle_mask(mask, self.num_envs)
        for guard, idle in zip(self._guards, np.asarray(mask).tolist(), strict=True):
            guard.idle = bool(idle)

    def close(self) -> None:
        self._vec.close()


class GuestEnv(VectorEnv):
    """A vector env made by others (an env's own `vector_entry_point`, or an object of the user's).

    SAME_STEP needs `final_obs` in its info. In NEXT_STEP mode the step after a done is the reset: its row comes
    with valid = False, and final_obs is the observation that came with the done. Such an env cannot hold single envs:
    while idle they run on unseen (valid = False), and one that is wanted again comes back when its next episode begins.
    """

    backend = "native"

    def __init__(
        self,
        vec: gym.vector.VectorEnv[Any, Any, Any],
        env_id: str = "",
        action_mask: str = "auto",
        one_hot_max: int = ONE_HOT_MAX,
    ) -> None:
        spec = vec.spec
        env_id = env_id or (spec.id if spec is not None else type(vec).__name__)
        mode = vec.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise UserError(
                f"env={env_id}: its vector env says autoreset_mode={mode}; allowed are SAME_STEP and NEXT_STEP"
            )
        super().__init__(
            env_id,
            vec.num_envs,
            vec.single_observation_space,
            vec.single_action_space,
            reward_threshold=spec.reward_threshold if spec is not None else None,
            max_episode_steps=getattr(vec, "max_episode_steps", None) or (spec and spec.max_episode_steps),
            action_mask=action_mask,
            one_hot_max=one_hot_max,
        )
        self.autoreset = "same_step" if mode is AutoresetMode.SAME_STEP else "next_step"
        self._vec = vec
        if self.masks_unknown:
            self.masks_in_info(masks.in_info(vec))
        self._steps = 0
        self._reset_next = np.zeros(self.num_envs, np.bool_)  # NEXT_STEP: the coming step is this env's reset
        self._fresh = np.ones(self.num_envs, np.bool_)  # obs is the first of an episode
        self._idle = np.zeros(self.num_envs, np.bool_)
        self._hidden = np.zeros(self.num_envs, np.bool_)  # idle, or not yet back at an episode's start

    def reset(self, seed: int) -> np.ndarray:
        return self._started(*self._vec.reset(seed=seed + self.before))

    def _started(self, obs: Any, info: dict[str, Any]) -> np.ndarray:
        self._reset_next[:] = self._hidden[:] = False
        self._fresh[:] = True
        return self._with_masks(self._encode(obs), self._mask_rows(obs, info, "reset"))

    def step(self, action: np.ndarray) -> Step:
        self._steps += 1
        try:
            raw, reward, terminated, truncated, info = self._vec.step(self._decode(action))
            self.info, obs = info, self._encode(raw)
        except TrainingError:
            raise
        except Exception as error:
            text = one_line(f"{type(error).__name__}: {error}")
            raise TrainingError(
                f"env={self.env_id}, at step {self._steps} of the vector env: {text}"
            ) from error
        reward = np.array(reward, np.float64).reshape(self.num_envs)
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        self._hidden |= self._idle
        valid = ~(self._hidden | self._reset_next)
        ended = (terminated | truncated) & ~self._reset_next
        if self.autoreset == "same_step":
            self._fresh = ended
        else:
            self._fresh, self._reset_next = self._reset_next, ended
        reward[~valid] = 0.0
        terminated &= valid
        truncated &= valid
        final_obs = self._final_obs(obs, info, ended & valid)
        obs = self._with_masks(obs, self._mask_rows(raw, info, f"step {self._steps} of the vector env"))
        self._hidden &= self._idle | ~self._fresh
        return Step(obs, reward, terminated, truncated, final_obs, None if valid.all() else valid)

    def _final_obs(self, obs: np.ndarray, info: dict[str, Any], done: np.ndarray) -> np.ndarray | None:
        if not done.any():
            return None
        if self.autoreset == "next_step":
            return self._with_masks(obs[done], 1.0)
        if "final_obs" not in info:
            raise TrainingError(f"env={self.env_id}: its SAME_STEP vector env gives no final_obs in info")
        final = encode_rows(self.observation_space, self._encode, info["final_obs"], done.nonzero()[0])
        return self._with_masks(final, 1.0)

    def _mask_rows(self, obs: Any, info: Any, when: str) -> np.ndarray | None:
        """[N, M]; after an episode's last observation (`reset_next`) the action is not used and all are allowed."""
        try:
            if self._masks is None:
                return masks.NoMask()(obs, info) if self.masks_unknown else None
            found = self._masks.find(obs, info)
            return self._masks.layout.rows(found, self.num_envs, self._reset_next)
        except (ValueError, TrainingError) as error:
            raise TrainingError(f"env={self.env_id}, at {when}: {one_line(str(error))}") from error

    def set_idle(self, mask: np.ndarray) -> None:
        idle = idle_mask(mask, self.num_envs)
        self._idle = np.zeros(self.num_envs, np.bool_) if idle is None else idle
        self._hidden &= self._idle | ~self._fresh

    def close(self) -> None:
        self._vec.close()


def assert_autoreset(vec: gym.vector.VectorEnv[Any, Any, Any], mode: AutoresetMode) -> None:
    """The mode that was asked for by name is the one that the env runs in."""
    got = vec.metadata.get("autoreset_mode")
    if got is not mode:
        raise TrainingError(
            f"{type(vec).__name__}: asked for autoreset mode {mode.name}, its metadata says {got}"
        )


def encode_rows(
    space: gym.Space[Any], encode: ObservationEncoder, rows: Any, index: np.ndarray
) -> np.ndarray:
    """Encode single observations rows[i] for i in `index` [k] → [k, D]."""
    chosen = [rows[i] for i in index]
    return encode(concatenate(space, chosen, create_empty_array(space, len(chosen))))


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
