"""`pgtrain setting=value …` and `pgtrain.train(…)`: compose the settings, make the run folder, train."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from pgtrain.commands import COMMANDS
from pgtrain.commands.arguments import Arguments, parse_arguments
from pgtrain.config.compose import checked, compose_tree, open_hydra
from pgtrain.config.errors import ConfigError, one_line
from pgtrain.config.overrides import parse
from pgtrain.types import UserError

if TYPE_CHECKING:
    from pgtrain.training import Result

PLAIN = re.compile(r"[A-Za-z_][\w./:@+-]*")
WORDS = ("null", "true", "false", "nan", "inf")


def main(argv: Sequence[str]) -> int:
    """`pgtrain train …` without the word train; the exit code."""
    args = parse_arguments(argv)
    name = args.config_name or "config"
    with open_hydra([args.config_dir] if args.config_dir else [], args.config_path) as app:
        if args.shell_completion:
            return complete(app, name, args.overrides)
        if args.hydra_help:
            app.hydra_help(config_name=name, args_parser=get_args_parser(), args=args)
            return 0
        if not args.multirun and args.overrides_are_many(app):
            args.multirun = True
        if args.multirun:
            from pgtrain.commands.sweep import sweep

            return sweep(app, name, args.overrides)
        tree = compose_tree(app, args.overrides, name)
        if args.cfg or args.info:
            checked(tree)
            return show(app, name, args)
        if tree.hydra.mode == RunMode.MULTIRUN:
            from pgtrain.commands.sweep import sweep

            return sweep(app, name, args.overrides)
        return run(app, name, args.overrides, tree)


def train(
    *overrides: str, run_dir: str | Path | None = None, config_dir: str | Path | None = None, **settings: Any
) -> Result:
    """Train once: `train("algo=a2c", "env=CartPole-v1", seed=1, **{"optim.lr.value": 1e-3})`.

    `overrides` are as on the command line, `settings` the same as keywords with Python values. `run_dir`: the run
    folder (a taken name gets a suffix); `config_dir`: a folder with options of your own. The result has `summary`,
    `run_dir` and `policy`.

    Raises: UserError for settings that can't be used, TrainingError for a run that had to end.
    """
    lines = [*overrides, *(f"{key}={as_override(value)}" for key, value in settings.items())]
    with open_hydra([config_dir] if config_dir is not None else []) as app:
        for override in parse(lines):
            if override.is_hydra_override() and override.key_or_group not in (
                "hydra.run.dir",
                "hydra.searchpath",
            ):
                raise ConfigError(
                    f"{override.input_line}: is for the command line, pgtrain.train has no such setting"
                )
        tree = compose_tree(app, lines)
        composed = checked(tree)
        own = list(tree.hydra.overrides.task)
        wanted = Path(run_dir) if run_dir is not None else Path(tree.hydra.run.dir)
    from pgtrain import training

    folder = claim(wanted)
    with removed_if_empty(folder):
        return training.train(composed.config, folder, own)


def as_override(value: Any) -> str:
    """A Python value as Hydra's grammar writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{as_override(key)}:{as_override(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(as_override, value)) + "]"
    if isinstance(value, int | float):
        return repr(float(value) if isinstance(value, float) else int(value))  # NumPy's show their type
    if hasattr(value, "item"):  # a NumPy or torch scalar
        return as_override(value.item())
    text = str(value)
    if PLAIN.fullmatch(text) and text.lower() not in WORDS:
        return text
    return quoted(text)


def quoted(text: object) -> str:
    """A text in Hydra's quotes."""
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", re.sub(r"(\\+)$", r"\1\1", str(text))) + "'"


def complete(app: Hydra, config_name: str, overrides: list[str]) -> int:
    """Tab completion. While a word is typed it can't be right yet, so mistakes are silent."""
    query = any(text.startswith("query=") for text in overrides)
    if query:
        line = os.environ.get("COMP_LINE", "")
        os.environ["COMP_LINE"] = re.sub(r"^(\s*\S+\s+)train\s+", r"\1", line)
        typed = line.split()[1:]
        if len(typed) < 2 and "=" not in line and not (typed and line.endswith(" ")):
            print(" ".join(word for word in COMMANDS if word.startswith("".join(typed))))
    try:
        app.shell_completion(config_name=config_name, overrides=overrides)
    except Exception as error:
        if not query:
            raise ConfigError(f"-sc {' '.join(overrides)}: {one_line(error)}") from error
        return 1
    return 0


def show(app: Hydra, config_name: str, args: Arguments) -> int:
    """`--cfg` and `--info`."""
    if args.info:
        logging.raiseExceptions = False  # Hydra logs its answer: no traceback where a pipe is closed early
        app.show_info(args.info, config_name=config_name, overrides=args.overrides)
    else:
        app.show_cfg(
            config_name=config_name,
            overrides=args.overrides,
            cfg_type=args.cfg,
            package=args.package,
            resolve=args.resolve,
        )
    return 0


def run(app: Hydra, config_name: str, overrides: list[str], tree: DictConfig) -> int:
    """One run, as a Hydra job whose folder was made before; the exit code."""
    composed = checked(tree)
    from pgtrain import training
    from pgtrain.launch import torchrun_rank
    from pgtrain.monitor.record import final_report

    if torchrun_rank():
        from pgtrain.following import follow_torchrun

        follow_torchrun(composed.config)
        return 0
    own = list(tree.hydra.overrides.task)
    folder = claim(Path(OmegaConf.select(tree, "hydra.run.dir")))
    outcome: dict[str, Any] = {}

    def task(_: DictConfig) -> None:
        # Hydra would print several lines about an exception: it is raised outside instead
        try:
            outcome["result"] = training.train(composed.config, folder, own)
        except Exception as error:
            outcome["error"] = error

    with removed_if_empty(folder):
        lines = [text for text in overrides if not text.startswith("hydra.run.dir=")]
        app.run(config_name, task, [*lines, f"hydra.run.dir={quoted(folder.resolve())}"])
        if "error" in outcome:
            raise outcome["error"]
    result: Result = outcome["result"]
    print("\n" + final_report(result.summary, result.run_dir))
    return result.exit_code


def claim(path: Path) -> Path:
    """A folder that is this run's alone: `path`, if it isn't there or is empty, else `path` with a suffix. Absolute, so
    that it stays right when the working directory changes (`hydra.job.chdir=true`, or a script's own).

    Raises: UserError where it can't be made.
    """
    from pgtrain.monitor.record import create_run_dir

    given, path = path, path.resolve()
    try:
        if path.is_dir() and not any(path.iterdir()):
            with contextlib.suppress(FileExistsError):
                (path / "overrides.yaml").open("x").close()  # of two runs at once, one gets it
                return path
        return create_run_dir(path)
    except OSError as error:
        raise UserError(f"hydra.run.dir={given}: the folder cannot be made: {error.strerror}") from error


@contextlib.contextmanager
def removed_if_empty(folder: Path) -> Any:
    """Leave no empty folder behind when a run ends before it wrote anything."""
    try:
        yield
    except BaseException:
        files = list(folder.iterdir()) if folder.is_dir() else []
        if all(file.name == "overrides.yaml" and file.stat().st_size == 0 for file in files):
            for file in files:
                file.unlink()
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
