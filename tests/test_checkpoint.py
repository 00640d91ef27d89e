"""Checkpoints: whole or not there, safe to load, with an older one to fall back on."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pgtrain import checkpoint
from pgtrain.callbacks import Checkpointer
from pgtrain.interrupt import Interrupt
from pgtrain.types import UserError


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def number(folder: Path) -> int:
    return checkpoint.load(folder)[0]["number"]


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    state = {
        "weights": torch.randn(3, 2, dtype=torch.float64),
        "count": torch.tensor(7),
        "numpy": rng.bit_generator.state,  # 128-bit integers
        "torch": torch.Generator().manual_seed(1).get_state(),
        "config": {"a": [1, 2.5, None, "text", True], "b": {"c": {}}},
        "returns": [1.0, float("nan"), float("inf")],
    }
    path = checkpoint.save(tmp_path, state)
    assert path == tmp_path / "checkpoint.pt" and names(tmp_path) == ["checkpoint.pt"]
    got, warning = checkpoint.load(tmp_path)
    assert warning is None
    assert torch.equal(got["weights"], state["weights"]) and got["weights"].dtype == torch.float64
    assert torch.equal(got["torch"], state["torch"]) and got["config"] == state["config"]
    other = np.random.default_rng(0)
    other.bit_generator.state = got["numpy"]
    assert other.random() == rng.random()
    assert np.isnan(got["returns"][1]) and got["returns"][2] == float("inf")


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_newest_and_the_wanted_number_of_older_ones(tmp_path: Path, keep: int) -> None:
    for k in range(6):
        checkpoint.save(tmp_path, {"number": k}, keep)
        assert number(tmp_path) == k
    expected = ["checkpoint.pt", *(f"checkpoint.{age}.pt" for age in range(1, keep + 1))]
    assert names(tmp_path) == sorted(expected)
    for age in range(1, keep + 1):
        assert torch.load(tmp_path / f"checkpoint.{age}.pt", weights_only=True)["number"] == 5 - age


def test_ten_and_more_older_ones_stay_in_order(tmp_path: Path) -> None:
    for k in range(13):
        checkpoint.save(tmp_path, {"number": k}, 12)
    for age in range(12):  # the damage eats its way back: always the newest that is whole
        assert number(tmp_path) == 12 - age
        (tmp_path / ("checkpoint.pt" if age == 0 else f"checkpoint.{age}.pt")).write_bytes(b"")


def test_a_failure_while_writing_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, {"number": 1})

    def full(state: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint.torch, "save", full)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(tmp_path, {"number": 2})
    assert number(tmp_path) == 1 and checkpoint.load(tmp_path)[1] is None
    monkeypatch.undo()
    checkpoint.save(tmp_path, {"number": 3})  # what was left over is in nobody's way
    assert number(tmp_path) == 3 and names(tmp_path) == ["checkpoint.1.pt", "checkpoint.pt"]


@pytest.mark.parametrize(("keep", "renames"), [(k, n) for k in range(3) for n in range(k + 1)])
def test_a_kill_between_any_two_renames_leaves_a_loadable_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int, renames: int
) -> None:
    for k in range(3):
        checkpoint.save(tmp_path, {"number": k}, keep)
    left = [renames]
    real = os.replace

    def replace(a: Any, b: Any) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        real(a, b)

    monkeypatch.setattr(checkpoint.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, {"number": 3}, keep)
    assert number(tmp_path) == 2
    monkeypatch.undo()
    checkpoint.save(tmp_path, {"number": 4}, keep)
    assert number(tmp_path) == 4


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "flipped"])
def test_a_damaged_newest_falls_back_with_a_warning(tmp_path: Path, damage: str) -> None:
    for k in (1, 2):
        checkpoint.save(tmp_path, {"number": k, "x": torch.arange(1000)})
    newest = tmp_path / "checkpoint.pt"
    content = newest.read_bytes()
    changed = {
        "empty": b"",
        "cut": content[: len(content) // 2],
        "text": b"not a checkpoint",
        "flipped": b"\0" * 40 + content[40:],
    }
    newest.write_bytes(changed[damage])
    state, warning = checkpoint.load(tmp_path)
    assert state["number"] == 1
    assert (
        warning is not None
        and "checkpoint.pt" in warning
        and "checkpoint.1.pt" in warning
        and "\n" not in warning
    )


def test_what_cannot_be_loaded_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no checkpoint \(checkpoint.pt\)"):
        checkpoint.load(tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"")
    (tmp_path / "checkpoint.1.pt").write_bytes(b"x")
    with pytest.raises(UserError, match=r"no checkpoint .* can be read.*checkpoint.pt.*checkpoint.1.pt"):
        checkpoint.load(tmp_path)
    torch.save({"format": 99}, tmp_path / "checkpoint.pt")
    with pytest.raises(UserError, match=r"format 99.*reads.* format 1"):
        checkpoint.load(tmp_path)
    torch.save([1, 2], tmp_path / "checkpoint.pt")
    with pytest.raises(UserError, match="format None"):
        checkpoint.load(tmp_path)


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    torch.save({"format": 1, "x": Evil(tmp_path / "was_here")}, tmp_path / "checkpoint.pt")
    with pytest.raises(UserError):
        checkpoint.load(tmp_path)
    assert not (tmp_path / "was_here").exists()
    torch.load(tmp_path / "checkpoint.pt", weights_only=False)
    assert (tmp_path / "was_here").exists()  # the test itself can fail


def test_checkpointer_saves_by_steps_and_at_the_end(tmp_path: Path) -> None:
    steps = SimpleNamespace(steps=0)
    runner: Any = SimpleNamespace(
        interrupt=Interrupt(), progress=steps, state_dict=lambda: {"steps": steps.steps}
    )
    saver = Checkpointer(tmp_path, 100, {"algo": "a2c"}, keep=2)
    saved = []
    for steps.steps in range(40, 400, 40):
        saver.after_iteration(runner)
        if (tmp_path / "checkpoint.pt").exists():
            saved.append(checkpoint.load(tmp_path)[0]["runner"]["steps"])
    assert saved == [120, 120, 120, 240, 240, 240, 360]
    steps.steps = 380
    saver.at_end(runner)
    state, _ = checkpoint.load(tmp_path)
    assert state["runner"]["steps"] == 380 and state["config"] == {"algo": "a2c"}
    assert names(tmp_path) == ["checkpoint.1.pt", "checkpoint.2.pt", "checkpoint.pt"]


def test_checkpointer_without_an_interval_saves_only_at_the_end(tmp_path: Path) -> None:
    runner: Any = SimpleNamespace(
        interrupt=Interrupt(), progress=SimpleNamespace(steps=10**9), state_dict=dict
    )
    saver = Checkpointer(tmp_path, None, {})
    saver.after_iteration(runner)
    assert names(tmp_path) == []
    saver.at_end(runner)
    assert names(tmp_path) == ["checkpoint.pt"]
