"""An env that is well except on rank 1. Importing this module registers `Test/OnRank1-v0`."""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class OnRank1(gym.Env[Any, Any]):
    """Episodes of 8 steps. At step `at` of its life it makes the file `sign` + the rank's number, and on rank 1 it
    `does`: raise, exit, die, or hang."""

    def __init__(self, does: str = "raise", at: int = 30, sign: str = "") -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.does, self.at, self.sign, self.life = does, at, sign, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.life += 1
        on_rank_1 = mp.current_process().name == "pgtrain-rank-1"
        if self.life == self.at and self.sign:
            Path(f"{self.sign}{int(on_rank_1)}").touch()
        if self.life == self.at and on_rank_1:
            if self.does == "raise":
                raise ValueError("the bridge is out")
            if self.does == "exit":
                sys.exit(3)
            if self.does == "die":
                os._exit(9)
            time.sleep(600)
        return np.zeros(1, np.float32), 1.0, self.life % 8 == 0, False, {}


if "Test/OnRank1-v0" not in gym.registry:
    gym.register("Test/OnRank1-v0", entry_point="tests.rank_envs:OnRank1")
