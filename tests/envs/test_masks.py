"""Action masks reach the policy at every step, from info or from an observation key, on every backend."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pgtrain.envs.masks import MaskLayout
from pgtrain.envs.vector import adapt_vector_env, make_vector_env
from pgtrain.types import TrainingError, UserError
from tests.action_envs import MASKED

ID = "tests.action_envs:Test/Masked-v0"
NEST = spaces.Dict(
    {"a": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (3,))]), "b": spaces.MultiBinary(2)}
)


@pytest.mark.parametrize(
    ("space", "mask", "row"),
    [
        (spaces.Discrete(3, start=5), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (spaces.Discrete(3), [True, False, True], [1, 0, 1]),
        (spaces.Discrete(3), None, [1, 1, 1]),
        (spaces.MultiDiscrete([2, 3]), (np.array([0, 1]), np.array([1, 1, 0])), [0, 1, 1, 1, 0]),
        (spaces.MultiDiscrete([2, 3]), np.array([0, 1, 1, 1, 0]), [0, 1, 1, 1, 0]),
        (spaces.MultiDiscrete([[2], [1]]), (((1, 0),), ((1,),)), [1, 0, 1]),
        (spaces.MultiBinary((2, 2)), np.array([[0, 1], [2, 2]]), [0, 1, 2, 2]),
        (spaces.MultiBinary(2), None, [2, 2]),
        (NEST, {"a": (np.array([0, 1]), None), "b": np.array([2, 0])}, [0, 1, 2, 0]),
        (NEST, {"b": np.array([2, 0])}, [1, 1, 2, 0]),
    ],
)
def test_masks_of_gymnasium_become_rows(space: Any, mask: Any, row: list[int]) -> None:
    layout = MaskLayout(space)
    assert layout.dim == len(row) and layout.row(mask).tolist() == row


@pytest.mark.parametrize(
    ("space", "mask", "text"),
    [
        (spaces.Discrete(3), [1, 0], r"expected 3 numbers for Discrete\(3\), got 2"),
        (spaces.Discrete(2), [0.5, 1], "expected 0 or 1 for each choice"),
        (spaces.Discrete(2), [0, 0], r"allows no action: \[0, 0\]"),
        (spaces.MultiDiscrete([2, 2]), [1, 1, 0, 0], "allows no action"),
        (NEST, {"a": ([0, 0],)}, r"action mask at a\.0 allows no action"),
        (spaces.MultiBinary(2), [3, 0], r"expected 0, 1 \(must be 1\) or 2"),
        (spaces.Discrete(3), "left", "action mask: expected numbers, got 'left'"),
    ],
)
def test_masks_that_do_not_fit_are_told(space: Any, mask: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        MaskLayout(space).row(mask)


def legal(kind: str, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random action for each mask [N, M], as the policy gives it."""
    if kind == "bits":
        return np.where(rows == 2, rng.integers(0, 2, rows.shape), rows).astype(np.int64)
    if kind == "multi":
        parts = np.split(rows, [2, 5, 9], axis=1)
        return np.stack([(p * (0.1 + rng.random(p.shape))).argmax(1) for p in parts], 1)
    index = (rows * (0.1 + rng.random(rows.shape))).argmax(1)
    if kind == "dict":
        return np.concatenate([index[:, None], rng.normal(size=(len(rows), 2))], 1)
    return index


def play(env: Any, kind: str, steps: int = 40) -> list[np.ndarray]:
    """All that a legal random policy saw: an action that is ruled out would have raised."""
    rng = np.random.default_rng(0)
    obs = env.reset(3)
    seen = [obs]
    for _ in range(steps):
        assert obs.shape == (env.num_envs, env.obs_dim)
        step = env.step(legal(kind, obs[:, -env.mask_dim :], rng))
        if step.final_obs is not None:
            assert step.final_obs.shape[1] == env.obs_dim and (step.final_obs[:, -env.mask_dim :] == 1).all()
            seen.append(step.final_obs)
        obs = step.obs
        seen.append(obs)
    return seen


@pytest.mark.parametrize("kind", MASKED)
def test_every_kind_of_mask_on_sync_and_guest_backends(kind: str) -> None:
    width = {"discrete": 6, "multi": 11, "bits": 4, "dict": 4}[kind]
    with make_vector_env(ID, 3, kwargs={"kind": kind}) as env:
        assert env.mask_dim == width and env.obs_dim == 2 + width
        assert any("env.action_mask: info tells which actions are allowed" in n for n in env.notices)
        play(env, kind)
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        vec = SyncVectorEnv([lambda: gym.make(ID, kind=kind)] * 3, autoreset_mode=mode)
        with adapt_vector_env(vec) as guest:
            assert guest.mask_dim == width
            play(guest, kind)


@pytest.mark.parametrize("where", ["info", "action_mask", "legal"])
def test_processes_see_the_same_as_one_process(where: str) -> None:
    setting = where if where == "legal" else "auto"
    seen = []
    for backend, workers in (("sync", None), ("process", 2)):
        with make_vector_env(
            ID, 3, kwargs={"where": where}, backend=backend, workers=workers, action_mask=setting
        ) as env:
            assert (env.obs_dim, env.mask_dim) == (8, 6)  # the mask is no observation besides
            seen.append(play(env, "discrete", 20))
    for a, b in zip(*seen, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_guest_reads_masks_of_its_observations() -> None:
    make = lambda: gym.make(ID, where="action_mask")  # noqa: E731
    with adapt_vector_env(SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP)) as env:
        assert (env.obs_dim, env.mask_dim) == (8, 6)
        play(env, "discrete")


@pytest.mark.parametrize("backend", ["sync", "process"])
def test_a_mask_without_an_action_names_env_and_step(backend: str) -> None:
    text = r"env index 0, at step 3 \(step 3 of episode 1\): .*action mask allows no action"
    with (
        make_vector_env(ID, 2, kwargs={"dead": 3}, backend=backend) as env,
        pytest.raises(TrainingError, match=text),
    ):
        play(env, "discrete")


def test_a_guest_names_env_and_step_too() -> None:
    vec = SyncVectorEnv([lambda: gym.make(ID, dead=3)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    text = r"env=X-v0, at step 3 of the vector env: env index 0: action mask allows no action"
    with adapt_vector_env(vec, "X-v0") as env, pytest.raises(TrainingError, match=text):
        play(env, "discrete")


@pytest.mark.parametrize("backend", ["sync", "process"])
def test_a_mask_that_comes_late_is_not_passed_over(backend: str) -> None:
    text = r"env index 0, at step 3 \(step 3 of episode 1\): .*info has 'action_mask' here, but had none at the first"
    with make_vector_env(ID, 2, kwargs={"first": 3}, backend=backend) as env:
        env.reset(0)
        for _ in range(2):
            env.step(np.zeros(2, np.int64))
        with pytest.raises(TrainingError, match=text):
            env.step(np.zeros(2, np.int64))


def test_a_guest_passes_over_no_late_mask_either() -> None:
    vec = SyncVectorEnv([lambda: gym.make(ID, first=3)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with adapt_vector_env(vec, "X-v0") as env:
        env.reset(0)
        env.step(np.zeros(2, np.int64))
        env.step(np.zeros(2, np.int64))
        with pytest.raises(TrainingError, match=r"at step 3 of the vector env: info has 'action_mask' here"):
            env.step(np.zeros(2, np.int64))


def test_none_leaves_late_masks_alone() -> None:
    with make_vector_env(ID, 1, kwargs={"first": 2}, action_mask="none") as env:
        env.reset(0)
        for _ in range(4):
            env.step(np.full(1, 0, np.int64))


def test_none_leaves_masks_alone() -> None:
    with make_vector_env(ID, 2, action_mask="none") as env:
        assert (env.obs_dim, env.mask_dim) == (2, 0)
    with make_vector_env(ID, 2, kwargs={"where": "action_mask"}, action_mask="none") as env:
        assert (env.obs_dim, env.mask_dim) == (8, 0)  # a feature like any other


@pytest.mark.parametrize(
    ("env", "backend", "mask", "text"),
    [
        (
            "CartPole-v1",
            "sync",
            "info",
            r"env\.action_mask=info: env=CartPole-v1 gives no info\['action_mask'\]",
        ),
        ("CartPole-v1", "process", "info", r"env\.action_mask=info: env=CartPole-v1 gives no info"),
        ("CartPole-v1", "native", "info", "batched CartPole-v1 has no action masks"),
        ("CartPole-v1", "sync", "legal", "no such key, its observation has no keys"),
        ("Pendulum-v1", "sync", "info", "the actions of env=Pendulum-v1 are continuous"),
        (ID, "sync", "legal", "no such key"),
    ],
)
def test_masks_that_cannot_be_had_are_refused(env: str, backend: str, mask: str, text: str) -> None:
    with pytest.raises(UserError, match=text):
        make_vector_env(env, 2, backend=backend, action_mask=mask)


def test_the_envs_of_the_run_are_not_touched_by_the_look_for_masks() -> None:
    env: Any
    with make_vector_env("tests.action_envs:Test/AnyAction-v0", 1, backend="sync") as env:
        env.reset(0)
        assert env._guards[0].unwrapped.episode == 1
