"""Presets, `+experiment=ppo/CartPole-v1`: a recipe, an env and the numbers that suit both, in conf/experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override, QuotedString

from pgtrain.config.errors import ConfigError, did_you_mean, nearest, shown

GROUP = "experiment"


def names(loader: ConfigLoader, config_name: str, lookup: Sequence[str] = ()) -> list[str]:
    """All presets, with the folder that they lie in. `lookup`: an override of hydra.searchpath."""
    repository = getattr(loader, "repository", None)

    def options(group: str, kind: ObjectType) -> list[str]:
        if lookup or repository is None:
            return loader.get_group_options(group, kind, config_name, list(lookup))
        return repository.get_group_options(group, kind)

    folders = ["", *(f"{folder}/" for folder in options(GROUP, ObjectType.GROUP))]
    return [
        folder + name
        for folder in folders
        for name in options(f"{GROUP}/{folder}".rstrip("/"), ObjectType.CONFIG)
    ]


def check(loader: ConfigLoader, override: Override, parsed: Sequence[Override], known: Sequence[str]) -> None:
    """Refuse a preset that isn't there, and another recipe on top of one that has its own.

    Raises: ConfigError.
    """
    value = override.value()
    name = value.text if isinstance(value, QuotedString) else value
    line = str(override.input_line)
    if name not in known:
        inside = [other for other in known if other.startswith(f"{name}/")]
        hint = (
            f" It is a folder with {', '.join(inside)}."
            if inside
            else did_you_mean(nearest(str(name), known, 2))
        )
        raise ConfigError(f"{line}: there is no preset of this name.{hint}", GROUP)
    if not override.is_add():
        raise ConfigError(f"{line}: a preset is added to a run, write +{GROUP}={name}", GROUP)
    own = recipe(loader, str(name))
    for other in parsed:
        if other.key_or_group != "algo" or other.is_sweep_override() or own is None:
            continue
        asked = other.value()
        asked = asked.text if isinstance(asked, QuotedString) else asked
        if asked != own:
            raise ConfigError(
                f"{other.input_line} does not go with {line}, whose settings are those of algo={own}: leave out one of "
                f"the two{_instead(str(name), shown(asked), known)}",
                "algo",
            )


def _instead(name: str, algo: str, known: Sequence[str]) -> str:
    wanted = f"{algo}/{name.partition('/')[2]}"
    return f", or use +{GROUP}={wanted}" if wanted in known else ""


def recipe(loader: ConfigLoader, name: str) -> str | None:
    """The `algo` that a preset chooses; None if it leaves the choice open, or lies where only Hydra looks."""
    repository: Any = getattr(loader, "repository", None)
    found = repository.load_config(f"{GROUP}/{name}") if repository is not None else None
    for default in (found.defaults_list if found is not None else None) or ():
        if getattr(default, "group", None) in ("algo", "/algo"):
            return str(default.value)
    return None
