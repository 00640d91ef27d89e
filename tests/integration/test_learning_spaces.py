"""Envs of every kind of observation are learned, with the shipped recipes. Slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgtrain import training
from pgtrain.config.compose import compose

SPACES = "tests.spaces_for_tests:Test/{}-v0"


def train(folder: Path, *overrides: str) -> dict[str, Any]:
    """summary.json of algo=ppo with these settings."""
    given = ["algo=ppo", *overrides, "monitor.terminal=none", "monitor.tensorboard=false"]
    return training.train(compose(given).config, folder, given).summary


@pytest.mark.slow
def test_discrete_observations(tmp_path: Path) -> None:
    """Without slipping and greedy all episodes are the same one: it reaches the goal or does not."""
    summary = train(tmp_path, "env=FrozenLake-v1", "env.kwargs.is_slippery=false", "total_steps=40000")
    assert summary["eval_return_mean"] == 1.0


@pytest.mark.slow
def test_a_tuple(tmp_path: Path) -> None:
    """Sutton & Barto's optimal policy of Blackjack loses about 0.05 a game; a uniform one about 0.4. The mean of 4000
    games, each ±1 or 0, has a standard error of 0.015; three seeds gave -0.046, -0.049 and -0.082."""
    summary = train(tmp_path, "env=Blackjack-v1", "total_steps=60000", "gamma=1.0", "eval.episodes=4000")
    assert summary["eval_return_mean"] >= -0.12


@pytest.mark.slow
def test_a_picture_and_a_vector_that_need_each_other(tmp_path: Path) -> None:
    assert train(tmp_path, f"env={SPACES.format('LookBoth')}", "total_steps=20000")["eval_return_mean"] >= 7.5


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sync", "process"])
def test_tiny_pictures(tmp_path: Path, backend: str) -> None:
    env = [f"env={SPACES.format('TinyImage')}", f"env.backend={backend}", "eval.episodes=20"]
    assert train(tmp_path, *env, "total_steps=8000", "gamma=0.9")["eval_return_mean"] >= 7


@pytest.mark.slow
def test_minigrid(tmp_path: Path) -> None:
    """The shortest way to the goal gives a return of 0.955."""
    pytest.importorskip("minigrid", reason="the extra pgtrain[minigrid] is not installed")
    summary = train(tmp_path, "env=MiniGrid-Empty-5x5-v0", "total_steps=30000", "eval.episodes=20")
    assert summary["return_mean"] >= 0.9
    assert "text is left out" in (tmp_path / "run.log").read_text()


@pytest.mark.slow
def test_atari_runs(tmp_path: Path) -> None:
    pytest.importorskip("ale_py", reason="the extra pgtrain[atari] is not installed")
    settings = ["total_steps=20000", "update.epochs=1", "eval.episodes=0", "env.max_episode_steps=1000"]
    summary = train(tmp_path, "env=ALE/Pong-v5", *settings)
    assert summary["steps"] >= 20_000 and summary["skipped_updates"] == 0
    assert summary["return_mean"] is not None and -21 <= summary["return_mean"] < 0


@pytest.mark.slow
def test_seven_joints(tmp_path: Path) -> None:
    """The first games of an untrained policy, noise and all, have a mean return of about -200."""
    pytest.importorskip("mujoco", reason="the extra pgtrain[mujoco] is not installed")
    settings = ["total_steps=100000", "reward.scaling=running_std", "eval.episodes=20"]
    assert train(tmp_path, "env=Pusher-v5", *settings)["eval_return_mean"] >= -100


@pytest.mark.slow
def test_a_walker_starts_to_learn(tmp_path: Path) -> None:
    """A walker that falls at once gets -100 and less: an untrained one has a mean of about -110."""
    pytest.importorskip("Box2D", reason="the extra pgtrain[box2d] is not installed")
    settings = ["total_steps=200000", "reward.scaling=running_std", "eval.episodes=0"]
    assert train(tmp_path, "env=BipedalWalker-v3", *settings)["return_mean"] >= -70
