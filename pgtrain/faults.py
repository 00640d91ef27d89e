"""What other people's code (an env, a network, a module of theirs) raised, told in one line with its place."""

from __future__ import annotations

import importlib
import os
import site
import sysconfig
import traceback
from pathlib import Path

from pgtrain.types import UserError

FAULTS = (Exception, SystemExit)  # code that calls sys.exit must not end a run without a word
_OURS = str(Path(__file__).parent) + os.sep
_GYMNASIUM = os.path.join(sysconfig.get_path("purelib"), "gymnasium") + os.sep
_INSTALLED = tuple(
    {
        *site.getsitepackages(),
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    }
)


def told(error: BaseException) -> str:
    """Kind and text of an error, and the line of other people's code that it came from."""
    if isinstance(error, SystemExit):
        text = f"its code called sys.exit({error.code!r})"
    else:
        text = " ".join(f"{type(error).__name__}: {error}".split())
    place = _place(error)
    return f"{text} ({place})" if place else text


def _place(error: BaseException) -> str:
    """`file.py:12`: the innermost line of code that is not installed, else of a package; "" if all of it is ours."""
    if isinstance(error, SyntaxError):  # says so itself
        return ""
    between = (_OURS, _GYMNASIUM, "<")  # these stand between, and have no faults of their own
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(between)]
    own = [f for f in frames if not f.filename.startswith(_INSTALLED)]
    for frame in (own or frames)[-1:]:
        return f"{short_path(Path(frame.filename))}:{frame.lineno}"
    return ""


def short_path(path: Path) -> str:
    """`path` from the current folder where it lies below it, else in full."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def import_module(name: str, setting: str) -> None:
    """Imports a module of the user's. Raises UserError: `setting`, what went wrong, and where."""
    try:
        importlib.import_module(name)
    except FAULTS as error:
        text = told(error)
        if isinstance(error, ImportError):
            text = " ".join(str(error).split())
        missing = (
            isinstance(error, ModuleNotFoundError) and name.split(".")[0] == str(error.name).split(".")[0]
        )
        where = "; it is looked for in the current folder and among the installed packages" if missing else ""
        raise UserError(f"{setting}: cannot import {name!r}: {text}{where}") from error
