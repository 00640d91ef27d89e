"""`make_vector_env`: any Gymnasium env id → N envs behind one interface."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode

from pgtrain.envs import choice, native
from pgtrain.envs.adapters import GuestEnv
from pgtrain.envs.base import VectorEnv
from pgtrain.envs.cores import cores
from pgtrain.envs.layout import ONE_HOT_MAX
from pgtrain.envs.preprocessing import Atari
from pgtrain.envs.registry import EnvFactory, check_kwargs, find_spec, quiet, told_in_one_line, unknown_kwarg
from pgtrain.envs.show import Show
from pgtrain.envs.sync import SyncEnv
from pgtrain.types import UserError

__all__ = ["BACKENDS", "VectorEnv", "adapt_vector_env", "make_vector_env"]

BACKENDS = ("auto", "native", "sync", "process")


def make_vector_env(
    env_id: str,
    num_envs: int,
    *,
    kwargs: dict[str, Any] | None = None,
    backend: str = "auto",
    workers: int | None = None,
    threads: int | None = None,
    max_episode_steps: int | None = None,
    step_timeout: float | None = None,
    start_method: str = "spawn",
    action_mask: str = "auto",
    atari: Atari | None = None,
    frame_stack: int = 1,
    one_hot_max: int = ONE_HOT_MAX,
    before: int = 0,
    ranks: int = 1,
    show: Show | None = None,
) -> VectorEnv:
    """N envs of a registered id, or of `module:Id`.

    backend: `native` (a batched env of pgtrain's, else the env's own vector env), `sync` (one after the other),
    `process` (`workers` processes with num_envs/workers envs each; default: one for each CPU core, at most num_envs),
    `auto` (process when `workers` is given; native where pgtrain has the env; else sync, or process for an env that
    takes milliseconds a step: see `choice`).
    `threads`: of a native env whose simulations need no Python, MuJoCo's or a game's; default: by what a step costs.
    `step_timeout`: seconds that the process backend waits for a reset or a step before it names the env that hangs.
    `action_mask`: where the env tells which actions it allows: "info", a key of its Dict observation, "none", "auto".
    `max_episode_steps` replaces the time limit of the id. `atari`: the preprocessing of a game of ale-py's;
    `frame_stack`: the last so many observations together; `one_hot_max`: see `layout`; `before`: envs of the run
    that other processes hold and that come before these; `ranks`: processes that share this machine's cores.
    `show`: how one env, of backend sync, is to be shown.
    Raises UserError, in one line, for what cannot be had.
    """
    kwargs = dict(kwargs or {})
    _check_numbers(num_envs, backend, workers, threads, max_episode_steps)
    spec = find_spec(env_id)
    if show is not None and (backend, num_envs) != ("sync", 1):
        raise ValueError(f"backend={backend}, num_envs={num_envs}: one env of backend=sync can be shown")
    if atari is not None:
        chosen, why = choice.choose_atari(kwargs, backend, workers)
    else:
        chosen, why = choice.choose(env_id, spec, kwargs, backend, workers, frame_stack)
    _check_threads(env_id, spec, chosen, atari is not None, threads)
    if chosen == "native":
        if atari is not None:
            from pgtrain.envs.atari import AtariEnvs

            count = threads or min(num_envs, cores(ranks))
            env = AtariEnvs(env_id, spec, num_envs, kwargs, atari, frame_stack, max_episode_steps, count)
        else:
            env = _make_native(
                env_id,
                spec,
                num_envs,
                kwargs,
                max_episode_steps,
                frame_stack,
                one_hot_max,
                action_mask,
                threads,
                ranks,
            )
    else:
        factory = EnvFactory(env_id, spec, kwargs, max_episode_steps, atari, frame_stack, one_hot_max, show)
        if backend == "auto" and chosen == "sync":
            chosen, why = choice.sync_or_process(factory, num_envs, why, ranks)
        if chosen == "sync":
            env = SyncEnv(factory, num_envs, action_mask=action_mask, before=before)
        else:
            from pgtrain.envs.workers import ProcessEnv

            env = ProcessEnv(
                factory,
                num_envs,
                workers,
                step_timeout=step_timeout,
                start_method=start_method,
                action_mask=action_mask,
                before=before,
                ranks=ranks,
            )
    env.before = before
    if why:
        env.notices.insert(0, f"env.backend={chosen}: {why}")
    return env


def adapt_vector_env(vec: gym.vector.VectorEnv[Any, Any, Any], env_id: str = "") -> VectorEnv:
    """A Gymnasium vector env of the user's own behind pgtrain's interface; SAME_STEP or NEXT_STEP by its metadata."""
    return GuestEnv(vec, env_id)


def _check_threads(env_id: str, spec: EnvSpec, backend: str, games: bool, threads: int | None) -> None:
    own = choice.own_batch(spec)
    if threads is None or (backend == "native" and (games or (own is not None and own.threaded))):
        return
    raise UserError(
        f"env.threads={threads}: env={env_id} with env.backend={backend} steps in one thread; only native batches of "
        "MuJoCo tasks and of Atari games have more: leave it out"
    )


def _check_numbers(
    num_envs: int, backend: str, workers: int | None, threads: int | None, max_episode_steps: int | None
) -> None:
    if backend not in BACKENDS:
        raise UserError(f"env.backend={backend}: allowed are {', '.join(BACKENDS)}")
    if num_envs < 1:
        raise UserError(f"num_envs={num_envs}: must be at least 1")
    if max_episode_steps is not None and max_episode_steps < 1:
        raise UserError(
            f"env.max_episode_steps={max_episode_steps}: must be at least 1, or null for the env's own"
        )
    if threads is not None and not 1 <= threads <= num_envs:
        raise UserError(f"env.threads={threads}: must be between 1 and num_envs={num_envs}")
    if workers is None:
        return
    if not 1 <= workers <= num_envs:
        raise UserError(f"env.workers={workers}: must be between 1 and num_envs={num_envs}")
    if backend in ("native", "sync"):
        raise UserError(
            f"env.workers={workers}: env.backend={backend} has no worker processes; use backend=process"
        )


def _make_native(
    env_id: str,
    spec: EnvSpec,
    num_envs: int,
    kwargs: dict[str, Any],
    max_episode_steps: int | None,
    frame_stack: int,
    one_hot_max: int,
    action_mask: str,
    threads: int | None,
    ranks: int,
) -> VectorEnv:
    if frame_stack > 1:
        raise UserError(
            f"env.frame_stack={frame_stack}: env.backend=native has no single envs to stack; "
            "use backend=sync or process"
        )
    own = choice.own_batch(spec)
    if own is not None:
        if action_mask not in ("auto", "none"):
            raise UserError(
                f"env.action_mask={action_mask}: pgtrain's batched {env_id} has no action masks; use auto"
            )
        for name in kwargs:
            if name not in own.kwargs:
                raise UserError(unknown_kwarg(f"{env_id} env.backend=native", name, list(own.kwargs)))
        crew = {"threads": threads, "ranks": ranks} if own.threaded else {}
        with told_in_one_line(env_id, kwargs):
            return native.load(own)(
                env_id,
                num_envs,
                max_episode_steps=max_episode_steps or spec.max_episode_steps,
                reward_threshold=spec.reward_threshold,
                **crew,
                **kwargs,
            )
    if spec.vector_entry_point is None:
        names = ", ".join(sorted(native.NATIVE))
        raise UserError(
            f"env.backend=native: there is no batched env={env_id}; pgtrain has {names}; use backend=sync or process"
        )
    return _make_guest(env_id, spec, num_envs, kwargs, max_episode_steps, one_hot_max, action_mask)


def _make_guest(
    env_id: str,
    spec: EnvSpec,
    num_envs: int,
    kwargs: dict[str, Any],
    max_episode_steps: int | None,
    one_hot_max: int,
    action_mask: str,
) -> VectorEnv:
    """The env's own vector env, in SAME_STEP mode if it takes an autoreset_mode."""
    check_kwargs(env_id, spec.vector_entry_point, kwargs)
    with quiet(), told_in_one_line(env_id, kwargs):
        entry: Any = spec.vector_entry_point
        parameters = inspect.signature(
            load_env_creator(entry) if isinstance(entry, str) else entry
        ).parameters
        extra: dict[str, Any] = {}
        if "autoreset_mode" in parameters:
            extra["autoreset_mode"] = AutoresetMode.SAME_STEP
        if max_episode_steps is not None:
            extra["max_episode_steps"] = max_episode_steps
        vec = gym.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **{**kwargs, **extra})
    env = GuestEnv(vec, env_id, action_mask, one_hot_max)
    how = "SAME_STEP" if env.autoreset == "same_step" else "NEXT_STEP, whose reset rows are left out"
    env.notices.append(f"env.backend=native: the env's own {type(vec).__name__}, autoreset {how}")
    return env
