"""Actions of the policy become members of the env's space, whatever its kind."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from pgtrain.envs.actions import ActionAdapter, with_arrays
from pgtrain.types import TrainingError, UserError
from tests.action_spaces import ACTION_SPACES


def test_discrete_actions_get_the_start_of_the_space() -> None:
    decode = ActionAdapter(spaces.Discrete(3, start=-1), "X-v0")
    assert decode(np.array([0, 2])).tolist() == [-1, 1]
    with pytest.raises(ValueError, match=r"action \[3\] is outside 0\.\.2"):
        decode(np.array([3]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_box_actions_are_members_whatever_comes(dtype: type) -> None:
    space = spaces.Box(np.array([-0.1, 0.7, -3], dtype), np.array([0.1, 5.3, -2], dtype), dtype=dtype)
    decode = ActionAdapter(space)
    numbers = np.random.default_rng(0).normal(0, 4, (200, 3))
    for given in (numbers, numbers.astype(np.float32)):
        for row in decode(given):
            assert space.contains(row), row
    inside = np.array([[0.05, 1.0, -2.5]], np.float32)
    assert np.allclose(decode(inside), inside, atol=1e-3)


def test_integer_boxes_get_rounded_members_and_shapes_come_back() -> None:
    space = spaces.Box(0, 10, (2,), np.int64)
    decode = ActionAdapter(space)
    action = decode(np.array([[6.6, 12.0], [-3.0, 0.4]]))
    assert action.dtype == np.int64 and action.tolist() == [[7, 10], [0, 0]]
    matrix = ActionAdapter(spaces.Box(-1, 1, (2, 3), np.float32))
    assert matrix(np.linspace(-1, 1, 12).reshape(2, 6)).shape == (2, 2, 3)


def test_unbounded_actions_pass_and_non_finite_ones_are_named() -> None:
    decode = ActionAdapter(spaces.Box(-np.inf, np.inf, (1,), np.float32), "X-v0")
    assert decode(np.array([[1e6], [-3.0]])).tolist() == [[1e6], [-3.0]]
    for bad in (np.nan, np.inf):
        with pytest.raises(TrainingError, match="env=X-v0: the policy's action for env 1, 2 is not finite"):
            decode(np.array([[0.0], [bad], [bad]]))


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_each_env_gets_a_member_of_its_space(name: str) -> None:
    """Every index of every part, the ends of each box and beyond, each in its column."""
    space = ACTION_SPACES[name]
    decode = ActionAdapter(space)
    sizes = _sizes(space)
    rng = np.random.default_rng(0)
    rows = np.stack([rng.normal(0, 50, 64) if n is None else rng.integers(0, n, 64) for n in sizes], 1)
    rows = rows[:, 0] if decode.width is None else rows
    batch = decode(rows)
    convert = with_arrays(space) or (lambda action: action)
    members = [convert(action) for action in iterate(batch_space(space, 64), batch)]
    for member, row in zip(members, rows.reshape(64, -1), strict=True):
        assert space.contains(member), member
        back = np.concatenate(_numbers(space, member))
        for number, given, n in zip(back, row, sizes, strict=True):
            assert n is None or number == given


def _sizes(space: Any) -> list[int | None]:
    """Choices of each column; None for a number of a box."""
    if isinstance(space, spaces.Dict):
        return [n for part in space.spaces.values() for n in _sizes(part)]
    if isinstance(space, spaces.Tuple):
        return [n for part in space.spaces for n in _sizes(part)]
    if isinstance(space, spaces.Box):
        return [None] * int(np.prod(space.shape))
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return [int(n) for n in np.ravel(getattr(space, "nvec", np.full(space.shape, 2)))]


def _numbers(space: Any, member: Any) -> list[Any]:
    """The member as numbers that count from 0, part by part."""
    if isinstance(space, spaces.Dict):
        return [n for key, part in space.spaces.items() for n in _numbers(part, member[key])]
    if isinstance(space, spaces.Tuple):
        return [n for part, m in zip(space.spaces, member, strict=True) for n in _numbers(part, m)]
    return [np.ravel(np.asarray(member) - getattr(space, "start", 0))]


@pytest.mark.parametrize(
    ("space", "where"),
    [
        (spaces.Text(5), " is Text"),
        (spaces.Dict({"say": spaces.Text(5), "do": spaces.Discrete(2)}), " at say is Text"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2))]), " at 1 is Sequence"),
    ],
)
def test_other_action_spaces_are_refused_by_name(space: Any, where: str) -> None:
    with pytest.raises(
        UserError, match=rf"env=X-v0: its action space{where}, which is not supported.*Dict or Tuple"
    ):
        ActionAdapter(space, "X-v0")


def test_a_space_without_actions_is_refused() -> None:
    with pytest.raises(UserError, match=r"env=X-v0: its action space .* is empty"):
        ActionAdapter(spaces.Tuple(()), "X-v0")


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.Box(-1, 1, (0,)), r"action space Box\(.*\(0,\), float32\) is empty"),
        (
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (2, 0))}),
            r"action space at b Box.* is empty",
        ),
        (spaces.MultiDiscrete([]), "is empty"),
    ],
)
def test_a_part_without_numbers_is_refused(space: Any, text: str) -> None:
    with pytest.raises(UserError, match=text):
        ActionAdapter(space, "X-v0")


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8])
def test_a_discrete_action_has_the_dtype_of_its_space(dtype: Any) -> None:
    space = spaces.Discrete(3, start=2, dtype=dtype)
    actions = ActionAdapter(space)(np.array([0, 2]))
    assert actions.dtype == dtype and all(space.contains(a) for a in actions)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (), np.float64),
        spaces.Dict({"a": spaces.Tuple([spaces.Box(0, 9, (), np.int64), spaces.Discrete(2)])}),
    ],
)
def test_a_number_reaches_the_env_as_an_array(space: Any) -> None:
    """Gymnasium's Box.contains casts a bare number, with a warning each time."""
    convert = with_arrays(space)
    assert convert is not None
    batch = ActionAdapter(space)(np.ones((2, 2 if isinstance(space, spaces.Dict) else 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for action in iterate(batch_space(space, 2), batch):
            assert space.contains(convert(action))
    assert with_arrays(spaces.Box(-1, 1, (1,))) is None
