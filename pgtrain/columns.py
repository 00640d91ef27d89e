"""Records of named arrays, kept as they come: NumPy from the host, tensors from a device, or not worked out yet."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

CPU = torch.device("cpu")


class Columns:
    """Fields by name. `x.name` is a tensor, on a CPU over the very memory of an array; `x.raw(name)` is the array.

    A field may be given as a function without arguments, which is called when somebody first asks for it: what no
    part of a run reads costs nothing. Fields that are no arrays (numbers, None) stay what they are. A record is not
    changed; `replace` makes another one.

    Why not plain tensors: a short iteration has twenty fields of 40 rows, and to wrap each of them for torch and to
    unwrap it for NumPy took longer than all arithmetic on them.

    Raises: AttributeError for a field that was not given.
    """

    optional: ClassVar[frozenset[str]] = frozenset()  # None unless given

    def __init__(self, *, device: torch.device = CPU, **fields: Any) -> None:
        """`device`: where the tensors shall be; arrays are brought there when asked for."""
        self.device = CPU if device.type == "cpu" else device
        self.fields = fields

    def raw(self, name: str) -> Any:
        """The field as it is kept on a CPU; elsewhere its tensor."""
        fields = self.fields
        try:
            x = fields[name]
        except KeyError:
            if name in self.optional:
                return None
            raise AttributeError(f"this {type(self).__name__} has no {name}") from None
        if callable(x):
            x = fields[name] = x()
        if self.device is not CPU and isinstance(x, np.ndarray):
            x = fields[name] = to_device(x, self.device)
        return x

    def __getattr__(self, name: str) -> Any:
        if (
            name.startswith("_") or name == "fields"
        ):  # not ours: copy and pickle ask for such before there are any
            raise AttributeError(name)
        x = self.raw(name)
        if isinstance(x, np.ndarray):
            x = torch.from_numpy(x)
        self.__dict__[name] = x  # from now on found without this function
        return x

    def array(self, name: str) -> np.ndarray:
        """The field as an array; of a tensor on a CPU a view."""
        x = self.raw(name)
        return x if isinstance(x, np.ndarray) else x.detach().numpy()

    def alike(self, *names: str) -> list[Any]:
        """These fields, all arrays or all tensors: as they are kept, where that is one kind."""
        found = [self.raw(name) for name in names]
        if all(type(x) is np.ndarray for x in found):
            return found
        return [getattr(self, name) for name in names]

    def as_dict(self) -> dict[str, Any]:
        """All fields, as attributes give them."""
        return {name: getattr(self, name) for name in self.fields}

    def replace(self, **changes: Any) -> Self:
        return type(self)(device=self.device, **{**self.fields, **changes})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.fields)})"


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    if device.type == "mps" and tensor.dtype == torch.float64:
        tensor = tensor.float()  # Apple GPUs have no float64
    return tensor.to(device)
