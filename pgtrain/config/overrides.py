"""Overrides that can't be right, told in one line before Hydra composes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from pgtrain.config import experiments
from pgtrain.config.convert import scalar_for_group, type_hints
from pgtrain.config.errors import ConfigError, did_you_mean, nearest, one_line, shown
from pgtrain.config.schema import OPTIONS, Config
from pgtrain.config.sources import DEVICE, ENV_ID, POLICY

LOOKUP = "hydra.searchpath"  # more folders with options
EXAMPLE = "settings are written key=value, e.g. seed=1"


def parse(overrides: Sequence[str]) -> list[Override]:
    """Hydra's reading of the overrides.

    Raises: ConfigError for one that can't be read or comes twice.
    """
    parser = OverridesParser.create()
    parsed: list[Override] = []
    for text in overrides:
        if not re.match(r"[^=]+=|~", text):
            hint = did_you_mean([f"env={text}"]) if re.search(r"-v\d+$", text) else ""
            raise ConfigError(f"{text}: {EXAMPLE}.{hint}", text)
        try:
            parsed += parser.parse_overrides([text])
        except HydraException as error:
            reason = one_line(str(error).splitlines()[0])
            raise ConfigError(
                f"{text}: cannot be read ({reason}); lists are written key=[64,64], a text with other characters "
                "than letters, digits and -_./:@ needs quotes: \"key='a, b'\"",
                text,
            ) from error
    seen: dict[str, str] = {}
    for override in parsed:
        key = override.get_key_element().lstrip("+~")
        if key in seen:
            raise ConfigError(f"{key} is set twice: {seen[key]} and {override.input_line}", key)
        seen[key] = str(override.input_line)
    return parsed


def check_overrides(
    loader: ConfigLoader, parsed: Sequence[Override], config_name: str, sweep: bool = False
) -> None:
    """Refuse what Hydra would take wrongly or tell badly: a sweep without -m, a removed setting, no option of a group.

    Raises: ConfigError.
    """
    lookup = [str(o.input_line) for o in parsed if o.key_or_group == LOOKUP]
    for override in parsed:
        key, line = override.key_or_group, str(override.input_line)
        if override.is_sweep_override():
            if not sweep:
                raise sweep_without_m(override)
            continue
        options = group_options(loader, key, config_name, lookup)
        if override.is_hydra_override():
            _check_hydra(override, options)
            continue
        if key == experiments.GROUP and not override.is_delete():
            experiments.check(loader, override, parsed, options)
            continue
        if override.is_delete():
            if not key.startswith("env.kwargs."):
                raise ConfigError(
                    f"{line}: a setting cannot be removed, only changed (null often means none)", key
                )
            continue
        group, _, name = key.rpartition(".")
        if name == "name" and class_of(group) in OPTIONS:
            option = group.replace(".", "/")
            raise ConfigError(
                f"{line}: write {option}={shown(plain_value(override))} to choose another {group}", key
            )
        if override.package is not None:
            raise ConfigError(
                f"{line}: settings have one place each, write {key}={shown(plain_value(override))}", key
            )
        if options or "/" in key:
            if override.is_add() and (key == "algo" or class_of(key.replace("/", ".")) is not None):
                raise ConfigError(f"{line}: {key} is there already, leave out the +", key)
            _check_option(key, plain_value(override), options)


def group_options(loader: ConfigLoader, group: str, config_name: str, lookup: list[str]) -> list[str]:
    """Names of the files in a group; empty for what is no group. `lookup`: an override of hydra.searchpath."""
    if "." in group:
        return []
    if group == experiments.GROUP:
        return experiments.names(loader, config_name, lookup)
    if lookup or not hasattr(loader, "repository"):
        return loader.get_group_options(group, config_name=config_name, overrides=lookup)
    return loader.repository.get_group_options(group)  # pyright: ignore[reportAttributeAccessIssue]  # much faster


def sweep_without_m(override: Override) -> ConfigError:
    """`seed=1,2` without `-m`."""
    line = str(override.input_line)
    key, _, values = line.partition("=")
    text = f"{line}: several values are a sweep, which needs -m: pgtrain -m {line}"
    if re.fullmatch(r"[^()]*,[^()]*", values):
        text += f" (a list is written {key}=[{values}])"
    return ConfigError(text, key)


def plain_value(override: Override) -> Any:
    value = override.value()
    return value.text if isinstance(value, QuotedString) else value


def _check_hydra(override: Override, options: Sequence[str]) -> None:
    """`hydra.*` and `hydra/*`: Hydra takes any name after a `+`, and tells of a wrong option in many lines."""
    key, line = override.key_or_group, str(override.input_line)
    if "/" in key:
        value = plain_value(override)
        if value is not None and value not in options:
            known = f"must be one of {', '.join(options)}" if options else f"Hydra has no group {key!r}"
            kind = key.rpartition("/")[2]
            plugin = (
                f" Others are plugins: pip install hydra-{value}-{kind}"
                if kind in ("launcher", "sweeper")
                else ""
            )
            raise ConfigError(
                f"{line}: {known}.{did_you_mean(nearest(str(value), options, 1)) or plugin}", key
            )
        return
    if key == LOOKUP:
        for place in plain_value(override) or ():
            folder = str(place).removeprefix("file://")
            if "://" not in folder and not Path(folder).is_dir():
                raise ConfigError(f"{line}: there is no folder {folder}", key)
    if key in ("hydra.job.name", "hydra.verbose"):
        raise ConfigError(
            f"{line}: has no effect in pgtrain, which names its runs and writes its log itself", key
        )
    node: Any = OmegaConf.structured(HydraConf())
    for depth, name in enumerate(key.split(".")[1:], 1):
        if not isinstance(node, DictConfig) or OmegaConf.get_type(node) in (dict, None):
            return  # an open node: env_set, a launcher's settings, …
        names = [str(known) for known in node]  # `in` would be False for what has no value yet
        if name not in names:
            parent = ".".join(key.split(".")[:depth])
            near = [f"{parent}.{n}" for n in nearest(name, names, 1)]
            raise ConfigError(f"{line}: Hydra has no setting {key!r}.{did_you_mean(near)}", key)
        node = None if OmegaConf.is_missing(node, name) else node[name]


def _check_option(group: str, value: Any, options: Sequence[str]) -> None:
    """`value` of `group=value`, as far as a list of options tells; `env`, `device` and `policy` have more than that."""
    if not options:
        parent, _, name = group.rpartition("/")
        near = [f"{parent}/{n}" for n in nearest(name, _inner_groups(parent), 1)]
        raise ConfigError(f"{group}={shown(value)}: there is no group {group!r}.{did_you_mean(near)}", group)
    base = class_of(group.replace("/", "."))
    if isinstance(value, str):
        if value in options or any(kind.fullmatch(f"{group}/{value}") for kind in (ENV_ID, DEVICE, POLICY)):
            return
    elif value is not None and base is not None:
        raise ConfigError(scalar_for_group(group.replace("/", "."), base, value), group)
    more = {"env": ", any Gymnasium id", "device": ", cuda:1, …", "policy": ", module:Name of yours"}.get(
        group, ""
    )
    named = ", ".join(options) if len(options) <= 20 else "a file's name"
    raise ConfigError(
        f"{group}={shown(value)}: must be one of {named}{more}.{did_you_mean(nearest(str(value), options, 1))}",
        group,
    )


def _inner_groups(parent: str) -> list[str]:
    base = class_of(parent.replace("/", "."))
    hints = (
        {name: hint for cls in OPTIONS.get(base, {}).values() for name, hint in type_hints(cls).items()}
        if base
        else {}
    )
    return [name for name, hint in hints.items() if hint in OPTIONS]


def class_of(path: str) -> type | None:
    """The dataclass (the base class, where options differ) of a dotted group name; None for anything else."""
    found: Any = Config
    for name in filter(None, path.split(".")):
        classes = [found, *OPTIONS.get(found, {}).values()] if isinstance(found, type) else []
        found = next((type_hints(cls)[name] for cls in classes if name in type_hints(cls)), None)
        if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
            return None
    return found
