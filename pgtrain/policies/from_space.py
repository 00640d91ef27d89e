"""Which distribution serves which action space."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gymnasium import Space, spaces

from pgtrain.envs.actions import Path, leaves
from pgtrain.policies.discrete import Bernoulli, MultiCategorical, TemperedCategorical
from pgtrain.policies.distributions import Categorical, Distribution
from pgtrain.policies.product import Product

BoxMaker = Callable[[spaces.Box, Path], Distribution]


def distribution_of(space: Space[Any], of_box: BoxMaker, temperature: float = 1.0) -> Distribution:
    """Discrete: categorical. MultiDiscrete: one for each part. MultiBinary: Bernoulli bits. Box: what `of_box` makes of
    it and of the keys that lead to it. Dict and Tuple: the product of their leaves."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return Product([_of_leaf(leaf, path, of_box, temperature) for path, leaf in leaves(space)])
    return _of_leaf(space, (), of_box, temperature)


def _of_leaf(space: Space[Any], path: Path, of_box: BoxMaker, temperature: float) -> Distribution:
    if isinstance(space, spaces.Box):
        return of_box(space, path)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical([int(n) for n in space.nvec.flat], temperature)
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(math.prod(space.shape), temperature)
    assert isinstance(space, spaces.Discrete)  # the env refuses all other spaces
    choices = int(space.n)
    return Categorical(choices) if temperature == 1.0 else TemperedCategorical(choices, temperature)
