"""From the observation spaces of Gymnasium to flat rows of numbers, on whole batches.

Observations become one row per env, obs [N, D], whose columns `layout` describes leaf by leaf (see `layout.py` for
what becomes of each kind of space).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from pgtrain.envs.layout import ONE_HOT_MAX, Write, is_text, leaf_of, where, write_bytes
from pgtrain.types import Leaf, UserError


class ObservationEncoder:
    """Encodes a batch of observations, as Gymnasium's vector envs make them, into a fresh array [N, D].

    Parts of Dict and Tuple come in the order of the space, at any depth. A row is uint8 where it holds pictures of
    bytes and nothing that needs more, float64 where a part is, else float32; in the last two a picture is divided by
    255 here, in the first by the network. Text inside Dict or Tuple is left out (`dropped` has the names).

    Raises UserError where a part of the space has no fixed size (Text alone, Sequence, Graph, …), and ValueError when a
    batch does not fit the space.
    """

    def __init__(self, space: Space[Any], env_id: str = "", one_hot_max: int = ONE_HOT_MAX) -> None:
        self._paths: list[tuple[Any, ...]] = []
        self._writes: list[Write] = []
        self._dtypes: list[np.dtype[Any]] = []
        self._leaves: list[Leaf] = []
        self.dropped: list[str] = []
        self.dim = 0
        self._add(space, (), one_hot_max, env_id)
        if not self._leaves:
            raise UserError(f"env={env_id}: its observation {space} holds nothing that a policy could see")
        self.dtype = self._row_dtype()
        if self.dtype != np.uint8:
            self._divide_here()
        self.layout: tuple[Leaf, ...] = tuple(self._leaves)

    def _add(self, space: Space[Any], path: tuple[Any, ...], one_hot_max: int, env_id: str) -> None:
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
            for key, part in parts:
                self._add(part, (*path, key), one_hot_max, env_id)
            return
        name = ".".join(map(str, path))
        if space.shape is not None and 0 in space.shape:
            return  # no numbers at all
        if path and is_text(space):
            self.dropped.append(name)
            return
        leaf, write, dtype = leaf_of(space, name, self.dim, one_hot_max, env_id)
        self._paths.append(path)
        self._writes.append(write)
        self._dtypes.append(dtype)
        self._leaves.append(leaf)
        self.dim = leaf.stop

    def _row_dtype(self) -> Any:
        if any(leaf.kind == "picture" for leaf in self._leaves) and set(self._dtypes) == {np.dtype(np.uint8)}:
            return np.uint8
        return np.float64 if np.dtype(np.float64) in self._dtypes else np.float32

    def _divide_here(self) -> None:
        for i, leaf in enumerate(self._leaves):
            if leaf.divide != 1.0:
                self._leaves[i], self._writes[i] = replace(leaf, divide=1.0), write_bytes

    def __call__(self, batch: Any) -> np.ndarray:
        out: np.ndarray | None = None
        for path, leaf, write in zip(self._paths, self._leaves, self._writes, strict=True):
            part = batch
            for key in path:
                part = part[key]
            part = np.asarray(part)
            if part.shape[1:] != leaf.shape:
                raise ValueError(
                    f"observation{where(leaf.name)}: expected shape {leaf.shape}, got {part.shape[1:]}"
                )
            if out is None:
                out = np.empty((len(part), self.dim), self.dtype)
            write(part, out[:, leaf.start : leaf.stop])
        assert out is not None
        return out


def _where(path: tuple[Any, ...]) -> str:
    return where(".".join(map(str, path)))


def conform(space: Space[Any], obs: Any, path: tuple[Any, ...] = ()) -> Any:
    """A copy of one observation in the structure, shape and dtype of `space`.

    A copy, since an env may write its next observation into the same array. Raises ValueError that names what
    was expected and what came.
    """
    if isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete, spaces.Discrete)):
        array = np.array(obs)
        shape = space.shape or ()
        if array.shape != shape:
            raise ValueError(f"observation{_where(path)}: expected shape {shape}, got {array.shape}")
        if array.dtype != space.dtype:
            array = _cast(array, np.dtype(space.dtype), path)
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)) and not space.contains(array):
            raise ValueError(f"observation{_where(path)}: expected a member of {space}, got {array}")
        return array
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, dict) or not obs.keys() >= space.spaces.keys():
            got = list(obs) if isinstance(obs, dict) else type(obs).__name__
            raise ValueError(
                f"observation{_where(path)}: expected a dict with the keys {list(space.spaces)}, got {got}"
            )
        return {key: conform(part, obs[key], (*path, key)) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, (tuple, list)) or len(obs) != len(space.spaces):
            got = len(obs) if isinstance(obs, (tuple, list)) else type(obs).__name__
            raise ValueError(
                f"observation{_where(path)}: expected a tuple of {len(space.spaces)} parts, got {got}"
            )
        return tuple(
            conform(part, o, (*path, i)) for i, (part, o) in enumerate(zip(space.spaces, obs, strict=True))
        )
    return obs


def _cast(array: np.ndarray, dtype: np.dtype[Any], path: tuple[Any, ...]) -> np.ndarray:
    """`array` as `dtype`: floats to floats, integers to anything that holds their values."""
    if array.dtype.kind in ("biu" if dtype.kind in "biu" else "biuf"):
        cast = array.astype(dtype)
        if dtype.kind == "f" or (cast == array).all():
            return cast
    raise ValueError(f"observation{_where(path)}: expected dtype {dtype}, got {array.dtype}")
