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
    "clip_range": "update.clip.value",
    "clip_coef": "update.clip.value",
    "clip": "update.clip.value",
    "target_kl": "update.kl_guard.limit",
    "kl_limit": "update.kl_guard.limit",
    "max_kl": "update.step.max_kl",
    "sde_sample_freq": "policy.distribution.sample_freq",
    "env_id": "env",
    "env_name": "env",
    "net_arch": "policy.hidden",
    "hidden_sizes": "policy.hidden",
    "activation_fn": "policy.activation",
    "norm_adv": "advantage.normalize",
    "normalize_advantage": "advantage.normalize",
    "num_workers": "env.workers",
    "num_threads": "device.threads",
    **dict.fromkeys(("run_dir", "output_dir", "log_dir", "logdir", "save_dir", "save_path"), "hydra.run.dir"),
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
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(shown, value)) + "]"
    return str(value)


def no_effect(key: str, value: object, why: str, instead: str) -> ConfigError:
    """For a setting that would be ignored beside the others."""
    return ConfigError(f"{key}={shown(value)} has no effect {why}: {instead}", key)


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
    """Right names for a wrong dotted `key`, one or two: what is most alike in its group or, if more so, elsewhere."""
    parent, _, last = key.rpartition(".")
    keys = all_keys()
    if last in OTHER_NAMES:
        return [OTHER_NAMES[last]]
    same = [name for name in keys if name.rpartition(".")[2] == last and name != key]
    if same:
        return same[:2]
    prefix = parent + "." if parent else ""
    candidates = [(_likeness(last, name) + 0.1, prefix + name) for name in siblings]
    candidates += [(_likeness(last, name.rpartition(".")[2]), name) for name in keys]
    score, best = max(candidates, key=lambda candidate: candidate[0])
    return [best] if score >= 0.6 else []


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a.lower(), b.lower()).ratio()
