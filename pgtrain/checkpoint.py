"""Checkpoints: written to a temporary file and renamed, loaded without running code from the file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pgtrain.types import UserError

NAME = "checkpoint.pt"  # the newest; older ones are checkpoint.1.pt, checkpoint.2.pt, …
FORMAT = 1


class Found(NamedTuple):
    """A checkpoint that could be read."""

    state: dict[str, Any]
    age: int  # 0: the newest
    warning: str | None  # where a newer one could not be


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
    """The newest readable checkpoint of a run, and a warning if that is not the last one written."""
    found = find(run_dir, device)
    return found.state, found.warning


def find(run_dir: Path, device: str | torch.device = "cpu", wanted: int | None = None) -> Found:
    """The newest readable checkpoint of a run; with `wanted` only the one of that age.

    `weights_only=True`: a checkpoint holds data and can never name code to run.
    """
    problems = []
    for age, path in _newest_first(run_dir):
        if wanted is not None and age != wanted:
            continue
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
        return Found(state, age, note)
    if problems:
        raise UserError(f"no checkpoint in {run_dir} can be read ({'; '.join(problems)})")
    raise UserError(f"{run_dir} holds no checkpoint ({NAME}): is it a run folder?")


def _aged(run_dir: Path, age: int) -> Path:
    return run_dir / (NAME if age == 0 else f"checkpoint.{age}.pt")


def age_of(name: str) -> int | None:
    """How many newer ones a checkpoint of this file name has; None for another file."""
    match = re.fullmatch(r"checkpoint(?:\.(\d+))?\.pt", name)
    return None if match is None else int(match[1] or 0)


def go_back(run_dir: Path, age: int) -> list[str]:
    """Makes the checkpoint of that age the newest again. Newer ones are set aside as checkpoint.N.discarded.pt, in
    the place of such ones from before; returns their names."""
    aside = []
    for other, path in _newest_first(run_dir):
        if other < age:
            name = path.name.removesuffix(".pt") + ".discarded.pt"
            os.replace(path, run_dir / name)
            aside.append(name)
        elif age:
            os.replace(path, _aged(run_dir, other - age))
    return aside


def _newest_first(run_dir: Path) -> list[tuple[int, Path]]:
    ages = {age: path for path in run_dir.glob("checkpoint*.pt") if (age := age_of(path.name)) is not None}
    return sorted(ages.items())
