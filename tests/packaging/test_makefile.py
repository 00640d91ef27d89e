"""The Makefile: help lists every target, and `make train` lets the user's choices win."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(*arguments: str) -> str:
    """As typed in a shell, also when these tests were started by make."""
    outside = {
        key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "ARGS")
    }
    done = subprocess.run(
        ["make", *arguments], cwd=ROOT, env=outside, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def targets() -> set[str]:
    return set(re.findall(r"^\.PHONY: ([\w-]+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def test_help_has_one_line_for_each_target() -> None:
    rules = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert rules == targets()
    listed = dict(re.findall(r"^  make ([\w-]+) +(\S.+)$", make("help"), flags=re.MULTILINE))
    assert set(listed) == rules
    assert {"setup", "train", "test", "lint", "help"} <= rules


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ("", "algo=reinforce env=CartPole-v1"),
        ("seed=3", "algo=reinforce env=CartPole-v1 seed=3"),
        ("algo=a2c", "env=CartPole-v1 algo=a2c"),
        ("algo=a2c env=Acrobot-v1 seed=3", "algo=a2c env=Acrobot-v1 seed=3"),
        ("num_envs=4", "algo=reinforce env=CartPole-v1 num_envs=4"),
        ("-m algo=reinforce,a2c", "env=CartPole-v1 -m algo=reinforce,a2c"),
        ("'env=glob(*Pole*)'", "algo=reinforce 'env=glob(*Pole*)'"),
    ],
)
def test_train_names_each_group_once(args: str, line: str) -> None:
    (command,) = (row for row in make("-n", "train", f"ARGS={args}").splitlines() if "/pgtrain" in row)
    assert " ".join(command.split()) == f".venv/bin/pgtrain {line}".strip()


def test_the_readme_names_only_targets_that_exist() -> None:
    named = set(re.findall(r"(?:^|`)make ([\w-]+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE))
    assert {"train", "test"} <= named
    assert named <= targets()
