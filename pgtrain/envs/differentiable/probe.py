"""Before anything starts: has the task all its parts, and do they run and fit together?

`check` looks at gradients; this runs each method once and tells in one line what training would fall over.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv
from pgtrain.envs.differentiable.trace import raised_at
from pgtrain.types import UserError

PARTS = "action_low, action_high, start, dynamics and reward"


def refuse_incomplete(env: DifferentiableEnv) -> None:
    """Raises UserError where a part that every task needs is missing, or the action box has no one size."""
    cls = type(env)
    box = env.choices is None
    missing = [name for name in ("action_low", "action_high") if box and not hasattr(env, name)]
    missing += [
        name
        for name in ("start", "dynamics", "reward")
        if getattr(cls, name) is getattr(DifferentiableEnv, name)
    ]
    if missing:
        raise UserError(
            f"env={env.env_id}: {cls.__name__} lacks {', '.join(missing)}; a task defines {PARTS}, "
            "as docs/differentiable.md shows"
        )
    if not box:
        return
    sizes = [torch.as_tensor(x).shape for x in (env.action_low, env.action_high)]
    if sizes[0] != sizes[1] or len(sizes[0]) != 1 or sizes[0][0] == 0:
        raise UserError(
            f"env={env.env_id}: action_low={env.action_low} and action_high={env.action_high}: expected one number "
            "for each action in both, e.g. (-1.0,) and (1.0,)"
        )


def refuse_choices(cls: type[DifferentiableEnv], env_id: str) -> None:
    """Raises UserError for a task whose actions are choices, where a gradient has to lead through them."""
    if cls.choices is not None:
        raise UserError(
            f"env={env_id}: its actions are {cls.choices} choices, and no gradient leads through a choice; pathwise "
            "recipes need a task with a box of actions, such as env=pgtrain/CartPoleSwingUp-v0; algo=ppo does without"
        )


def refuse_broken(env: DifferentiableEnv) -> None:
    """Runs each method once, on N rows, without a graph; the env's randomness stays as it is.

    Raises: UserError for a method that raises, or whose result has another form than the others need.
    """
    kept = env.generator.get_state()
    try:
        with torch.no_grad():
            _run(env)
    finally:
        env.generator.set_state(kept)


def carries_gradient(env: DifferentiableEnv) -> bool:
    """Is there any way, by the graph, from an action to a reward or to the state after it?"""
    if env.choices is not None:
        return False
    kept = env.generator.get_state()
    state = env.start(env.num_envs)
    action = _inside(env).requires_grad_()
    after = env.dynamics(state, action)
    found = after.requires_grad or env.reward(state, action, after).requires_grad
    env.generator.set_state(kept)
    return found


def _inside(env: DifferentiableEnv) -> Tensor:
    """The action of the box that is nearest to 0, for each env [N, A]; of choices the first [N]."""
    if env.choices is not None:
        return torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)
    low, high = env.tensor(env.action_low), env.tensor(env.action_high)
    return torch.zeros_like(low).clamp(low, high).repeat(env.num_envs, 1)


def _run(env: DifferentiableEnv) -> None:
    n = env.num_envs
    state = _call(env, "start", n)
    _expect(env, "start", state, state.ndim == 2 and len(state) == n, f"[{n}, S], a row for each env")
    action = _inside(env)
    after = _call(env, "dynamics", state, action)
    _expect(
        env, "dynamics", after, after.shape == state.shape, f"{list(state.shape)}, as the state it was given"
    )
    reward = _call(env, "reward", state, action, after)
    _expect(env, "reward", reward, reward.shape == (n,), f"[{n}], one number for each env")
    obs = _call(env, "observation", after)
    _expect(env, "observation", obs, obs.ndim == 2 and len(obs) == n, f"[{n}, D], a row for each env")
    ended = _call(env, "terminated", after)
    fits = ended.shape == (n,) and ended.dtype == torch.bool
    _expect(env, "terminated", ended, fits, f"bool [{n}], a comparison for each env")


def _call(env: DifferentiableEnv, name: str, *arguments: Any) -> Tensor:
    try:
        found = getattr(env, name)(*arguments)
    except Exception as error:
        raise UserError(f"env={env.env_id}: {raised_at(name, error)}; {_more(env)}") from error
    if not isinstance(found, Tensor):
        raise UserError(
            f"env={env.env_id}: {name} returned {type(found).__name__}, not a torch tensor; {_more(env)}"
        )
    return found


def _expect(env: DifferentiableEnv, name: str, found: Tensor, fits: bool, wanted: str) -> None:
    if not fits:
        kind = "bool" if found.dtype == torch.bool else str(found.dtype).removeprefix("torch.")
        raise UserError(
            f"env={env.env_id}: {name} returned {kind} {list(found.shape)} for {env.num_envs} envs; expected {wanted}; "
            f"{_more(env)}"
        )


def _more(env: DifferentiableEnv) -> str:
    return f"`pgtrain check env={env.env_id}` tells more"
