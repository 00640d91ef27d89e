"""The tutorial's code and commands, in the order in which they stand, in an empty folder."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from pgtrain.cli import main

TEXT = (Path(__file__).parents[2] / "docs" / "differentiable.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line.split()[1:]
    for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]


def test_the_tutorial_leads_from_an_empty_file_to_a_trained_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for block in BLOCKS[1:]:
        Path(block.splitlines()[0].removeprefix("# ")).write_text(block, encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {"spring.py", "careless.py"}
    check, train, play = COMMANDS
    assert main(check) == 0
    assert "no fault found: gradients flow, and agree with finite differences" in capsys.readouterr().out
    assert (
        main([*train, "monitor.terminal=none", "monitor.tensorboard=false", "hydra.run.dir=outputs/run"]) == 0
    )
    assert main(play) == 0
    assert main(["check", "env=careless:Careless-v0"]) == 1
    assert "careless.py:9: .detach() cuts the graph. Cure: drop it" in capsys.readouterr().out
    trained = json.loads(Path("outputs/run/evaluation.json").read_text())["return_mean"]
    untrained = [*train[:2], "total_steps=128", "monitor.terminal=none", "monitor.tensorboard=false"]
    assert main([*untrained, "hydra.run.dir=outputs/start"]) == 0
    start = json.loads(Path("outputs/start/summary.json").read_text())["eval_return_mean"]
    # a held push of 0.25 keeps the cart at its goal: hardly more than the way there is lost
    assert trained > -10 and trained > start + 5, (start, trained)


def test_the_question_about_rewards_in_a_graph_is_answered() -> None:
    exec(compile(BLOCKS[0], "docs/differentiable.md", "exec"), {})


def test_the_names_of_the_returns_exist() -> None:
    import pgtrain

    line = TEXT[TEXT.index("`reward_to_go(rewards") :].split("## ")[0]
    names = re.findall(r"`([a-z_]+)(?:\(.*?\))?`", line)
    assert len(names) >= 4
    for name in names:
        assert callable(getattr(pgtrain.returns, name)), name


def test_the_env_of_the_tutorial_is_short() -> None:
    env = next(block for block in BLOCKS if "class Spring(" in block)
    assert len([line for line in env.splitlines() if line.strip()]) <= 40


def test_the_table_names_no_fault_that_is_not_tested() -> None:
    table = TEXT[TEXT.index("| fault |") :].split("\n\n")[0]
    assert len(table.splitlines()) == 2 + 9
