"""The few types that every room shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class UserError(Exception):
    """A mistake of the user's, told in one line: what is wrong, where, what was given, what is allowed.

    The command line prints the text alone and exits with 2; from Python it is an ordinary exception.
    """


class TrainingError(Exception):
    """A run that had to end (an env died, the gradients stay non-finite). One line; exit code 1."""


class Step(NamedTuple):
    """What one call of a vector env's `step` tells about its N envs.

    `terminated` and `truncated` stay apart; where both are set, terminated wins (the value after it is 0).
    """

    obs: Any  # [N, D] what to act on next; after an autoreset the new episode's first observation
    reward: Any  # [N] raw, float64
    terminated: Any  # [N] bool, the MDP ended
    truncated: Any  # [N] bool, cut by a limit
    final_obs: Any = None  # [k, D] last observation of the k envs that are done, in env order; None if k = 0
    valid: Any = None  # [N] bool, False where the row is no transition (reset row, idle env); None: all are
    goes_on: Any = (
        None  # [N] bool, done for the learner, yet the game that is shown goes on (a life lost); None: none
    )


@dataclass(frozen=True)
class Leaf:
    """One part of an observation space and the columns that it has in a row of observations, [start, stop).

    kind: `vector` numbers · `binary` 0 or 1 · `onehot` · `index` whole numbers from 0, for a learned embedding ·
    `picture` brightness. Columns of a row that follow the last leaf's are not the observation's.
    """

    name: str  # dotted path, "" for a space without parts
    kind: str
    start: int
    stop: int
    shape: tuple[int, ...]  # of the space
    choices: tuple[int, ...] = ()  # onehot, index: number of values of each part
    axes: tuple[int, ...] = ()  # picture: those of `shape` in the order channels (any number), height, width
    divide: float = 1.0  # picture: what its columns must be divided by to lie in 0..1
    standardize: bool = False  # numbers without a natural scale

    @property
    def width(self) -> int:
        return self.stop - self.start

    @property
    def picture(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        sizes = [self.shape[axis] for axis in self.axes]
        return self.width // (sizes[-1] * sizes[-2]), sizes[-2], sizes[-1]


class HostEnv(Protocol):
    """The vector env that `collect` and `evaluate` need: NumPy in, NumPy out."""

    num_envs: int
    obs_dim: int
    obs_dtype: Any
    layout: tuple[Leaf, ...]  # what the columns of an observation are
    env_id: str
    max_episode_steps: int | None
    tells_state: bool

    def reset(self, seed: int) -> Any: ...

    def step(self, action: Any) -> Step: ...

    def set_idle(self, mask: Any) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
