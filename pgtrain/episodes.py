"""Returns and lengths of episodes, counted from the rewards of whole windows.

Dimension legend: T steps, N envs, E episodes that ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Episodes:
    """The episodes that finished in a rollout: raw undiscounted returns and lengths in env steps, each [E]."""

    returns: np.ndarray
    lengths: np.ndarray


def join(parts: Sequence[Episodes]) -> Episodes:
    """The episodes of several collectors, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Episodes(
        np.concatenate([part.returns for part in parts]), np.concatenate([part.lengths for part in parts])
    )


NO_EPISODES = Episodes(np.zeros(0), np.zeros(0, np.int64))


class EpisodeTally:
    """Return and length of the episode under way in each env, from window to window."""

    def __init__(self, num_envs: int) -> None:
        self.partial_return = np.zeros(num_envs)
        self.partial_length = np.zeros(num_envs, np.int64)

    def copy(self) -> EpisodeTally:
        other = EpisodeTally(len(self.partial_return))
        other.partial_return, other.partial_length = self.partial_return, self.partial_length
        return other

    def count(
        self, reward: np.ndarray, valid: np.ndarray | None, done: np.ndarray
    ) -> tuple[Episodes, np.ndarray]:
        """Returns and lengths of the episodes that end in the window, and each row's episode_step [T, N].

        All [T, N]; `valid` None: each row is a transition. A NaN reward spoils its own episode's return and no other.
        """
        if valid is not None:
            reward = np.where(valid, reward, 0.0)
        if not np.count_nonzero(done):
            return NO_EPISODES, self._continue(reward, valid)
        length = np.ones(reward.shape, np.int64) if valid is None else valid.astype(np.int64)
        return self._segments(reward, length, done)

    def _continue(self, reward: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
        """Where no episode ends: short windows, mostly."""
        steps = len(reward)
        if valid is None:
            before, length = np.arange(steps)[:, None] + self.partial_length, steps
        else:
            before = np.add.accumulate(valid, dtype=np.int64) - valid + self.partial_length
            length = np.add.reduce(valid, dtype=np.int64)
        self.partial_return = self.partial_return + np.add.reduce(reward)
        self.partial_length = self.partial_length + length
        return before

    def _segments(
        self, reward: np.ndarray, length: np.ndarray, done: np.ndarray
    ) -> tuple[Episodes, np.ndarray]:
        """One segmented sum over the whole window (columns laid end to end) instead of bookkeeping in every step."""
        steps, n = reward.shape
        ends = done.T.copy()  # [N, T]
        first = np.zeros((n, steps), bool)
        first[:, 0] = True
        first[:, 1:] = ends[:, :-1]
        starts = np.flatnonzero(first)
        returns = np.add.reduceat(reward.T.ravel(), starts)
        lengths = np.add.reduceat(length.T.ravel(), starts)
        column_first = np.searchsorted(starts, np.arange(n) * steps)
        returns[column_first] += self.partial_return
        lengths[column_first] += self.partial_length
        # rows: steps since the episode began = rows counted so far in the segment, plus what an earlier window had
        before = np.cumsum(length.T, 1) - length.T  # [N, T]
        segment = np.cumsum(first.ravel()) - 1
        offset = before.ravel()[starts].copy()
        offset[column_first] -= self.partial_length
        episode_step = (before.ravel() - offset[segment]).reshape(n, steps)
        closed = np.add.reduceat(ends.ravel(), starts) > 0
        finished = Episodes(returns[closed], lengths[closed])
        last = np.append(column_first[1:], len(starts)) - 1
        self.partial_return = np.where(closed[last], 0.0, returns[last])
        self.partial_length = np.where(closed[last], 0, lengths[last])
        return finished, np.ascontiguousarray(episode_step.T)
