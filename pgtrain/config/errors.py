"""The text of config errors: the nearest right name, one line whatever the cause."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping

from pgtrain.config.schema import OPTIONS, Config
from pgtrain.types import UserError

# what other tools call our settings
OTHER_NAMES = {
    "lr": "optim.lr.value",
    "learning_rate": "optim.lr.value",
    "n_envs": "num_envs",
    "envs": "num_envs",
    "n_steps": "horizon",
    "num_steps": "horizon",
    "rollout_steps": "horizon",
    "timesteps": "total_steps",
    "total_timesteps": "total_steps",
    "discount": "gamma",
    "gae_lambda": "advantage.lam",
    "lambda": "advantage.lam",
    "lam": "advantage.lam",
    "ent_coef": "entropy.coef",
    "entropy_coef": "entropy.coef",
    "vf_coef": "update.value_coef",
    "batch_size": "update.minibatch_size",
    "minibatch": "update.minibatch_size",
    "n_epochs": "update.epochs",
    "env_id": "env",
}


class ConfigError(UserError):
    """A setting that can't be used. `key` is its dotted name."""

    def __init__(self, text: str, key: str = "") -> None:
        super().__init__(one_line(text))
        self.key = key


def one_line(text: object) -> str:
    """All white space, new lines too, as single spaces."""
    return " ".join(str(text).split())


def shown(value: object) -> str:
    """A value as it is written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(shown, value)) + "]"
    return str(value)


def nearest(word: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names closest to `word`, best first; case doesn't matter. Empty if none is close."""
    by_lower = {name.lower(): name for name in names}
    return [by_lower[low] for low in difflib.get_close_matches(word.lower(), by_lower, n=count, cutoff=0.6)]


def did_you_mean(names: list[str]) -> str:
    return f" Did you mean {' or '.join(names)}?" if names else ""


def all_keys(cls: type = Config, prefix: str = "") -> list[str]:
    """Dotted names of every setting of every option, e.g. `optim.lr.value`; groups are in it by themselves."""
    keys: list[str] = []
    for item in dataclasses.fields(cls):
        key = prefix + item.name
        if key not in keys:
            keys.append(key)
        inner = item.default_factory
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            base = next((base for base in OPTIONS if issubclass(inner, base)), None)
            for option in OPTIONS[base].values() if base else (inner,):
                keys += [name for name in all_keys(option, key + ".") if name not in keys]
    return keys


def closest_key(key: str, siblings: Iterable[str] = ()) -> list[str]:
    """Right names for a wrong dotted `key`: near ones in its group, then near ones anywhere."""
    parent, _, last = key.rpartition(".")
    prefix = parent + "." if parent else ""
    near = nearest(last, siblings)
    if near:
        return [prefix + near[0]]
    if last in OTHER_NAMES:
        return [OTHER_NAMES[last]]
    keys = all_keys()
    same = [name for name in keys if name.rpartition(".")[2] == last and name != key]
    if same:
        return same[:2]
    return (
        nearest(key, keys, 1)
        or [
            name
            for name in keys
            if name.rpartition(".")[2] in nearest(last, [k.rpartition(".")[2] for k in keys], 1)
        ][:1]
    )
