"""Records whose fields are arrays, tensors, or worked out when somebody reads them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pgtrain.columns import Columns


class Record(Columns):
    optional = frozenset({"late"})

    x: Tensor
    y: Tensor
    late: Tensor | None


def test_an_array_and_its_tensor_are_one_memory() -> None:
    array = np.zeros(3)
    record = Record(x=array)
    record.x[1] = 5.0
    assert array[1] == 5.0 and record.raw("x") is array and record.array("x") is array
    assert record.x is record.x


def test_a_tensor_is_an_array_without_its_graph() -> None:
    record = Record(x=torch.ones(2, requires_grad=True) * 3)
    assert record.x.requires_grad and record.array("x").tolist() == [3.0, 3.0]


def test_a_function_is_called_once_and_only_if_asked() -> None:
    calls: list[str] = []

    def made(name: str) -> Any:
        return lambda: calls.append(name) or np.arange(2)

    record = Record(x=made("x"), y=made("y"))
    assert not calls
    assert record.x.tolist() == [0, 1] and record.array("x").tolist() == [0, 1] and record.x is record.x
    assert calls == ["x"]


def test_what_is_no_array_stays_what_it_is() -> None:
    record = Columns(count=3, nothing=None, pair=(1, 2))
    assert record.count == 3 and record.nothing is None and record.pair == (1, 2)


def test_replace_makes_another_record() -> None:
    record = Record(x=np.zeros(2), y=np.ones(2))
    assert record.x.tolist() == [0, 0]
    other = record.replace(x=np.full(2, 7.0))
    assert isinstance(other, Record) and other.x.tolist() == [7, 7] and other.y.tolist() == [1, 1]
    assert record.x.tolist() == [0, 0]


def test_a_missing_field_is_named() -> None:
    record = Record(x=np.zeros(2))
    assert record.late is None
    with pytest.raises(AttributeError, match="this Record has no y"):
        _ = record.y


def test_alike_gives_one_kind() -> None:
    record = Record(x=np.zeros(2), y=np.ones(2))
    assert all(type(x) is np.ndarray for x in record.alike("x", "y"))
    mixed = record.replace(y=torch.ones(2))
    assert all(isinstance(x, Tensor) for x in mixed.alike("x", "y"))


def test_arrays_are_brought_to_another_device_once() -> None:
    """The device "meta" stands in for a GPU: it takes tensors and keeps no numbers."""
    calls: list[int] = []
    record = Record(device=torch.device("meta"), x=lambda: calls.append(1) or np.zeros((2, 3), np.float32))
    assert record.x.device.type == "meta" and record.x.shape == (2, 3)
    assert record.raw("x") is record.x and record.replace(y=None).x is record.x and calls == [1]


def test_copies_and_pickles() -> None:
    record = Record(x=np.arange(3), y=torch.ones(2))
    for other in (copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert other.x.tolist() == [0, 1, 2] and other.y.tolist() == [1, 1]
