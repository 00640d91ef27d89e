"""A run's edges: what is told, what counts as failed, and which settings cannot be met to the letter."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pgtrain import build, checkpoint, loading, stopwatch, training
from pgtrain.config.compose import compose
from pgtrain.monitor import record
from pgtrain.policies.distributions import DiagonalGaussian
from pgtrain.types import TrainingError, UserError
from tests import envs_for_tests
from tests.support import configure, critic_only, env_id

A2C = critic_only(horizon=8)


def train(folder: Path, env: Any, **settings: Any) -> training.Result:
    defaults: dict[str, Any] = {"num_envs": 4, "total_steps": 128, **A2C}
    return training.train(configure(env, **(defaults | settings)), folder, [])


def log(folder: Path) -> str:
    return (folder / "run.log").read_text()


def test_an_env_that_never_ends_is_trained_on_and_the_missing_evaluation_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgtrain.evaluation.MAX_EPISODE_STEPS", 50)
    result = train(tmp_path, env_id("NeverEnds"), eval={"episodes": 4})
    assert result.exit_code == 0 and result.summary["status"] == "finished"
    assert result.summary["eval_return_mean"] is None and result.summary["eval_episodes"] == 0
    assert "no final evaluation" in log(tmp_path) and "env.max_episode_steps" in log(tmp_path)


def test_steps_beyond_the_budget_are_stated(tmp_path: Path) -> None:
    """3 envs × 64 rows do not divide 1000: the last window is 14 rows of 3, 1002 steps in all."""
    settings = {"num_envs": 3, "total_steps": 1000, "eval": {"episodes": 0}}
    result = train(tmp_path, {"id": env_id("FixedLen")}, **settings, horizon=64)
    assert result.summary["steps"] == 1002
    assert "2 steps more than total_steps=1,000" in log(tmp_path)


@pytest.mark.parametrize(
    ("key", "update"),
    [
        ("minibatch_size", {}),
        ("minibatch_size", {"name": "clipped"}),
        ("critic_minibatch_size", {"name": "trust_region"}),
    ],
)
def test_uneven_minibatches_are_told_once(tmp_path: Path, key: str, update: dict[str, Any]) -> None:
    train(tmp_path, {"id": env_id("FixedLen")}, update=update | {key: 12}, eval={"episodes": 0})
    text = f"update.{key}=12 does not divide the batch of 32: 3 minibatches of 10 or 11 steps"
    assert log(tmp_path).count(text) == 1


def test_even_minibatches_need_no_word(tmp_path: Path) -> None:
    train(tmp_path, {"id": env_id("FixedLen")}, update={"minibatch_size": 16}, eval={"episodes": 0})
    assert "minibatch" not in log(tmp_path)


@pytest.mark.parametrize(("init", "held"), [(-80.0, -5.0), (80.0, 2.0)])
def test_a_log_std_beyond_its_limits_is_held_and_told(tmp_path: Path, init: float, held: float) -> None:
    result = train(tmp_path, {"id": env_id("AsymBox")}, policy={"log_std_init": init}, eval={"episodes": 0})
    assert f"policy.log_std_init={init:g} is held between policy.log_std_min=-5" in log(tmp_path)
    assert result.policy.log_std is not None
    assert ((result.policy.log_std >= -5) & (result.policy.log_std <= 2)).all()
    assert (
        torch.isfinite(result.policy.log_std).all()
        and abs(float(result.policy.log_std[0].detach()) - held) < 0.5
    )


def test_log_std_driven_beyond_its_limit_finds_back() -> None:
    """The clamp of the forward pass has no gradient beyond the limit; `constrain` puts the parameter back on it."""
    cfg = configure({"id": env_id("AsymBox")}, **A2C)
    with build.make_env(cfg, 1) as env:
        policy = build.make_policy(cfg, env)
    assert policy.log_std is not None
    with torch.no_grad():
        policy.log_std.fill_(3.0)
    assert (
        float(torch.autograd.grad(policy.params(torch.zeros(1, 3)).sum(), policy.log_std)[0].abs().sum()) == 0
    )
    policy.constrain()
    assert policy.log_std.tolist() == [2.0] * 3
    assert (
        torch.autograd.grad(policy.params(torch.zeros(1, 3)).sum(), policy.log_std)[0].tolist() == [1.0] * 3
    )


def test_the_largest_float_is_no_bound() -> None:
    top = np.finfo(np.float32).max
    gaussian = DiagonalGaussian(np.array([-top, -1.0]), np.array([top, 3.0]))
    assert gaussian.bounded.tolist() == [False, True]
    assert gaussian.half.tolist() == [1.0, 2.0] and gaussian.center.tolist() == [0.0, 1.0]


def test_one_nan_reward_does_not_hide_the_returns(tmp_path: Path) -> None:
    result = train(
        tmp_path,
        {"id": env_id("NaNReward"), "kwargs": {"at": 20}},
        num_envs=1,
        total_steps=160,
        eval={"episodes": 0},
        monitor={"log_every": 1},
    )
    assert result.summary["return_mean"] == 8.0  # every other episode: 8 steps of reward 1
    assert result.summary["episodes"] == 20 and result.summary["skipped_updates"] >= 1
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    seen = [row["episode/return"] for row in rows if row.get("episode/return") is not None]
    assert seen and all(math.isclose(x, 8.0) for x in seen)


def test_a_skipped_update_is_in_the_files_whatever_the_cadence(tmp_path: Path) -> None:
    train(
        tmp_path,
        {"id": env_id("NaNReward"), "kwargs": {"at": 20}},
        num_envs=1,
        total_steps=160,
        eval={"episodes": 0},
        monitor={"log_every": 1000},
    )
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    # the reward of step 20 is in the third window of 8; the last iteration is always written
    assert [row["progress/iteration"] for row in rows] == [3, 20]
    assert [row["gradient/skipped_updates"] for row in rows] == [1, 1]


# ---------------------------------------------------------------------------------------------- how a run may die


def test_an_env_that_exits_the_interpreter_is_told_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(self: Any, action: Any) -> Any:
        raise SystemExit(7)

    monkeypatch.setattr(envs_for_tests.FixedLen, "step", leave)
    with pytest.raises(
        TrainingError, match=r"env index 0, at step 1 \(.*sys\.exit\(7\) \(.*test_training\.py:\d+\)$"
    ):
        train(tmp_path, {"id": env_id("FixedLen"), "backend": "sync"}, eval={"episodes": 0})
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "checkpoint.pt.tmp")

    monkeypatch.setattr("pgtrain.checkpoint.save", full)
    with pytest.raises(TrainingError, match="No space left on device") as told:
        train(tmp_path, {"id": env_id("FixedLen")}, eval={"episodes": 0})
    assert "\n" not in str(told.value)
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"


def test_a_run_in_which_nothing_was_learned_says_so(tmp_path: Path) -> None:
    """Every reward is NaN: 4 updates, all skipped, fewer than max_skipped_in_a_row."""
    result = train(
        tmp_path,
        {"id": env_id("FixedLen"), "kwargs": {"reward": math.nan}},
        update={"max_skipped_in_a_row": 100},
        eval={"episodes": 4},
    )
    assert "nothing was learned: all 4 updates were skipped" in log(tmp_path)
    report = record.final_report(result.summary, tmp_path)
    assert report.count("not finite") >= 2 and "no episode ended" not in report


def test_a_checkpoint_that_no_longer_fits_its_env_is_one_line(tmp_path: Path) -> None:
    train(tmp_path, {"id": env_id("FixedLen")}, eval={"episodes": 0})
    state, _ = checkpoint.load(tmp_path)
    weights = state["runner"]["policy"]
    name = next(name for name in weights if name.endswith("weight"))
    weights[name] = torch.zeros(64, 7)
    checkpoint.save(tmp_path, state)
    with pytest.raises(UserError, match=r"does not fit env=.*FixedLen.*size mismatch") as told:
        loading.load(tmp_path, env_id=env_id("FixedLen"))
    assert "\n" not in str(told.value)
    checkpoint.save(tmp_path, {"config": state["config"]})
    with pytest.raises(UserError, match="lacks 'runner'"):
        loading.load(tmp_path, env_id=env_id("FixedLen"))


def test_the_command_that_evaluates_repeats_an_env_from_a_module(tmp_path: Path) -> None:
    report = record.final_report({"env": "my_pkg:MyEnv-v0"}, tmp_path)
    assert report.splitlines()[-1].endswith(" env=my_pkg:MyEnv-v0")
    assert " env=" not in record.final_report({"env": "CartPole-v1"}, tmp_path).splitlines()[-1]


def test_processor_time_counts_the_workers(tmp_path: Path) -> None:
    """A worker burns 0.5 s of processor time; this process sleeps meanwhile."""
    before, own = stopwatch.cpu_seconds(), time.process_time()
    code = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert stopwatch.cpu_seconds() - before >= 0.45
    assert time.process_time() - own < 0.3


def test_threads_take_turns(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        configs = list(pool.map(lambda seed: compose([f"seed={seed}"]).config.seed, range(8)))
    assert configs == list(range(8))


def test_what_a_network_of_ones_own_refuses_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    given = ["algo=ppo", "policy=tests.nets_for_tests:Wide", "policy.kwargs.widt=3", "monitor.terminal=plain"]
    with pytest.raises(UserError, match=r"policy=tests\.nets_for_tests:Wide cannot be made: .*'widt'"):
        training.train(compose(given).config, tmp_path, given)
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_before_its_start_says_so_in_its_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the first reset: no sink was opened yet, and none may be told to have failed."""
    with pytest.raises(TrainingError, match="at reset 1"):
        train(tmp_path, env_id("NoReset"), monitor={"terminal": "plain", "tensorboard": True})
    out, err = capsys.readouterr()
    assert "left out from here on" not in out + err + log(tmp_path)
    assert "ERROR   the run failed" in log(tmp_path) and "at reset 1" in log(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"
    assert (tmp_path / "config.yaml").exists() and (tmp_path / "versions.json").exists()
