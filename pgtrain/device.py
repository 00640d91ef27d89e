"""Which device a run uses."""

from __future__ import annotations

import torch
from threadpoolctl import threadpool_limits

from pgtrain.types import UserError

SMALL_NETWORK = (
    1_000_000  # parameters; below it a CPU beats the launch overhead of an accelerator on host envs
)


def resolve(name: str, parameters: int) -> tuple[torch.device, str | None]:
    """`auto | cpu | cuda | cuda:N | mps` → the device and a one-line notice (or None).

    auto takes the CPU for small networks: their kernels are shorter than an accelerator's launch overhead, and every
    step of a host env would add two transfers.
    """
    if name == "auto":
        found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else None
        if found is None:
            return torch.device("cpu"), None
        if parameters < SMALL_NETWORK:
            why = f"{parameters:,} parameters are too few for {found} to be faster (device={found} forces it)"
            return torch.device("cpu"), f"device=auto takes the CPU: {why}"
        return torch.device(found), f"device=auto takes {found}: {parameters:,} parameters"
    return check(name), None


def check(name: str) -> torch.device:
    """The device `name`, if this machine has it ("auto" is anything).

    Raises: UserError.
    """
    device = torch.device("cpu" if name == "auto" else name)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or count == 0:
            raise UserError(
                f"device={name}: torch finds no CUDA GPU on this machine; use device=cpu or device=auto"
            )
        if device.index is not None and device.index >= count:
            raise UserError(
                f"device={name}: this machine has {count} CUDA device(s), cuda:0 to cuda:{count - 1}"
            )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device=mps: torch finds no Apple GPU on this machine; use device=cpu or device=auto")
    return device


def use_threads(count: int) -> None:
    """CPU threads of torch and of NumPy's BLAS, whose own default is one for every core: for matrices of a few dozen
    rows the others would do nothing but wait for each other."""
    torch.set_num_threads(count)
    threadpool_limits(limits=count, user_api="blas")
