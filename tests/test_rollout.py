"""Collecting: every row of a rollout against a log of what really happened in the env."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pgtrain.collector import Collector
from pgtrain.envs.vector import adapt_vector_env, make_vector_env
from pgtrain.learning.advantages import GAE, MonteCarlo
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import TorchActor, make_actor
from pgtrain.rollout import Rollout
from tests import envs_for_tests
from tests.support import ScriptedEnv, Transition, box, env_id, make_policy

LENGTHS = [[3, 1, 4], [5, 2], [1], [40]]
ENDS = [["terminated", "truncated"], ["both", "truncated"], ["truncated"], ["terminated"]]
MODES = ["same_step", "next_step"]


def collector(env: Any, policy: ActorCritic, kind: str = "numpy", **settings: Any) -> Collector:
    actor = TorchActor(policy, 0) if kind == "torch" else make_actor(policy, env.num_envs, 0)
    return Collector(env, policy, actor, seed=0, **settings)


def next_step_env(make: Any, num_envs: int = 3, **kwargs: Any) -> Any:
    """A Gymnasium vector env that can only do NEXT_STEP, behind pgtrain's interface."""
    vec = SyncVectorEnv([lambda: make(**kwargs)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    return adapt_vector_env(vec, "NextStep")


def valid_rows(rollout: Rollout, n: int) -> list[int]:
    return torch.nonzero(rollout.weight[:, n] > 0).flatten().tolist()


def check_against_log(
    rollout: Rollout, policy: ActorCritic, log: list[list[Transition]], done_before: list[int]
) -> None:
    """The valid rows of each env are its transitions, in order, and every number is the transition's."""
    for n, transitions in enumerate(log):
        rows = valid_rows(rollout, n)
        part = transitions[done_before[n] :]
        assert len(rows) == len(part)
        for t, x in zip(rows, part, strict=True):
            assert rollout.obs[t, n].tolist() == x.obs.tolist()
            action = rollout.action[t, n]
            expected = policy.distribution.to_env(action[None].numpy())[0]
            np.testing.assert_allclose(expected, x.action)
            assert float(rollout.raw_reward[t, n]) == x.reward
            assert float(rollout.reward[t, n]) == pytest.approx(x.reward)
            assert bool(rollout.terminated[t, n]) == x.terminated
            assert bool(rollout.truncated[t, n]) == x.truncated
            assert int(rollout.episode_step[t, n]) == x.step
            assert bool(rollout.episode_start[t, n]) == (x.step == 0)
            with torch.no_grad():
                inputs = policy.prepare(torch.from_numpy(x.obs))
                params, value = policy(inputs)
                after = policy.value(policy.prepare(torch.from_numpy(x.next_obs)))
                log_prob = policy.distribution.log_prob(params, action)
            tight = {"rtol": 1e-4, "atol": 1e-5}
            torch.testing.assert_close(rollout.inputs[t, n], inputs, **tight)
            torch.testing.assert_close(rollout.params[t, n], params, **tight)
            torch.testing.assert_close(rollout.log_prob[t, n], log_prob, **tight)
            torch.testing.assert_close(rollout.value[t, n], value, **tight)
            if not x.terminated:
                torch.testing.assert_close(rollout.next_value[t, n], after, **tight)
    junk = rollout.weight == 0
    assert not rollout.done[junk].any() and not rollout.episode_start[junk].any()
    assert (rollout.raw_reward[junk] == 0).all()
    assert rollout.num_steps == int(rollout.weight.sum()) == int((~junk).sum())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("space", ["discrete", "box"])
def test_windows_are_aligned_and_next_value_is_the_true_successors(mode: str, kind: str, space: str) -> None:
    action_space = gym.spaces.Discrete(3) if space == "discrete" else box([-1, 0], [1, 5])
    env = ScriptedEnv(LENGTHS, ENDS, mode, action_space)
    policy = make_policy(3, action_space, normalizer=True)
    policy.observe(torch.randn(50, 3) * 3 + 1)
    c = collector(env, policy, kind, rows=4)
    for steps in (7, 1, 2, 9):  # 7 and 9 rows grow the storage
        done_before = [len(x) for x in env.log]
        policy.observe(torch.randn(50, 3) + steps)  # statistics that moved since the last window
        rollout, episodes = c.collect_steps(steps)
        assert rollout.reward.shape == (steps, 4) and not rollout.whole_episodes
        check_against_log(rollout, policy, env.log, done_before)
        assert len(episodes.returns) == int(rollout.done.sum())
        assert c.steps_now == rollout.num_steps
        assert torch.equal(torch.stack(rollout.final_index, -1), rollout.done.nonzero())
    played = sum(len(x) for x in env.log)
    assert played == 19 * 4 if mode == "same_step" else played < 19 * 4


@pytest.mark.parametrize("mode", MODES)
def test_final_observations_and_where_they_belong(mode: str) -> None:
    env = ScriptedEnv(LENGTHS, ENDS, mode)
    policy = make_policy(3)
    rollout, _ = collector(env, policy).collect_steps(12)
    expected = {}
    for n, transitions in enumerate(env.log):
        for t, x in zip(valid_rows(rollout, n), transitions, strict=True):
            if x.terminated or x.truncated:
                expected[t, n] = x.next_obs.tolist()
    got = {
        (int(t), int(n)): obs.tolist()
        for t, n, obs in zip(*rollout.final_index, rollout.final_inputs, strict=True)
    }
    assert got == expected and len(expected) > 8


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("splits", [[30], [1] * 30, [7, 3, 20]])
def test_episode_statistics_do_not_depend_on_the_windows(mode: str, splits: list[int]) -> None:
    env = ScriptedEnv(LENGTHS, ENDS, mode)
    policy = make_policy(3)
    c = collector(env, policy)
    got = []
    for steps in splits:
        _, episodes = c.collect_steps(steps)
        got += list(zip(episodes.returns.tolist(), episodes.lengths.tolist(), strict=True))
    expected = []
    for transitions in env.log:
        total, length = 0.0, 0
        for x in transitions:
            total, length = total + x.reward, length + 1
            if x.terminated or x.truncated:
                expected.append((total, length))
                total, length = 0.0, 0
    np.testing.assert_allclose(sorted(got), sorted(expected))
    lengths = [length for _, length in got]
    assert 3 in lengths and 1 in lengths and 5 in lengths


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("episodes", [1, 3])
def test_whole_episodes_are_the_same_number_in_each_env(mode: str, episodes: int) -> None:
    env = ScriptedEnv([[3, 1, 4], [5, 2], [1], [9]], ENDS, mode)
    policy = make_policy(3)
    c = collector(env, policy, rows=4)
    for _ in range(3):
        done_before = [len(x) for x in env.log]
        rollout, finished = c.collect_episodes(episodes)
        check_against_log(rollout, policy, env.log, done_before)
        assert rollout.whole_episodes
        assert rollout.done.sum(0).tolist() == [episodes] * 4
        assert len(finished.returns) == 4 * episodes
        assert int(finished.lengths.sum()) == rollout.num_steps == c.steps_now
        for n in range(4):  # every episode from its first step on; nothing after its env's last
            rows = valid_rows(rollout, n)
            assert bool(rollout.episode_start[rows[0], n]) and bool(rollout.done[rows[-1], n])
        assert (rollout.weight == 0).any()


def test_whole_episodes_are_unbiased() -> None:
    """Half of the episodes last 1 step with return 0, half 10 steps with 10: mean 5. The first to finish give 1."""
    env = make_vector_env(env_id("TwoLength"), 20, backend="sync")
    c = collector(env, make_policy(1, gym.spaces.Discrete(2)))
    returns = np.concatenate([c.collect_episodes(1)[1].returns for _ in range(50)])
    assert len(returns) == 1000
    assert abs(returns.mean() - 5.0) < 4.5 * 5 / np.sqrt(1000)  # the standard deviation is 5
    rollout, episodes = c.collect_episodes(2)
    assert len(episodes.returns) == 40 and rollout.num_steps == int(episodes.lengths.sum())


def test_a_budget_that_does_not_suffice_gives_nothing() -> None:
    env = ScriptedEnv([[2], [9]])
    policy = make_policy(3)
    c = collector(env, policy)
    assert c.collect_episodes(1, max_steps=10) is None  # 11 are needed: 2 + 9
    assert c.steps_now >= 10
    other = collector(ScriptedEnv([[2], [9]]), policy)
    rollout, _ = other.collect_episodes(1, max_steps=11)
    assert rollout.num_steps == 11
    endless = collector(
        make_vector_env(env_id("NeverEnds"), 3, backend="sync"), make_policy(1, gym.spaces.Discrete(2))
    )
    assert endless.collect_episodes(1, max_steps=100) is None
    assert 100 <= endless.steps_now < 103


def test_idle_rows_do_not_touch_the_env() -> None:
    env = ScriptedEnv([[1], [6]])
    c = collector(env, make_policy(3))
    c.collect_episodes(1)
    assert [len(x) for x in env.log] == [1, 6]
    rollout, _ = c.collect_steps(2)  # awake again, at the start of its next episode
    assert (rollout.weight == 1).all() and rollout.obs[0].tolist() == [[0, 1, 0], [1, 1, 0]]


@pytest.mark.parametrize("whole", [False, True])
def test_a_second_collector_of_the_same_envs_finds_none_idle(whole: bool) -> None:
    """Whole episodes end with idle envs, and with nothing written down of it that the next collector could see."""
    env, policy = make_vector_env("CartPole-v1", 4), make_policy(4)
    assert collector(env, policy).collect_episodes(1) is not None
    second = collector(env, policy)
    found = second.collect_episodes(1) if whole else second.collect_steps(3)
    assert found is not None
    assert bool((found[0].weight[0] == 1).all())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_reward_spoils_only_its_own_episode(value: float) -> None:
    class Bad(ScriptedEnv):
        def step(self, action: np.ndarray) -> Any:
            step = super().step(action)
            if self.episode[0] == 1 and self.t[0] == 1:
                step.reward[0] = value
            return step

    c = collector(Bad([[3, 4, 5], [6]]), make_policy(3))
    returns = np.concatenate([c.collect_steps(steps)[1].returns for steps in (5, 2, 17)])
    assert np.isfinite(returns).sum() == len(returns) - 1 and len(returns) >= 7


def test_an_unfinished_episode_with_a_nan_is_forgotten_at_its_end() -> None:
    class Bad(ScriptedEnv):
        def step(self, action: np.ndarray) -> Any:
            step = super().step(action)
            step.reward[0] = np.nan if self.episode[0] == 0 and self.t[0] == 1 else 1.0
            return step

    c = collector(Bad([[3, 4]]), make_policy(3))
    got = [c.collect_steps(1)[1].returns.tolist() for _ in range(11)]
    assert np.isnan(got[2]).all() and got[6] == [4.0] and got[10] == [4.0]


def test_observations_are_not_aliases() -> None:
    """AliasObs writes every observation into one array; its reward tells whether the action matched the true one."""
    for backend, workers in (("sync", None), ("process", 1)):
        with make_vector_env(env_id("AliasObs"), 3, backend=backend, workers=workers) as env:
            rollout, _ = collector(env, make_policy(1, gym.spaces.Discrete(2))).collect_steps(40)
            shown = (rollout.obs[..., 0] > 0).long()
            assert torch.equal((rollout.action == shown).double(), rollout.raw_reward)
            assert 0.2 < float(rollout.raw_reward.mean()) < 0.8


def test_a_rollout_stays_valid_until_the_next_one_and_is_not_the_envs() -> None:
    env = ScriptedEnv(LENGTHS, ENDS)
    c = collector(env, make_policy(3))
    rollout, _ = c.collect_steps(5)
    kept = rollout.obs.clone(), rollout.raw_reward.clone(), rollout.next_value.clone()
    for _ in range(3):
        env.step(np.zeros(4, np.int64))
    for x, y in zip((rollout.obs, rollout.raw_reward, rollout.next_value), kept, strict=True):
        assert torch.equal(x, y)


def test_a_policy_without_critic_has_no_values() -> None:
    rollout, _ = collector(ScriptedEnv(LENGTHS, ENDS), make_policy(3, critic=False)).collect_steps(6)
    assert rollout.value is None and rollout.next_value is None
    assert int(rollout.done.sum()) == len(rollout.final_inputs)


# ------------------------------------------------------------------------------------- real envs and backends


def test_next_step_rows_of_gymnasium_are_masked() -> None:
    """OneStep under NEXT_STEP: every other row is a reset, neither counted nor an episode."""
    c = collector(next_step_env(envs_for_tests.OneStep), make_policy(1, gym.spaces.Discrete(2)))
    rollout, episodes = c.collect_steps(8)
    assert rollout.weight[:, 0].tolist() == [1, 0] * 4
    assert rollout.num_steps == 12 and episodes.lengths.tolist() == [1] * 12
    assert episodes.returns.tolist() == [1.0] * 12
    first, _ = c.collect_steps(1)
    assert first.weight[:, 0].tolist() == [1]
    second, episodes = c.collect_steps(1)  # the window begins with the reset row
    assert second.num_steps == 0 and len(episodes.returns) == 0


@pytest.mark.parametrize("end", ["terminate", "truncate", "both"])
def test_same_step_and_next_step_give_the_same_experience(end: str) -> None:
    """Same policy, same episodes: advantages of the valid rows are equal whichever way the env resets."""
    policy = make_policy(1, gym.spaces.Discrete(2))
    same = make_vector_env(env_id("FixedLen"), 2, kwargs={"length": 4, "end": end}, backend="sync")
    other = next_step_env(envs_for_tests.FixedLen, 2, length=4, end=end)
    a, episodes_a = collector(same, policy).collect_steps(8)
    b, episodes_b = collector(other, policy).collect_steps(10)
    assert b.weight[:, 0].tolist() == [1, 1, 1, 1, 0] * 2 and (a.weight == 1).all()
    assert episodes_a.returns.tolist() == episodes_b.returns.tolist() == [4.0] * 4
    for estimator in (GAE(0.9, 0.8), MonteCarlo(0.9), MonteCarlo(0.9, form="total")):
        x, y = estimator(a).advantage, estimator(b).advantage
        for n in range(2):
            torch.testing.assert_close(y[b.weight[:, n] > 0, n], x[:, n], rtol=1e-5, atol=1e-6)
    # the successor of an episode's last step is its final observation (t = length: obs 1), not the next one's first (0)
    final = policy.value(torch.tensor([[1.0]])).item()
    assert a.next_value[3].tolist() == pytest.approx([final] * 2, abs=1e-6)
    rows = valid_rows(b, 0)
    assert float(b.next_value[rows[3], 0]) == pytest.approx(final, abs=1e-6)


def test_whole_episodes_from_a_next_step_env() -> None:
    """Such an env cannot hold single envs; episodes that ran unseen are not taken for whole ones."""
    c = collector(next_step_env(envs_for_tests.TwoLength, 4), make_policy(1, gym.spaces.Discrete(2)))
    for _ in range(5):
        rollout, episodes = c.collect_episodes(2)
        assert rollout.done.sum(0).tolist() == [2] * 4
        assert set(zip(episodes.returns, episodes.lengths, strict=True)) <= {(0.0, 1), (10.0, 10)}
        assert rollout.num_steps == int(episodes.lengths.sum())


def same_rollouts(envs: list[Any], windows: list[tuple[str, int]], policy: ActorCritic) -> None:
    collectors = [collector(env, policy) for env in envs]
    for unit, count in windows:
        results = [getattr(c, f"collect_{unit}")(count) for c in collectors]
        (first, first_episodes), *others = results
        for rollout, episodes in others:
            for name in (
                "obs",
                "inputs",
                "action",
                "params",
                "raw_reward",
                "terminated",
                "truncated",
                "weight",
            ):
                assert torch.equal(getattr(first, name), getattr(rollout, name)), name
            for name in ("log_prob", "value", "next_value", "final_inputs", "episode_step"):
                torch.testing.assert_close(getattr(first, name), getattr(rollout, name))
            assert first_episodes.returns.tolist() == episodes.returns.tolist()


def test_sync_and_process_agree() -> None:
    """Randomness of obs, reward and length all from the seed; whole episodes and windows in turn."""
    policy = make_policy(2, gym.spaces.Discrete(2))
    with (
        make_vector_env(env_id("SeedNoise"), 3, backend="sync") as sync,
        make_vector_env(env_id("SeedNoise"), 3, backend="process", workers=2) as process,
    ):
        same_rollouts([sync, process], [("episodes", 1), ("steps", 20), ("episodes", 2)], policy)


def test_native_and_sync_cartpole_agree() -> None:
    policy = make_policy(4, gym.spaces.Discrete(2), gain=0.01)
    native = make_vector_env("CartPole-v1", 3, backend="native", max_episode_steps=15)
    sync = make_vector_env("CartPole-v1", 3, backend="sync", max_episode_steps=15)
    same_rollouts([native, sync], [("steps", 40), ("episodes", 1), ("steps", 3), ("episodes", 2)], policy)
