"""A run that was stopped and goes on ends as one that never stopped: every number of its state, bit for bit."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import pgtrain
from pgtrain import checkpoint, training
from pgtrain.callbacks import Checkpointer
from pgtrain.config.compose import compose
from pgtrain.envs.native.batched import BatchedEnv

QUIET = ["monitor.terminal=none", "monitor.tensorboard=false", "monitor.log_every=1", "eval.episodes=4"]
POLE = ["env=CartPole-v1", "num_envs=4", "policy.hidden=[8]"]
PENDULUM = ["env=Pendulum-v1", "num_envs=4", "policy.hidden=[8]", "env.max_episode_steps=30"]
TORCH = ["env=pgtrain/Pendulum-v0", "num_envs=4", "policy.hidden=[8]", "env.max_episode_steps=30"]
WINDOW = ["horizon=25", "total_steps=430"]  # windows that end inside episodes; the last one is shorter

RUNS: dict[str, list[str]] = {
    "reinforce": ["algo=reinforce", *POLE, "total_steps=1200", "env.max_episode_steps=60", "optim/lr=linear",
                  "collect.episodes=2", "reward.scaling=running_std"],
    "reinforce, windows": ["algo=reinforce", *POLE, *WINDOW, "collect.unit=steps", "advantage/baseline=value",
                           "advantage.truncation_bootstrap=value"],
    "optimal, batch before": [
        "algo=reinforce", *POLE, "total_steps=900", "env.max_episode_steps=60", "optim=sgd", "optim.momentum=0.9",
        "advantage/baseline=optimal", "advantage.baseline.fit=previous_batch",
    ],
    "optimal, per parameter": [
        "algo=reinforce", *POLE, "total_steps=900", "env.max_episode_steps=60",
        "advantage/baseline=optimal", "advantage.baseline.scope=parameter", "advantage.baseline.fit=previous_batch",
    ],
    "actor_critic": ["algo=actor_critic", *POLE, "total_steps=300", "optim=rmsprop", "monitor.gradient=full",
                     "monitor.gradient_every=2"],
    "a2c": ["algo=a2c", *PENDULUM, *WINDOW, "reward.scaling=running_std", "entropy=target", "optim=rmsprop_tf",
            "policy/distribution=tanh_gaussian", "policy.normalize_obs=calibrated", "policy.calibration_steps=100"],
    "ppo": ["algo=ppo", *PENDULUM, *WINDOW, "update.minibatch_size=32", "update/kl_guard=learning_rate",
            "optim/lr=constant", "update/clip=linear", "reward.scaling=running_std", "entropy=return_gated"],
    "ppo, gSDE": ["algo=ppo", *PENDULUM, *WINDOW, "update.minibatch_size=32", "policy/distribution=gsde",
                  "policy.distribution.sample_freq=4", "update/kl_guard=skip", "optim/lr=plateau"],
    "ppo, memory": ["algo=ppo", *POLE, *WINDOW, "policy/memory=gru", "policy.memory.size=4",
                    "update.minibatch_size=50", "env.max_episode_steps=30"],
    "ppo, envs beside the policy": ["algo=ppo", *TORCH, "num_envs=1025", "horizon=2", "total_steps=8200",
                                    "update.minibatch_size=1025", "update.epochs=2"],
    "ppo_kl": ["algo=ppo_kl", *PENDULUM, *WINDOW, "update.minibatch_size=32", "policy/distribution=beta"],
    "npg": ["algo=npg", *TORCH, *WINDOW],
    "trpo": ["algo=trpo", *POLE, *WINDOW, "entropy=linear"],
    "shac": ["algo=shac", *TORCH, *WINDOW, "update.compare_every=2"],
    "bptt": ["algo=bptt", *TORCH, "total_steps=600", "optim.lr.value=1e-3"],
    "alpha_order": ["algo=alpha_order", *TORCH, *WINDOW, "num_envs=16", "horizon=7"],
}  # fmt: skip


def deduplicated(overrides: list[str]) -> list[str]:
    """The last word of each key."""
    return list({text.partition("=")[0]: text for text in overrides}.values())


def train(overrides: list[str], folder: Path) -> training.Result:
    folder.mkdir()
    return training.train(compose(overrides).config, folder, overrides)


def stop_after(iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run from now on is sent Ctrl-C after so many iterations."""
    saved = Checkpointer.after_iteration

    def after_iteration(self: Checkpointer, runner: Any) -> None:
        saved(self, runner)
        if runner.progress.iterations == iterations:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Checkpointer, "after_iteration", after_iteration)


def state_of(folder: Path) -> dict[str, Any]:
    """All that a checkpoint has but the time that it took."""
    return {key: value for key, value in checkpoint.load(folder)[0]["runner"].items() if key != "seconds"}


def rows(folder: Path) -> list[str]:
    """The entries without their times, as texts: a NaN equals itself."""
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        str({k: v for k, v in e.items() if k != "elapsed" and not k.startswith("time/")}) for e in entries
    ]


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        return [text for key in a for text in differences(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [text for i, x in enumerate(a) for text in differences(x, b[i], f"{where}[{i}]")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
    else:
        same = type(a) is type(b) and repr(a) == repr(b)
    return [] if same else [where]


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_is_the_uninterrupted_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = deduplicated([*RUNS[name], *QUIET])
    whole = train(overrides, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        part = train(overrides, tmp_path / "parts")
    assert (part.summary["status"], part.summary["iterations"]) == ("interrupted", 2)
    assert whole.summary["iterations"] >= 4
    resumed = pgtrain.resume(tmp_path / "parts")
    one, two = state_of(tmp_path / "whole"), state_of(tmp_path / "parts")
    assert differences(one, two) == []
    assert ("partial_return" in one["collector"]) == (
        name in ("shac", "bptt", "alpha_order", "ppo, envs beside the policy")
    )
    assert rows(tmp_path / "whole") == rows(tmp_path / "parts")
    timed = ("wall_seconds", "cpu_seconds", "steps_per_second", "run_dir")
    for key in whole.summary.keys() - set(timed):
        assert whole.summary[key] == resumed.summary[key], key
    assert resumed.summary["wall_seconds"] > part.summary["wall_seconds"]


def test_the_comparison_sees_a_bit() -> None:
    x = torch.tensor([1.0, float("nan")])
    y = x.clone()
    y[0] = torch.nextafter(y[0], torch.tensor(2.0))
    assert differences({"a": [x, 1]}, {"a": [x.clone(), 1]}) == []
    assert differences({"a": [x, 1]}, {"a": [y, 2]}) == [".a[0]", ".a[1]"]
    assert differences({"a": 1}, {"b": 1}) == [""]


@pytest.mark.parametrize("name", ["ppo", "reinforce"])
def test_ctrl_c_in_the_middle_of_a_rollout_loses_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batched envs answer at once, so the iteration is brought to its end: no played step is lost."""
    overrides = deduplicated([*RUNS[name], *QUIET])
    train(overrides, tmp_path / "whole")
    left = [40]
    step = BatchedEnv.step

    def interrupted(self: BatchedEnv, action: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, action)

    with monkeypatch.context() as patch:
        patch.setattr(BatchedEnv, "step", interrupted)
        part = train(overrides, tmp_path / "parts")
    assert part.exit_code == 130 and part.summary["status"] == "interrupted"
    pgtrain.resume(tmp_path / "parts")
    assert differences(state_of(tmp_path / "whole"), state_of(tmp_path / "parts")) == []


def test_a_run_that_is_stopped_twice_and_goes_back_is_the_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from an older checkpoint: what was written after it is set aside and made anew."""
    overrides = deduplicated([*RUNS["ppo"], *QUIET, "checkpoint.every_steps=100"])
    train(overrides, tmp_path / "whole")
    for iterations in (2, 4):
        with monkeypatch.context() as patch:
            stop_after(iterations, patch)
            if iterations == 2:
                train(overrides, tmp_path / "parts")
            else:
                pgtrain.resume(tmp_path / "parts")
    folder = tmp_path / "parts"
    steps = [checkpoint.find(folder, wanted=age).state["runner"]["progress"]["steps"] for age in range(4)]
    assert steps == [400, 400, 300, 200]
    pgtrain.resume(folder / "checkpoint.2.pt")
    assert differences(state_of(tmp_path / "whole"), state_of(folder)) == []
    assert rows(folder) == rows(tmp_path / "whole")
    aside = [
        json.loads(line)["step"] for line in (folder / "metrics.discarded.jsonl").read_text().splitlines()
    ]
    assert aside == [400]
    assert {path.name for path in folder.glob("*.discarded.pt")} == {
        "checkpoint.discarded.pt", "checkpoint.1.discarded.pt"
    }  # fmt: skip
    resumes = [json.loads(line) for line in (folder / "resumes.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in resumes] == [200, 300]
    assert resumes[1]["summary_before"]["steps"] == 400 and resumes[1]["entries_cut"] == 1
