"""The run folder: made so that no two runs share one, and what it keeps so that a run can be understood later."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pgtrain.faults import short_path
from pgtrain.monitor.provenance import git_state, versions
from pgtrain.types import UserError


def create_run_dir(path: str | Path) -> Path:
    """Makes a new folder at `path`, or at `path_1`, `path_2`, … where that name is taken, and returns it.

    Exclusive: of several processes that ask for one name at a time, each gets a folder of its own.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = 0
    while True:
        candidate = path if suffix == 0 else path.with_name(f"{path.name}_{suffix}")
        try:
            candidate.mkdir()
            return candidate
        except FileExistsError:
            suffix += 1


def write_provenance(
    run_dir: str | Path,
    config_yaml: str,
    overrides: Sequence[str],
    command: str | Sequence[str] | None = None,
) -> None:
    """Writes what is needed to repeat the run: `config.yaml overrides.yaml git.json git.diff versions.json`.

    Git's part and the versions never fail and take a second at most; outside a repository there are no git files.
    No environment variables are kept. `command`: default `sys.argv`.
    """
    run_dir = Path(run_dir)
    _write_settings(run_dir, config_yaml, overrides)
    state = git_state(Path.cwd(), run_dir / "git.diff")
    if state is not None:
        _write_json(run_dir / "git.json", state)
    text = command if isinstance(command, str) else shlex.join(command or _command())
    _write_json(run_dir / "versions.json", {"command": text, **versions()})


def write_resume(
    run_dir: Path, config_yaml: str, overrides: Sequence[str], details: Mapping[str, Any]
) -> None:
    """Writes that the run goes on: the settings as they are now, and a line of `resumes.jsonl` with `details`, the
    command, the versions and git's state. The summary of the part before moves into that line.

    The files of the first part that say how it came about (`versions.json`, `git.json`, `git.diff`) stay.
    """
    path = run_dir / "resumes.jsonl"
    number = 1 + (path.read_text(encoding="utf-8").count("\n") if path.exists() else 0)
    entry = {
        "time": datetime.now().isoformat(timespec="seconds"),
        **details,
        "command": shlex.join(_command()),
        "versions": versions(),
        "git": git_state(Path.cwd(), run_dir / f"git.resume{number}.diff"),
        "summary_before": read_summary(run_dir),
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(json_ready(entry), allow_nan=False, ensure_ascii=False) + "\n")
    _write_settings(run_dir, config_yaml, overrides)
    (run_dir / "summary.json").unlink(missing_ok=True)


def _write_settings(run_dir: Path, config_yaml: str, overrides: Sequence[str]) -> None:
    atomic_write(run_dir / "config.yaml", config_yaml if config_yaml.endswith("\n") else config_yaml + "\n")
    lines = "".join(
        f"- {json.dumps(text, ensure_ascii=False)}\n" for text in overrides
    )  # JSON strings are YAML
    atomic_write(run_dir / "overrides.yaml", lines or "[]\n")


def _command() -> list[str]:
    name = Path(sys.argv[0]).name
    return ["pgtrain" if name == "__main__.py" else name, *sys.argv[1:]]  # `python -m pgtrain`


def read_summary(run_dir: Path) -> dict[str, Any]:
    """What `summary.json` says; nothing where there is none, or none that can be read."""
    try:
        found = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def busy(run_dir: Path) -> Iterator[None]:
    """Marks the folder as that of a run under way, for as long as this process lives; leaves no file.

    Where the file system has no locks, nobody is told.

    Raises: UserError where another process is at it.
    """
    try:
        import fcntl  # not on Windows

        handle = os.open(run_dir, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{run_dir}: this run is still going on in another process") from None
        yield
    finally:
        os.close(handle)


def write_summary(run_dir: str | Path, summary: Mapping[str, Any]) -> Path:
    """Writes `summary.json` at once or not at all; NaN and infinity become null."""
    path = Path(run_dir) / "summary.json"
    _write_json(path, summary)
    return path


def atomic_write(path: str | Path, text: str) -> None:
    """Writes a text file through a temporary one beside it and a rename: a killed process leaves no half file."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(
            temporary, 0o666 & ~_umask()
        )  # mkstemp makes private files; a run folder is shared like any other
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def json_ready(value: Any) -> Any:
    """`value` in what strict JSON knows: NaN and infinity → None, NumPy and torch scalars → numbers, paths → text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_ready(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [json_ready(entry) for entry in value]
    if hasattr(value, "tolist"):  # NumPy and torch, scalars and arrays
        return json_ready(value.tolist())
    return str(value)


def final_report(summary: Mapping[str, Any], run_dir: str | Path) -> str:
    """What a user sees at the end: what was reached, in which time, where it lies, and what to do next."""
    run_dir = Path(run_dir)
    title = f"{summary.get('algo', '?')} on {summary.get('env', '?')}, seed {summary.get('seed', '?')}"
    nothing = "not finite" if summary.get("episodes") else "no episode ended"
    rows = [("return, last 100 episodes", _spread(summary, "return") or nothing)]
    evaluated = _spread(summary, "eval_return") or ("not finite" if summary.get("eval_episodes") else None)
    if evaluated:
        rows.append(
            ("return, final evaluation", f"{evaluated}   ({summary.get('eval_episodes', '?')} episodes)")
        )
    rows.append(("steps", _work(summary)))
    rows.append(("time", _time(summary)))
    if summary.get("skipped_updates"):
        rows.append(
            ("skipped updates", f"{summary['skipped_updates']}   (loss or gradient not finite, see run.log)")
        )
    if summary.get("error"):
        rows.append(("error", " ".join(str(summary["error"]).split())))
    shown = shlex.quote(short_path(run_dir))
    rows += [("", ""), ("run folder", short_path(run_dir))]
    if any(run_dir.glob("events.out.tfevents.*")):
        rows.append(("look at it", f"{_program('tensorboard')} --logdir {shown}"))
    rows.append(("evaluate it", call("eval", run_dir, summary)))
    if summary.get("status") == "interrupted":
        rows.append(("go on with it", call("resume", run_dir, summary)))
    width = max(len(name) for name, _ in rows)
    lines = [f"{title}: {summary.get('status', '?')}", ""]
    return "\n".join(lines + [f"  {name:<{width}}   {value}".rstrip() for name, value in rows])


def call(command: str, run_dir: Path, summary: Mapping[str, Any]) -> str:
    """The command line of a command for this run: `pgtrain eval outputs/…`."""
    named = {key: str(summary.get(key, "")) for key in ("env", "policy")}
    repeated = "".join(  # no module is imported that only the run names
        f" {key}={shlex.quote(name)}" for key, name in named.items() if ":" in name
    )
    return f"{_program('pgtrain')} {command} {shlex.quote(short_path(run_dir))}{repeated}"


def _spread(summary: Mapping[str, Any], key: str) -> str | None:
    mean, std = summary.get(f"{key}_mean"), summary.get(f"{key}_std")
    if mean is None or not math.isfinite(mean):
        return None
    return f"{mean:.1f}" if std is None or not math.isfinite(std) else f"{mean:.1f} ± {std:.1f}"


def _work(summary: Mapping[str, Any]) -> str:
    return (
        f"{summary.get('steps') or 0:,} in {summary.get('iterations') or 0:,} iterations, "
        f"{summary.get('episodes') or 0:,} episodes"
    )


def _time(summary: Mapping[str, Any]) -> str:
    seconds = summary.get("wall_seconds") or 0.0
    text = f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds) // 60} min {int(seconds) % 60} s"
    speed = summary.get("steps_per_second")
    return f"{text}   ({speed:,.0f} steps/s)" if speed else text


def _program(name: str) -> str:
    """How to call a program of this Python's environment: by name where the shell would find that one, else by path."""
    beside = Path(sys.executable).parent / name
    found = shutil.which(name)
    if not beside.exists() or (found and Path(found).absolute() == beside.absolute()):
        return name
    try:
        return shlex.quote(str(beside.absolute().relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(beside))


def _write_json(path: Path, value: Any) -> None:
    atomic_write(path, json.dumps(json_ready(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
