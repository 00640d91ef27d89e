"""What Hydra raised while it composed, told in one line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from hydra._internal.hydra import Hydra
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from pgtrain.config.convert import option_class, type_hints, unknown_key
from pgtrain.config.errors import ConfigError, did_you_mean, nearest
from pgtrain.config.overrides import LOOKUP, class_of, group_options, plain_value
from pgtrain.config.schema import OPTIONS, Config


def explain(app: Hydra, parsed: Sequence[Override], config_name: str, error: Exception) -> ConfigError:
    """One line for what Hydra raised while it composed `parsed`."""
    if isinstance(error, ConfigError):
        return error
    lines = [
        str(o.input_line) for o in parsed if o.key_or_group == LOOKUP or o.key_or_group.startswith("hydra/")
    ]
    lookup = [str(o.input_line) for o in parsed if o.key_or_group == LOOKUP]
    groups = [
        o
        for o in parsed
        if not o.is_hydra_override() and group_options(app.config_loader, o.key_or_group, config_name, lookup)
    ]
    nested = [o for o in groups if "/" in o.key_or_group and not o.is_sweep_override()]
    top = [str(o.input_line) for o in groups if o not in nested and not o.is_sweep_override()]
    tree = _try(app, config_name, lines + top)
    if tree is None:
        return _from_hydra(parsed, error)
    for override in nested:
        if override.key_or_group not in tree.hydra.runtime.choices:
            return _misplaced_group(override, tree)
    tree = _try(app, config_name, lines + top + [str(o.input_line) for o in nested]) or tree
    for override in parsed:
        key = override.key_or_group
        if override in groups or override.is_delete():
            continue
        found = _missing_hydra(override, tree) if override.is_hydra_override() else _missing(override, tree)
        if found is not None:
            return found
        if override.is_add() and OmegaConf.select(tree, key) is not None:
            return ConfigError(f"{override.input_line}: {key} is there already, leave out the +", key)
    return _from_hydra(parsed, error)


def _try(app: Hydra, config_name: str, overrides: list[str]) -> DictConfig | None:
    try:
        return app.compose_config(
            config_name=config_name, overrides=overrides, run_mode=RunMode.RUN, with_log_configuration=False
        )
    except Exception:
        return None


def _misplaced_group(override: Override, tree: DictConfig) -> ConfigError:
    """`advantage/baseline=mean` beside advantage=gae, which has no baseline."""
    group = override.key_or_group
    parent, _, name = group.rpartition("/")
    base = class_of(parent.replace("/", "."))
    owners = [n for n, cls in OPTIONS.get(base, {}).items() if name in type_hints(cls)] if base else []
    chosen = tree.hydra.runtime.choices.get(parent)
    where = f"; {parent}={'|'.join(owners)} has one" if owners else ""
    return ConfigError(
        f"{override.input_line}: {parent}={chosen} has no {name}{where}",
        group,
    )


def _missing(override: Override, tree: DictConfig) -> ConfigError | None:
    """The error for a setting that the composed groups don't have; None if they do."""
    cls: type = Config
    path: list[str] = []
    for name in override.key_or_group.split("."):
        if path == ["env", "kwargs"]:
            return None
        if name not in type_hints(cls):
            return unknown_key(".".join([*path, name]), plain_value(override), cls, str(override.input_line))
        hint = type_hints(cls)[name]
        path.append(name)
        node = OmegaConf.select(tree, ".".join(path))
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            cls = option_class(hint, node if isinstance(node, DictConfig) else {}, ".".join(path))
        elif name != override.key_or_group.split(".")[-1] and path != ["env", "kwargs"]:
            return ConfigError(
                f"{override.input_line}: {'.'.join(path)} is one value, not a group", ".".join(path)
            )
    return None


def _missing_hydra(override: Override, tree: DictConfig) -> ConfigError | None:
    """As `_missing`, for `hydra.*`."""
    key = override.key_or_group
    parent, _, last = key.rpartition(".")
    if OmegaConf.select(tree, key) is not None:
        return None
    node = OmegaConf.select(tree, parent)
    names = [str(name) for name in node] if isinstance(node, DictConfig) else []
    if last in names:
        return None
    near = [f"{parent}.{name}" for name in nearest(last, names, 1)]
    return ConfigError(f"{override.input_line}: Hydra has no setting {key!r}.{did_you_mean(near)}", key)


def _from_hydra(parsed: Sequence[Override], error: Exception) -> ConfigError:
    """What Hydra itself says, shortened."""
    text = re.split(r"\n(?:Search path|Config search path|Available options)", str(error))[0]
    cause = str(error.__cause__).splitlines()[0] if error.__cause__ is not None else ""
    if cause and cause not in text:
        text = f"{text}: {cause}" if text else cause
    named = next((str(o.input_line) for o in parsed if f"'{o.key_or_group}'" in text), "")
    return ConfigError(f"{named}: {text}" if named and named not in text else text or repr(error))
