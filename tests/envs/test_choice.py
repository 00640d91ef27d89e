"""env.backend=auto for single envs: by what a step costs, where workers can start, and without changing a number."""

from __future__ import annotations

import sys
import time
import types
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from pgtrain.envs import choice
from pgtrain.envs.registry import EnvFactory
from pgtrain.envs.vector import make_vector_env

WHY = "there is no native batched X"


class Sleeper(gym.Env[Any, Any]):
    """A step that takes `ms`; the observation is drawn from the env's own randomness."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, ms: float = 2.0, fault: str = "") -> None:
        self.ms, self.fault, self.steps = ms, fault, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.fault:
            raise ValueError(self.fault)
        time.sleep(self.ms / 1000)
        self.steps += 1
        return self.np_random.random(2, np.float32), float(action), self.steps == 5, False, {}


gym.register("Test/Sleeper-v0", entry_point=f"{__name__}:Sleeper")


@pytest.fixture
def as_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, and a main module of pgtrain's own that a worker may import."""
    monkeypatch.setattr(choice, "cores", lambda ranks: 2)
    monkeypatch.setattr(choice, "workers_can_start", lambda spec: True)


def factory(**kwargs: Any) -> EnvFactory:
    return EnvFactory("Test/Sleeper-v0", gym.spec("Test/Sleeper-v0"), kwargs)


def test_the_cost_of_a_step_is_what_the_env_takes() -> None:
    cost = choice.step_ms(factory(ms=3.0))
    assert cost is not None and 3.0 <= cost < 30.0
    assert choice.step_ms(factory(fault="broken")) is None


@pytest.mark.usefixtures("as_command")
def test_dear_envs_get_workers_and_cheap_ones_do_not() -> None:
    assert choice.sync_or_process(factory(ms=2.0), 4, WHY)[0] == "process"
    chosen, why = choice.sync_or_process(factory(ms=0.0), 4, WHY)
    assert chosen == "sync" and why.startswith(WHY) and "workers pay from 1 ms on" in why
    assert choice.sync_or_process(factory(ms=2.0), 3, WHY) == ("sync", WHY)
    assert choice.sync_or_process(factory(fault="broken"), 4, WHY) == ("sync", WHY)


def test_one_core_stays_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "workers_can_start", lambda spec: True)
    monkeypatch.setattr(choice, "cores", lambda ranks: 1)
    assert choice.sync_or_process(factory(ms=2.0), 4, WHY) == ("sync", WHY)


@pytest.mark.parametrize(
    ("main", "entry", "expected"),
    [
        ({"__spec__": types.SimpleNamespace(name="pgtrain.__main__")}, "gymnasium.core:Env", True),
        ({"__file__": "/usr/bin/pgtrain"}, "gymnasium.core:Env", True),
        ({"__file__": "/home/me/train.py"}, "gymnasium.core:Env", False),  # may have no guard
        ({"__spec__": types.SimpleNamespace(name="pytest.__main__")}, "gymnasium.core:Env", False),
        ({"__file__": "/usr/bin/pgtrain"}, "no.such.module:Env", False),
        ({"__file__": "/usr/bin/pgtrain"}, "__main__:Env", False),
        ({"__file__": "/usr/bin/pgtrain"}, type("Mine", (Sleeper,), {"__module__": "__main__"}), False),
        ({"__file__": "/usr/bin/pgtrain"}, gym.Env, True),
    ],
)
def test_workers_start_only_where_they_can_import_all(
    monkeypatch: pytest.MonkeyPatch, main: dict[str, Any], entry: Any, expected: bool
) -> None:
    module = types.ModuleType("__main__")
    module.__dict__.update(main)
    monkeypatch.setitem(sys.modules, "__main__", module)
    assert choice.workers_can_start(EnvSpec("Mine-v0", entry_point=entry)) is expected


@pytest.mark.usefixtures("as_command")
def test_the_choice_is_told_and_changes_no_number() -> None:
    env_id = "tests.envs_for_tests:Test/SeedNoise-v0"
    with make_vector_env(env_id, 4) as plain, pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "DEAR_MS", 0.0)
        with make_vector_env(env_id, 4) as auto:
            assert plain.backend == "sync" and auto.backend == "process"
            assert "workers pay from" in plain.notices[0]
            assert auto.notices[0].startswith("env.backend=process: there is no native batched")
            np.testing.assert_array_equal(plain.reset(3), auto.reset(3))
            for _ in range(20):
                a, b = plain.step(np.zeros(4, np.int64)), auto.step(np.zeros(4, np.int64))
                np.testing.assert_array_equal(a.obs, b.obs)
                np.testing.assert_array_equal(a.reward, b.reward)
