"""From an env id to one Gymnasium env: finding the spec, and every mistake told in one line."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import io
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from pgtrain.envs.layout import ONE_HOT_MAX
from pgtrain.envs.preprocessing import Atari, LifeLoss, atari_env, frame_skip_of, stack
from pgtrain.envs.show import Show
from pgtrain.faults import FAULTS, import_module, told
from pgtrain.types import UserError

# Gymnasium does not load plugins by itself: first part of the id → (module that registers it, what to install).
PLUGINS: dict[str, tuple[str, str]] = {
    "ALE/": ("ale_py", "pgtrain[atari]"),
    "MiniGrid-": ("minigrid", "pgtrain[minigrid]"),
    "BabyAI-": ("minigrid", "pgtrain[minigrid]"),
    "pgtrain/GaussianBandit": ("pgtrain.envs.closed_form", "pgtrain"),
    "pgtrain/SoftmaxBandit": ("pgtrain.envs.closed_form", "pgtrain"),
    "pgtrain/TabularMDP": ("pgtrain.envs.closed_form", "pgtrain"),
    "pgtrain/": ("pgtrain.envs.differentiable.registration", "pgtrain"),
}
# Gymnasium's extra → pgtrain's.
EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "atari": "atari", "classic-control": "render"}


def find_spec(env_id: str) -> EnvSpec:
    """The spec of a registered id, of a plugin's id, or of `module:Id` (the module is imported).

    Raises UserError with the nearest ids, or with the package to install.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        import_module(module, f"env={env_id}")
    elif name not in gym.registry:
        _import_plugin(name)
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        near = ", ".join(nearest_ids(name))
        hint = f"; the nearest ids are {near}" if near else ""
        raise UserError(f"env={env_id}: {one_line(str(error)).rstrip('.')}{hint}") from error


def nearest_ids(name: str, n: int = 3) -> list[str]:
    """Registered ids that look like `name`, best first; the case of letters does not count."""
    ids = {key.lower(): key for key in gym.registry}
    return [ids[key] for key in difflib.get_close_matches(name.lower(), list(ids), n=n, cutoff=0.6)]


def _import_plugin(name: str) -> None:
    for prefix, (module, package) in PLUGINS.items():
        if name.startswith(prefix):
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise UserError(
                    f"env={name}: needs a package that is missing: pip install '{package}'"
                ) from error


@dataclass
class EnvFactory:
    """Makes one env. It can be sent to a worker process: the spec travels, and `module:Id` is imported there."""

    env_id: str
    spec: EnvSpec
    kwargs: dict[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    atari: Atari | None = None
    frame_stack: int = 1
    one_hot_max: int = ONE_HOT_MAX
    show: Show | None = None

    def __call__(self) -> gym.Env[Any, Any]:
        """One env without Gymnasium's env checker. Silent. Raises UserError with one line."""
        return self.make_with_warnings()[0]

    def make_with_warnings(self) -> tuple[gym.Env[Any, Any], list[str]]:
        """The env, and what Gymnasium warned of while it was made (an id that is out of date, …)."""
        module = self.env_id.rpartition(":")[0]
        with quiet() as caught:
            if module:
                import_module(module, f"env={self.env_id}")
            creator = check_kwargs(self.env_id, self.spec.entry_point, self.kwargs)
            if self.show is not None:
                self.show.check(self.env_id, creator)
            with told_in_one_line(self.env_id, self.kwargs, self.spec.entry_point):
                env = self._bare() if self.atari is None else self._game(self.atari)
                if self.frame_stack > 1:
                    padding = "reset" if self.atari is None else "zero"  # as ale-py's own vector env does
                    env = stack(env, self.frame_stack, self.env_id, padding)
                if self.atari is not None and self.atari.terminal_on_life_loss:
                    env = LifeLoss(env)
        return env, _gymnasium_warnings(caught)

    def _bare(self) -> gym.Env[Any, Any]:
        env = self._make(max_episode_steps=self.max_episode_steps)
        for name in ("observation_space", "action_space"):
            space = getattr(env, name, None)
            if not isinstance(space, gym.Space):
                raise UserError(
                    f"env={self.env_id}: its {name} is {space!r}, no space of Gymnasium; set it in its constructor"
                )
        return env

    def _make(self, **settings: Any) -> gym.Env[Any, Any]:
        if self.show is None:
            return gym.make(self.spec, disable_env_checker=True, **self.kwargs, **settings)
        settings["render_mode"] = self.show.render_mode
        return self.show.wrap(gym.make(self.spec, disable_env_checker=True, **{**self.kwargs, **settings}))

    def _game(self, atari: Atari) -> gym.Env[Any, Any]:
        frame_skip_of(self.kwargs, atari)
        game = self._make(frameskip=1)
        return atari_env(game, atari, self.max_episode_steps)


@contextlib.contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Hides what is printed in here, by Python or by native code (MuJoCo and ALE greet), and keeps the warnings."""
    with warnings.catch_warnings(record=True) as caught, contextlib.ExitStack() as stack:
        warnings.simplefilter("always")
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        null = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, null)
        for stream in (1, 2):
            with contextlib.suppress(OSError):  # a process may run without standard streams
                saved = os.dup(stream)
                stack.callback(os.close, saved)
                stack.callback(os.dup2, saved, stream)
                os.dup2(null, stream)
        yield caught


def _gymnasium_warnings(caught: list[warnings.WarningMessage]) -> list[str]:
    texts = (re.sub(r"\x1b\[[0-9;]*m", "", str(w.message)) for w in caught)
    return list(dict.fromkeys(one_line(t.removeprefix("WARN: ")) for t in texts if t.startswith("WARN: ")))


def check_kwargs(env_id: str, entry_point: Any, kwargs: dict[str, Any]) -> Any:
    """The env's constructor. UserError for a name in `kwargs` that it does not take, as far as its signature tells."""
    for name in ("max_episode_steps", "id", "disable_env_checker"):
        if name in kwargs:
            instead = "; set env.max_episode_steps" if name == "max_episode_steps" else ""
            raise UserError(f"env.kwargs.{name}: is no argument of env={env_id}{instead}")
    with told_in_one_line(env_id, kwargs):
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    names, open_ended = argument_names(creator)
    for name in kwargs:
        if not open_ended and name not in names:
            raise UserError(unknown_kwarg(env_id, name, names))
    return creator


def argument_names(creator: Any) -> tuple[list[str], bool]:
    """The keyword arguments of an env's constructor, with those that `**kwargs` passes to its base classes; and
    whether it may take others."""
    makers = (
        [c.__init__ for c in creator.__mro__ if "__init__" in vars(c)]
        if isinstance(creator, type)
        else [creator]
    )
    names: list[str] = []
    open_ended = True
    for depth, maker in enumerate(makers):
        try:
            parameters = inspect.signature(maker).parameters.values()
        except (TypeError, ValueError):
            break
        keywords = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        names += [name for name in keywords if name != "self" and name not in names]
        passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters)
        open_ended = open_ended and (passes_on or depth > 0)
        if not passes_on:
            break
    return names, open_ended


def unknown_kwarg(env_id: str, name: str, names: list[str]) -> str:
    """The one line for a keyword argument that an env does not have."""
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    allowed = ", ".join(n for n in names if n != "render_mode") or "none"
    return f"env.kwargs.{name}: env={env_id} has no such argument; it takes: {allowed}{hint}"


@contextlib.contextmanager
def told_in_one_line(env_id: str, kwargs: dict[str, Any], entry_point: Any = None) -> Iterator[None]:
    """Turns what goes wrong while an env is made into a UserError."""
    try:
        yield
    except UserError:
        raise
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise UserError(f"env={env_id}: needs a package that is missing{_install(error)}") from error
    except FAULTS as error:
        text = one_line(str(error))
        unknown = re.search(r"unexpected keyword argument '(\w+)'", text)
        if unknown and unknown[1] in kwargs:
            creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
            raise UserError(unknown_kwarg(env_id, unknown[1], argument_names(creator)[0])) from error
        given = f" with env.kwargs {kwargs}" if kwargs else ""
        missing = re.search(
            r"missing \d+ required (?:positional|keyword-only) arguments?: (.+?) was raised from", text
        )
        if missing and "__init__() missing" in text:
            wanted = ", ".join(f"env.kwargs.{name}" for name in re.findall(r"'(\w+)'", missing[1]))
            raise UserError(f"env={env_id} cannot be made{given}: it needs {wanted}") from error
        raise UserError(f"env={env_id} cannot be made{given}: {told(error)}") from error


def _install(error: Exception) -> str:
    """The pip command for a missing package, from the error that tells of it."""
    text = one_line(str(error))
    if "opencv" in text:
        return ": pip install 'pgtrain[atari]'"
    extra = re.search(r"gymnasium\[([\w-]+)\]", text)
    if extra:
        ours = EXTRAS.get(extra[1])
        return f": pip install '{f'pgtrain[{ours}]' if ours else extra[0]}'"
    return f" ({text})"


def one_line(text: str) -> str:
    """`text` with its line breaks and runs of spaces turned into single spaces."""
    return " ".join(text.split())
