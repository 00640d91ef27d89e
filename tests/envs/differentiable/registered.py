"""A module of a user's: an env, registered when the module is imported."""

from __future__ import annotations

from pgtrain.envs.differentiable import register
from tests.envs.differentiable.faulty import Good


class Registered(Good):
    """Nothing new."""


register("Registered-v0", Registered)
