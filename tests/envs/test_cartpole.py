"""The batched CartPole equals Gymnasium's, number by number."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from pgtrain.envs.base import env_seeds
from pgtrain.envs.vector import make_vector_env

N = 6


def reference(env_id: str, actions: np.ndarray, seed: int, **kwargs: object) -> list[tuple]:
    """Gymnasium's single envs, stepped and reset one by one: (obs, reward, terminated, truncated, final) a step."""
    envs = [gym.make(env_id, disable_env_checker=True, **kwargs) for _ in range(actions.shape[1])]
    rows = [([env.reset(seed=s)[0] for env, s in zip(envs, env_seeds(seed, len(envs)), strict=True)],)]
    for action in actions:
        obs, reward, terminated, truncated, final = [], [], [], [], []
        for env, a in zip(envs, action, strict=True):
            o, r, te, tr, _ = env.step(int(a))
            if te or tr:
                final.append(o)
                o, _ = env.reset()
            for out, value in zip((obs, reward, terminated, truncated), (o, r, te, tr), strict=True):
                out.append(value)
        rows.append((obs, reward, terminated, truncated, final))
    return rows


def balancing_actions(
    steps: int, env_id: str = "CartPole-v1", mistakes: float = 0.3, seed: int = 0
) -> np.ndarray:
    """Actions [T, N] that hold the pole up for some time, made by a feedback rule with random mistakes."""
    rng = np.random.default_rng(seed)
    env = make_vector_env(env_id, N, backend="native")
    obs = env.reset(seed)
    actions = np.zeros((steps, N), np.int64)
    for t in range(steps):
        right = (obs[:, 2] + 0.5 * obs[:, 3] + 0.05 * obs[:, 1]) > 0
        actions[t] = right ^ (rng.random(N) < mistakes)
        obs = env.step(actions[t]).obs
    return actions


@pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date")
@pytest.mark.parametrize(
    ("env_id", "steps", "mistakes", "kwargs"),
    [
        ("CartPole-v1", 3400, 0.5, {}),  # coin tosses: 20,400 env steps and some 900 resets
        ("CartPole-v1", 1100, 0.0, {}),  # reaches the limit of 500
        ("CartPole-v0", 900, 0.3, {}),  # limit of 200
        ("CartPole-v1", 400, 0.5, {"sutton_barto_reward": True}),
    ],
)
def test_equals_gymnasium_step_by_step(env_id: str, steps: int, mistakes: float, kwargs: dict) -> None:
    actions = balancing_actions(steps, env_id, mistakes)
    env = make_vector_env(env_id, N, backend="native", kwargs=kwargs)
    rows = reference(env_id, actions, 0, **kwargs)
    assert np.array_equal(env.reset(0), np.array(rows[0][0]))
    ends = [0, 0]
    for action, (obs, reward, terminated, truncated, final) in zip(actions, rows[1:], strict=True):
        step = env.step(action)
        np.testing.assert_allclose(step.obs, np.array(obs), rtol=0, atol=1e-12)
        assert step.obs.dtype == np.float32 and step.reward.dtype == np.float64
        assert step.reward.tolist() == reward
        assert step.terminated.tolist() == terminated and step.truncated.tolist() == truncated
        assert step.valid is None
        if final:
            np.testing.assert_allclose(step.final_obs, np.array(final), rtol=0, atol=1e-12)
        else:
            assert step.final_obs is None
        ends[0] += sum(terminated)
        ends[1] += sum(truncated)
    assert ends[1] > 5 if mistakes == 0.0 else ends[0] > 5, "this run should have seen such ends"


def test_the_time_limit_can_be_replaced_and_both_flags_can_be_set() -> None:
    actions = balancing_actions(300, mistakes=0.5)
    env = make_vector_env("CartPole-v1", N, backend="native", max_episode_steps=20)
    rows = reference("CartPole-v1", actions, 0, max_episode_steps=20)
    env.reset(0)
    both = 0
    for action, (_, _, terminated, truncated, _) in zip(actions, rows[1:], strict=True):
        step = env.step(action)
        assert step.terminated.tolist() == terminated and step.truncated.tolist() == truncated
        both += int((step.terminated & step.truncated).sum())
    assert env.max_episode_steps == 20 and both > 0


def test_idle_envs_stand_still_and_their_time_limit_too() -> None:
    """With an env idle for a while, its own trajectory is the one without the pause; the others never notice."""
    actions = balancing_actions(160, mistakes=0.0)
    plain = make_vector_env("CartPole-v1", N, backend="native", max_episode_steps=30)
    paused = make_vector_env("CartPole-v1", N, backend="native", max_episode_steps=30)
    plain.reset(0)
    start = paused.reset(0)
    expected = [plain.step(a) for a in actions]
    mask = np.arange(N) == 2
    clock = np.zeros(N, np.int64)
    before = start
    for t in range(150):
        idle = 40 <= t < 77
        if t in (40, 77):
            paused.set_idle(mask & idle)
        step = paused.step(np.array([actions[clock[i], i] for i in range(N)]))
        for i in range(N):
            if idle and i == 2:
                assert not step.valid[i] and step.reward[i] == 0
                assert not step.terminated[i] and not step.truncated[i]
                assert np.array_equal(step.obs[i], before[i])
                continue
            want = expected[clock[i]]
            assert np.array_equal(step.obs[i], want.obs[i]) and step.truncated[i] == want.truncated[i], (t, i)
            assert step.reward[i] == 1
            clock[i] += 1
        assert (step.valid is None) != idle
        before = step.obs
    assert clock.tolist() == [150, 150, 113, 150, 150, 150]


def test_state_dict_goes_on_bit_for_bit_through_a_safe_file(tmp_path) -> None:
    actions = balancing_actions(700, mistakes=0.4)
    env = make_vector_env("CartPole-v1", N, backend="native", max_episode_steps=12)
    env.reset(5)
    for action in actions[:333]:
        env.step(action)
    torch.save(env.state_dict(), tmp_path / "env.pt")
    other = make_vector_env("CartPole-v1", N, backend="native", max_episode_steps=12)
    other.load_state_dict(torch.load(tmp_path / "env.pt", weights_only=True))
    resets = 0
    for action in actions[333:]:
        for a, b in zip(env.step(action), other.step(action), strict=True):
            assert (a is None) == (b is None) and (a is None or np.array_equal(a, b))
            resets += a is not None
    assert resets > 40
    with pytest.raises(ValueError, match="the state is of 6 envs, this has 2"):
        make_vector_env("CartPole-v1", 2, backend="native").load_state_dict(env.state_dict())


def test_returned_arrays_are_the_callers() -> None:
    env = make_vector_env("CartPole-v1", N, backend="native", max_episode_steps=3)
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    obs = env.reset(0)
    kept.append((obs, obs.copy()))
    for _ in range(7):
        step = env.step(np.ones(N, np.int64))
        kept += [(a, a.copy()) for a in step if a is not None]
    assert all(np.array_equal(a, b) for a, b in kept)
    for array, _ in kept:
        array[...] = 1  # and writing to them does not reach the env
    again = make_vector_env("CartPole-v1", N, backend="native", max_episode_steps=3)
    again.reset(0)
    for _ in range(7):
        again.step(np.ones(N, np.int64))
    assert all(
        (a is None and b is None) or np.array_equal(a, b)
        for a, b in zip(env.step(np.zeros(N, np.int64)), again.step(np.zeros(N, np.int64)), strict=True)
    )
