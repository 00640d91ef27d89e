"""Tiny envs with every kind of action, and with masks; `tests.action_envs:Test/<Name>-v0` as `env=`.

Each refuses an action that is no member of its space, or that its mask rules out.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.action_spaces import ACTION_SPACES
from tests.envs_for_tests import TestEnv


class AnyAction(TestEnv):
    """The action space of that name in ACTION_SPACES; reward 1, 8 steps."""

    def __init__(self, space: str = "MultiDiscrete", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = ACTION_SPACES[space]


class Match(TestEnv):
    """The action is to equal what the observation shows; reward: share of the parts that do. 8 steps, at best 8."""

    def __init__(self, bits: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        space = spaces.MultiBinary(4) if bits else spaces.MultiDiscrete([2, 3], start=[1, -1])
        self.action_space, self.observation_space = space, space
        self.shown: Any = None

    def observe(self) -> Any:
        space = self.action_space
        sizes = getattr(space, "nvec", np.full(space.shape or (), 2))
        self.shown = (self.np_random.integers(0, sizes) + getattr(space, "start", 0)).astype(space.dtype)
        return self.shown

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        reward = float(np.mean(np.asarray(action) == self.shown))
        return self.observe(), reward, self.t >= 8, False, {}


MASKED: dict[str, Any] = {
    "discrete": spaces.Discrete(6, start=2),
    "multi": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, -1]]),
    "bits": spaces.MultiBinary(4),
    "dict": spaces.Dict({"gear": spaces.Discrete(4), "steer": spaces.Box(-1, 1, (2,), np.float32)}),
}


class Masked(TestEnv):
    """A new mask at every step, in info or in the observation's key `where`.

    Discrete: reward = index / 5, so that the best play takes the largest index that is allowed; other kinds: 1. At the
    step `dead` of an episode the mask allows nothing. So does an episode's last mask: nobody acts on it. Info has masks
    from step `first` of the env's life on; before, everything is allowed.
    """

    def __init__(
        self, kind: str = "discrete", where: str = "info", dead: int = -1, first: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.action_space, self.first = MASKED[kind], first
        self.kind, self.where, self.dead = kind, where, dead
        self.mask: Any = None
        vector = spaces.Box(-10.0, 10.0, (2,), np.float32)
        if where == "info":
            self.observation_space = vector
        else:
            assert kind == "discrete"
            self.observation_space = spaces.Dict({"seen": vector, where: spaces.MultiBinary(6)})

    def observe(self) -> Any:
        self.mask = self.new_mask(self.t != self.dead and self.t < 8)
        seen = self.np_random.normal(size=2).astype(np.float32)
        return seen if self.where == "info" else {"seen": seen, self.where: np.asarray(self.mask)}

    def new_mask(self, alive: bool) -> Any:
        def some(n: int) -> Any:
            mask = self.np_random.integers(0, 2, n).astype(np.int8)
            mask[self.np_random.integers(n)] = 1
            return mask * alive

        if self.kind == "multi":
            return ((some(2), some(3)), (some(4), some(2)))
        if self.kind == "bits":
            return self.np_random.integers(0, 3, 4).astype(np.int8)
        return {"gear": some(4), "steer": None} if self.kind == "dict" else some(6)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**kwargs)[0], self.told()

    def told(self) -> dict[str, Any]:
        return {"action_mask": self.mask} if self.where == "info" and self.life >= self.first else {}

    def play(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        assert self.first or self.allowed(action), f"{action!r} is ruled out by {self.mask!r}"
        reward = (int(action) - 2) / 5 if self.kind == "discrete" else 1.0
        return self.observe(), reward, self.t >= 8, False, self.told()

    def allowed(self, action: Any) -> bool:
        if self.kind == "multi":
            index = action - self.action_space.start  # pyright: ignore[reportAttributeAccessIssue]
            return all(self.mask[i][j][index[i, j]] for i in range(2) for j in range(2))
        if self.kind == "bits":
            return bool(((self.mask == 2) | (self.mask == action)).all())
        return bool(self.mask["gear"][action["gear"]] if self.kind == "dict" else self.mask[action - 2])


for _name, _entry in {"AnyAction": AnyAction, "Match": Match, "Masked": Masked}.items():
    if f"Test/{_name}-v0" not in gym.registry:
        gym.register(f"Test/{_name}-v0", entry_point=_entry)


def action_env(name: str, **kwargs: Any) -> dict[str, Any]:
    """The `env` settings."""
    return {"id": f"tests.action_envs:Test/{name}-v0", "kwargs": kwargs}
