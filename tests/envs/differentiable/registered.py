"""A module of a user's: an env, and one for each fault, registered when the module is imported."""

from __future__ import annotations

from pgtrain.envs.differentiable import register
from tests.envs.differentiable import faulty
from tests.envs.differentiable.faulty import Good


class Registered(Good):
    """Nothing new."""


register("Registered-v0", Registered)
for _name, _class in vars(faulty).items():
    if isinstance(_class, type) and issubclass(_class, Good) and _class is not Good:
        register(f"{_name}-v0", _class)
