"""Vector envs made by others behind pgtrain's interface."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

from pgtrain.envs import masks
from pgtrain.envs.base import VectorEnv, idle_mask
from pgtrain.envs.layout import ONE_HOT_MAX
from pgtrain.envs.registry import one_line
from pgtrain.envs.spaces import ObservationEncoder
from pgtrain.faults import FAULTS, told
from pgtrain.types import Step, TrainingError, UserError


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
            raw, reward, terminated, truncated, info = self._vec.step(self._decode(action, self.before))
            self.info, obs = info, self._encode(raw)
        except TrainingError:
            raise
        except FAULTS as error:
            raise TrainingError(
                f"env={self.env_id}, at step {self._steps} of the vector env: {told(error)}"
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
        ended = [info["final_obs"][i] for i in done.nonzero()[0]]
        final = encode_rows(self.observation_space, self._encode, ended)
        return self._with_masks(final, 1.0)

    def _mask_rows(self, obs: Any, info: Any, when: str) -> np.ndarray | None:
        """[N, M]; after an episode's last observation (`reset_next`) the action is not used and all are allowed."""
        try:
            if self._masks is None:
                return masks.NoMask()(obs, info) if self.masks_unknown else None
            found = self._masks.find(obs, info)
            return self._masks.layout.rows(found, self.num_envs, self._reset_next, self.before)
        except (ValueError, TrainingError) as error:
            raise TrainingError(f"env={self.env_id}, at {when}: {one_line(str(error))}") from error

    def set_idle(self, mask: np.ndarray) -> None:
        idle = idle_mask(mask, self.num_envs)
        self._idle = np.zeros(self.num_envs, np.bool_) if idle is None else idle
        self._hidden &= self._idle | ~self._fresh

    def close(self) -> None:
        self._vec.close()


def encode_rows(space: gym.Space[Any], encode: ObservationEncoder, rows: list[Any]) -> np.ndarray:
    """Encode single observations [k] → [k, D]."""
    return encode(concatenate(space, rows, create_empty_array(space, len(rows))))
