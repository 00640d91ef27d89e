"""What all tests share: one torch thread."""

from __future__ import annotations

import os

import pytest

# Set before numpy and torch start their thread pools, and in the environment, so that a test's child
# processes inherit it: small nets gain nothing from threads.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> None:
    """Tests run with one torch thread, as training with small nets does by default."""
    import torch

    torch.set_num_threads(1)
