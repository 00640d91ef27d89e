"""One env for each kind of space: any observation space, any action space, at random. Registers `Test/AnySpace-v0`.

`OBSERVATIONS` and `ACTIONS` are the rows of the table in docs/spaces.md: text → (space, how it is supported). Add a
row to try one more.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.envs_for_tests import TestEnv

F32, F64, U8 = np.float32, np.float64, np.uint8
STANDARD = "numbers, standardised"
SMALL, NATURE = "small CNN, pixels in 0..1", "Nature CNN, pixels in 0..1"


def box(*shape: int, low: float = -1, high: float = 1, dtype: Any = F32) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


OBSERVATIONS: dict[str, tuple[spaces.Space[Any], str]] = {
    "Box (3,) float32": (box(3), STANDARD),
    "Box (3,) float64": (box(3, dtype=F64), STANDARD + " in float64"),
    "Box () float32 (a number)": (box(), STANDARD),
    "Box (2, 3, 2, 2) float32": (box(2, 3, 2, 2), STANDARD + ", flattened"),
    "Box (3,) int64": (box(3, low=-9, high=9, dtype=np.int64), STANDARD),
    "Box (128,) uint8 0..255 (bytes)": (box(128, low=0, high=255, dtype=U8), "numbers, divided by 255"),
    "Box (8, 8, 3) uint8 (picture, channels last)": (box(8, 8, 3, low=0, high=255, dtype=U8), SMALL),
    "Box (1, 12, 9) uint8 (picture, channels first)": (box(1, 12, 9, low=0, high=255, dtype=U8), SMALL),
    "Box (16, 16) uint8 (grey picture)": (box(16, 16, low=0, high=255, dtype=U8), SMALL),
    "Box (10, 10, 7) float32 0..1 (picture)": (box(10, 10, 7, low=0, high=1), SMALL),
    "Box (4, 84, 84) uint8 (stack of grey pictures)": (box(4, 84, 84, low=0, high=255, dtype=U8), NATURE),
    "Box (2, 40, 40, 3) uint8 (stack of pictures)": (box(2, 40, 40, 3, low=0, high=255, dtype=U8), NATURE),
    "Discrete(5, start=-2)": (spaces.Discrete(5, start=-2), "one-hot"),
    "Discrete(1000)": (spaces.Discrete(1000), "learned embedding (above `env.one_hot_max`)"),
    "MultiDiscrete [[2, 3], [4, 5]]": (spaces.MultiDiscrete([[2, 3], [4, 5]]), "one-hot of each part"),
    "MultiDiscrete [3, 500]": (spaces.MultiDiscrete([3, 500]), "learned embedding of each part"),
    "MultiBinary (2, 3)": (spaces.MultiBinary((2, 3)), "0 or 1"),
    "Tuple (Discrete, Box, Discrete)": (
        spaces.Tuple((spaces.Discrete(3), box(2), spaces.Discrete(2))),
        "each part as above, joined",
    ),
    "Dict of picture, vector, Dict of Discrete and Text": (
        spaces.Dict(
            {
                "picture": box(8, 8, 3, low=0, high=255, dtype=U8),
                "vector": box(3, dtype=F64),
                "inner": spaces.Dict({"goal": spaces.Discrete(4), "mission": spaces.Text(20)}),
            }
        ),
        "one encoder for each key, joined; Text left out with a notice",
    ),
}

REFUSED: dict[str, spaces.Space[Any]] = {
    "Text": spaces.Text(5),
    "Sequence": spaces.Sequence(spaces.Discrete(2)),
    "Graph": spaces.Graph(spaces.Discrete(2), None),
    "Dict with a Sequence": spaces.Dict({"a": box(2), "b": spaces.Sequence(spaces.Discrete(2))}),
    "Discrete(2_000_000)": spaces.Discrete(2_000_000),
    "Dict of Text": spaces.Dict({"say": spaces.Text(5)}),
    "Box (0,)": box(0),
}

PARTS, BITS = "one categorical for each part", "one Bernoulli for each bit"
FACTORED = ", all factored"
ACTIONS: dict[str, tuple[spaces.Space[Any], str]] = {
    "Discrete(3, start=-1)": (spaces.Discrete(3, start=-1), "categorical"),
    "MultiDiscrete [2, 3], start=[4, -1]": (spaces.MultiDiscrete([2, 3], start=[4, -1]), PARTS),
    "MultiDiscrete [[2, 3], [4, 5]]": (spaces.MultiDiscrete([[2, 3], [4, 5]]), PARTS),
    "MultiBinary (4,)": (spaces.MultiBinary(4), BITS),
    "MultiBinary (2, 3)": (spaces.MultiBinary((2, 3)), BITS),
    "Box (2,) float32": (box(2), "Gaussian"),
    "Box () float32 (a number)": (box(low=-2, high=3), "Gaussian"),
    "Box (2, 2) float64": (box(2, 2, dtype=F64), "Gaussian"),
    "Box (1,) int64": (box(1, low=0, high=10, dtype=np.int64), "Gaussian, rounded"),
    "Box (2,) with one bound in a dimension": (
        spaces.Box(np.array([0, -1], F32), np.array([np.inf, 1], F32)),
        "Gaussian, mean without tanh in that dimension",
    ),
    "Box (1,) without bounds": (box(1, low=-np.inf, high=np.inf), "Gaussian, mean without tanh"),
    "Dict of Discrete and Box": (
        spaces.Dict({"gear": spaces.Discrete(3, start=1), "steer": box(2)}),
        "categorical, Gaussian" + FACTORED,
    ),
    "Tuple of MultiBinary, Dict of MultiDiscrete and Box": (
        spaces.Tuple(
            [spaces.MultiBinary(2), spaces.Dict({"a": spaces.MultiDiscrete([2, 3]), "b": box(1, high=4)})]
        ),
        f"{BITS}, {PARTS}, Gaussian{FACTORED}",
    ),
}

REFUSED_ACTIONS: dict[str, spaces.Space[Any]] = {
    "Text": spaces.Text(5),
    "Sequence": spaces.Sequence(spaces.Discrete(2)),
    "Graph": spaces.Graph(spaces.Discrete(2), None),
    "OneOf (Discrete, Box)": spaces.OneOf([spaces.Discrete(2), box(2)]),
    "Dict with a Text": spaces.Dict({"do": spaces.Discrete(2), "say": spaces.Text(5)}),
    "Box (0,)": box(0),
}


class AnySpace(TestEnv):
    """Random observations of a space that is named; 12 steps an episode; the reward is 1 or 2, at random."""

    def __init__(self, observation: str = "Box (3,) float32", action: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        found = OBSERVATIONS[observation][0] if observation in OBSERVATIONS else REFUSED[observation]
        self.observation_space = found
        if action:
            self.action_space = ACTIONS[action][0] if action in ACTIONS else REFUSED_ACTIONS[action]

    def observe(self) -> Any:
        if self.t == 0:
            self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        return self.observe(), float(self.np_random.integers(1, 3)), self.t >= 12, False, {}


class LookBoth(TestEnv):
    """A picture whose bright half is left or right, and a vector of one sign: the right action is their exclusive or,
    so that either alone tells nothing. 8 at best, 4 by chance."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Dict(
            {"picture": box(8, 8, 1, low=0, high=255, dtype=U8), "vector": box(2)}
        )
        self.right = 0

    def observe(self) -> Any:
        side, sign = self.np_random.integers(2, size=2)
        self.right = int(side ^ sign)
        picture = np.zeros((8, 8, 1), U8)
        picture[:, 4 * side : 4 * side + 4] = 255
        return {"picture": picture, "vector": np.full(2, 2 * sign - 1, F32)}

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        reward = float(action == self.right)
        return self.observe(), reward, self.t >= 8, False, {}


class TinyImage(TestEnv):
    """An 8 × 8 picture, channels last; its bright half (left or right) is the rewarded action. 8 at best."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = box(8, 8, 3, low=0, high=255, dtype=U8)
        self.side = 0

    def observe(self) -> Any:
        self.side = int(self.np_random.integers(2))
        picture = np.zeros((8, 8, 3), U8)
        picture[:, 4 * self.side : 4 * self.side + 4] = 255
        return picture

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        reward = float(action == self.side)
        return self.observe(), reward, self.t >= 8, False, {}


for _class in (AnySpace, LookBoth, TinyImage):
    if f"Test/{_class.__name__}-v0" not in gym.registry:
        gym.register(f"Test/{_class.__name__}-v0", entry_point=_class)
