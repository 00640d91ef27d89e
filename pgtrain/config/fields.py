"""What a setting is: a dataclass field with its meaning and the values that it may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """What a value may be, beyond its type. Bounds hold for each element of a list."""

    low: float | None = None  # low <= value
    above: float | None = None  # above < value
    high: float | None = None  # value <= high
    below: float | None = None  # value < below
    choices: tuple[str, ...] = ()  # for text
    pattern: str | None = None  # for text, a regular expression (of the whole value)
    shown: str | None = None  # how `pattern` is told to people


def setting(default: Any, doc: str, **limits: Any) -> Any:
    """A dataclass field with its meaning (`doc`) and its `Limits`. A list or dict default is copied."""
    metadata = {"doc": doc, "limits": Limits(**limits)}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def group(factory: type, doc: str) -> Any:
    """A dataclass field that holds another dataclass."""
    return field(default_factory=factory, metadata={"doc": doc, "limits": Limits()})
