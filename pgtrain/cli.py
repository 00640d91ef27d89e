"""`pgtrain …`: the first word picks a command; without one, `pgtrain setting=value …` trains.

This module imports nothing heavy: help and mistakes come at once.
"""

from __future__ import annotations

import importlib
import io
import re
import sys
from collections.abc import Sequence

from pgtrain import __version__
from pgtrain.commands import COMMANDS
from pgtrain.types import TrainingError, UserError

HELP = ("help", "--help", "-h")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code. A user's mistake is one line on stderr and code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except UserError as error:
        print(f"pgtrain: error: {error}", file=sys.stderr)
        return 2
    except TrainingError as error:
        print(f"pgtrain: error: {error}", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(
            f"pgtrain: error: out of memory ({error}); lower num_envs, horizon or policy.hidden",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("pgtrain: interrupted", file=sys.stderr)
        return 130


def _dispatch(words: list[str]) -> int:
    first = words[0] if words else "help"
    if first == "--version":
        print(f"pgtrain {__version__}")
        return 0
    if first in COMMANDS and not (first == "train" and set(words) & set(HELP)):
        return _run(COMMANDS[first][0], words[1:])
    if set(words) & set(HELP) or first in HELP:
        from pgtrain.commands.help import help_text

        print(help_text({name: about for name, (_, about) in COMMANDS.items()}), end="")
        return 0
    if re.fullmatch(r"[A-Za-z][\w.:/-]*", first):
        raise UserError(_unknown_word(first))
    return _run(COMMANDS["train"][0], words)


def _run(module: str, words: list[str]) -> int:
    from pgtrain.config.paths import add_working_dir

    add_working_dir()
    return importlib.import_module(module).main(words)


def _unknown_word(word: str) -> str:
    from pgtrain.config.errors import did_you_mean, nearest

    known = [*COMMANDS, "help"]
    near = [f"env={word}"] if re.search(r"-v\d+$", word) else nearest(word, known, 1)
    return f"{word}: no such command ({', '.join(known)}), and settings are written key=value.{did_you_mean(near)}"


def entry() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # a `±` that the terminal cannot show must not end the command
            stream.reconfigure(errors="replace")
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # `pgtrain --help | head`
        sys.stderr.close()
        code = 1
    sys.exit(code)
