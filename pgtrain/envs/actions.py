"""From the policy's flat actions to members of the env's action space, on whole batches.

| space          | columns                                                             |
|----------------|---------------------------------------------------------------------|
| Discrete       | 1: index from 0 → index + start                                     |
| MultiDiscrete  | one for each part: index from 0 → index + start                     |
| MultiBinary    | one for each bit: 0 or 1                                            |
| Box            | one for each number: held inside the bounds, rounded if of integers |
| Dict, Tuple    | those of the parts, in the order of the space                       |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from pgtrain.types import TrainingError, UserError

Path = tuple[Any, ...]


def leaves(space: Space[Any], path: Path = ()) -> Iterator[tuple[Path, Space[Any]]]:
    """The spaces without parts inside `space`, in order, each with the keys that lead to it."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from leaves(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaves(part, (*path, index))
    else:
        yield path, space


def at(path: Path) -> str:
    """ " at a.b", or "" for the space itself."""
    return " at " + ".".join(map(str, path)) if path else ""


def has_discrete(space: Space[Any]) -> bool:
    return any(not isinstance(leaf, spaces.Box) for _, leaf in leaves(space))


def has_box(space: Space[Any]) -> bool:
    return any(isinstance(leaf, spaces.Box) for _, leaf in leaves(space))


def with_arrays(space: Space[Any]) -> Callable[[Any], Any] | None:
    """Turns one env's action into a member where taking it out of a batch has made a 0-d Box's array a bare number;
    None where no part is a 0-d Box, and the action is a member as it is."""
    if not any(isinstance(leaf, spaces.Box) and leaf.shape == () for _, leaf in leaves(space)):
        return None

    def convert(action: Any, part: Space[Any] = space) -> Any:
        if isinstance(part, spaces.Dict):
            return {key: convert(action[key], inner) for key, inner in part.spaces.items()}
        if isinstance(part, spaces.Tuple):
            return tuple(convert(a, inner) for a, inner in zip(action, part.spaces, strict=True))
        return np.asarray(action, part.dtype) if isinstance(part, spaces.Box) else action

    return convert


class ActionAdapter:
    """Turns a batch of the policy's actions into members of the env's action space, as a vector env takes them.

    [N] (Discrete) or [N, A] (all others) → arrays [N, *shape] in the dtype of each leaf, in dicts and tuples where the
    space has them. Raises UserError for a space without actions or with parts of no fixed size, TrainingError for an
    action that is NaN or infinite, ValueError for an index out of range.
    """

    def __init__(self, space: Space[Any], env_id: str = "") -> None:
        self.env_id, self.space = env_id, space
        self._leaves = [_leaf(leaf, path, env_id) for path, leaf in leaves(space)]
        if not self._leaves:
            raise UserError(f"env={env_id}: its action space {space} is empty: there is nothing to choose")
        for (path, leaf), made in zip(leaves(space), self._leaves, strict=True):
            if not made.width:
                raise UserError(
                    f"env={env_id}: its action space{at(path)} {leaf} is empty: there is nothing to choose"
                )
        total = sum(leaf.width for leaf in self._leaves)
        self.width: int | None = None if isinstance(space, spaces.Discrete) else total  # None: one index [N]

    def __call__(self, action: np.ndarray, before: int = 0) -> Any:
        """`before`: envs of the run that come before these, for an error that names one by its index."""
        action = np.asarray(action)
        columns = action.reshape(len(action), -1)
        self._check_finite(columns, before)
        start, parts = 0, []
        for leaf in self._leaves:
            parts.append(leaf(columns[:, start : start + leaf.width]))
            start += leaf.width
        return _nest(self.space, iter(parts))

    def _check_finite(self, columns: np.ndarray, before: int) -> None:
        finite = np.isfinite(columns).all(axis=1)
        if not finite.all():
            bad = ", ".join(map(str, before + np.flatnonzero(~finite)))
            raise TrainingError(f"env={self.env_id}: the policy's action for env {bad} is not finite")


class _Indices:
    """Discrete, MultiDiscrete, MultiBinary: indices from 0 [N, F] → index + start [N, *shape]."""

    def __init__(
        self, sizes: np.ndarray, start: Any, shape: tuple[int, ...], dtype: Any, where: str, env_id: str
    ) -> None:
        self.sizes, self.start, self.shape = sizes.reshape(-1), start, shape
        self.dtype, self.where, self.env_id = dtype, where, env_id
        self.width = len(self.sizes)

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        if ((columns < 0) | (columns >= self.sizes)).any():
            most = self.sizes[0] - 1 if self.width == 1 else (self.sizes - 1).tolist()
            given = columns.reshape(len(columns), *self.shape).tolist()
            raise ValueError(f"env={self.env_id}: action {given}{self.where} is outside 0..{most}")
        return (columns.astype(np.int64).reshape(len(columns), *self.shape) + self.start).astype(self.dtype)


class _Numbers:
    """Box: [N, A] → [N, *shape]."""

    def __init__(self, space: spaces.Box) -> None:
        self.shape, self.dtype = space.shape, np.dtype(space.dtype)
        # In float64 every bound of a smaller float type is exact, so the cast back cannot leave the box.
        self.low, self.high = space.low.astype(np.float64), space.high.astype(np.float64)
        self.width = int(np.prod(space.shape))

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        numbers = np.array(columns, np.float64).reshape(len(columns), *self.shape)
        np.clip(numbers, self.low, self.high, out=numbers)
        return (np.rint(numbers) if self.dtype.kind in "iub" else numbers).astype(self.dtype)


def _leaf(space: Space[Any], path: Path, env_id: str) -> _Indices | _Numbers:
    if isinstance(space, spaces.Box):
        return _Numbers(space)
    if isinstance(space, spaces.Discrete):
        return _Indices(np.array([space.n]), int(space.start), (), space.dtype, at(path), env_id)
    if isinstance(space, spaces.MultiDiscrete):
        return _Indices(space.nvec, space.start, space.shape, space.dtype, at(path), env_id)
    if isinstance(space, spaces.MultiBinary):
        return _Indices(np.full(space.shape, 2), 0, space.shape, space.dtype, at(path), env_id)
    raise UserError(
        f"env={env_id}: its action space{at(path)} is {type(space).__name__}, which is not supported; "
        "allowed are Discrete, MultiDiscrete, MultiBinary, Box, and Dict or Tuple of these"
    )


def _nest(space: Space[Any], parts: Iterator[np.ndarray]) -> Any:
    """The leaves' arrays in the structure of `space`."""
    if isinstance(space, spaces.Dict):
        return {key: _nest(part, parts) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(part, parts) for part in space.spaces)
    return next(parts)
