"""The batched MuJoCo tasks equal Gymnasium's single envs, number by number."""

from __future__ import annotations

import inspect
import json
import re
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import load_env_creator

import pgtrain
from pgtrain.envs import native
from pgtrain.envs.base import env_seeds
from pgtrain.envs.vector import make_vector_env
from pgtrain.types import TrainingError, UserError

N = 3
TASKS = [
    "Ant-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "Pusher-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
]
SHOWN = {"exclude_current_positions_from_observation": False}
# each setting away from its default, so that one which does not arrive changes a number
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("HalfCheetah-v5", {**SHOWN, "forward_reward_weight": 2.0, "ctrl_cost_weight": 0.7, "frame_skip": 3}),
    ("HalfCheetah-v5", {"reset_noise_scale": 0.4}),
    ("Swimmer-v5", {**SHOWN, "forward_reward_weight": 3.0, "ctrl_cost_weight": 0.2}),
    ("Hopper-v5", {**SHOWN, "healthy_state_range": [-0.8, 0.8], "healthy_reward": 3.0}),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_angle_range": [-0.05, 0.05]}),
    ("Walker2d-v5", {"healthy_z_range": [1.2, 1.3], "healthy_angle_range": [-0.2, 0.1]}),
    ("Ant-v5", {**SHOWN, "main_body": "front_left_leg", "contact_force_range": [-0.2, 0.3]}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 1.0, "ctrl_cost_weight": 2}),
    ("Ant-v5", {"healthy_z_range": [0.6, 0.8], "healthy_reward": 0.1}),
    ("Humanoid-v5", {**SHOWN, "include_cinert_in_observation": False, "contact_cost_weight": 0.1}),
    ("Humanoid-v5", {"include_cvel_in_observation": False, "contact_cost_range": [0.5, 0.6]}),
    ("Humanoid-v5", {"include_qfrc_actuator_in_observation": False, "healthy_z_range": [1.3, 1.5]}),
    ("HumanoidStandup-v5", {"include_cfrc_ext_in_observation": False, "impact_cost_weight": 1.0}),
    ("HumanoidStandup-v5", {**SHOWN, "ctrl_cost_weight": 9.0, "impact_cost_range": [3.0, 4.0]}),
    ("InvertedPendulum-v5", {"reset_noise_scale": 0.15, "frame_skip": 3}),
    ("InvertedDoublePendulum-v5", {"healthy_reward": 3.0, "reset_noise_scale": 0.2}),
    ("Reacher-v5", {"reward_dist_weight": 3.0, "reward_control_weight": 0.2}),
    ("Pusher-v5", {"reward_near_weight": 2.0, "reward_dist_weight": 3.0, "reward_control_weight": 0.7}),
]


class Reference:
    """Gymnasium's single envs, stepped and reset one by one."""

    def __init__(self, env_id: str, seed: int, **kwargs: Any) -> None:
        self.envs = [gym.make(env_id, disable_env_checker=True, **kwargs) for _ in range(N)]
        self.obs = np.array([e.reset(seed=s)[0] for e, s in zip(self.envs, env_seeds(seed, N), strict=True)])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, list[float], list[bool], list[bool], list[Any]]:
        found: list[list[Any]] = [[], [], [], []]
        finals: list[Any] = []
        for env, a in zip(self.envs, action, strict=True):
            obs, reward, terminated, truncated, _ = env.step(a)
            if terminated or truncated:
                finals.append(obs)
                obs, _ = env.reset()
            for out, value in zip(found, (obs, float(reward), bool(terminated), truncated), strict=True):
                out.append(value)
        return np.array(found[0]), found[1], found[2], found[3], finals

    def close(self) -> None:
        for env in self.envs:
            env.close()


def compare(env_id: str, steps: int, kwargs: dict[str, Any], limit: int | None = None) -> tuple[int, int]:
    """Both with the same seeds and random actions, some of them out of bounds → ends by the task, and by the limit."""
    env = make_vector_env(env_id, N, kwargs=kwargs, max_episode_steps=limit)
    assert env.backend == "native"
    reference = Reference(env_id, 3, **kwargs, **({} if limit is None else {"max_episode_steps": limit}))
    rng, low, high = np.random.default_rng(1), env.action_space.low, env.action_space.high  # pyright: ignore
    np.testing.assert_array_equal(env.reset(3), reference.obs)
    ended = cut = 0
    for _ in range(steps):
        action = rng.uniform(1.2 * low, 1.2 * high, (N, len(low)))
        step = env.step(action)
        obs, reward, terminated, truncated, finals = reference.step(
            np.clip(action, low, high).astype(np.float32)
        )
        assert step.obs.dtype == np.float64 and step.reward.dtype == np.float64
        np.testing.assert_array_equal(step.obs, obs)
        assert step.obs.flags.c_contiguous  # a network's product would round in another way
        np.testing.assert_allclose(step.reward, reward, rtol=1e-14, atol=1e-14)
        assert step.terminated.tolist() == terminated and step.truncated.tolist() == truncated
        assert (step.final_obs is None) == (not finals)
        if finals:
            np.testing.assert_array_equal(step.final_obs, np.array(finals))
        ended, cut = ended + sum(terminated), cut + sum(truncated)
    env.close()
    reference.close()
    return ended, cut


@pytest.mark.parametrize("env_id", TASKS)
def test_equals_gymnasium_step_by_step(env_id: str) -> None:
    ended, cut = compare(env_id, 130, {}, limit=40)
    can_end = ("Ant", "Hopper", "Humanoid-", "InvertedD", "InvertedP", "Walker")
    assert cut >= 3 if not env_id.startswith(can_end) else ended + cut >= 5


@pytest.mark.parametrize(("env_id", "kwargs"), SETTINGS)
def test_settings_of_the_task_arrive(env_id: str, kwargs: dict[str, Any]) -> None:
    compare(env_id, 60, kwargs, limit=25)


@pytest.mark.slow  # Gymnasium's single steps: up to a minute each
@pytest.mark.parametrize("env_id", TASKS)
def test_equals_gymnasium_over_100_000_random_steps(env_id: str) -> None:
    compare(env_id, 100_000 // N, {})


def test_all_settings_of_gymnasiums_tasks_are_known_but_those_of_pictures() -> None:
    """And of the model file where the row is made for the task's own."""
    batched = {name for name, own in native.NATIVE.items() if "mujoco" in own.entry_point}
    assert batched == set(TASKS)
    for env_id in TASKS:
        own = native.NATIVE[env_id]
        creator: Any = load_env_creator(own.entry_point)
        theirs = set(inspect.signature(creator).parameters) - {"default_camera_config", "kwargs"}
        missing = theirs - set(own.kwargs)
        assert set(own.kwargs) <= theirs
        assert missing <= ({"xml_file"} if env_id in TASKS[5:6] + TASKS[7:9] else set())


def test_other_settings_take_single_envs() -> None:
    env = make_vector_env("Reacher-v5", 1, kwargs={"xml_file": "reacher.xml"})
    assert env.backend == "sync" and "env.kwargs.xml_file" in env.notices[0]
    with pytest.raises(UserError, match=r"env.kwargs.xml_file: .*native"):
        make_vector_env("Reacher-v5", 1, kwargs={"xml_file": "reacher.xml"}, backend="native")
    with pytest.raises(UserError, match="frame_skip"):
        make_vector_env("Hopper-v5", 1, kwargs={"frameskip": 2})


@pytest.mark.parametrize("env_id", TASKS)
def test_spaces_limits_and_thresholds_are_gymnasiums(env_id: str) -> None:
    env, theirs = make_vector_env(env_id, 2, backend="native"), gym.make(env_id)
    assert theirs.spec is not None
    assert env.observation_space == theirs.observation_space and env.action_space == theirs.action_space
    assert env.max_episode_steps == theirs.spec.max_episode_steps
    assert env.reward_threshold == theirs.spec.reward_threshold


@pytest.mark.parametrize(("env_id", "threads"), [("Hopper-v5", 2), ("Hopper-v5", 5), ("Ant-v5", 3)])
def test_threads_change_no_number(env_id: str, threads: int) -> None:
    """Ends, resets and idle envs included; with more threads than envs that move, too."""
    one, several = (make_vector_env(env_id, 5, max_episode_steps=30, threads=count) for count in (1, threads))
    rng, space = np.random.default_rng(0), one.action_space
    np.testing.assert_array_equal(one.reset(2), several.reset(2))
    ends = 0
    for t in range(100):
        if t in (40, 60, 80):  # some, all and none of them idle
            idle = np.arange(5) % 2 == 0 if t == 40 else np.full(5, t == 60)
            one.set_idle(idle)
            several.set_idle(idle)
        action = rng.uniform(space.low, space.high, (5, *space.shape))  # pyright: ignore
        steps = one.step(action), several.step(action)
        for a, b in zip(*steps, strict=True):
            assert (a is None) == (b is None) and (a is None or np.array_equal(a, b))
        ends += 0 if steps[0].final_obs is None else len(steps[0].final_obs)
    assert ends >= 10
    assert not one.notices[1:] and not several.notices[1:]  # what was asked for needs no notice
    several.close()


def test_as_many_threads_as_a_step_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    from pgtrain.envs.native import mujoco_batch

    step = mujoco_batch.mujoco.mj_step
    monkeypatch.setattr(mujoco_batch, "cores", lambda ranks: 6 // ranks)

    def slow(model: Any, data: Any, frames: int) -> None:
        time.sleep(0.002)
        step(model, data, frames)

    monkeypatch.setattr(mujoco_batch.mujoco, "mj_step", slow)
    for num_envs, ranks, threads in ((8, 1, 6), (3, 1, 3), (8, 2, 3), (8, 6, 1), (1, 1, 1)):
        env: Any = make_vector_env("Swimmer-v5", num_envs, ranks=ranks)
        assert env.threads == threads
        told = [notice for notice in env.notices if notice.startswith("env.threads")]
        assert len(told) == (threads > 1)
        if told:
            assert re.fullmatch(
                rf"env.threads={threads}: one thread takes [\d.]+ ms to step {num_envs} envs", told[0]
            )
        env.close()


def test_a_step_too_cheap_to_share_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    from pgtrain.envs.native import mujoco_batch

    monkeypatch.setattr(mujoco_batch, "cores", lambda ranks: 6)
    monkeypatch.setattr(mujoco_batch.mujoco, "mj_step", lambda model, data, frames: None)
    env: Any = make_vector_env("Swimmer-v5", 8)
    assert env.threads == 1 and env._pool is None


@pytest.mark.parametrize("env_id", TASKS)
def test_state_dict_goes_on_bit_for_bit_and_idle_envs_stand_still(env_id: str, tmp_path) -> None:
    env = make_vector_env(env_id, N, backend="native", max_episode_steps=9)
    rng, space = np.random.default_rng(0), env.action_space
    actions = rng.uniform(space.low, space.high, (60, N, *space.shape))  # pyright: ignore
    obs = env.reset(5)
    for action in actions[:25]:
        obs = env.step(action).obs
    env.set_idle(np.arange(N) == 1)
    torch.save(env.state_dict(), tmp_path / "env.pt")
    other = make_vector_env(env_id, N, backend="native", max_episode_steps=9)
    other.load_state_dict(torch.load(tmp_path / "env.pt", weights_only=True))
    held, ends = obs[1].copy(), 0
    for t, action in enumerate(actions[25:]):
        if t == 5:
            env.set_idle(np.zeros(N, bool))
            other.set_idle(np.zeros(N, bool))
        step = env.step(action)
        for a, b in zip(step, other.step(action), strict=True):
            assert (a is None) == (b is None) and (a is None or np.array_equal(a, b))
        if t < 5:
            assert step.valid is not None and not step.valid[1]
            assert np.array_equal(step.obs[1], held) and step.reward[1] == 0 and not step.truncated[1]
        ends += 0 if step.final_obs is None else len(step.final_obs)
    assert ends >= 5
    with pytest.raises(ValueError, match=f"the state is of {N} envs, this has 2"):
        make_vector_env(env_id, 2).load_state_dict(env.state_dict())


def test_what_is_returned_is_the_callers() -> None:
    """Neither a later step changes it, nor does it change a later step."""
    one, other = make_vector_env("Hopper-v5", N), make_vector_env("Hopper-v5", N)
    kept = one.reset(0)
    other.reset(0)[:] = 7.0
    copy = kept.copy()
    for _ in range(30):
        action = np.ones((N, 3))
        a, b = one.step(action), other.step(action)
        for x, y in zip(a, b, strict=True):
            if x is not None:
                np.testing.assert_array_equal(x, y)
        b.obs[:] = 7.0
    np.testing.assert_array_equal(kept, copy)


def test_envs_of_a_rank_are_those_of_the_run() -> None:
    whole, part = make_vector_env("Hopper-v5", 4), make_vector_env("Hopper-v5", 2, before=2)
    np.testing.assert_array_equal(whole.reset(1)[2:], part.reset(1))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_fault_of_the_simulation_is_told_with_the_env_and_its_step(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgtrain.envs.native import mujoco_batch

    env = make_vector_env("HalfCheetah-v5", N, before=4, threads=threads)
    env.reset(0)
    env.step(np.zeros((N, 6)))
    faulty = env._data[1]  # pyright: ignore[reportAttributeAccessIssue]
    step = mujoco_batch.mujoco.mj_step

    def break_down(model: Any, data: Any, frames: int) -> None:
        if data is faulty:
            raise RuntimeError("mj_stackAlloc: out of memory")
        step(model, data, frames)

    monkeypatch.setattr(mujoco_batch.mujoco, "mj_step", break_down)
    told = r"^env=HalfCheetah-v5, env index 5, at step 2 of its episode: RuntimeError: mj_stackAlloc: out of memory "
    with pytest.raises(TrainingError, match=told):
        env.step(np.zeros((N, 6)))
    with pytest.raises(TrainingError, match="the policy's action for env 6 is not finite"):
        env.step(np.array([0.0] * 12 + [np.nan] * 6).reshape(N, 6))


def test_without_mujoco_the_package_to_install_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("pgtrain.envs.native.mujoco", "gymnasium.envs.mujoco")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    told = r"^env=Hopper-v5: needs a package that is missing: pip install 'pgtrain\[mujoco\]'$"
    with pytest.raises(UserError, match=told):
        make_vector_env("Hopper-v5", N)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "told"),
    [
        (
            "Hopper-v5",
            {"xml_file": "/nowhere.xml"},
            r"env=Hopper-v5 cannot be made with env.kwargs .*nowhere\.xml",
        ),
        ("Hopper-v5", {"frame_skip": 0}, "env=Hopper-v5 cannot be made with env.kwargs .*'frame_skip': 0"),
        (
            "Hopper-v5",
            {"healthy_z_range": [1]},
            r"env.kwargs.healthy_z_range=\[1\]: must be two numbers, the lower",
        ),
        ("Hopper-v5", {"healthy_z_range": "ab"}, "env.kwargs.healthy_z_range=ab: must be two numbers"),
        (
            "Humanoid-v5",
            {"contact_cost_range": [2, 1]},
            r"env.kwargs.contact_cost_range=\[2, 1\]: must be two",
        ),
        (
            "Hopper-v5",
            {"ctrl_cost_weight": "low"},
            "env.kwargs.ctrl_cost_weight=low: must be a number; the task's",
        ),
        ("Hopper-v5", {"healthy_reward": float("nan")}, "env.kwargs.healthy_reward=nan: must be a number"),
        (
            "Hopper-v5",
            {"terminate_when_unhealthy": 1},
            "env.kwargs.terminate_when_unhealthy=1: must be true or false",
        ),
        ("Ant-v5", {"main_body": "nose"}, "env=Ant-v5 cannot be made with env.kwargs .*nose"),
    ],
)
def test_a_mistaken_setting_is_told_in_one_line(env_id: str, kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=f"^{told}") as caught:
        make_vector_env(env_id, N, kwargs=kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("env_id", ["Ant-v5", "Hopper-v5"])
def test_a_run_has_the_same_numbers_with_batched_and_with_single_envs(env_id: str, tmp_path) -> None:
    rows: list[list[dict[str, Any]]] = []
    for backend in ("native", "sync"):
        result = pgtrain.train(
            "algo=ppo", f"env={env_id}", "num_envs=2", "horizon=64", "total_steps=512", "eval.episodes=0",
            "monitor=quiet", f"env.backend={backend}", run_dir=tmp_path / backend,
        )  # fmt: skip
        lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
        rows.append(
            [{k: v for k, v in json.loads(x).items() if k != "elapsed" and "time/" not in k} for x in lines]
        )
    assert len(rows[0]) >= 4 and rows[0][-1]["episode/count"] >= 1
    assert rows[0] == rows[1]
