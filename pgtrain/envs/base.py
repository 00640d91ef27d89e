"""What every vector env of pgtrain has: the attributes, reset, step, set_idle, close.

Dimensions: N envs, D numbers in an encoded observation, A numbers in a flattened action, k envs that are done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space

from pgtrain.envs import masks
from pgtrain.envs.actions import ActionAdapter
from pgtrain.envs.layout import ONE_HOT_MAX
from pgtrain.envs.spaces import ObservationEncoder
from pgtrain.types import Leaf, Step, UserError


def env_seeds(seed: int, num_envs: int, before: int = 0) -> list[int]:
    """One seed per env from one seed of the run: distinct, and the same on every backend.

    Env i has the same one however many envs there are; these are envs before … before + num_envs − 1.
    """
    return [int(s) for s in np.random.SeedSequence(seed).generate_state(before + num_envs)[before:]]


class VectorEnv:
    """N envs stepped together; NumPy in, NumPy out. Arrays returned are the caller's: no later step changes them.

    `autoreset` is "same_step" (a done env is reset in the step that ended it) or "next_step" (the step after a
    done resets the env, ignores the action, and is reported with valid = False).
    """

    backend: str = ""
    autoreset: str = "same_step"
    device: str = "cpu"
    differentiable: bool = False
    tells_state: bool = False  # whether a run can go on from `state_dict` as if it had never stopped
    before: int = 0  # envs of the run that other processes hold and that come before these

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        reward_threshold: float | None = None,
        max_episode_steps: int | None = None,
        action_mask: str = "none",
        one_hot_max: int = ONE_HOT_MAX,
    ) -> None:
        self.env_id = env_id
        self.num_envs = num_envs
        self.observation_space = observation_space  # of one env
        self.action_space = action_space  # of one env
        self.reward_threshold = reward_threshold
        self.max_episode_steps = max_episode_steps
        self.notices: list[str] = []  # one-line things to tell the user
        self._decode = ActionAdapter(action_space, env_id)
        self._mask_source = masks.source(observation_space, action_space, action_mask, env_id)
        key = self._mask_source if self._mask_source not in (None, "info", "auto") else None
        seen = observation_space if key is None else masks.without(observation_space, key)
        self._encode = ObservationEncoder(seen, env_id, one_hot_max)
        self.obs_dim: int = self._encode.dim  # with the mask
        self.mask_dim = 0  # last columns of obs that are no observation but an action mask
        self._masks: masks.MaskReader | None = None
        if key is not None:
            self._use_masks(key)
        self.obs_dtype = self._encode.dtype
        self.layout: tuple[Leaf, ...] = self._encode.layout  # what the columns of obs before the mask are
        if self._encode.dropped:
            names = ", ".join(self._encode.dropped)
            self.notices.append(f"observation: text is left out, a policy cannot read it: {names}")

    @property
    def masks_unknown(self) -> bool:
        """Whether a reset has yet to tell if info has masks."""
        return self._masks is None and self._mask_source in ("info", "auto")

    def masks_in_info(self, found: bool) -> None:
        """What a reset told: takes masks from info, or goes without. Raises UserError where they were asked for."""
        if found:
            self._use_masks(None)
        elif self._mask_source == "info":
            raise UserError(
                f"env.action_mask=info: env={self.env_id} gives no info['{masks.INFO_KEY}'] at reset; use auto or none"
            )

    def _use_masks(self, key: str | None) -> None:
        """From now on observations end with the action mask, from this key of the raw ones, or from info (None)."""
        self._masks = masks.MaskReader(masks.MaskLayout(self.action_space), key)
        self.mask_dim = self._masks.dim
        self.obs_dim = self._encode.dim + self.mask_dim
        where = "info" if key is None else f"the observation's key {key}"
        self.notices.append(f"env.action_mask: {where} tells which actions are allowed")

    def _with_masks(self, obs: np.ndarray, rows: Any) -> np.ndarray:
        """Encoded observations [N, D] and masks [N, M] (or one number) → [N, D + M]; [N, D] where there are none."""
        if not self.mask_dim:
            return obs
        masked = np.empty((len(obs), self.obs_dim), obs.dtype)
        masked[:, : -self.mask_dim], masked[:, -self.mask_dim :] = obs, rows
        return masked

    def reset(self, seed: int) -> np.ndarray:
        """Reset all envs with seeds made from `seed` → obs [N, D]."""
        raise NotImplementedError

    def step(self, action: np.ndarray) -> Step:
        """One step of each env that is not idle. `action`: int64 [N] from 0 (Discrete), or [N, A] (see actions.py)."""
        raise NotImplementedError

    def set_idle(self, mask: np.ndarray) -> None:
        """Envs where `mask` [N] is True stand still (valid = False, reward 0, not done, obs repeated)."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the envs; calling it again does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs to go on from this very step; {} where the envs cannot tell."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`, made by `state_dict` of an equal vector env."""
        if state:
            raise ValueError(f"the {self.backend} backend cannot restore the state of its envs")

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def idle_mask(mask: Any, num_envs: int) -> np.ndarray | None:
    """A copy of `mask` as bool [N]; None when no env is idle."""
    mask = np.array(mask, dtype=np.bool_)
    if mask.shape != (num_envs,):
        raise ValueError(f"idle mask: expected shape {(num_envs,)}, got {mask.shape}")
    return mask if mask.any() else None
