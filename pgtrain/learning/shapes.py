"""One check that the maths shares: no silent broadcasting between arrays that mean the same rows."""

from __future__ import annotations

from torch import Tensor


def check_same_shape(**tensors: Tensor | None) -> None:
    """Raises `ValueError` unless all given tensors have the same shape; `None` entries are left out.

    An [N] against an [N, 1] would broadcast to [N, N] and give a wrong number without any error.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    if len(set(shapes.values())) > 1:
        listing = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(f"shapes differ: {listing}; each must have one entry for each step, as in [T, N]")
