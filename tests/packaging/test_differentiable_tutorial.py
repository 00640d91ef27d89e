"""The tutorial's code, executed in the order in which it stands, from a file of its own."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "differentiable.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def test_the_tutorial_runs_from_an_empty_file_to_a_trained_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(BLOCKS) == 5
    path = tmp_path / "spring_tutorial.py"
    path.write_text("\n\n".join(BLOCKS), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("spring_tutorial", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "spring_tutorial", module)
    spec.loader.exec_module(module)
    printed = capsys.readouterr().out
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if ".abs().detach()" in text)
    assert f"{path}:{line}: .detach() cuts the graph. Cure: drop it" in printed
    assert re.search(r"mean return -\d+\.\d before, -\d+\.\d after 20,\d\d\d env steps", printed)


def test_the_env_of_the_tutorial_is_short() -> None:
    env = next(block for block in BLOCKS if "class Spring" in block)
    assert len([line for line in env.splitlines() if line.strip()]) <= 40


def test_the_table_names_no_fault_that_is_not_tested() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and "fault" not in line]
    assert len(rows) == 7
