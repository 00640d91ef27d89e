"""The few types that every room shares."""

from __future__ import annotations

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


class HostEnv(Protocol):
    """The vector env that `collect` and `evaluate` need: NumPy in, NumPy out."""

    num_envs: int
    obs_dim: int
    obs_dtype: Any
    env_id: str
    max_episode_steps: int | None

    def reset(self, seed: int) -> Any: ...

    def step(self, action: Any) -> Step: ...

    def set_idle(self, mask: Any) -> None: ...
