"""From the observation spaces of Gymnasium to flat vectors, on whole batches.

Observations become one flat vector per env, obs [N, D].

| space            | in obs                                                                  |
|------------------|-------------------------------------------------------------------------|
| Box float        | flattened; float64 stays float64, everything else becomes float32       |
| Box uint8 0..255 | float32, divided by 255 (here, and nowhere else)                        |
| Box of integers  | float32                                                                 |
| Discrete         | one-hot, index = value − start                                          |
| MultiDiscrete    | one-hot of each part, joined                                            |
| MultiBinary      | float32                                                                 |
| Dict, Tuple      | the parts, joined in the order of the space                             |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from pgtrain.types import UserError

Write = Callable[[np.ndarray, np.ndarray], None]  # (batch of one leaf [N, *shape], out [N, width])


class ObservationEncoder:
    """Encodes a batch of observations, as Gymnasium's vector envs make them, into a fresh array [N, D].

    Raises UserError where a part of the space has no fixed size (Text, Sequence, Graph, …), and ValueError when a
    batch does not fit the space.
    """

    def __init__(self, space: Space[Any], env_id: str = "") -> None:
        self._parts: list[tuple[tuple[Any, ...], tuple[int, ...], Write, slice]] = []
        self._dtypes: list[Any] = []
        self.dim = 0
        self._add(space, (), env_id)
        self.dtype = np.float64 if np.float64 in self._dtypes else np.float32
        self.is_float_box = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)

    def _add(self, space: Space[Any], path: tuple[Any, ...], env_id: str) -> None:
        if isinstance(space, spaces.Dict):
            for key, part in space.spaces.items():
                self._add(part, (*path, key), env_id)
            return
        if isinstance(space, spaces.Tuple):
            for index, part in enumerate(space.spaces):
                self._add(part, (*path, index), env_id)
            return
        width, write = _leaf(space, path, env_id)
        self._dtypes.append(
            np.float64 if isinstance(space, spaces.Box) and space.dtype == np.float64 else np.float32
        )
        self._parts.append((path, tuple(space.shape or ()), write, slice(self.dim, self.dim + width)))
        self.dim += width

    def __call__(self, batch: Any) -> np.ndarray:
        out: np.ndarray | None = None
        for path, shape, write, columns in self._parts:
            leaf = batch
            for key in path:
                leaf = leaf[key]
            leaf = np.asarray(leaf)
            if leaf.shape[1:] != shape:
                raise ValueError(f"observation{_where(path)}: expected shape {shape}, got {leaf.shape[1:]}")
            if out is None:
                out = np.empty((len(leaf), self.dim), self.dtype)
            write(leaf, out[:, columns])
        assert out is not None
        return out


def _leaf(space: Space[Any], path: tuple[Any, ...], env_id: str) -> tuple[int, Write]:
    """How many numbers a space without parts takes in obs, and the function that writes them."""
    if isinstance(space, spaces.Box):
        picture = space.dtype == np.uint8 and bool((space.low == 0).all() and (space.high == 255).all())
        return int(np.prod(space.shape)), _write_picture if picture else _write_numbers
    if isinstance(space, spaces.MultiBinary):
        return int(np.prod(space.shape)), _write_numbers
    if isinstance(space, spaces.Discrete):
        return int(space.n), _one_hot([int(space.n)], [int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        sizes = [int(n) for n in space.nvec.flat]
        return sum(sizes), _one_hot(sizes, [int(s) for s in space.start.flat])
    raise UserError(
        f"env={env_id}: its observation{_where(path)} is a {type(space).__name__} space, which has no fixed size; "
        "allowed are Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"
    )


def _where(path: tuple[Any, ...]) -> str:
    return " at " + ".".join(map(str, path)) if path else ""


def _write_numbers(leaf: np.ndarray, out: np.ndarray) -> None:
    out[...] = leaf.reshape(out.shape)


def _write_picture(leaf: np.ndarray, out: np.ndarray) -> None:
    np.divide(leaf.reshape(out.shape), np.float32(255), out=out, dtype=np.float32, casting="unsafe")


def _one_hot(sizes: list[int], starts: list[int]) -> Write:
    start = np.array(starts)
    size = np.array(sizes)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def write(leaf: np.ndarray, out: np.ndarray) -> None:
        index = leaf.reshape(len(out), -1) - start  # [N, parts]
        if ((index < 0) | (index >= size)).any():
            raise ValueError(f"observation: {leaf.tolist()} has a value outside its Discrete range")
        out[...] = 0
        np.put_along_axis(out, index + first, 1, axis=1)

    return write


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
