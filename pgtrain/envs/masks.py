"""Action masks on the env's side: where an env tells which choices it allows, and a mask as one flat row.

Columns M of a mask, by leaf of the action space: Discrete n, MultiDiscrete Σ n (1 allowed, 0 not); MultiBinary one a
bit (0 must be 0, 1 must be 1, 2 may be either); Box none. These are the masks that `space.sample(mask)` of Gymnasium
takes: an array, nested in dicts and tuples as the space is; None allows everything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from pgtrain.envs.actions import Path, at, leaves
from pgtrain.faults import FAULTS
from pgtrain.types import TrainingError, UserError

INFO_KEY = "action_mask"


class MaskLayout:
    """From a mask in Gymnasium's form to a row [M] of float32."""

    def __init__(self, space: Space[Any]) -> None:
        self._leaves = [_Leaf(path, leaf) for path, leaf in leaves(space) if not isinstance(leaf, spaces.Box)]
        self.dim = sum(leaf.width for leaf in self._leaves)

    def row(self, mask: Any) -> np.ndarray:
        """Raises ValueError where `mask` does not fit the space or leaves no choice."""
        return np.concatenate([leaf.row(leaf.find(mask)) for leaf in self._leaves])

    def rows(self, batch: Any, num_envs: int, ended: np.ndarray, before: int = 0) -> np.ndarray:
        """The masks of a vector env, as it batches them, → [N, M]; all allowed where the episode `ended` [N].

        Raises TrainingError that names the env whose mask does not fit; the first one here is the run's env `before`.
        """
        rows = np.empty((num_envs, self.dim), np.float32)
        for i in range(num_envs):
            try:
                rows[i] = self.row(None if ended[i] else _of_env(batch, i))
            except ValueError as error:
                raise TrainingError(f"env index {before + i}: {error}") from error
        return rows


class _Leaf:
    def __init__(self, path: Path, space: Space[Any]) -> None:
        self.path, self.space = path, space
        self.bits = isinstance(space, spaces.MultiBinary)
        if isinstance(space, spaces.Discrete):
            self.sizes = np.array([int(space.n)])
        elif isinstance(space, spaces.MultiDiscrete):
            self.sizes = space.nvec.reshape(-1).astype(np.int64)
        else:
            self.sizes = np.ones(int(np.prod(space.shape or ())), np.int64)
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.width = int(self.sizes.sum())
        self.most = 2 if self.bits else 1

    def find(self, mask: Any) -> Any:
        """This leaf's part of the whole mask; None where it has none."""
        for key in self.path:
            if mask is None:
                return None
            mask = mask.get(key) if isinstance(mask, dict) else mask[key]
        return mask

    def row(self, mask: Any) -> np.ndarray:
        if mask is None:
            return np.full(self.width, self.most, np.float32)
        try:
            row = _flat(mask)
        except (TypeError, ValueError) as error:
            raise ValueError(f"action mask{at(self.path)}: expected numbers, got {mask!r}") from error
        if len(row) != self.width:
            raise ValueError(
                f"action mask{at(self.path)}: expected {self.width} numbers for {self.space}, got {len(row)}"
            )
        if not np.isin(row, np.arange(self.most + 1)).all():
            allowed = "0, 1 (must be 1) or 2 (either)" if self.bits else "0 or 1"
            raise ValueError(
                f"action mask{at(self.path)}: expected {allowed} for each choice, got {row.tolist()}"
            )
        if not self.bits and not np.maximum.reduceat(row, self.starts).all():
            raise ValueError(f"action mask{at(self.path)} allows no action: {row.astype(int).tolist()}")
        return row


def _of_env(batch: Any, i: int) -> Any:
    """What a batch of arrays, in dicts and tuples, holds of env i."""
    if isinstance(batch, dict):
        return {key: _of_env(part, i) for key, part in batch.items() if not key.startswith("_")}
    if isinstance(batch, tuple):
        return tuple(_of_env(part, i) for part in batch)
    return None if batch is None else batch[i]


def _flat(mask: Any) -> np.ndarray:
    """An array, or arrays of different lengths nested in tuples, as one row of float32."""
    if isinstance(mask, (tuple, list)) or (isinstance(mask, np.ndarray) and mask.dtype == object):
        return np.concatenate([_flat(part) for part in mask])
    return np.asarray(mask, np.float32).reshape(-1)


class MaskReader:
    """Reads one env's mask from its observation (`key`) or its info (key None) → row [M]."""

    def __init__(self, layout: MaskLayout, key: str | None) -> None:
        self.layout, self.key, self.dim = layout, key, layout.dim

    def __call__(self, obs: Any, info: Any) -> np.ndarray:
        """Raises ValueError."""
        return self.layout.row(self.find(obs, info))

    def find(self, obs: Any, info: Any) -> Any:
        if self.key is not None:
            return obs[self.key]
        if not isinstance(info, dict) or INFO_KEY not in info:
            raise ValueError(f"info has no {INFO_KEY!r} here; env.action_mask=none plays without masks")
        return info[INFO_KEY]


class NoMask:
    """Stands in for a reader where the first reset gave no mask: one that comes later must not be passed over."""

    def __call__(self, obs: Any, info: Any) -> None:
        """Raises ValueError."""
        if isinstance(info, dict) and INFO_KEY in info:
            raise ValueError(
                f"info has {INFO_KEY!r} here, but had none at the first reset: give one at every reset and step "
                "(None allows everything), or set env.action_mask=none"
            )


def in_info(env: Any) -> bool:
    """Whether info after a reset has an action mask. An env that fails says so again when it is used."""
    try:
        return INFO_KEY in env.reset(seed=0)[1]
    except FAULTS:
        return False


def source(observation: Space[Any], action: Space[Any], setting: str, env_id: str) -> str | None:
    """The observation key that holds the mask, "info", None for no mask, or "auto" where a reset has to tell.

    Raises UserError where `setting` names what cannot be.
    """
    keys = list(observation.spaces) if isinstance(observation, spaces.Dict) else []
    maskable = MaskLayout(action).dim > 0
    if setting == "none" or (setting == "auto" and not maskable):
        return None
    if not maskable:
        raise UserError(f"env.action_mask={setting}: the actions of env={env_id} are continuous: use none")
    if setting == "info":
        return "info"
    if setting == "auto":
        return INFO_KEY if INFO_KEY in keys else "auto"
    if setting not in keys:
        given = (
            f"the keys of its observation are {', '.join(keys)}" if keys else "its observation has no keys"
        )
        raise UserError(
            f"env.action_mask={setting}: env={env_id} has no such key, {given}; allowed are auto, info, none and a key"
        )
    return setting


def without(space: Space[Any], key: str) -> Space[Any]:
    """A Dict space that lacks `key`. Raises UserError where nothing is left to observe."""
    assert isinstance(space, spaces.Dict)
    rest = {k: part for k, part in space.spaces.items() if k != key}
    if not rest:
        raise UserError(
            f"env.action_mask={key}: the observation has nothing but the mask; use env.action_mask=none"
        )
    return spaces.Dict(rest)
