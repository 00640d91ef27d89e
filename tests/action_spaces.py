"""An example of each kind of action space that pgtrain serves: for tests, and for the table in the docs."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

ACTION_SPACES: dict[str, Space[Any]] = {
    "Discrete": spaces.Discrete(4),
    "Discrete with a start": spaces.Discrete(3, start=-1),
    "Discrete of another dtype": spaces.Discrete(3, dtype=np.int32),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3], start=[1, -1]),
    "MultiDiscrete, 2-D": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "MultiBinary": spaces.MultiBinary(4),
    "MultiBinary, 2-D": spaces.MultiBinary((2, 3)),
    "Box": spaces.Box(np.array([-1, 0, -3], np.float32), np.array([1, 5, -2], np.float32)),
    "Box, 2-D float64": spaces.Box(-2.0, 1.0, (2, 2), np.float64),
    "Box of integers": spaces.Box(0, 10, (2,), np.int64),
    "Box of one number": spaces.Box(-2, 3, (), np.float32),
    "Box with one bound": spaces.Box(np.array([0, -1], np.float32), np.array([np.inf, 1], np.float32)),
    "Box without bounds": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "Dict": spaces.Dict({"gear": spaces.Discrete(3, start=1), "steer": spaces.Box(-1, 1, (2,), np.float32)}),
    "Tuple": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]), spaces.Discrete(2)]),
    "Dict, nested": spaces.Dict(
        {
            "arm": spaces.Tuple([spaces.Box(-2, 3, (2, 1), np.float64), spaces.Discrete(2)]),
            "lights": spaces.Dict(
                {"on": spaces.MultiBinary((2, 2)), "colour": spaces.MultiDiscrete([[3], [2]])}
            ),
        }
    ),
}
