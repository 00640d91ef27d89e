"""Checkpoints: written to a temporary file and renamed, loaded without running code from the file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch

from pgtrain.types import UserError

NAME = "checkpoint.pt"  # the newest; older ones are checkpoint.1.pt, checkpoint.2.pt, …
FORMAT = 1


def save(run_dir: Path, state: dict[str, Any], keep: int = 1) -> Path:
    """Writes `state` (tensors, numbers, texts, lists, dicts) as the newest checkpoint and keeps `keep` older ones.

    The new file is complete on disk before it takes the name, so a kill at any moment leaves a loadable checkpoint.
    """
    target, temporary = run_dir / NAME, run_dir / (NAME + ".tmp")
    with temporary.open("wb") as file:
        torch.save(state | {"format": FORMAT}, file)
        file.flush()
        os.fsync(file.fileno())
    for age in range(keep, 0, -1):
        younger = _aged(run_dir, age - 1)
        if younger.exists():
            os.replace(younger, _aged(run_dir, age))
    os.replace(temporary, target)
    return target


def load(run_dir: Path, device: str | torch.device = "cpu") -> tuple[dict[str, Any], str | None]:
    """The newest readable checkpoint of a run, and a warning if that is not the last one written.

    `weights_only=True`: a checkpoint holds data and can never name code to run.
    """
    problems = []
    for path in _newest_first(run_dir):
        try:
            state = torch.load(path, map_location=device, weights_only=True)
        except Exception as error:  # any way in which a file can be damaged
            problems.append(f"{path.name}: {type(error).__name__}")
            continue
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            found = state.get("format") if isinstance(state, dict) else None
            raise UserError(
                f"{path} has format {found!r}; this version of pgtrain reads checkpoint format {FORMAT}"
            )
        note = f"{problems[0]} cannot be read; using the older {path.name}" if problems else None
        return state, note
    if problems:
        raise UserError(f"no checkpoint in {run_dir} can be read ({'; '.join(problems)})")
    raise UserError(f"{run_dir} holds no checkpoint ({NAME}): is it a run folder?")


def _aged(run_dir: Path, age: int) -> Path:
    return run_dir / (NAME if age == 0 else f"checkpoint.{age}.pt")


def _newest_first(run_dir: Path) -> list[Path]:
    ages = {}
    for path in run_dir.glob("checkpoint*.pt"):
        if match := re.fullmatch(r"checkpoint(?:\.(\d+))?\.pt", path.name):
            ages[int(match[1] or 0)] = path
    return [ages[age] for age in sorted(ages)]
