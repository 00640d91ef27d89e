"""What code and which versions a run used: the git state and the installed packages. Never fails, never slow."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from pgtrain import blas

GIT_SECONDS = 1.0  # for all git calls together
MAX_DIFF_BYTES = 5_000_000
MAX_UNTRACKED = 100

_PACKAGES = (
    "pgtrain torch numpy gymnasium hydra-core omegaconf tensorboard rich ale-py box2d mujoco pygame pygame-ce "
    "protobuf hydra-joblib-launcher hydra-optuna-sweeper"
).split()

_GIT_POINTERS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")


def git_state(folder: str | Path, diff_path: str | Path) -> dict[str, Any] | None:
    """The state of the repository around `folder`: commit, branch, whether and how tracked files differ.

    The difference between the commit and the tracked files as they are goes to `diff_path` (left out where there
    is none; cut at 5 MB). Files that git doesn't know are only named. None outside a repository or without git;
    a call that fails or exceeds the second leaves its entry None and a line under `problems`.
    """
    git = _Git(folder)
    top = git.text("rev-parse", "--show-toplevel")
    if top is None:
        return None
    state: dict[str, Any] = {
        "commit": git.text("rev-parse", "HEAD"),
        "branch": git.text("symbolic-ref", "--quiet", "--short", "HEAD"),  # None: a detached head
        "remote": _without_password(git.text("config", "--get", "remote.origin.url")),
    }
    status = git.text("status", "--porcelain", "-z", "--untracked-files=normal")
    entries = None if status is None else [entry for entry in status.split("\0") if entry]
    untracked = None if entries is None else [entry[3:] for entry in entries if entry.startswith("??")]
    state["dirty"] = None if entries is None else bool(entries)
    state["untracked"] = None if untracked is None else untracked[:MAX_UNTRACKED]
    state["diff"] = _write_diff(git, Path(top), Path(diff_path)) if state["commit"] else None
    state["problems"] = git.problems
    return state


def versions() -> dict[str, Any]:
    """Versions of Python, the platform and the packages that matter; CUDA's where torch runs on it already."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "blas": blas.kernels(),
        "packages": packages,
    }
    torch = sys.modules.get("torch")  # not imported for this
    if torch is not None:
        try:
            found["cuda"] = torch.version.cuda
            found["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_initialized() else None
        except Exception as error:
            found["gpu"] = f"unknown ({type(error).__name__})"
    return found


class _Git:
    """Runs git in a folder until the time is used up; collects what went wrong."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = str(folder)
        self.deadline = time.perf_counter() + GIT_SECONDS
        self.problems: list[str] = []
        # GIT_DIR and the like (set inside a git hook) would point at another repository
        inherited = {key: value for key, value in os.environ.items() if key not in _GIT_POINTERS}
        # no lock files, no questions, no translations
        self.env = {**inherited, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}

    def run(self, *args: str, stdout: Any = subprocess.PIPE, folder: str | None = None) -> bytes | None:
        left = self.deadline - time.perf_counter()
        if left <= 0:
            self.problems.append(f"git {args[0]}: no time left")
            return None
        try:
            done = subprocess.run(
                ["git", "-C", folder or self.folder, *args],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.PIPE,
                timeout=left,
                env=self.env,
                check=True,
            )
            return done.stdout or b""
        except subprocess.CalledProcessError as error:
            if error.stderr.strip():
                self.problems.append(
                    f"git {args[0]}: {error.stderr.decode(errors='replace').strip().splitlines()[0]}"
                )
        except (OSError, subprocess.SubprocessError) as error:
            self.problems.append(f"git {args[0]}: {type(error).__name__}")
        return None

    def text(self, *args: str) -> str | None:
        out = self.run(*args)
        return None if out is None else out.decode(errors="replace").strip("\n")


def _write_diff(git: _Git, top: Path, path: Path) -> str | None:
    """Writes `git diff HEAD` of the whole repository; returns the file's name, None where nothing differs."""
    try:
        with path.open("wb") as file:
            flags = ("--no-color", "--no-ext-diff", "--no-textconv")
            ok = git.run("diff", "HEAD", *flags, stdout=file, folder=str(top)) is not None
        size = path.stat().st_size
        if not ok or size == 0:
            path.unlink()
            return None
        if size > MAX_DIFF_BYTES:
            with path.open("r+b") as file:
                file.truncate(MAX_DIFF_BYTES)
            git.problems.append(f"git diff: {size:,} bytes, cut to {MAX_DIFF_BYTES:,}")
        return path.name
    except OSError as error:
        git.problems.append(f"git diff: {error.strerror}")
        return None


def _without_password(url: str | None) -> str | None:
    """A remote's address without what stands before the @ of `https://user:token@host`."""
    return None if not url else re.sub(r"://[^/@]*@", "://", url)
