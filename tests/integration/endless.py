"""A differentiable env without a time limit."""

from __future__ import annotations

from pgtrain.envs.differentiable import register
from tests.envs.differentiable.faulty import Good


class Endless(Good):
    """Its episodes never end."""

    max_episode_steps = None


register("Endless-v0", Endless)
