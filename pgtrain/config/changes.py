"""Settings that may change in a run that goes on: those that do not change what is learned."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override

from pgtrain.config.checks import settle
from pgtrain.config.convert import from_dict, to_dict
from pgtrain.config.errors import ConfigError, all_keys, closest_key, did_you_mean, shown
from pgtrain.config.overrides import parse, plain_value, sweep_without_m
from pgtrain.config.schema import Config

ALLOWED = ("total_steps", "env.backend", "env.workers", "env.threads", "device.name", "device.threads")
ALLOWED_GROUPS = ("monitor", "checkpoint", "eval")
TOLD = "total_steps, monitor.*, checkpoint.*, eval.*, env.backend, env.workers, env.threads, device, device.threads"


class Changed(NamedTuple):
    """A run's settings as they go on, the overrides that changed one, and the names that were repeated."""

    config: Config
    made: list[str]
    repeated: dict[str, str]  # env, policy


def as_of(recorded: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """The config in a checkpoint, with what may change as the run's record has it, which may be newer."""
    recorded, kept = (to_dict(from_dict(x)) for x in (recorded, kept))  # with settings younger than the run
    data = dict(kept) | {name: recorded[name] for name in ALLOWED_GROUPS}
    for key in ALLOWED:
        parent, last = _node(data, key, key)
        parent[last] = _node(recorded, key, key)[0][last]
    return data


def apply(before: Mapping[str, Any], overrides: Sequence[str]) -> Changed:
    """`before` (as `to_dict` gives it) with `overrides`. One that repeats what is there changes nothing.

    Raises: ConfigError for a setting that must stay as it is, and for what is no setting.
    """
    data = copy.deepcopy(dict(before))
    made, repeated = [], {}
    for override in parse(overrides):
        _check_form(override)
        name, value, line = override.key_or_group, plain_value(override), str(override.input_line)
        key = _key(data, name, value)
        if name == "monitor" and isinstance(value, str):
            from pgtrain.config.compose import compose

            data["monitor"] = to_dict(compose([line]).config)["monitor"]
            made.append(line)
            continue
        parent, last = _node(data, key, line)
        if key not in ALLOWED and key.partition(".")[0] not in ALLOWED_GROUPS:
            if value != parent[last]:
                raise ConfigError(
                    f"{line}: a run goes on with what it began with, {key}={shown(parent[last])}; start a new run for "
                    f"another value. What may change: {TOLD}",
                    key,
                )
            if name in ("env", "policy"):
                repeated[name] = str(value)
            continue
        parent[last] = value
        made.append(line)
    return Changed(settle(from_dict(data)), made, repeated)


def _check_form(override: Override) -> None:
    line = str(override.input_line)
    if override.is_sweep_override():
        raise sweep_without_m(override)
    if override.is_hydra_override():
        raise ConfigError(f"{line}: belongs to a new run; one that goes on stays in its folder")
    if override.is_delete() or override.is_add() or override.package is not None:
        raise ConfigError(f"{line}: settings of a run that goes on are written key=value")


def _key(data: Mapping[str, Any], name: str, value: Any) -> str:
    """The setting that holds the choice of a group: `device=cpu` is device.name."""
    key = name.replace("/", ".")
    node: Any = data
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    inner = next((x for x in ("name", "id") if isinstance(node, Mapping) and x in node), None)
    return f"{key}.{inner}" if inner and isinstance(value, str) else key


def _node(data: dict[str, Any], key: str, line: str) -> tuple[dict[str, Any], str]:
    """The dict that holds a setting, and its name there."""
    *groups, last = key.split(".")
    node: Any = data
    for part in groups:
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last not in node:
        near = [] if key in all_keys() else closest_key(key)
        raise ConfigError(f"{line}: the run has no setting {key!r}.{did_you_mean(near)}", key)
    return node, last
