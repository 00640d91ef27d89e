"""Options that need no YAML file: any Gymnasium id (`env=LunarLander-v3`), any CUDA device (`device=cuda:1`),
a network of the user's (`policy=my_module:MyNetwork`).

Hydra asks each entry of its search path for an option in turn. `PgtrainSource` answers for what no file can list, and
for `base_config`, the defaults of the schema; `SearchPath` keeps it behind every folder, so that a YAML of the same
name wins, in conf/, in `--config-dir` or in `hydra.searchpath`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from typing import Any

from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import SearchPathElement, SearchPathQuery
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf

from pgtrain.config.errors import ConfigError, one_line
from pgtrain.config.schema import DeviceConfig, EnvConfig, MonitorConfig, PolicyConfig
from pgtrain.types import UserError

SCHEME = "pgtrain"
# groups whose options all have the same settings
BASE = {"env": EnvConfig, "policy": PolicyConfig, "device": DeviceConfig, "monitor": MonitorConfig}
# [module:][namespace/]name; a misspelt id is taken too, so that the answer can name the nearest one
ENV_ID = re.compile(r"env/((?:[\w.]+:)?(?:[\w-]+/)?[\w.-]+)")
DEVICE = re.compile(r"device/(cuda:\d+)")
POLICY = re.compile(r"policy/([\w.]+:\w+)")  # a network of the user's, see policies/registry.py
# where an env's code lies -> (module it needs, what to install)
NEEDS = {
    "gymnasium.envs.box2d": ("Box2D", "pgtrain[box2d]"),
    "gymnasium.envs.mujoco": ("mujoco", "pgtrain[mujoco]"),
    "gymnasium.envs.phys2d": ("jax", "gymnasium[jax]"),
    "gymnasium.envs.tabular": ("jax", "gymnasium[jax]"),
}


class OptionError(ConfigError, ConfigCompositionException):
    """An option that can't be had: a user's mistake, and what Hydra's tab completion expects from a source."""


def check_env_id(env_id: str) -> None:
    """Whether `env_id` can be made, as far as that shows without making it. Imports its module or plugin.

    Raises: OptionError with the nearest ids, the newer version, or the command that installs what is missing.
    """
    from pgtrain.envs.registry import find_spec, nearest_ids

    try:
        spec = find_spec(env_id)
    except UserError as error:
        raise OptionError(str(error), "env") from None
    except Exception as error:  # the user's module, while it is imported
        raise OptionError(f"env={env_id}: {type(error).__name__}: {one_line(error)}", "env") from error
    entry = spec.entry_point
    if callable(entry) and getattr(entry, "__name__", "").startswith("_raise"):
        newer = [
            near for near in nearest_ids(env_id, 5) if near.partition("-v")[0] == env_id.partition("-v")[0]
        ]
        newest = max(newer, key=lambda near: int(near.rpartition("-v")[2]), default=env_id)
        hint = f"; use {newest}" if newest != env_id else ""
        raise OptionError(f"env={env_id}: Gymnasium no longer has this version{hint}", "env")
    for place, (module, package) in NEEDS.items():
        if isinstance(entry, str) and entry.startswith(place) and importlib.util.find_spec(module) is None:
            raise OptionError(f"env={env_id}: {module} is missing: pip install '{package}'", "env")


def base_config() -> DictConfig:
    """What every option of `BASE` starts from. `env.kwargs` is open: an env's arguments are its own."""
    base = OmegaConf.create({name: dataclasses.asdict(cls()) for name, cls in BASE.items()})
    base.env.kwargs._set_flag("struct", False)
    base.policy.kwargs._set_flag("struct", False)
    return base


class PgtrainSource(ConfigSource):
    """Serves `base_config`, `env/<id>`, `device/cuda:<n>` and `policy/<module>:<name>`."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def available(self) -> bool:
        return True

    def is_config(self, config_path: str) -> bool:
        path = config_path.removesuffix(".yaml")
        return path == "base_config" or any(kind.fullmatch(path) for kind in (ENV_ID, DEVICE, POLICY))

    def is_group(self, config_path: str) -> bool:
        group, _, namespace = config_path.strip("/").partition("/")
        if group in ("device", "policy"):
            return not namespace
        return group == "env" and (not namespace or any(i.startswith(namespace + "/") for i in _ids()))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """The ids (or, for `ObjectType.GROUP`, the namespaces) right below `config_path`, for tab completion."""
        group, _, namespace = config_path.strip("/").partition("/")
        if group != "env":
            return []
        prefix = namespace + "/" if namespace else ""
        found = set()
        for env_id in _ids():
            head, inner, _ = env_id.removeprefix(prefix).partition("/")
            wanted = ObjectType.GROUP if inner else ObjectType.CONFIG
            if env_id.startswith(prefix) and results_filter in (None, wanted):
                found.add(head)
        return sorted(found)

    def load_config(self, config_path: str) -> ConfigResult:
        path = config_path.removesuffix(".yaml")
        if path == "base_config":
            return self._result(base_config(), None)
        if env := ENV_ID.fullmatch(path):
            check_env_id(env[1])
            return self._result({"id": env[1]}, "env")
        if device := DEVICE.fullmatch(path):
            return self._result({"name": device[1]}, "device")
        if policy := POLICY.fullmatch(path):
            return self._result({"name": policy[1]}, "policy")
        raise ConfigLoadError(f"{config_path} is none of pgtrain's")

    def _result(self, node: Any, package: str | None) -> ConfigResult:
        config = node if isinstance(node, DictConfig) else OmegaConf.create(node)
        return ConfigResult(
            provider=self.provider, path=f"{SCHEME}://", config=config, header={"package": package}
        )


class UserFolder(FileConfigSource):
    """A folder given by `--config-dir`. It comes before conf/, so its options win; pgtrain's `config.yaml` stays."""

    @staticmethod
    def scheme() -> str:
        return "pgtrain-user"

    def is_config(self, config_path: str) -> bool:
        return config_path.removesuffix(".yaml") != "config" and super().is_config(config_path)


def _ids() -> Any:
    import gymnasium

    return gymnasium.registry


class SearchPath(ConfigSearchPathImpl):
    """Hydra's search path, with pgtrain's source last before the plugins' schemas, whatever is added later."""

    def append(self, provider: str, path: str, anchor: SearchPathQuery | str | None = None) -> None:
        if provider == "schema":
            own = SearchPathElement(SCHEME, f"{SCHEME}://")
            self.config_search_path = [e for e in self.config_search_path if e.path != own.path]
            self.config_search_path.append(own)
        super().append(provider, path, anchor)  # pyright: ignore[reportArgumentType]


def register() -> None:
    """Make the sources known to Hydra. Safe to call again."""
    for source in (PgtrainSource, UserFolder):
        Plugins.instance().register(source)
