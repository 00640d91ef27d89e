"""A task that is not complete, or does not run, is told in one line before anything starts, by every algorithm."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

import pgtrain
from pgtrain.envs.differentiable import registration
from pgtrain.envs.differentiable.probe import refuse_broken
from pgtrain.types import TrainingError, UserError

BROKEN = {
    "NoMethods": "NoMethods lacks start, dynamics, reward; a task defines action_low",
    "NoActions": "expected one number for each action in both",
    "TwoSizes": "expected one number for each action in both",
    "Raises": "broken.py:LINE: reward raised IndexError",
    "Column": "reward returned float32 [4, 1] for 4 envs; expected [4], one number for each env",
    "Shrinks": "dynamics returned float32 [4, 1] for 4 envs; expected [4, 2]",
    "FloatEnd": "terminated returned float32 [4] for 4 envs; expected bool [4]",
    "Number": "reward returned float, not a torch tensor",
}
MODULE = "tests.envs.differentiable.broken"
QUIET = [
    "monitor=quiet",
    "monitor.tensorboard=false",
    "eval.episodes=0",
    "num_envs=4",
    "horizon=4",
    "total_steps=16",
]


def line_of(cls: str, method: str, below: int) -> int:
    """The line that stands so far below the method's `def`."""
    return getattr(getattr(importlib.import_module(MODULE), cls), method).__code__.co_firstlineno + below


@pytest.mark.parametrize("algo", ["shac", "a2c"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_task_is_refused_before_anything_is_written(algo: str, name: str, tmp_path: Path) -> None:
    env = f"{MODULE}:Broken{name}-v0"
    with pytest.raises(UserError) as told:
        pgtrain.train(f"algo={algo}", f"env={env}", *QUIET, run_dir=tmp_path / "run")
    message = BROKEN[name].replace("LINE", str(line_of("Raises", "reward", 1)))
    assert message in str(told.value) and f"env={env}" in str(told.value) and "\n" not in str(told.value)
    assert not list(tmp_path.glob("run/*"))


@pytest.mark.parametrize("algo", ["shac", "a2c"])
def test_a_fault_in_a_later_step_ends_the_run_in_one_line(algo: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the third step") as told:
        pgtrain.train(f"algo={algo}", f"env={MODULE}:BrokenLater-v0", *QUIET, run_dir=tmp_path / "run")
    assert f"broken.py:{line_of('Later', 'dynamics', 3)}: a step raised ZeroDivisionError" in str(told.value)


def test_a_cut_gradient_is_told_when_a_pathwise_run_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{MODULE}:BrokenGoal-v0"
    words = [w for w in QUIET if not w.startswith("monitor=")] + [f"env={name}"]
    pgtrain.train("algo=shac", *words, run_dir=tmp_path / "shac")
    pgtrain.train("algo=a2c", *words, run_dir=tmp_path / "a2c")
    told = (tmp_path / "shac" / "run.log").read_text()
    assert f"the gradient of {name} has 1 fault" in told and "a detached reward" in told
    assert "the gradient of" not in (tmp_path / "a2c" / "run.log").read_text()  # which needs none


@pytest.mark.parametrize("algo", ["shac", "bptt"])
def test_a_task_without_any_gradient_is_refused(algo: str, tmp_path: Path) -> None:
    """Its dynamics take the action as a Python number, and its reward is that of the state."""
    words = [w for w in QUIET if not (algo == "bptt" and w.startswith(("horizon", "total")))]
    with pytest.raises(UserError, match=r"no gradient leads from an action .*\.item\(\)"):
        pgtrain.train(f"algo={algo}", f"env={MODULE}:BrokenItem-v0", *words, run_dir=tmp_path / "run")


def test_the_probe_leaves_the_randomness_alone() -> None:
    env = registration.make("pgtrain/LQR-v0", 3)
    env.generator.manual_seed(5)
    refuse_broken(env)
    after = torch.rand(4, generator=env.generator)
    torch.testing.assert_close(
        after, torch.rand(4, generator=torch.Generator().manual_seed(5)), rtol=0, atol=0
    )


def test_whole_episodes_need_a_budget_for_one_of_each_env(tmp_path: Path) -> None:
    """16 envs × 200 steps = 3,200."""
    with pytest.raises(UserError, match=r"total_steps=3199: .* of 200 steps = 3,200"):
        pgtrain.train("algo=bptt", "env=pgtrain/Pendulum-v0", "num_envs=16", "total_steps=3199",
                      "monitor=quiet", run_dir=tmp_path / "run")  # fmt: skip
