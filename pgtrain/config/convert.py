"""Nested dict (from YAML and the command line) → `Config`: every key known, every value of its type and range."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from pgtrain.config.errors import ConfigError, closest_key, did_you_mean, nearest, shown
from pgtrain.config.fields import Limits
from pgtrain.config.schema import OPTIONS, Config

KIND = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def from_dict(data: Mapping[str, Any], algo: str | None = None) -> Config:
    """The typed settings of a run. Keys that `data` lacks get their defaults; `algo` (the recipe's name) wins over
    `data["algo"]`.

    Raises: ConfigError naming key, value and what is allowed.
    """
    data = dict(data)
    if isinstance(data.get("algo"), Mapping):
        raise ConfigError(
            f"algo={algo}: the settings of a recipe belong to the top, its first line must be: # @package _global_",
            "algo",
        )
    if algo is not None:
        data["algo"] = algo
    return _build(Config, data, "")


def to_dict(config: Config) -> dict[str, Any]:
    """The inverse of `from_dict`: plain dicts, lists, numbers and texts."""
    return dataclasses.asdict(config)


@functools.cache
def type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def option_class(base: type, data: Any, key: str) -> type:
    """The dataclass that `data["name"]` picks where the group has several; `base` itself where it has one."""
    options = OPTIONS.get(base)
    if options is None:
        return base
    name = data.get("name")
    if isinstance(name, str) and name in options:
        return options[name]
    hint = did_you_mean(nearest(str(name), options))
    raise ConfigError(f"{key}.name={shown(name)}: must be one of {', '.join(options)}.{hint}", key)


def _build(base: type, data: Any, key: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(scalar_for_group(key, base, data), key)
    cls = option_class(base, data, key)
    prefix = key + "." if key else ""
    fields = {item.name: item for item in dataclasses.fields(cls)}
    hints = type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in fields:
            raise unknown_key(prefix + str(name), value, cls)
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _build(typing.cast(type, hint), value, prefix + name)
        else:
            values[name] = convert(prefix + name, value, hint, fields[name].metadata["limits"])
    return cls(**values)


def unknown_key(key: str, value: Any, cls: type, given: str = "") -> ConfigError:
    """What to say about a key that its group doesn't have. `given`: the override that it comes from."""
    given = given or (f"{key}={shown(value)}" if not isinstance(value, Mapping) else key)
    parent, _, last = key.rpartition(".")
    names = [item.name for item in dataclasses.fields(cls)]
    for base, options in OPTIONS.items():
        if issubclass(cls, base):
            others = [
                n for n, other in options.items() if last in {f.name for f in dataclasses.fields(other)}
            ]
            chosen = next(n for n, other in options.items() if other is cls)
            if others:
                group = parent.replace(".", "/")
                return ConfigError(
                    f"{given}: {group}={chosen} has no setting {last!r} (it has {', '.join(names)}); "
                    f"{group}={'|'.join(others)} has it",
                    key,
                )
    hint = did_you_mean(closest_key(key, names))
    return ConfigError(f"{given}: there is no setting {key!r}.{hint}", key)


def scalar_for_group(key: str, base: type, value: Any) -> str:
    """`entropy=0.01`: a value where a group of settings belongs."""
    cls = OPTIONS[base]["constant"] if "constant" in OPTIONS.get(base, {}) else base
    hints = type_hints(cls)
    wanted = {int, float} if isinstance(value, int | float) and not isinstance(value, bool) else {type(value)}
    kinds = {
        name: set(typing.get_args(hint))
        if isinstance(hint, types.UnionType)
        else {typing.get_origin(hint) or hint}
        for name, hint in hints.items()
    }
    fitting = [name for name, kind in kinds.items() if name != "name" and wanted & kind]
    text = f"{key}={shown(value)}: {key} is a group of settings ({', '.join(hints)}), not one value."
    if isinstance(value, Mapping):
        text += " Set them one by one" + (f", e.g. {key}.{next(iter(value))}=…" if value else "")
    elif fitting and not isinstance(value, str):
        text += f" Did you mean {key}.{fitting[0]}={shown(value)}?"
    elif base in OPTIONS:
        text += f" Choose {key.replace('.', '/')}={'|'.join(OPTIONS[base])}"
    return text


def convert(key: str, value: Any, hint: Any, limits: Limits) -> Any:
    """`value` as the type `hint`, within `limits`. `1e5` and "1_000_000" are whole numbers, `true` and 2.5 are not.

    Raises: ConfigError.
    """
    members = list(typing.get_args(hint)) if isinstance(hint, types.UnionType) else [hint]
    if value is None and type(None) in members:
        return None
    members = [member for member in members if member is not type(None)]
    for member in members:
        done, result = _as_type(key, value, member, limits)
        if done and _within(result, limits):
            return result
    raise ConfigError(
        f"{key}={shown(value)}: must be {allowed(hint, limits)}.{_value_hint(value, limits)}", key
    )


def _as_type(key: str, value: Any, hint: Any, limits: Limits) -> tuple[bool, Any]:
    """(whether `value` is a `hint`, the converted value)."""
    if typing.get_origin(hint) is list:
        if not isinstance(value, list | tuple):
            return False, None
        (element,) = typing.get_args(hint)
        return True, [convert(f"{key}[{i}]", item, element, limits) for i, item in enumerate(value)]
    if typing.get_origin(hint) is dict:
        return isinstance(value, Mapping), value
    if hint is bool:
        return isinstance(value, bool), value
    if hint is str:
        return isinstance(value, str), value
    number = _number(value)
    try:
        if number is None or not math.isfinite(number):
            return False, None
        return (True, float(number)) if hint is float else (number == int(number), int(number))
    except OverflowError:  # a whole number beyond every float
        return False, None


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return None


def _within(value: Any, limits: Limits) -> bool:
    if isinstance(value, str):
        if limits.pattern is not None:
            return re.fullmatch(limits.pattern, value) is not None
        return not limits.choices or value in limits.choices
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return not (
        (limits.low is not None and value < limits.low)
        or (limits.above is not None and value <= limits.above)
        or (limits.high is not None and value > limits.high)
        or (limits.below is not None and value >= limits.below)
    )


def allowed(hint: Any, limits: Limits) -> str:
    """The type and range in words, e.g. "a number from 0 to 1"."""
    members = list(typing.get_args(hint)) if isinstance(hint, types.UnionType) else [hint]
    texts = []
    for member in members:
        if member is type(None):
            continue
        if typing.get_origin(member) is list:
            (element,) = typing.get_args(member)
            texts.append(f"a list, e.g. [64,64], each element {allowed(element, limits)}")
        elif typing.get_origin(member) is dict:
            texts.append("a group of settings, e.g. {name: value}")
        elif member is str and (limits.shown or limits.choices):
            texts.append(
                "one of " + (limits.shown or ", ".join(limits.choices))
                if len(members) < 2
                else "|".join(limits.choices)
            )
        elif member in (int, float):
            texts.append(KIND[member] + _range(limits))
        else:
            texts.append(KIND[member])
    if type(None) in members:
        texts.append("null")
    return " or ".join(texts)


def _range(limits: Limits) -> str:
    low, above, high, below = (
        "" if bound is None else f"{bound:.12g}"
        for bound in (limits.low, limits.above, limits.high, limits.below)
    )
    if low and high:
        return f" from {low} to {high}"
    lower = f" of at least {low}" if low else f" above {above}" if above else ""
    upper = f" below {below}" if below else f" at most {high}" if high else ""
    return lower + (" and" if lower and upper else "") + upper


def _value_hint(value: Any, limits: Limits) -> str:
    if isinstance(value, str) and limits.choices:
        return did_you_mean(nearest(value, limits.choices, 1))
    if isinstance(value, bool) and limits.choices:
        return " (YAML reads off, on, no and yes as true or false: quote the text)"
    return ""
