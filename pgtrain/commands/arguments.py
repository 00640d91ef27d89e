"""Hydra's command-line options, with a user's mistakes told in one line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.types import RunMode

from pgtrain.config.errors import ConfigError, did_you_mean, nearest
from pgtrain.config.overrides import parse


class Arguments(argparse.Namespace):
    """Hydra's command-line options."""

    overrides: list[str]

    def overrides_are_many(self, app: Hydra) -> bool:
        """Whether a preset asks for a sweep (`hydra.mode: MULTIRUN`) and the overrides, which hold one, mean it."""
        if self.cfg or self.info or not any(o.is_sweep_override() for o in parse(self.overrides)):
            return False
        try:
            tree = app.compose_config(self.config_name or "config", self.overrides, RunMode.MULTIRUN)
        except Exception:
            return False  # what is wrong shows when the run is composed
        return tree.hydra.mode == RunMode.MULTIRUN


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Hydra's options and the overrides, in any order.

    Raises: ConfigError for an option that it doesn't have.
    """
    parser = get_args_parser()
    flags = [flag for action in parser._actions for flag in action.option_strings]

    def refuse(message: str) -> Any:
        word = message.rpartition(": ")[2].split()[0] if message.startswith("unrecognized") else ""
        near = nearest(word.partition("=")[0], flags, 1) if word else []
        if word.startswith("--") and not near:
            raise ConfigError(
                f"{word}: no such option; settings are written without dashes, e.g. seed=1", word
            )
        raise ConfigError(f"{message}.{did_you_mean(near)}" if near else message)

    parser.error = refuse  # pyright: ignore[reportAttributeAccessIssue]
    args = parser.parse_intermixed_args(list(argv), Arguments())
    if args.experimental_rerun is not None:
        raise ConfigError(
            "--experimental-rerun: pgtrain doesn't have it; repeat a run with its overrides.yaml"
        )
    chosen = [name for name in ("run", "cfg", "multirun", "shell_completion", "info") if getattr(args, name)]
    if len(chosen) > 1:
        raise ConfigError(f"only one of --{' and --'.join(chosen).replace('_', '-')} can be given")
    if (args.resolve or args.package) and not args.cfg:
        raise ConfigError("--resolve and --package belong to --cfg, e.g. --cfg job --package optim")
    return args
