"""Overrides → one checked `Config`. Works in a notebook, and while another Hydra app runs in this process."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import hydra.version
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pgtrain.config import diagnose, paths, sources
from pgtrain.config.checks import settle
from pgtrain.config.convert import from_dict, to_dict
from pgtrain.config.errors import ConfigError, one_line
from pgtrain.config.overrides import check_overrides, parse
from pgtrain.config.schema import Config


class Composed(NamedTuple):
    """A run's settings: typed, as YAML text, and which option of each group was chosen (`{"algo": "a2c", …}`)."""

    config: Config
    yaml: str
    choices: dict[str, str]


def compose(overrides: Sequence[str] = (), config_dirs: Sequence[str | Path] = ()) -> Composed:
    """The settings that `pgtrain <overrides>` would train with, checked in every way that needs no env.

    `config_dirs`: folders with more options, as `--config-dir`.

    Raises: ConfigError, one line.
    """
    with open_hydra(config_dirs) as app:
        return checked(compose_tree(app, overrides))


def compose_tree(app: Hydra, overrides: Sequence[str], config_name: str = "config") -> DictConfig:
    """What Hydra composes, with the node `hydra`. Types and ranges are not checked yet: see `checked`.

    Raises: ConfigError.
    """
    parsed = parse(overrides)
    check_overrides(app.config_loader, parsed, config_name)
    try:
        return app.compose_config(
            config_name=config_name,
            overrides=list(overrides),
            run_mode=RunMode.RUN,
            with_log_configuration=False,
        )
    except Exception as error:
        raise diagnose.explain(app, parsed, config_name, error) from error


def checked(tree: DictConfig, choices: Mapping[str, str] | None = None) -> Composed:
    """The typed settings in a composed tree. `choices`: for a tree without its `hydra` node, which names them.

    Raises: ConfigError.
    """
    choices = choices_of(tree) if choices is None else own_groups(choices)
    config = settle(from_dict(plain(tree), choices.get("algo")))
    sources.check_env_id(config.env.id)
    return Composed(config, to_yaml(config), choices)


def plain(tree: DictConfig) -> dict[str, Any]:
    """The settings as plain dicts, interpolations resolved, without `hydra`."""
    if "hydra" in tree:
        tree = OmegaConf.masked_copy(tree, [str(key) for key in tree if key != "hydra"])
    try:
        data = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or ""
        raise ConfigError(f"{key}: {str(error).splitlines()[0]}", key) from error
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


def choices_of(tree: DictConfig) -> dict[str, str]:
    """The chosen option of each group, without Hydra's own groups."""
    return own_groups(OmegaConf.select(tree, "hydra.runtime.choices") or {})


def own_groups(choices: Mapping[Any, Any]) -> dict[str, str]:
    return {str(group): str(name) for group, name in choices.items() if not str(group).startswith("hydra/")}


def to_yaml(config: Config) -> str:
    """The settings as YAML text, which `from_yaml` reads."""
    return OmegaConf.to_yaml(OmegaConf.create(to_dict(config)))


def from_yaml(path: str | Path) -> Config:
    """The settings in a run's `config.yaml`.

    Raises: ConfigError where it can't be read or isn't one of this version's.
    """
    try:
        tree = OmegaConf.load(path)
    except Exception as error:  # no such file, no YAML
        raise ConfigError(f"{path}: cannot be read: {one_line(error)}") from error
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{path}: is not the config of a run")
    return settle(from_dict(plain(tree)))


_ONE_AT_A_TIME = threading.RLock()  # Hydra keeps its state once a process; threads take turns at composing


@contextmanager
def open_hydra(config_dirs: Sequence[str | Path] = (), conf: str | Path | None = None) -> Iterator[Hydra]:
    """Hydra over conf/ and `config_dirs`, as this process's Hydra until the block ends; then the former one is back.

    Raises: ConfigError for a folder that isn't there.
    """
    for folder in config_dirs:
        if not Path(folder).is_dir():
            raise ConfigError(f"--config-dir {folder}: there is no such folder")
    sources.register()
    paths.register_resolvers()
    with _ONE_AT_A_TIME, _restored_globals():
        search = sources.SearchPath()
        search.append("hydra", "pkg://hydra.conf")
        for folder in config_dirs:
            search.append("command-line", f"{sources.UserFolder.scheme()}://{Path(folder).resolve()}")
        search.append("main", str(Path(conf or paths.conf_dir()).resolve()))
        for plugin in Plugins.instance().discover(SearchPathPlugin):
            plugin().manipulate_search_path(search)  # pyright: ignore[reportAttributeAccessIssue]
        search.append("schema", "structured://")
        yield Hydra.create_main_hydra2("pgtrain", search)


@contextmanager
def _restored_globals() -> Iterator[None]:
    """What Hydra keeps once a process. Options that another app put into the ConfigStore are hidden from ours."""
    app, store, version = GlobalHydra.instance(), ConfigStore.instance(), hydra.version.VersionBase.instance()
    job = JobRuntime.instance()
    saved = app.hydra, store.repo, version.version_base, copy.deepcopy(job.conf)
    app.clear()
    store.repo = {
        name: node for name, node in store.repo.items() if name in ("hydra", "_dummy_empty_config_.yaml")
    }
    if tuple(map(int, hydra.__version__.split(".")[:2])) < (1, 4):
        hydra.version.setbase("1.3")
    try:
        yield
    finally:
        app.hydra, store.repo, version.version_base, job.conf = saved
