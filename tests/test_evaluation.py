"""Evaluation: whole episodes, the same number in each env, raw returns, a frozen policy."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pgtrain import evaluation
from pgtrain.envs.vector import adapt_vector_env, make_vector_env
from pgtrain.evaluation import EvalResult, envs_for, evaluate
from pgtrain.types import TrainingError
from tests import envs_for_tests
from tests.support import ScriptedEnv, env_id, make_policy


def binary(obs_dim: int = 1, **settings: Any) -> Any:
    return make_policy(obs_dim, gym.spaces.Discrete(2), **settings)


def test_many_envs_do_not_favour_short_episodes() -> None:
    """TwoLength has mean 5, standard deviation 5; whoever takes the first to finish gets 1.3."""
    with make_vector_env(env_id("TwoLength"), 20, backend="sync") as env:
        result = evaluate(binary(), env, 1000, seed=3)
    assert result.episodes == 1000
    assert abs(result.mean - 5.0) < 0.5
    assert set(zip(result.returns, result.lengths, strict=True)) == {(0.0, 1), (10.0, 10)}


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_each_env_plays_its_share_and_returns_are_raw(mode: str) -> None:
    env = ScriptedEnv([[3, 1], [2]], [["truncated"], ["terminated", "both"]], mode)
    result = evaluate(make_policy(3), env, 4, seed=0)
    expected = []
    for n in range(2):
        for episode in range(2):
            part = [x for x in env.log[n] if x.episode == episode]
            expected.append((sum(x.reward for x in part), len(part)))
    np.testing.assert_allclose(np.stack([result.returns, result.lengths], -1), expected)
    assert result.lengths.tolist() == [3, 1, 2, 2]
    assert [len(x) for x in env.log] == [4, 4]  # nothing was played beyond


def test_a_next_step_vector_env() -> None:
    vec = SyncVectorEnv([envs_for_tests.TwoLength] * 4, autoreset_mode=AutoresetMode.NEXT_STEP)
    result = evaluate(binary(), adapt_vector_env(vec), 40, seed=1)
    assert result.episodes == 40
    assert set(zip(result.returns, result.lengths, strict=True)) == {(0.0, 1), (10.0, 10)}


def test_mean_std_and_interval_are_their_formulas() -> None:
    returns = np.array([1.0, 4.0, 4.0, 9.0])
    result = EvalResult(returns, np.ones(4, int), greedy=True)
    std = math.sqrt(sum((x - 4.5) ** 2 for x in returns) / 3)
    assert result.mean == 4.5 and result.std == pytest.approx(std)
    assert result.ci95 == pytest.approx((4.5 - 1.96 * std / 2, 4.5 + 1.96 * std / 2))
    single = EvalResult(np.array([7.0]), np.ones(1, int), greedy=True)
    assert single.std == 0.0 and single.ci95 == (7.0, 7.0) and single.episodes == 1


def test_greedy_plays_the_mode_and_sampled_does_not() -> None:
    """A policy with logits (0, 1) on StartAt (reward = action, −1 … 1) plays the last of three actions when greedy."""
    policy = make_policy(1, gym.spaces.Discrete(3))
    with torch.no_grad():
        for p in policy.parameters():
            p.zero_()
        policy.network.actor[-1].bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
    with make_vector_env(env_id("StartAt"), 4, backend="sync") as env:
        assert evaluate(policy, env, 8, seed=0).returns.tolist() == [8.0] * 8
        sampled = evaluate(policy, env, 100, seed=0, greedy=False)
        p = np.exp([0, 0, 1]) / np.exp([0, 0, 1]).sum()
        mean, var = p @ [-1, 0, 1], p @ [1, 0, 1] - (p @ [-1, 0, 1]) ** 2
        assert abs(sampled.mean - 8 * mean) < 4.5 * math.sqrt(8 * var / 100)
        assert not sampled.greedy
        assert sampled.returns.tolist() == evaluate(policy, env, 100, seed=0, greedy=False).returns.tolist()
        assert sampled.returns.tolist() != evaluate(policy, env, 100, seed=1, greedy=False).returns.tolist()


def test_statistics_and_parameters_do_not_move() -> None:
    policy = binary(2, normalizer=True)
    policy.observe(torch.rand(30, 2, dtype=torch.float64))
    before = {name: x.clone() for name, x in policy.state_dict().items()}
    assert "normalizer.mean" in before
    with make_vector_env(env_id("SeedNoise"), 2, backend="sync") as env:
        evaluate(policy, env, 4, seed=0)
    assert all(torch.equal(x, before[name]) for name, x in policy.state_dict().items())


def test_uneven_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="5 episodes cannot be shared evenly among 2 envs"):
        evaluate(make_policy(3), ScriptedEnv([[1], [1]]), 5, seed=0)


def test_number_of_envs() -> None:
    assert [envs_for(n) for n in (1, 7, 20, 40, 100, 101, 30)] == [1, 7, 20, 20, 20, 1, 15]
    assert envs_for(100, most=3) == 2


def test_an_episode_without_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MAX_EPISODE_STEPS", 50)
    with (
        make_vector_env(env_id("NeverEnds"), 2, backend="sync") as env,
        pytest.raises(TrainingError, match=r"NeverEnds.*did not end within 50 steps.*max_episode_steps"),
    ):
        evaluate(binary(), env, 2, seed=0)


def test_an_outer_time_limit_is_counted() -> None:
    """The env's own statistics sit inside the limit and never see the cut."""
    with make_vector_env(env_id("LateLimit"), 2, backend="sync") as env:
        result = evaluate(binary(), env, 6, seed=0)
    assert result.returns.tolist() == [5.0] * 6 and result.lengths.tolist() == [5] * 6
