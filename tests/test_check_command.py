"""`pgtrain check`: every fault told with its line and its cure, every mistake in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pgtrain.cli import main
from tests.envs.differentiable import faulty
from tests.envs.differentiable.test_check import FAULTS, line_of_fault

MODULE = "tests.envs.differentiable.registered"


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_told_with_its_line_and_its_cure(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"env={MODULE}:{name}-v0"]) == 1
    lines = capsys.readouterr().out.splitlines()
    message, cure = FAULTS[name]
    told = next(line for line in lines if message in line)
    assert told.startswith(f"{faulty.__file__}:{line_of_fault(name)}: ")
    assert cure in told.partition(" Cure: ")[2]
    assert lines[-1] == f"{MODULE}:{name}-v0: {len(lines) - 1} fault" + ("s" if len(lines) > 2 else "")


@pytest.mark.parametrize(
    "words",
    [
        [f"env={MODULE}:Registered-v0", "seed=3", "rollout=4"],
        ["env=pgtrain/Pendulum-v0", "env.kwargs.g=1.6"],
        ["env=pgtrain/LQR-v0", "env.kwargs.masses=1", "rollout=0"],
    ],
)
def test_a_sound_env_passes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words]) == 0
    assert "no fault found" in capsys.readouterr().out


MISTAKES = [
    (["env=CartPole-v1"], "env=CartPole-v1 is not differentiable: gradients need an env in torch"),
    (["env=CartPole-v1"], "pgtrain's own are pgtrain/Acrobot-v0, pgtrain/CartPoleSwingUp-v0, pgtrain/LQR-v0"),
    (["env=NoSuch-v0"], "env=NoSuch-v0: "),
    (["env=no_such_module:X-v0"], "env=no_such_module:X-v0: cannot import 'no_such_module'"),
    (["env=pgtrain/Pendulum-v0", "env.kwargs.h=1"], "has no such argument; it takes: g"),
    (["env=pgtrain/LQR-v0", "env.kwargs.masses=two"], "env=pgtrain/LQR-v0 cannot be made with"),
    (["env=pgtrain/Pendulum-v0", "sed=1"], "did you mean seed=?"),
    (["env=pgtrain/Pendulum-v0", "seed=-1"], "seed=-1: expected a whole number"),
    (["env=pgtrain/Pendulum-v0", "env.kwargs.g=[1"], "is not YAML"),
    (["pgtrain/Pendulum-v0"], "settings are written key=value"),
    ([], "no env is given"),
]


@pytest.mark.parametrize(("words", "text"), MISTAKES)
def test_a_mistake_is_one_line(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words]) == 2
    told = capsys.readouterr().err
    assert text in told
    assert told.count("\n") == 1


def test_help_comes_without_torch() -> None:
    code = "import sys; from pgtrain.cli import main; main(['check', '--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "pgtrain check env=ID" in done.stdout
