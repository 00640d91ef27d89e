"""Tiny envs, each made to show one kind of fault. Importing this module registers them as `Test/<Name>-v0`.

In an id with a module: `tests.envs_for_tests:Test/SeedNoise-v0`.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class TestEnv(gym.Env[Any, Any]):
    """Counts the steps of the episode in `t` and of its life in `life`; obs is one zero, two actions."""

    __test__ = False  # not a test class of pytest's
    metadata = {"render_modes": []}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.t, self.life, self.episode = 0, 0, 0
        self.observation_space: spaces.Space[Any] = spaces.Box(-10.0, 10.0, (1,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)

    def observe(self) -> Any:
        return np.zeros(1, np.float32)

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Terminates after 8 steps, reward 1 each."""
        return self.observe(), 1.0, self.t >= 8, False, {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.episode += 1
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        if not self.action_space.contains(action):
            dtype = getattr(action, "dtype", type(action).__name__)
            raise AssertionError(f"{action!r} of dtype {dtype} is no member of {self.action_space}")
        self.t += 1
        self.life += 1
        return self.play(action)


class FixedLen(TestEnv):
    """Every episode has `length` steps of `reward`; ends by terminate, truncate, or both. obs = t / length."""

    def __init__(self, length: int = 3, reward: float = 1.0, end: str = "terminate", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length, self.reward, self.end = length, reward, end

    def observe(self) -> Any:
        return np.array([self.t / self.length], np.float32)

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        last = self.t >= self.length
        return (
            self.observe(),
            self.reward,
            last and self.end != "truncate",
            last and self.end != "terminate",
            {},
        )


class OneStep(TestEnv):
    """Each episode is one step of reward 1."""

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        return self.observe(), 1.0, True, False, {}


class AliasObs(TestEnv):
    """Writes all its observations into one array. The sign of the observation tells the rewarded action."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.array = np.zeros(1, np.float32)
        self.right = 0

    def observe(self) -> Any:
        self.right = int(self.np_random.integers(2))
        self.array[0] = 2 * self.right - 1
        return self.array

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        reward = float(action == self.right)
        return self.observe(), reward, self.t >= 8, False, {}


class SeedNoise(TestEnv):
    """Observation, reward and length of the episode all come from the seed."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float64)
        self.noise = np.zeros(2)

    def observe(self) -> Any:
        self.noise = self.np_random.random(2)
        return self.noise

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        reward = self.noise[int(action)]
        return self.observe(), reward, bool(self.np_random.random() < 0.1), self.t >= 30, {}


class ConstTruncate(TestEnv):
    """Constant observation, reward 1, cut every `limit` steps, never terminates."""

    def __init__(self, limit: int = 5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.limit = limit

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        return self.observe(), 1.0, False, self.t >= self.limit, {}


class TwoLength(TestEnv):
    """Half of the episodes last 1 step with return 0, half 10 steps with return 10."""

    long = False

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        result = super().reset(**kwargs)
        self.long = bool(self.np_random.random() < 0.5)
        return result

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        return self.observe(), float(self.long), self.t >= (10 if self.long else 1), False, {}


class NeverEnds(TestEnv):
    """No episode ever finishes."""

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        return self.observe(), 1.0, False, False, {}


def late_limit(length: int = 5, **kwargs: Any) -> gym.Env[Any, Any]:
    """Episode statistics INSIDE the time limit, so that they never see the cut; each episode has `length` steps."""
    return gym.wrappers.TimeLimit(gym.wrappers.RecordEpisodeStatistics(NeverEnds(**kwargs)), length)


class NaNReward(TestEnv):
    """`what` (reward or obs) is `value` once, at step `at` of the env's life."""

    def __init__(self, at: int = 40, what: str = "reward", value: str | float = "nan", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.at, self.what, self.value = at, what, float(value)

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        now = self.life == self.at
        obs = np.full(1, self.value, np.float32) if now and self.what == "obs" else self.observe()
        return obs, self.value if now and self.what == "reward" else 1.0, self.t >= 8, False, {}


class BoxActions(TestEnv):
    """Base of the envs with a Box of actions; `last` is the action that came."""

    box: spaces.Box

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = self.box
        self.last: Any = None

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.last = action
        return self.observe(), self.score(action), self.t >= 8, False, {}

    def score(self, action: Any) -> float:
        return 1.0


class AsymBox(BoxActions):
    """[-1, 1] × [0, 5] × [-3, -2]; the upper corner is best and gives 1."""

    box = spaces.Box(np.array([-1, 0, -3], np.float32), np.array([1, 5, -2], np.float32))

    def score(self, action: Any) -> float:
        return float(np.mean((action - self.box.low) / (self.box.high - self.box.low)))


class UnboundedBox(BoxActions):
    """No bounds; 3 is best."""

    box = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def score(self, action: Any) -> float:
        return -float((action[0] - 3) ** 2)


class HalfBoundedBox(BoxActions):
    """[0, ∞) × [-1, 1]; 2 is best in the first."""

    box = spaces.Box(np.array([0, -1], np.float32), np.array([np.inf, 1], np.float32))

    def score(self, action: Any) -> float:
        return -float((action[0] - 2) ** 2)


class IntBox(BoxActions):
    """Whole numbers 0..10; 7 is best."""

    box = spaces.Box(0, 10, (1,), np.int64)

    def score(self, action: Any) -> float:
        return -abs(int(action[0]) - 7) / 10


class MatrixBox(BoxActions):
    """A 2×3 action, to see its shape arrive."""

    box = spaces.Box(-1, 1, (2, 3), np.float32)


class Float64(BoxActions):
    """float64 observations that float32 cannot hold, and float64 actions."""

    box = spaces.Box(-1.0, 1.0, (1,), np.float64)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def observe(self) -> Any:
        return np.array([1.0 + 1e-12 * self.t, -0.1])


class StartAt(TestEnv):
    """Discrete actions that start at -1; reward is the action that came."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Discrete(3, start=-1)

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        return self.observe(), float(action), self.t >= 8, False, {}


class BadInfo(TestEnv):
    """info is None, has a key "episode", or an array that grows (kind = none, episode, ragged)."""

    def __init__(self, kind: str = "episode", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        info = {"none": None, "episode": {"episode": {"phase": self.t}}, "ragged": {"x": np.zeros(self.t)}}
        return self.observe(), 1.0, self.t >= 8, False, info[self.kind]


class Raises(TestEnv):
    """ValueError at step 13 of its life, or (where="reset") in its third reset."""

    def __init__(self, where: str = "step", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.where = where

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        if self.where == "reset" and self.episode == 2:
            raise ValueError("broken at reset 3")
        return super().reset(**kwargs)

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        if self.where == "step" and self.life == 13:
            raise ValueError("broken at\nstep 13")
        return super().play(action)


class ShapeChange(TestEnv):
    """Declares 2 numbers; from step 5 on gives 3 (what="shape"), or text."""

    def __init__(self, what: str = "shape", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.what = what
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def observe(self) -> Any:
        if self.t < 5:
            return np.zeros(2, np.float32)
        return np.zeros(3, np.float32) if self.what == "shape" else np.array(["a", "b"])


class Hangs(TestEnv):
    """Step 9 of an episode sleeps `seconds`. For worker processes."""

    def __init__(self, seconds: float = 3600.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        if self.t == 9:
            time.sleep(self.seconds)
        return self.observe(), 1.0, self.t >= 12, False, {}


class DictMixed(TestEnv):
    """A nested Dict of a picture, a float64 vector whose sign tells the right action, and a Discrete."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        inner = spaces.Dict({"vec": spaces.Box(-5, 5, (3,), np.float64), "k": spaces.Discrete(3, start=1)})
        self.observation_space = spaces.Dict({"pic": spaces.Box(0, 255, (2, 2, 1), np.uint8), "in": inner})
        self.right = 0
        self.vec = np.zeros(3)

    def observe(self) -> Any:
        self.right = int(self.np_random.integers(2))
        self.vec[:] = 2 * self.right - 1
        return {"pic": np.full((2, 2, 1), 51, np.uint8), "in": {"vec": self.vec, "k": np.int64(2)}}

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        reward = float(action == self.right)
        return self.observe(), reward, self.t >= 8, False, {}


class Dies(TestEnv):
    """Its process ends at step 5 of an env's life. For worker processes."""

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        if self.life == 5:
            import os

            os._exit(9)
        return super().play(action)


class NeedsPackage(TestEnv):
    """Cannot be made: a package is missing."""

    def __init__(self, extra: str = "box2d", **kwargs: Any) -> None:
        raise gym.error.DependencyNotInstalled(f'Not installed, run `pip install "gymnasium[{extra}]"`')


class NoReset(TestEnv):
    """Raises at its first reset."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        raise RuntimeError("no map to start on")


class Growing(TestEnv):
    """Every one that is made has an observation wider than the one before."""

    made = 0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        Growing.made += 1
        self.observation_space = spaces.Box(-1.0, 1.0, (Growing.made,), np.float32)


_ENVS: dict[str, Any] = {
    c.__name__: c
    for c in (
        *(FixedLen, OneStep, AliasObs, SeedNoise, ConstTruncate, TwoLength, NeverEnds, NaNReward, AsymBox),
        *(
            UnboundedBox,
            HalfBoundedBox,
            IntBox,
            MatrixBox,
            Float64,
            StartAt,
            BadInfo,
            Raises,
            ShapeChange,
            Hangs,
        ),
        *(DictMixed, Dies, NeedsPackage, NoReset, Growing),
    )
}
for _name, _entry in {**_ENVS, "LateLimit": late_limit}.items():
    if f"Test/{_name}-v0" not in gym.registry:
        gym.register(f"Test/{_name}-v0", entry_point=_entry)
