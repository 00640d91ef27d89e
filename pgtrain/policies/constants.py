"""Fixed arrays that tensors are worked out with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Constant:
    """An array as a tensor on whichever device and in whichever dtype asks, made once for each.

    Carried to a GPU anew in each minibatch it would make the host wait there, as a copy from ordinary memory does.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self._made: dict[tuple[torch.device, torch.dtype | None], Tensor] = {}

    def on(self, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        """In the array's own dtype unless one is named."""
        made = self._made.get((device, dtype))
        if made is None:
            made = self._made[device, dtype] = torch.as_tensor(self.array, dtype=dtype, device=device)
        return made
