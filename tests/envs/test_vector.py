"""make_vector_env: what every backend gives, and what the user is told."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

import tests.envs_for_tests  # registers the ids
from pgtrain.envs.base import env_seeds
from pgtrain.envs.vector import adapt_vector_env, make_vector_env
from pgtrain.types import TrainingError, UserError


def guest(name: str, num_envs: int, mode: AutoresetMode, **kwargs: Any):
    """An adapted vector env of "somebody else's"."""
    make = [lambda: gym.make(f"Test/{name}-v0", disable_env_checker=True, **kwargs)] * num_envs
    return adapt_vector_env(SyncVectorEnv(make, autoreset_mode=mode), f"Test/{name}-v0")


def zeros(num_envs: int) -> np.ndarray:
    return np.zeros(num_envs, np.int64)


def play(env: Any, steps: int) -> None:
    for _ in range(steps):
        env.step(zeros(env.num_envs))


# ---------------------------------------------------------------- semantics


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "MountainCarContinuous-v0", "Blackjack-v1", "FrozenLake-v1"]
)
def test_single_envs_step_as_in_gymnasiums_own_vector_env(env_id: str) -> None:
    """Same seeds, same actions: observations, rewards, flags and the observations that episodes end with."""
    limit = 30
    theirs = SyncVectorEnv(
        [lambda: gym.make(env_id, max_episode_steps=limit)] * 3, autoreset_mode=AutoresetMode.SAME_STEP
    )
    actions = theirs.action_space
    actions.seed(5)
    ended = 0
    with make_vector_env(env_id, 3, backend="sync", max_episode_steps=limit) as ours:
        assert_rows(ours, ours.reset(7), theirs.reset(seed=env_seeds(7, 3))[0])
        for _ in range(70):
            sampled = actions.sample()
            obs, reward, terminated, truncated, info = theirs.step(sampled)
            step = ours.step(np.asarray(sampled).reshape(3, -1) if sampled.ndim > 1 else sampled)
            assert_rows(ours, step.obs, obs)
            assert np.array_equal(step.reward, reward)
            assert np.array_equal(step.terminated, terminated) and np.array_equal(step.truncated, truncated)
            done = np.flatnonzero(terminated | truncated)
            ended += len(done)
            if len(done):
                final = [info["final_obs"][i] for i in done]
                batch = create_empty_array(theirs.single_observation_space, len(done))
                assert_rows(ours, step.final_obs, concatenate(theirs.single_observation_space, final, batch))
    assert ended >= 6


def assert_rows(env: Any, got: np.ndarray | None, raw: Any) -> None:
    assert got is not None and np.array_equal(got, env._encode(raw))


def test_envs_that_differ_in_their_spaces_are_refused() -> None:
    with pytest.raises(UserError, match=r"its envs differ in their observation_space: Box.* and Box"):
        make_vector_env("tests.envs_for_tests:Test/Growing-v0", 2, backend="sync")


@pytest.mark.parametrize(
    ("end", "terminated", "truncated"),
    [("terminate", True, False), ("truncate", False, True), ("both", True, True)],
)
@pytest.mark.parametrize("how", ["sync", "guest"])
def test_same_step_resets_at_once_and_keeps_the_final_obs(
    how: str, end: str, terminated: bool, truncated: bool
):
    kwargs = {"length": 3, "reward": 2.0, "end": end}
    if how == "sync":
        env = make_vector_env("Test/FixedLen-v0", 2, kwargs=kwargs, backend="sync")
    else:
        env = guest("FixedLen", 2, AutoresetMode.SAME_STEP, **kwargs)
    assert env.autoreset == "same_step"
    assert env.reset(0).tolist() == [[0.0], [0.0]]
    for t in range(1, 7):
        step = env.step(zeros(2))
        last = t % 3 == 0
        assert step.obs.tolist() == [[0.0 if last else np.float32((t % 3) / 3)]] * 2
        assert step.reward.tolist() == [2.0, 2.0] and step.reward.dtype == np.float64
        assert step.terminated.tolist() == [last and terminated] * 2
        assert step.truncated.tolist() == [last and truncated] * 2
        assert step.valid is None
        assert (step.final_obs.tolist() if last else step.final_obs) == ([[1.0], [1.0]] if last else None)


def test_next_step_rows_after_a_done_are_no_transitions() -> None:
    env = guest("FixedLen", 2, AutoresetMode.NEXT_STEP, length=2, reward=2.0, end="truncate")
    assert env.autoreset == "next_step" and env.backend == "native"
    env.reset(0)
    valid, rewards, done, obs, final = [], [], [], [], []
    for _ in range(7):
        step = env.step(zeros(2))
        valid.append(True if step.valid is None else bool(step.valid[0]))
        rewards.append(step.reward[0])
        done.append(bool(step.truncated[0]))
        obs.append(float(step.obs[0, 0]))
        final.append(None if step.final_obs is None else step.final_obs.tolist())
    assert valid == [True, True, False, True, True, False, True]
    assert rewards == [2, 2, 0, 2, 2, 0, 2]
    assert done == [False, True, False, False, True, False, False]
    assert obs == [0.5, 1.0, 0.0, 0.5, 1.0, 0.0, 0.5]
    assert final == [None, [[1.0], [1.0]], None, None, [[1.0], [1.0]], None, None]


def test_next_step_envs_that_end_at_different_times_keep_their_own_reset_rows() -> None:
    env = guest("TwoLength", 4, AutoresetMode.NEXT_STEP)
    env.reset(0)
    was_done = np.zeros(4, bool)
    steps = episodes = 0
    total = 0.0
    for _ in range(300):
        step = env.step(zeros(4))
        valid = np.ones(4, bool) if step.valid is None else step.valid
        done = step.terminated | step.truncated
        assert np.array_equal(valid, ~was_done)
        assert (step.final_obs is None) == (not done.any())
        steps += valid.sum()
        episodes += done.sum()
        total += step.reward.sum()
        was_done = done
    assert 0 < episodes < steps and total > 0


@pytest.mark.parametrize("backend", ["native", "sync"])
def test_seeds_differ_between_envs_and_are_the_same_on_all_backends(backend: str) -> None:
    env_id = "CartPole-v1" if backend == "native" else "Test/SeedNoise-v0"
    env = make_vector_env(env_id, 4, backend=backend)
    first, again, other = env.reset(7), env.reset(7), env.reset(8)
    assert len({tuple(row) for row in first.tolist()}) == 4
    assert np.array_equal(first, again) and not (first == other).any()
    single = gym.make(env_id, disable_env_checker=True)
    for row, seed in zip(first, np.random.SeedSequence(7).generate_state(4), strict=True):
        assert np.array_equal(single.reset(seed=int(seed))[0], row)


def test_observations_of_an_env_that_reuses_one_array_are_kept_apart() -> None:
    env = make_vector_env("Test/AliasObs-v0", 3, backend="sync")
    obs = [env.reset(0)]
    rewards, finals = [], []
    for _ in range(40):
        right = (obs[-1][:, 0] > 0).astype(np.int64)
        step = env.step(right)
        obs.append(step.obs)
        rewards.append(step.reward)
        if step.final_obs is not None:
            finals.append(step.final_obs[:, 0] == step.obs[:, 0])
    assert np.mean(rewards) == 1.0  # each obs told the rewarded action
    assert {float(x) for o in obs for x in o[:, 0]} == {-1.0, 1.0}
    assert not np.concatenate(finals).all()  # the final obs is not the one after the reset


def test_nested_observations_are_encoded_and_kept() -> None:
    env = make_vector_env("Test/DictMixed-v0", 2, backend="sync")
    assert (env.obs_dim, env.obs_dtype) == (10, np.float64)
    assert [leaf.name for leaf in env.layout if leaf.standardize] == ["in.vec"]
    obs = env.reset(0)
    rewards = []
    for _ in range(20):
        # Dict sorts its keys: "in" (k one-hot, vec), then "pic"
        assert obs[:, :3].tolist() == [[0, 1, 0]] * 2 and obs[:, 6:].tolist() == [[np.float32(0.2)] * 4] * 2
        step = env.step((obs[:, 3] > 0).astype(np.int64))
        rewards.append(step.reward)
        obs = step.obs
        if step.final_obs is not None:
            assert step.final_obs.shape == (2, 10)
    assert np.mean(rewards) == 1.0


@pytest.mark.parametrize(
    "name", ["AsymBox", "UnboundedBox", "HalfBoundedBox", "IntBox", "Float64", "MatrixBox"]
)
def test_box_envs_get_members_of_their_space(name: str) -> None:
    """The env checks each action itself; the action that came is compared with the one that was sent."""
    env: Any = make_vector_env(f"Test/{name}-v0", 2, backend="sync")
    space = env.action_space
    env.reset(0)
    rng = np.random.default_rng(0)
    size = int(np.prod(space.shape))
    for _ in range(20):
        sent = np.clip(rng.normal(0, 3, (2, size)).astype(np.float32), space.low.ravel(), space.high.ravel())
        env.step(sent)
        for guard, row in zip(env._guards, sent, strict=True):
            got = guard.unwrapped.last
            assert got.dtype == space.dtype and got.shape == space.shape
            assert np.allclose(got.ravel(), np.rint(row) if name == "IntBox" else row, atol=1e-6)
    assert env.obs_dtype == (np.float64 if name == "Float64" else np.float32)


def test_float64_observations_are_not_rounded() -> None:
    env = make_vector_env("Test/Float64-v0", 1, backend="sync")
    env.reset(0)
    assert env.step(np.zeros((1, 1))).obs[0, 0] == 1.0 + 1e-12


def test_discrete_actions_start_where_the_space_does() -> None:
    env = make_vector_env("Test/StartAt-v0", 3, backend="sync")
    env.reset(0)
    assert env.step(np.array([0, 1, 2])).reward.tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize("kind", ["none", "episode", "ragged"])
def test_no_info_can_break_a_run(kind: str) -> None:
    env = make_vector_env("Test/BadInfo-v0", 3, kwargs={"kind": kind}, backend="sync")
    env.reset(0)
    ends = sum(int(env.step(zeros(3)).terminated.sum()) for _ in range(17))
    assert ends == 6


def test_a_time_limit_outside_a_statistics_wrapper_is_seen() -> None:
    env = make_vector_env("Test/LateLimit-v0", 2, backend="sync")
    env.reset(0)
    cuts = [int(env.step(zeros(2)).truncated.sum()) for _ in range(10)]
    assert cuts == [0, 0, 0, 0, 2] * 2 and env.max_episode_steps == 5


def test_max_episode_steps_and_kwargs_reach_the_env() -> None:
    env = make_vector_env("Test/NeverEnds-v0", 2, max_episode_steps=4, backend="sync")
    env.reset(0)
    assert [bool(env.step(zeros(2)).truncated.any()) for _ in range(8)] == [False, False, False, True] * 2
    assert env.max_episode_steps == 4
    assert make_vector_env("Test/NeverEnds-v0", 1, backend="sync").max_episode_steps is None
    env = make_vector_env("Test/FixedLen-v0", 1, kwargs={"length": 1, "reward": -7.5})
    env.reset(0)
    step = env.step(zeros(1))
    assert step.reward.tolist() == [-7.5] and step.terminated.all()


def test_a_reward_that_is_not_finite_is_passed_on_and_not_a_fault() -> None:
    env = make_vector_env("Test/NaNReward-v0", 1, kwargs={"at": 2}, backend="sync")
    env.reset(0)
    assert [bool(np.isnan(env.step(zeros(1)).reward[0])) for _ in range(3)] == [False, True, False]


def test_attributes_of_a_known_env() -> None:
    for backend in ("native", "sync"):
        env = make_vector_env("CartPole-v1", 3, backend=backend)
        assert (env.num_envs, env.obs_dim, env.obs_dtype) == (3, 4, np.float32)
        assert [(leaf.kind, leaf.width, leaf.standardize) for leaf in env.layout] == [("vector", 4, True)]
        assert (env.reward_threshold, env.max_episode_steps) == (475.0, 500)
        assert env.action_space == spaces.Discrete(2) and env.env_id == "CartPole-v1"
        assert (env.backend, env.autoreset, env.device, env.differentiable) == (
            backend,
            "same_step",
            "cpu",
            False,
        )
        assert env.observation_space == gym.make("CartPole-v1").observation_space
    assert make_vector_env("Test/OneStep-v0", 1).state_dict() == {}


# ---------------------------------------------------------------- idle


def test_idle_envs_are_not_stepped() -> None:
    env: Any = make_vector_env("Test/FixedLen-v0", 3, kwargs={"length": 4}, backend="sync")
    env.reset(0)
    env.step(zeros(3))
    env.set_idle(np.array([False, True, False]))
    for _ in range(5):
        step = env.step(zeros(3))
        assert step.valid.tolist() == [True, False, True] and step.reward.tolist() == [1, 0, 1]
        assert step.obs[1].tolist() == [0.25] and not step.terminated[1]
        assert step.final_obs is None or len(step.final_obs) == 2
    assert [g.unwrapped.life for g in env._guards] == [6, 1, 6]
    env.set_idle(np.zeros(3, bool))
    step = env.step(zeros(3))
    assert step.valid is None and step.obs[:, 0].tolist() == [0.75, 0.5, 0.75]
    with pytest.raises(ValueError, match=r"expected shape \(3,\), got \(2,\)"):
        env.set_idle(np.zeros(2, bool))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_an_idle_guest_comes_back_at_an_episodes_start(mode: AutoresetMode) -> None:
    """What is seen of the paused env is whole episodes only, whenever the pause ends."""
    for pause in range(1, 12):
        env = guest("FixedLen", 2, mode, length=3)
        obs = env.reset(0)
        seen: list[float] = []  # obs acted on in valid rows of env 1
        paused = False
        for t in range(40):
            if t == 3:  # env 1 has just ended an episode
                env.set_idle(np.array([False, True]))
                paused = True
            if t == 3 + pause:
                env.set_idle(np.array([False, False]))
                paused = False
            step = env.step(zeros(2))
            valid = step.valid is None or step.valid[1]
            if valid:
                assert not paused
                seen.append(round(float(obs[1, 0]) * 3))
            else:
                assert step.reward[1] == 0 and not step.terminated[1]
            obs = step.obs
        assert seen[: len(seen) // 3 * 3] == [0, 1, 2] * (len(seen) // 3) and len(seen) >= 18, (pause, seen)


# ---------------------------------------------------------------- choice of the backend


def test_auto_takes_native_then_sync_and_says_why() -> None:
    native = make_vector_env("CartPole-v1", 2)
    assert native.backend == "native" and native.notices[0].startswith(
        "env.backend=native: pgtrain's batched"
    )
    assert make_vector_env("CartPole-v1", 2, kwargs={"sutton_barto_reward": True}).backend == "native"
    other = make_vector_env("CartPole-v1", 2, kwargs={"render_mode": "rgb_array"})
    assert other.backend == "sync"
    assert other.notices == [
        "env.backend=sync: the native batched CartPole-v1 does not know env.kwargs.render_mode"
    ]
    sync = make_vector_env("Test/OneStep-v0", 2)
    assert sync.backend == "sync" and "there is no native batched Test/OneStep-v0" in sync.notices[0]
    assert make_vector_env("CartPole-v1", 2, backend="sync").notices == []


def test_native_is_left_out_when_the_id_means_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = EnvSpec("CartPole-v1", entry_point=tests.envs_for_tests.OneStep)
    monkeypatch.setitem(gym.registry, "CartPole-v1", mine)
    assert make_vector_env("CartPole-v1", 1).backend == "sync"


def test_native_backend_takes_the_envs_own_vector_env(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(
        num_envs: int, length: int = 3, autoreset_mode: Any = AutoresetMode.NEXT_STEP, **_: Any
    ) -> SyncVectorEnv:
        single = [lambda: gym.make("Test/FixedLen-v0", length=length)] * num_envs
        return SyncVectorEnv(single, autoreset_mode=autoreset_mode)

    def only_next_step(num_envs: int, max_episode_steps: int | None = None) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: gym.make("Test/FixedLen-v0", length=2)] * num_envs)

    for name, entry in (("Own", make), ("OwnNext", only_next_step)):
        monkeypatch.setitem(
            gym.registry,
            f"{name}-v0",
            EnvSpec(f"{name}-v0", entry_point=tests.envs_for_tests.FixedLen, vector_entry_point=entry),
        )
    env = make_vector_env("Own-v0", 2, backend="native", kwargs={"length": 2})
    assert env.autoreset == "same_step" and "SyncVectorEnv, autoreset SAME_STEP" in env.notices[0]
    env.reset(0)
    assert [bool(env.step(zeros(2)).terminated.any()) for _ in range(4)] == [False, True, False, True]
    env = make_vector_env("OwnNext-v0", 2, backend="native")
    assert env.autoreset == "next_step" and "reset rows are left out" in env.notices[0]
    assert make_vector_env("Own-v0", 2).backend == "sync"  # never unasked


def test_gymnasiums_own_cartpole_batch_works_as_a_guest() -> None:
    env = adapt_vector_env(gym.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point"))
    assert env.autoreset == "next_step" and env.env_id == "CartPole-v1" and env.max_episode_steps == 500
    env.reset(0)
    rows = [env.step(zeros(3)) for _ in range(60)]
    ends = sum(int(s.terminated.sum()) for s in rows)
    invalid = sum(int((~s.valid).sum()) for s in rows if s.valid is not None)
    assert ends >= 6 and invalid in (ends, ends - int(rows[-1].terminated.sum()))


def test_a_vector_env_without_a_known_autoreset_is_refused() -> None:
    vec = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    vec.metadata["autoreset_mode"] = AutoresetMode.DISABLED
    with pytest.raises(UserError, match=r"autoreset_mode=.*DISABLED; allowed are SAME_STEP and NEXT_STEP"):
        adapt_vector_env(vec)


# ---------------------------------------------------------------- faults of envs


@pytest.mark.parametrize(
    ("name", "kwargs", "told"),
    [
        ("Raises", {}, "at step 13 (step 5 of episode 2): ValueError: broken at step 13"),
        ("Raises", {"where": "reset"}, "at reset 3: ValueError: broken at reset 3"),
        (
            "ShapeChange",
            {},
            "at step 5 (step 5 of episode 1): ValueError: observation: expected shape (2,), got (3,)",
        ),
        ("ShapeChange", {"what": "dtype"}, "expected dtype float32, got <U1"),
    ],
)
def test_faults_are_told_in_one_line_with_env_index_and_step(name: str, kwargs: dict, told: str) -> None:
    env = make_vector_env(f"Test/{name}-v0", 3, kwargs=kwargs, backend="sync")
    env.reset(0)
    env.set_idle(np.array([True, False, True]))
    with pytest.raises(TrainingError) as caught:
        play(env, 20)
    text = str(caught.value)
    assert text.startswith(f"env=Test/{name}-v0, env index 1, at ") and told in text and "\n" not in text
    assert isinstance(caught.value.__cause__, ValueError)


class SeedKeyword(gym.Env[Any, Any]):
    """A reset as it was before Gymnasium 0.22; one argument is required."""

    observation_space, action_space = gym.spaces.Box(0.0, 1.0, (1,)), gym.spaces.Discrete(2)

    def __init__(self, size: int, mode: str = "a") -> None: ...

    def reset(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return np.zeros(1, np.float32), {}


gym.register("Test/SeedKeyword-v0", entry_point=SeedKeyword)


def test_a_reset_without_the_keyword_seed_is_told() -> None:
    env = make_vector_env("Test/SeedKeyword-v0", 1, kwargs={"size": 1}, backend="sync")
    with pytest.raises(
        TrainingError, match=r"'seed' \(Gymnasium's reset takes the keywords seed and options\)$"
    ):
        env.reset(0)


@pytest.mark.parametrize(
    "result", [None, (np.zeros(1), 1.0, False, {}), (np.zeros(1), None, False, False, {})]
)
def test_results_of_another_form_are_told(monkeypatch: pytest.MonkeyPatch, result: Any) -> None:
    monkeypatch.setattr(tests.envs_for_tests.OneStep, "play", lambda self, action: result)
    env = make_vector_env("Test/OneStep-v0", 1, backend="sync")
    env.reset(0)
    with pytest.raises(TrainingError, match="env index 0, at step 1"):
        env.step(zeros(1))


def test_a_fault_of_a_guest_is_told() -> None:
    env = guest("Raises", 2, AutoresetMode.NEXT_STEP)
    env.reset(0)
    with pytest.raises(
        TrainingError, match="env=Test/Raises-v0, at step 14 of the vector env: ValueError: broken at"
    ):
        play(env, 20)


# ---------------------------------------------------------------- mistakes of users


@pytest.mark.parametrize(
    ("env_id", "arguments", "told"),
    [
        ("CartPol-v1", {}, "env=CartPol-v1: .*nearest ids are CartPole-v"),
        ("cartpole-v1", {}, "env=cartpole-v1: .*nearest ids are CartPole-v"),
        ("CartPole-v9", {}, "env=CartPole-v9: .*CartPole-v1"),
        ("no_such_module:X-v0", {}, "env=no_such_module:X-v0: cannot import 'no_such_module'"),
        (
            "Test/SeedKeyword-v0",
            {"kwargs": {"mode": "x"}},
            r"env=Test/SeedKeyword-v0 cannot be made with env\.kwargs \{'mode': 'x'\}: it needs env\.kwargs\.size$",
        ),
        ("tests.envs_for_tests:Test/SedNoise-v0", {}, "nearest ids are Test/SeedNoise-v0"),
        (
            "Test/FixedLen-v0",
            {"kwargs": {"lenght": 3}},
            r"env\.kwargs\.lenght: env=Test/FixedLen-v0 .*takes: length, reward, end; did you mean length\?",
        ),
        (
            "CartPole-v1",
            {"kwargs": {"gravity": 5}},
            r"env\.kwargs\.gravity: env=CartPole-v1 has no such argument; it takes: sutton_barto_reward",
        ),
        (
            "CartPole-v1",
            {"kwargs": {"gravity": 5}, "backend": "native"},
            r"env\.kwargs\.gravity: env=CartPole-v1 env\.backend=native .*sutton_barto_reward",
        ),
        (
            "Pendulum-v1",
            {"kwargs": {"max_episode_steps": 5}},
            r"env\.kwargs\.max_episode_steps: .*set env\.max_episode_steps",
        ),
        (
            "Test/NaNReward-v0",
            {"kwargs": {"value": "seven"}},
            r"cannot be made with env\.kwargs \{'value': 'seven'\}: ValueError: could not convert",
        ),
        ("Test/NeedsPackage-v0", {}, r"needs a package that is missing: pip install 'pgtrain\[box2d\]'"),
        (
            "Test/NeedsPackage-v0",
            {"kwargs": {"extra": "classic-control"}},
            r"pip install 'pgtrain\[render\]'",
        ),
        ("Test/NeedsPackage-v0", {"kwargs": {"extra": "other"}}, r"pip install 'gymnasium\[other\]'"),
        (
            "Test/OneStep-v0",
            {"backend": "native"},
            r"there is no batched env=Test/OneStep-v0; pgtrain has Acrobot-v1, ",
        ),
        (
            "Test/OneStep-v0",
            {"backend": "async"},
            r"env\.backend=async: allowed are auto, native, sync, process",
        ),
        ("Test/OneStep-v0", {"workers": 3}, r"env\.workers=3: must be between 1 and num_envs=2"),
        (
            "Test/OneStep-v0",
            {"workers": 2, "backend": "sync"},
            r"env\.workers=2: env\.backend=sync has no worker",
        ),
        ("Test/OneStep-v0", {"max_episode_steps": 0}, r"env\.max_episode_steps=0: must be at least 1"),
        ("Test/OneStep-v0", {"num_envs": 0}, "num_envs=0: must be at least 1"),
    ],
)
def test_mistakes_are_told_in_one_line(env_id: str, arguments: dict, told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        make_vector_env(env_id, **{"num_envs": 2, **arguments})
    assert "\n" not in str(caught.value)


def test_a_missing_plugin_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(UserError, match=r"env=MiniGrid-Empty-5x5-v0: .*pip install 'pgtrain\[minigrid\]'"):
        make_vector_env("MiniGrid-Empty-5x5-v0", 1)


def test_making_envs_is_silent_and_gymnasiums_warnings_become_notices(capfd: pytest.CaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env: Any = make_vector_env("CartPole-v0", 3, backend="sync", kwargs={"render_mode": "nonsense"})
        env.reset(0)
        env.step(zeros(3))
    assert capfd.readouterr() == ("", "")
    assert (
        len(env.notices) == 1 and "render_mode='nonsense'" in env.notices[0] and "\x1b" not in env.notices[0]
    )
    layers, at = [], env._guards[0]
    while isinstance(at, gym.Wrapper):
        layers.append(type(at).__name__)
        at = at.env
    assert layers == ["Guard", "TimeLimit", "OrderEnforcing"]  # no PassiveEnvChecker


class Talks(tests.envs_for_tests.OneStep):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        print("hello from Python")
        print("hello from Python", file=sys.stderr)
        os.write(1, b"hello from native code")
        os.write(2, b"hello from native code")


def test_envs_that_talk_while_they_are_made_are_not_heard(
    capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gym.registry, "Talks-v0", EnvSpec("Talks-v0", entry_point=Talks))
    make_vector_env("Talks-v0", 2)
    assert capfd.readouterr() == ("", "")
    print("heard")
    assert capfd.readouterr() == ("heard\n", "")


@pytest.fixture
def user_module(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "a_users_module.py").write_text(
        "import gymnasium as gym\nfrom tests.envs_for_tests import FixedLen\n"
        "gym.register('Users-v0', entry_point=FixedLen, kwargs={'length': 2})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "a_users_module"
    gym.registry.pop("Users-v0", None)


def test_an_id_with_a_module_imports_it(user_module: str) -> None:
    env = make_vector_env(f"{user_module}:Users-v0", 1)
    env.reset(0)
    assert [bool(env.step(zeros(1)).terminated[0]) for _ in range(4)] == [False, True, False, True]
    assert env.env_id == f"{user_module}:Users-v0"


def test_importing_the_envs_does_not_import_torch() -> None:
    import subprocess

    code = "import sys, json, pgtrain.envs.vector, pgtrain.envs.workers; print(json.dumps('torch' in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(run.stdout) is False


# ---------------------------------------------------------------- envs that are not written for Gymnasium's API


class _Odd(tests.envs_for_tests.TestEnv):
    """`fault`: what is not as Gymnasium has it."""

    def __init__(self, fault: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fault = fault
        if fault.endswith("space"):
            setattr(self, fault, None)

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros(3) if self.fault == "reset" else super().reset(**kwargs)

    def play(self, action: Any) -> Any:
        return (self.observe(), 0.0, False, {}) if self.fault == "step" else super().play(action)


gym.register("Test/Odd-v0", entry_point=_Odd)


@pytest.mark.parametrize("backend", ["sync", "process"])
@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_an_env_without_a_space_is_refused(backend: str, name: str) -> None:
    with pytest.raises(UserError, match=rf"^env=Test/Odd-v0: its {name} is None, no space of Gymnasium"):
        make_vector_env("Test/Odd-v0", 2, kwargs={"fault": name}, backend=backend)


@pytest.mark.parametrize(("fault", "when"), [("reset", "reset 1"), ("step", "step 1")])
@pytest.mark.parametrize("limit", [None, 5])
def test_results_of_another_form_are_explained(fault: str, when: str, limit: int | None) -> None:
    text = rf"at {when}.*values to unpack.*reset returns \(observation, info\), and step \(observation, reward, term"
    with make_vector_env("Test/Odd-v0", 1, kwargs={"fault": fault}, max_episode_steps=limit) as env:
        if fault == "step":
            env.reset(0)
        with pytest.raises(TrainingError, match=text):
            env.step(zeros(1)) if fault == "step" else env.reset(0)


def test_numbers_reach_an_env_as_arrays_of_their_space() -> None:
    """A 0-d Box, on every way to the env; the env raises for what is no member."""
    kwargs = {"space": "Box of one number"}
    for backend in ("sync", "process"):
        with make_vector_env("tests.action_envs:Test/AnyAction-v0", 2, kwargs=kwargs, backend=backend) as env:
            env.reset(0)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                env.step(np.full((2, 1), 0.5, np.float32))
