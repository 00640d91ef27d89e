"""The promise of the README: with the shipped defaults, the final parameters solve CartPole on every seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtrain import training
from pgtrain.config.compose import compose

RECIPES = {
    "reinforce-mean": ["algo=reinforce", "advantage/baseline=mean"],
    "reinforce-loo": ["algo=reinforce", "advantage/baseline=loo"],
    "reinforce-value": ["algo=reinforce", "advantage/baseline=value"],
    "actor_critic": ["algo=actor_critic"],
    "a2c": ["algo=a2c"],
}
SOLVED = 475  # Gymnasium's own threshold
QUICK = ("ppo", "ppo_kl", "npg", "trpo")  # a third of the steps is enough


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("recipe", RECIPES)
def test_cartpole_is_solved_by_the_final_parameters(tmp_path: Path, recipe: str, seed: int) -> None:
    overrides = [*RECIPES[recipe], "env=CartPole-v1", f"seed={seed}", "monitor.terminal=none"]
    config = compose(overrides).config
    config.monitor.tensorboard = False
    summary = training.train(config, tmp_path, overrides).summary
    assert summary["steps"] <= 310_000 and summary["eval_episodes"] == 100
    assert summary["eval_return_mean"] >= SOLVED


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("algo", QUICK)
def test_cartpole_is_solved_within_100_000_steps(tmp_path: Path, algo: str, seed: int) -> None:
    overrides = [
        f"algo={algo}",
        "env=CartPole-v1",
        f"seed={seed}",
        "total_steps=1e5",
        "monitor.terminal=none",
    ]
    config = compose(overrides).config
    config.monitor.tensorboard = False
    assert training.train(config, tmp_path, overrides).summary["eval_return_mean"] >= SOLVED
