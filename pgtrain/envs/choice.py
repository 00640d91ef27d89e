"""`env.backend=auto`: which backend an env gets, and why.

native where pgtrain or the env's makers have a batched form that equals the single env; else sync, one env after the
other. Worker processes where they pay and cannot do harm: an env whose step takes `DEAR_MS` or more (measured on one
made for it), `MIN_ENVS` envs or more, more than one core, and a main module that a worker can import again. Which one
is taken changes no number: seeds and results are the same on each.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec

from pgtrain.envs import native
from pgtrain.envs.cores import cores
from pgtrain.envs.registry import EnvFactory, quiet
from pgtrain.faults import FAULTS

# A round trip to two workers costs 0.3 ms on cores that are busy otherwise (docs/performance.md): below a
# millisecond a step, what is gained on small machines is not worth the seconds that workers take to start.
DEAR_MS = 1.0
MIN_ENVS = 4  # an evaluation, or a policy that is watched, has few
TRIAL_STEPS = 12


def choose(
    env_id: str, spec: EnvSpec, kwargs: dict[str, Any], backend: str, workers: int | None, frame_stack: int
) -> tuple[str, str]:
    """The backend, and why it was chosen ("" when the user asked for it)."""
    if backend != "auto":
        return backend, ""
    if workers is not None:
        return "process", f"env.workers={workers} was given"
    own = own_batch(spec)
    if own is None:
        return "sync", f"there is no native batched {env_id}"
    unsupported = [name for name in kwargs if name not in own.kwargs]
    if unsupported:
        return "sync", f"the native batched {env_id} does not know env.kwargs.{unsupported[0]}"
    if frame_stack > 1:
        return "sync", f"env.frame_stack={frame_stack} needs single envs"
    equal = f", equal to {own.equals} step by step" if own.equals else ", the task itself on tensors"
    return "native", f"pgtrain's batched {env_id}{equal}"


def choose_atari(kwargs: dict[str, Any], backend: str, workers: int | None) -> tuple[str, str]:
    """The same for a game of ale-py's."""
    from pgtrain.envs.atari import KWARGS

    if backend != "auto":
        return backend, ""
    if workers is not None:
        return "process", f"env.workers={workers} was given"
    other = [name for name in kwargs if name not in KWARGS]
    if other:
        return "sync", f"ale-py's vector env does not know env.kwargs.{other[0]}"
    return "native", "ale-py's vector env, with the preprocessing of env.atari"


def own_batch(spec: EnvSpec) -> native.Native | None:
    """pgtrain's own batched env for this spec; None when the id stands for other dynamics than ours."""
    own = native.NATIVE.get(spec.id)
    same = (
        own is not None
        and spec.entry_point == own.entry_point
        and not spec.kwargs
        and not spec.additional_wrappers
    )
    return own if same else None


def sync_or_process(factory: EnvFactory, num_envs: int, why: str, ranks: int = 1) -> tuple[str, str]:
    """What `auto` takes for single envs; `why` says why they are single."""
    if num_envs < MIN_ENVS or cores(ranks) < 2 or not workers_can_start(factory.spec):
        return "sync", why
    cost = step_ms(factory)
    if cost is None:
        return "sync", why
    if cost < DEAR_MS:
        return "sync", f"{why}; its step takes {cost:.2g} ms, workers pay from {DEAR_MS:g} ms on"
    return "process", f"{why}; its step takes {cost:.2g} ms"


def step_ms(factory: EnvFactory) -> float | None:
    """Milliseconds of the quickest of some random steps of one env, so that a busy machine makes no env dear.

    None where it cannot be had: whatever is wrong with the env, the run will meet it in its own place.
    """
    spent: list[float] = []
    with contextlib.suppress(*FAULTS), quiet():
        env = factory()
        with contextlib.closing(env):
            env.reset(seed=0)
            env.action_space.seed(0)
            for _ in range(TRIAL_STEPS):
                action = env.action_space.sample()
                started = time.perf_counter()
                _, _, terminated, truncated, _ = env.step(action)
                spent.append(1e3 * (time.perf_counter() - started))
                if terminated or truncated:
                    env.reset()
    return min(spent, default=None)


def workers_can_start(spec: EnvSpec) -> bool:
    """A worker imports the main module and the env's anew: safe for our own command and for modules that are found.

    A script of the user's may not be guarded by `if __name__ == "__main__"`, so it has to ask for workers itself.
    """
    if multiprocessing.current_process().daemon:  # may not have children
        return False
    main = sys.modules["__main__"]
    module = getattr(getattr(main, "__spec__", None), "name", None) or ""
    command = Path(getattr(main, "__file__", None) or "").stem
    if module.split(".")[0] != "pgtrain" and command != "pgtrain":
        return False
    entry = spec.entry_point
    home = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "__main__")
    try:
        return home not in ("__main__", "__mp_main__") and importlib.util.find_spec(home) is not None
    except (ImportError, ValueError):
        return False
