"""How an actor draws its actions: a fresh draw at every step, or noise that is held for many (gSDE).

Array-agnostic: NumPy in a NumPy actor, torch in a torch actor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Shape = tuple[int, ...]


class Exploration(Protocol):
    def restart(self) -> None:
        """Called at the start of each rollout."""
        ...

    def __call__(self, params: Any, head: Any) -> Any:
        """Distribution parameters [N, P] and the actor network's output [N, …] → actions [N, …]."""
        ...


class Independent:
    """A fresh draw from the distribution for every env and step."""

    def __init__(self, sample: Callable[[Any], Any]) -> None:
        self.sample = sample

    def restart(self) -> None:
        pass

    def __call__(self, params: Any, head: Any) -> Any:
        return self.sample(params)


class HeldMatrix:
    """gSDE: u = μ + z E with a matrix E [L, A] of each env's own, drawn at a rollout's start and every
    `sample_freq` steps.

    `std()` gives today's s [L, A]; `normal(shape)` standard normal numbers. Nothing is kept from one rollout
    to the next.
    """

    def __init__(
        self, dim: int, std: Callable[[], Any], normal: Callable[[Shape], Any], sample_freq: int
    ) -> None:
        self.dim, self.std, self.normal, self.sample_freq = dim, std, normal, sample_freq
        self.age = 0

    def restart(self) -> None:
        self.age = 0

    def __call__(self, params: Any, head: Any) -> Any:
        if self.age == 0 or (self.sample_freq > 0 and self.age % self.sample_freq == 0):
            std = self.std()
            self.matrix = self.normal((len(params), *std.shape)) * std  # [N, L, A]
        self.age += 1
        features = head[..., self.dim :]
        return params[..., : self.dim] + (features[:, None, :] @ self.matrix)[:, 0]
