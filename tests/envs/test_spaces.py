"""Observations become flat vectors, actions become members of the space."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from pgtrain.envs.spaces import ObservationEncoder, conform
from pgtrain.types import UserError


def test_float_box_is_flattened_in_its_own_dtype_and_copied() -> None:
    for dtype in (np.float32, np.float64):
        encode = ObservationEncoder(spaces.Box(-1, 1, (2, 3), dtype))
        batch = np.arange(12, dtype=dtype).reshape(2, 2, 3)
        obs = encode(batch)
        assert (encode.dim, encode.dtype, encode.layout[0].standardize) == (6, dtype, True)
        assert obs.dtype == dtype and obs.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
        batch[:] = 99
        assert obs[0, 0] == 0


def test_a_picture_is_divided_by_255_once_and_other_integers_are_not() -> None:
    picture = ObservationEncoder(spaces.Box(0, 255, (2, 1, 1), np.uint8))
    assert not picture.layout[0].standardize
    obs = picture(np.array([[[[255]], [[51]]]], np.uint8))
    assert obs.dtype == np.float32 and obs.tolist() == [[1.0, np.float32(0.2)]]
    counts = ObservationEncoder(spaces.Box(0, 100, (2,), np.uint8))
    assert counts(np.array([[100, 51]], np.uint8)).tolist() == [[100.0, 51.0]]
    scalar = ObservationEncoder(spaces.Box(0, 9, (), np.int64))
    assert scalar(np.array([3, 4])).tolist() == [[3.0], [4.0]]


def test_discrete_spaces_are_one_hot_from_their_start() -> None:
    encode = ObservationEncoder(spaces.Discrete(3, start=-1))
    assert encode(np.array([-1, 1])).tolist() == [[1, 0, 0], [0, 0, 1]]
    multi = ObservationEncoder(spaces.MultiDiscrete([2, 3], start=[1, -1]))
    assert multi(np.array([[2, -1], [1, 1]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    binary = ObservationEncoder(spaces.MultiBinary(3))
    assert binary(np.array([[1, 0, 1]], np.int8)).tolist() == [[1, 0, 1]]
    with pytest.raises(ValueError, match="outside its Discrete range"):
        encode(np.array([2, 0]))


def test_nested_spaces_are_joined_in_order() -> None:
    inner = spaces.Tuple((spaces.Discrete(2), spaces.Box(-5, 5, (2,), np.float64)))
    space = spaces.Dict({"a": spaces.Box(0, 255, (1,), np.uint8), "b": inner})
    encode = ObservationEncoder(space)
    batch = {"a": np.array([[255], [0]], np.uint8), "b": (np.array([1, 0]), np.array([[0.1, 2], [3, 4]]))}
    obs = encode(batch)
    assert (encode.dim, encode.dtype) == (5, np.float64)
    assert obs.tolist() == [[1, 0, 1, 0.1, 2], [0, 1, 0, 3, 4]]


def test_every_sample_of_a_batched_space_can_be_encoded() -> None:
    space = spaces.Dict(
        {
            "m": spaces.MultiDiscrete([[2, 3], [4, 5]]),
            "t": spaces.Tuple((spaces.MultiBinary((2, 2)), spaces.Discrete(4, start=2))),
            "i": spaces.Box(-3, 3, (2, 2), np.int16),
        }
    )
    batch = batch_space(space, 5)
    batch.seed(0)
    obs = ObservationEncoder(space)(batch.sample())
    assert obs.shape == (5, 14 + 4 + 4 + 4) and obs.dtype == np.float32
    one_hots = np.delete(obs, slice(0, 4), axis=1)[:, :14]  # "i" comes first: keys are sorted
    assert (one_hots.sum(axis=1) == 4).all()


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)]
)
def test_spaces_without_a_fixed_size_are_refused_by_name(space: spaces.Space) -> None:
    with pytest.raises(UserError, match=rf"env=X-v0: its observation is a {type(space).__name__} space"):
        ObservationEncoder(space, "X-v0")
    nested = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((space,))})
    if isinstance(space, spaces.Text):
        return
    with pytest.raises(
        UserError, match=rf"env=X-v0: its observation at b\.0 is a {type(space).__name__} space"
    ):
        ObservationEncoder(nested, "X-v0")


def test_conform_copies_and_names_what_does_not_fit() -> None:
    box = spaces.Box(-1, 1, (2,), np.float32)
    mine = np.zeros(2, np.float32)
    copy = conform(box, mine)
    mine[:] = 7
    assert copy.tolist() == [0, 0]
    assert conform(box, [1, 0.5]).dtype == np.float32
    assert conform(spaces.Box(0, 255, (1,), np.uint8), np.array([200])).dtype == np.uint8
    with pytest.raises(ValueError, match=r"expected shape \(2,\), got \(3,\)"):
        conform(box, np.zeros(3))
    with pytest.raises(ValueError, match="expected dtype float32, got <U1"):
        conform(box, ["a", "b"])
    with pytest.raises(ValueError, match="expected dtype uint8, got int64"):
        conform(spaces.Box(0, 255, (1,), np.uint8), np.array([-1]))
    nested = spaces.Dict({"in": spaces.Tuple((box, spaces.Discrete(2)))})
    with pytest.raises(ValueError, match=r"observation at in\.0: expected shape \(2,\), got \(1,\)"):
        conform(nested, {"in": (np.zeros(1), 0)})
    with pytest.raises(ValueError, match=r"observation at in\.1: expected a member of Discrete\(2\), got 5"):
        conform(nested, {"in": (np.zeros(2), 5)})
    with pytest.raises(ValueError, match=r"expected a dict with the keys \['in'\], got \['out'\]"):
        conform(nested, {"out": 1})
    with pytest.raises(ValueError, match="expected a tuple of 2 parts, got 1"):
        conform(nested, {"in": (1,)})
