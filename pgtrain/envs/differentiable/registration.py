"""Ids of differentiable envs. Each is also a Gymnasium id, with a batched env for the host, so that any algorithm
runs on the same physics.

Importing this module registers pgtrain's own tasks; none of them is imported before it is made.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym

from pgtrain.envs import native
from pgtrain.envs.registry import find_spec, told_in_one_line, unknown_kwarg
from pgtrain.types import UserError

if TYPE_CHECKING:
    from pgtrain.envs.differentiable.base import DifferentiableEnv


class Task(NamedTuple):
    """Where the class lies, its time limit and the arguments that are its own."""

    module: str
    name: str
    max_episode_steps: int | None
    kwargs: tuple[str, ...] = ()
    equals: str = ""  # what it repeats step by step
    choices: bool = False  # discrete actions: no gradient leads through them


_HERE = "pgtrain.envs.differentiable"
TASKS: dict[str, Task] = {}


def _add(env_id: str, task: Task) -> None:
    """Makes the id known here, to Gymnasium and to the native backend."""
    entry_point = f"{_HERE}.single:{env_id}"
    if env_id not in gym.registry:
        gym.register(env_id, entry_point=entry_point, max_episode_steps=task.max_episode_steps)
    native.NATIVE[env_id] = native.Native(f"{_HERE}.host", env_id, entry_point, task.kwargs, task.equals)
    TASKS[env_id] = task


def register(env_id: str, cls: type[DifferentiableEnv]) -> None:
    """Gives a class of yours an id such as "Hopper-v0", for `env=my_module:Hopper-v0` and `gymnasium.make`.

    The class must be importable (defined at the top of a module). Raises UserError if another env has the id.
    """
    if env_id in gym.registry and env_id not in TASKS:
        raise UserError(f"env id {env_id} is taken by another Gymnasium env; choose another")
    kwargs, choices = own_kwargs(cls), cls.choices is not None
    task = Task(cls.__module__, cls.__qualname__, cls.max_episode_steps, kwargs, choices=choices)
    if TASKS.get(env_id, task)[:2] != task[:2]:
        raise UserError(f"env id {env_id} is taken by {TASKS[env_id].name}; choose another")
    _add(env_id, task)


def own_kwargs(cls: type[DifferentiableEnv]) -> tuple[str, ...]:
    """Keyword arguments of the class's constructor other than those that every env has."""
    common = {"self", "num_envs", "device", "dtype", "max_episode_steps", "env_id"}
    parameters = inspect.signature(cls).parameters.values()
    return tuple(p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in common)


def load(env_id: str) -> type[DifferentiableEnv]:
    """The class of an id; `module:Id` imports the module first.

    Raises: UserError for an id that is not registered at all, or whose env is not differentiable.
    """
    name = find_spec(env_id).id
    if name not in TASKS:
        own = sorted(key for key, task in TASKS.items() if key.startswith("pgtrain/") and not task.choices)
        near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.5)
        hint = f"; the nearest is {near[0]}" if near else ""
        raise UserError(
            f"env={env_id} is not differentiable: gradients need an env in torch, registered with "
            f"pgtrain.envs.differentiable.register; pgtrain's own are {', '.join(own)}{hint}"
        )
    task = TASKS[name]
    return getattr(importlib.import_module(task.module), task.name)


def make(env_id: str, num_envs: int, shown_as: str = "", **settings: Any) -> DifferentiableEnv:
    """N envs of an id as one tensor env. `settings`: device, dtype, max_episode_steps and the task's own arguments.

    shown_as: what messages call it, if the user wrote it otherwise (module:Id).

    Raises: UserError for an env that is not differentiable, or that cannot be made with these settings.
    """
    cls = load(env_id)
    allowed = {*own_kwargs(cls), "device", "dtype", "max_episode_steps"}
    for name in settings:
        if name not in allowed:
            raise UserError(unknown_kwarg(env_id, name, list(own_kwargs(cls))))
    from pgtrain.envs.differentiable.probe import refuse_incomplete

    with told_in_one_line(env_id, settings):
        env = cls(num_envs, env_id=shown_as or env_id, **settings)
    refuse_incomplete(env)
    return env


_add("pgtrain/Pendulum-v0", Task(f"{_HERE}.pendulum", "Pendulum", 200, ("g",), "Gymnasium's Pendulum-v1"))
_CARTPOLE = Task(f"{_HERE}.balance", "CartPole", 500, (), "Gymnasium's CartPole-v1", choices=True)
_add("pgtrain/CartPole-v0", _CARTPOLE)
_add("pgtrain/CartPoleSwingUp-v0", Task(f"{_HERE}.cartpole", "CartPoleSwingUp", 200))
_add("pgtrain/Acrobot-v0", Task(f"{_HERE}.acrobot", "Acrobot", 200))
_add("pgtrain/Quadrotor-v0", Task(f"{_HERE}.quadrotor", "Quadrotor", 200))
_LQR_KWARGS = ("masses", "A", "B", "Q", "R", "W", "x0_mean", "x0_cov")
_add("pgtrain/LQR-v0", Task(f"{_HERE}.lqr", "LQR", 100, _LQR_KWARGS))
