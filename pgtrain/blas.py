"""Which kernels NumPy's BLAS multiplies with: sums are rounded in another way by those of another CPU."""

from __future__ import annotations

import functools

from threadpoolctl import threadpool_info


@functools.cache
def kernels() -> str:
    """For example `openblas SkylakeX`; "" where NumPy's BLAS does not tell."""
    for library in threadpool_info():
        if library["user_api"] == "blas" and "numpy" in library["filepath"]:
            return f"{library['internal_api']} {library.get('architecture', '')}".strip()
    return ""
