"""From the policy's own variable to the env's action on the device of both, without a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgtrain.policies.beta import Beta
from pgtrain.policies.distributions import Categorical, DiagonalGaussian
from pgtrain.policies.squashed import action_map


def device_actions(
    distribution: Any, device: torch.device, dtype: torch.dtype
) -> Callable[[Tensor], Tensor] | None:
    """`distribution.to_env` in torch: u [..., A] → the env's action [..., A], always within the box; or choices [...].

    A component that is not finite becomes the box's middle. None for a distribution that has no such map here.
    """
    d = distribution
    if isinstance(d, Categorical) and d.action_shape == ():
        return lambda choice: choice
    if not isinstance(d, DiagonalGaussian | Beta):
        return None

    def constant(x: np.ndarray) -> Tensor:
        return torch.as_tensor(x, dtype=dtype, device=device)

    low, high = constant(d.low), constant(d.high)
    if isinstance(d, Beta):
        width = constant(d.high - d.low)

        def spread(x: Tensor) -> Tensor:
            x = torch.where(x.isfinite(), x, 0.5).to(dtype)
            return (low + width * x).clamp(low, high)

        return spread
    scale = action_map(d, device, dtype)
    return lambda u: scale(torch.where(u.isfinite(), u, 0.0)).clamp(low, high)
