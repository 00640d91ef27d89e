"""Where the YAML files lie, and how a run folder is named."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

SLUG_LENGTH = 80


def conf_dir() -> Path:
    """The folder with `config.yaml`: inside the package (a wheel) or at the top of the repository (a checkout)."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if (inside / "config.yaml").is_file() else package.parent / "conf"


def add_working_dir() -> None:
    """Let `env=my_pkg:MyEnv-v0` find a module in the current folder, which a console script doesn't look at."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def slug(*parts: object) -> str:
    """One folder name from any texts: letters, digits, `.`, `_`, `+` and `-` only, so no folder in a folder.

    >>> slug("a2c", "ALE/Pong-v5", "s0")
    'a2c_ALE-Pong-v5_s0'
    >>> slug("algo=a2c,seed=1")
    'algo-a2c_seed-1'
    """
    text = "_".join(str(part) for part in parts).replace(",", "_")
    text = re.sub(r"[^\w.+-]+", "-", text).strip("-.")
    return text[:SLUG_LENGTH].rstrip("-._") or "run"


def job_slug(overrides: Iterable[str], exclude: Iterable[str] = ()) -> str:
    """The name of a sweep's run: its overrides but for those of the keys in `exclude`.

    >>> job_slug(["algo=a2c", "seed=1", "total_steps=1e5"], exclude=["total_steps"])
    'algo-a2c_seed-1'
    """
    left_out = set(exclude)
    return slug(*(text for text in overrides if text.partition("=")[0].lstrip("+~") not in left_out))


def register_resolvers() -> None:
    """Make `${pgtrain.slug:…}` and `${pgtrain.job_slug:…}` known to OmegaConf. Safe to call again."""
    import omegaconf

    former = tuple(map(int, omegaconf.__version__.split(".")[:2])) < (2, 4)
    register = omegaconf.OmegaConf.register_new_resolver if former else omegaconf.OmegaConf.register_resolver
    # without annotations, which newer versions check: what comes in are OmegaConf's own lists
    register("pgtrain.slug", lambda *parts: slug(*parts), replace=True)  # pyright: ignore[reportCallIssue]
    register("pgtrain.job_slug", lambda *parts: job_slug(*parts), replace=True)  # pyright: ignore[reportCallIssue]
