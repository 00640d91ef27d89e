"""The batched classics equal Gymnasium's, number by number (CartPole's own, longer tests: test_cartpole.py)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from pgtrain.envs.base import env_seeds
from pgtrain.envs.native.batched import BatchedEnv
from pgtrain.envs.vector import make_vector_env
from pgtrain.types import UserError

N = 5
# Gymnasium squares Pendulum's float32 torque with the C library's powf, off by a bit once in a thousand times
REWARD_ERROR = {"Pendulum-v1": 1e-9}
CLASSICS = ["Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0"]


class Reference:
    """Gymnasium's single envs, stepped and reset one by one."""

    def __init__(self, env_id: str, seed: int, **kwargs: Any) -> None:
        self.envs = [gym.make(env_id, disable_env_checker=True, **kwargs) for _ in range(N)]
        self.obs = np.array([e.reset(seed=s)[0] for e, s in zip(self.envs, env_seeds(seed, N), strict=True)])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, list[float], list[bool], list[bool], list[Any]]:
        obs, reward, terminated, truncated, final = [], [], [], [], []
        for env, a in zip(self.envs, action, strict=True):
            o, r, te, tr, _ = env.step(a if a.ndim else int(a))
            if te or tr:
                final.append(o)
                o, _ = env.reset()
            for out, value in zip((obs, reward, terminated, truncated), (o, r, te, tr), strict=True):
                out.append(value)
        self.obs = np.array(obs)
        return self.obs, reward, terminated, truncated, final


def push(env_id: str, obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mostly with the motion, so that the goals are reached; at times anything, the limits of the box included."""
    speed = {"Acrobot-v1": 5, "Pendulum-v1": 2}.get(env_id, 1)
    sign = np.where(obs[:, speed] >= 0, 1, -1)
    sign = np.where(rng.random(N) < 0.2, rng.integers(-1, 2, N), sign)
    if env_id in ("Acrobot-v1", "MountainCar-v0"):
        return (sign + 1).astype(np.int64)
    size = np.where(rng.random(N) < 0.3, 1.0, rng.random(N)) * (2.0 if env_id == "Pendulum-v1" else 1.0)
    return (sign * size).astype(np.float32)[:, None]


@pytest.mark.parametrize(
    ("env_id", "steps", "kwargs", "ends"),
    [
        ("Acrobot-v1", 700, {}, "terminated"),
        ("Acrobot-v1", 200, {"max_episode_steps": 30}, "truncated"),
        ("Pendulum-v1", 900, {}, "truncated"),
        ("Pendulum-v1", 210, {"g": 4.0}, "truncated"),
        ("MountainCar-v0", 1500, {}, "terminated"),
        ("MountainCar-v0", 450, {"goal_velocity": 0.08}, "truncated"),
        ("MountainCarContinuous-v0", 2500, {}, "terminated"),
        ("MountainCarContinuous-v0", 450, {"goal_velocity": 0.1, "max_episode_steps": 200}, "truncated"),
    ],
)
def test_equals_gymnasium_step_by_step(env_id: str, steps: int, kwargs: dict[str, Any], ends: str) -> None:
    rng = np.random.default_rng(1)
    limit = {k: v for k, v in kwargs.items() if k == "max_episode_steps"}
    own = {k: v for k, v in kwargs.items() if k not in limit}
    env = make_vector_env(env_id, N, kwargs=own, **limit)
    assert env.backend == "native"
    reference, tolerance = Reference(env_id, 3, **kwargs), REWARD_ERROR.get(env_id, 1e-12)
    obs = env.reset(3)
    np.testing.assert_allclose(obs, reference.obs, rtol=0, atol=1e-12)
    seen = 0
    for _ in range(steps):
        action = push(env_id, obs, rng)
        step = env.step(action)
        want, reward, terminated, truncated, final = reference.step(action)
        obs = step.obs
        assert obs.dtype == np.float32 and step.reward.dtype == np.float64
        np.testing.assert_allclose(obs, want, rtol=0, atol=1e-12)
        np.testing.assert_allclose(step.reward, np.array(reward, np.float64), rtol=0, atol=tolerance)
        assert step.terminated.tolist() == terminated and step.truncated.tolist() == truncated
        assert (step.final_obs is None) == (not final)
        if final:
            np.testing.assert_allclose(step.final_obs, np.array(final), rtol=0, atol=1e-12)
        seen += sum(terminated if ends == "terminated" else truncated)
    assert seen >= 5, "this run should have seen such ends"


@pytest.mark.slow  # Gymnasium's 100,000 single steps take up to half a minute
@pytest.mark.parametrize("env_id", [*CLASSICS, "CartPole-v1"])
def test_equals_gymnasium_over_100_000_random_steps(env_id: str) -> None:
    """From the same state each time: Acrobot is chaotic and doubles a difference of 1e-16 every few steps."""
    env = make_vector_env(env_id, N, backend="native")
    assert isinstance(env, BatchedEnv)
    env.action_space.seed(0)
    reference, tolerance = Reference(env_id, 0), REWARD_ERROR.get(env_id, 1e-12)
    np.testing.assert_allclose(env.reset(0), reference.obs, rtol=0, atol=1e-12)
    for _ in range(100_000 // N):
        action = np.array([env.action_space.sample() for _ in range(N)])
        step = env.step(action)
        obs, reward, terminated, truncated, _ = reference.step(action)
        np.testing.assert_allclose(step.obs, obs, rtol=1.2e-7, atol=1e-12)  # to the last bit of float32
        np.testing.assert_allclose(step.reward, np.array(reward, np.float64), rtol=0, atol=tolerance)
        assert step.terminated.tolist() == terminated and step.truncated.tolist() == truncated
        unwrapped: list[Any] = [e.unwrapped for e in reference.envs]
        theirs = np.array([e.state for e in unwrapped], np.float64)
        np.testing.assert_allclose(env._state.T, theirs, rtol=0, atol=1e-12)
        env._state.T[...] = theirs


@pytest.mark.parametrize("env_id", CLASSICS)
def test_spaces_limits_and_thresholds_are_gymnasiums(env_id: str) -> None:
    env, theirs = make_vector_env(env_id, 2, backend="native"), gym.make(env_id)
    assert theirs.spec is not None
    assert env.observation_space == theirs.observation_space and env.action_space == theirs.action_space
    assert env.max_episode_steps == theirs.spec.max_episode_steps
    assert env.reward_threshold == theirs.spec.reward_threshold


@pytest.mark.parametrize("env_id", CLASSICS)
def test_state_dict_goes_on_bit_for_bit_and_idle_envs_stand_still(env_id: str, tmp_path) -> None:
    rng = np.random.default_rng(0)
    env = make_vector_env(env_id, N, backend="native", max_episode_steps=9)
    obs = env.reset(5)
    for _ in range(100):
        obs = env.step(push(env_id, obs, rng)).obs
    env.set_idle(np.arange(N) == 2)
    torch.save(env.state_dict(), tmp_path / "env.pt")
    other = make_vector_env(env_id, N, backend="native", max_episode_steps=9)
    other.load_state_dict(torch.load(tmp_path / "env.pt", weights_only=True))
    held, cuts = obs[2].copy(), 0
    for t in range(330):  # more episodes than start states are drawn ahead
        if t == 30:
            env.set_idle(np.zeros(N, bool))
            other.set_idle(np.zeros(N, bool))
        action = push(env_id, obs, rng)
        step = env.step(action)
        for a, b in zip(step, other.step(action), strict=True):
            assert (a is None) == (b is None) and (a is None or np.array_equal(a, b))
        if t < 30:
            assert np.array_equal(step.obs[2], held) and step.reward[2] == 0 and not step.valid[2]
        obs = step.obs
        cuts += int(step.truncated.sum())
    assert cuts > 100


@pytest.mark.parametrize("env_id", [*CLASSICS, "CartPole-v1"])
def test_thousands_of_envs_are_each_their_own(env_id: str) -> None:
    """Env i of 2,000 does what env i of 5 does."""
    few, many = make_vector_env(env_id, N), make_vector_env(env_id, 2000)
    a, b = few.reset(0), many.reset(0)
    # as many envs, as many seeds: the first ones are the same
    np.testing.assert_array_equal(a, b[:N])
    few.action_space.seed(0)
    for _ in range(60):
        action = np.array([few.action_space.sample() for _ in range(N)])
        every = np.resize(action, (2000, *action.shape[1:]))
        a, b = few.step(action), many.step(every)
        np.testing.assert_allclose(a.obs, b.obs[:N], rtol=0, atol=1e-12)
        np.testing.assert_allclose(a.reward, b.reward[:N], rtol=1e-12)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "told"),
    [
        ("Pendulum-v1", {"g": "moon"}, "env.kwargs.g=moon: must be a finite number"),
        ("MountainCar-v0", {"goal_velocity": True}, "env.kwargs.goal_velocity=True: must be a finite number"),
        ("MountainCarContinuous-v0", {"goal_velocity": float("nan")}, "env.kwargs.goal_velocity=nan"),
    ],
)
def test_wrong_settings_are_told_in_one_line(env_id: str, kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        make_vector_env(env_id, N, backend="native", kwargs=kwargs)
