"""Which kernels NumPy multiplies with, and a run that goes on where they are others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pgtrain
from pgtrain import blas


@pytest.mark.skipif(
    blas.kernels() not in ("openblas Haswell", "openblas SkylakeX"),
    reason="NumPy's BLAS is no OpenBLAS that could be told to take the kernels of Nehalem",
)
def test_the_kernels_in_use_are_told() -> None:
    code = "import numpy; from pgtrain import blas; print(blas.kernels())"
    environment = os.environ | {"OPENBLAS_CORETYPE": "Nehalem", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "openblas Nehalem\n"


def test_a_run_that_goes_on_with_other_kernels_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["algo=a2c", "env=CartPole-v1", "num_envs=2", "eval.episodes=0", "monitor=quiet"]
    pgtrain.train(*given, "total_steps=64", run_dir=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "versions.json").read_text())["blas"] == blas.kernels()
    pgtrain.resume(tmp_path / "run", total_steps=128)
    log = tmp_path / "run" / "run.log"
    assert "NumPy multiplies" not in log.read_text()
    now = blas.kernels() or "?"
    monkeypatch.setattr(blas, "kernels", lambda: "openblas Ancient")
    pgtrain.resume(tmp_path / "run", total_steps=192)
    assert f"NumPy multiplies by openblas Ancient in place of {now}: sums are rounded" in log.read_text()
