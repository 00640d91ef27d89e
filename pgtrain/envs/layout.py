"""What becomes of a single part (leaf) of an observation space: its kind, its columns, and how they are written.

| space | kind | columns |
|---|---|---|
| Box that looks like a picture (see `picture_axes`) | picture | brightness 0..1, or 0..255 in a row of uint8 |
| other Box | vector | the numbers; uint8 0..255 divided by 255 |
| Discrete, MultiDiscrete | onehot | a one-hot of each part, index = value − start |
| the same with more values than `one_hot_max` | index | index = value − start |
| MultiBinary | binary | 0 or 1 |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from pgtrain.types import Leaf, UserError

Write = Callable[[np.ndarray, np.ndarray], None]  # (batch of one leaf [N, *shape], out [N, width])

ONE_HOT_MAX = 256  # a one-hot is as good as an embedding while its row of a rollout stays small
EMBEDDING_MAX = 1_000_000  # rows of a table; beyond, no run would visit each value often enough to learn it
MATRIX_MIN = 8  # a matrix of fewer rows or columns is no picture, but numbers
PICTURE_MIN = 3  # with channels, it may be as small as this
CHANNELS_MAX = 32


def is_text(space: Space[Any]) -> bool:
    """Text, also of a class of the env's own (MiniGrid's missions)."""
    return isinstance(space, spaces.Text) or space.dtype is str or str(space.dtype).startswith("<U")


def picture_axes(space: spaces.Box) -> tuple[int, ...] | None:
    """The axes of a picture as (channels …, height, width); None if the Box is no picture.

    A picture has values 0..255 in uint8, or 0..1, and the shape [H, W] (both ≥ 8), [H, W, C] or [C, H, W] (H, W ≥ 3,
    C ≤ 32 and not above H and W; the last axis if both fit), or a stack [K, …] of pictures with channels.
    """
    if not _brightness(space):
        return None
    shape = space.shape
    if len(shape) == 2:
        return (0, 1) if min(shape) >= MATRIX_MIN else None
    if len(shape) == 3:
        return _channel_order(shape)
    if len(shape) == 4 and shape[0] <= CHANNELS_MAX:
        inner = _channel_order(shape[1:])
        return None if inner is None else (0, *(axis + 1 for axis in inner))
    return None


def _brightness(space: spaces.Box) -> bool:
    top = 255 if space.dtype == np.uint8 else 1
    high = bool((space.high == top).all()) or (space.dtype == np.uint8 and bool((space.high == 1).all()))
    return bool((space.low == 0).all()) and high


def _channel_order(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    first, last = shape[0], shape[2]
    if last <= first and last <= CHANNELS_MAX and min(shape[:2]) >= max(PICTURE_MIN, last):
        return 2, 0, 1
    if first <= CHANNELS_MAX and min(shape[1:]) >= max(PICTURE_MIN, first):
        return 0, 1, 2
    return None


def leaf_of(
    space: Space[Any], name: str, start: int, one_hot_max: int, env_id: str
) -> tuple[Leaf, Write, np.dtype[Any]]:
    """The leaf, what writes its columns, and the smallest dtype that holds them.

    Raises UserError for a space without a fixed size.
    """
    size = int(np.prod(space.shape or ()))
    shape = tuple(space.shape or ())
    if isinstance(space, spaces.Box):
        return _box(space, name, start, size)
    if isinstance(space, spaces.MultiBinary):
        return Leaf(name, "binary", start, start + size, shape), write_numbers, np.dtype(np.uint8)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        single = isinstance(space, spaces.Discrete)
        sizes = [int(space.n)] if single else [int(n) for n in space.nvec.flat]
        starts = [int(space.start)] if single else [int(s) for s in space.start.flat]
        return _choices(name, start, shape, sizes, starts, one_hot_max, env_id)
    raise UserError(
        f"env={env_id}: its observation{where(name)} is a {type(space).__name__} space, which has no fixed size; "
        "allowed are Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"
    )


def _box(space: spaces.Box, name: str, start: int, size: int) -> tuple[Leaf, Write, np.dtype[Any]]:
    stop, bytes_ = start + size, space.dtype == np.uint8 and _brightness(space)
    full = bytes_ and bool((space.high == 255).all())
    axes = picture_axes(space)
    if axes is not None:
        dtype = np.dtype(np.uint8 if bytes_ or space.dtype == np.bool_ else np.float32)
        leaf = Leaf(name, "picture", start, stop, space.shape, axes=axes, divide=255.0 if full else 1.0)
        return leaf, write_numbers, dtype
    if full:
        return Leaf(name, "vector", start, stop, space.shape), write_bytes, np.dtype(np.float32)
    dtype = np.dtype(np.float64 if space.dtype == np.float64 else np.float32)
    return Leaf(name, "vector", start, stop, space.shape, standardize=True), write_numbers, dtype


def _choices(
    name: str,
    start: int,
    shape: tuple[int, ...],
    sizes: list[int],
    starts: list[int],
    one_hot_max: int,
    env_id: str,
) -> tuple[Leaf, Write, np.dtype[Any]]:
    if max(sizes) <= one_hot_max:
        leaf = Leaf(name, "onehot", start, start + sum(sizes), shape, tuple(sizes))
        return leaf, one_hot(sizes, starts), np.dtype(np.uint8)
    if max(sizes) > EMBEDDING_MAX:
        raise UserError(
            f"env={env_id}: its observation{where(name)} has {max(sizes):,} values; at most {EMBEDDING_MAX:,} can be "
            "told apart: give them as numbers (a Box) instead"
        )
    return (
        Leaf(name, "index", start, start + len(sizes), shape, tuple(sizes)),
        index_of(sizes, starts),
        np.dtype(np.float32),  # whole numbers up to 2²⁴ are exact
    )


def where(name: str) -> str:
    return f" at {name}" if name else ""


def write_numbers(leaf: np.ndarray, out: np.ndarray) -> None:
    out[...] = leaf.reshape(out.shape)


def write_bytes(leaf: np.ndarray, out: np.ndarray) -> None:
    np.divide(leaf.reshape(out.shape), np.float32(255), out=out, dtype=np.float32, casting="unsafe")


def index_of(sizes: list[int], starts: list[int]) -> Write:
    start, size = np.array(starts), np.array(sizes)

    def write(leaf: np.ndarray, out: np.ndarray) -> None:
        out[...] = _checked(leaf.reshape(len(out), -1) - start, size, leaf)

    return write


def one_hot(sizes: list[int], starts: list[int]) -> Write:
    start, size = np.array(starts), np.array(sizes)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def write(leaf: np.ndarray, out: np.ndarray) -> None:
        index = _checked(leaf.reshape(len(out), -1) - start, size, leaf)  # [N, parts]
        out[...] = 0
        np.put_along_axis(out, index + first, 1, axis=1)

    return write


def _checked(index: np.ndarray, size: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    if ((index < 0) | (index >= size)).any():
        raise ValueError(f"observation: {leaf.tolist()} has a value outside its Discrete range")
    return index
