"""Does a gradient really flow through this env? `check(env)` finds the usual faults, each with its line and its cure.

The task's methods are run on many states in float64 while every torch call is watched: that tells of NumPy, in-place
writes, `.item()`, cut graphs and strange random numbers with the line that they stand in, and of each state whether
values and slopes are finite there: start states, those that random actions lead to (with ends and resets), and zero,
where square roots and norms like to fail. Then the Jacobians of some are compared with central differences.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv
from pgtrain.envs.differentiable.finite_differences import disagreement, same_noise
from pgtrain.envs.differentiable.probe import refuse_choices
from pgtrain.envs.differentiable.trace import Watch, user_line
from pgtrain.envs.differentiable.visited import bad_rows, random_action, terminated, visited_states

TOLERANCE = 1e-5  # relative disagreement with central differences that is a fault
STARTS = 256  # start states
AFTER = " after a step"
COMPARED = 16  # states at each place whose Jacobians are compared


class Finding(NamedTuple):
    """One fault: where ("file.py:12"), what, and what to do about it."""

    line: str
    message: str
    cure: str

    def __str__(self) -> str:
        return f"{self.line}: {self.message}. Cure: {self.cure}"


def check(env: DifferentiableEnv, seed: int = 0, rollout: int = 200) -> list[Finding]:
    """The faults of `env`'s task, first the ones that explain others; [] if there is none. `env` stays as it is.

    `rollout`: steps of random actions, in whose states the methods are tried again; 0: start states alone.
    Raises: UserError for a task whose actions are choices.
    """
    refuse_choices(type(env), env.env_id)
    found: list[Finding] = []
    env = in_double(env)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            env.reset(seed)
            start = env.start(STARTS)
        except Exception as error:
            return [_raised(env, "start", error)]
        if start.ndim != 2 or len(start) != STARTS:
            cure = "return [count, S], one row for each start state"
            shape = f"start({STARTS}) returned the shape {list(start.shape)}"
            return [Finding(_where(env, "start"), shape, cure)]
        start = start.double()
        zero = torch.zeros_like(start[:1])
        for place in (start, zero):
            found += _try_all(env, place, random_action(env, len(place)), found)
        if not found and rollout:
            states, actions = visited_states(env, rollout)
            found += _try_all(env, states, actions, found)
        if not found and rollout:
            some = torch.randperm(len(states))[:COMPARED].to(states.device)
            found += _compare_all(env, torch.cat([start[:COMPARED], states[some]]))
    return list(dict.fromkeys(found))


def in_double(env: DifferentiableEnv) -> DifferentiableEnv:
    """A copy whose constants are float64: tensors, modules, and lists and dicts of them."""
    twin = copy.copy(env)
    twin.generator = torch.Generator(env.device)
    twin.dtype = torch.float64
    for name, value in vars(twin).items():
        setattr(twin, name, _doubled(value))
    return twin


def _doubled(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.double() if x.is_floating_point() else x
    if isinstance(x, torch.nn.Module):
        return copy.deepcopy(x).double()
    if type(x) in (list, tuple):
        return type(x)(_doubled(part) for part in x)
    if type(x) is dict:
        return {key: _doubled(part) for key, part in x.items()}
    return x


# ------------------------------------------------------------------------------------ running the task's methods


def _methods(env: DifferentiableEnv) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """name → function of (state, action); the reward is that of the step, and so is what is observed after it."""
    return {
        "dynamics": env.dynamics,
        "reward": lambda s, a: env.reward(s, a, env.dynamics(s, a)),
        "observation": lambda s, a: env.observation(s),
        f"observation{AFTER}": lambda s, a: env.observation(env.dynamics(s, a)),
        "terminated": lambda s, a: terminated(env, s),
    }


def _try_all(env: DifferentiableEnv, place: Tensor, action: Tensor, known: list[Finding]) -> list[Finding]:
    """Runs each method under watch, then looks at its result and at its backward pass."""
    found: list[Finding] = []
    moody = False
    for name, method in _methods(env).items():
        state, act = place.clone().requires_grad_(), action.clone().requires_grad_()
        watch = Watch()
        try:
            with same_noise(env), watch:
                out = method(state, act)
        except Exception as error:
            found += [Finding(*fault) for fault in watch.faults] or [_raised(env, name, error)]
            continue
        name = name.removesuffix(AFTER)
        faults = [Finding(*fault) for fault in watch.faults]
        found += faults
        if name == "terminated":
            found += _flag_faults(env, out, len(place))
            continue
        found += _shape_faults(env, name, out, len(place))
        if faults or any(f in known for f in faults):
            continue
        if len(bad := bad_rows(out)):
            found.append(_value_fault(env, name, watch, place, bad))
        elif not moody and not _repeats(env, method, state, act, out):
            moody = True  # the other methods are called with what this one returned
            found.append(_moody(env, name))
        elif not out.requires_grad:
            found.append(_cut(env, name))
        else:
            found += _slope_faults(env, name, watch, out, state, act)
    return found


def _repeats(
    env: DifferentiableEnv,
    method: Callable[[Tensor, Tensor], Tensor],
    state: Tensor,
    action: Tensor,
    out: Tensor,
) -> bool:
    """Does another call with the same state, action and noise give the same? One that raises is told elsewhere."""
    with same_noise(env), torch.no_grad(), contextlib.suppress(Exception):
        return torch.equal(method(state, action), out)
    return True


def _moody(env: DifferentiableEnv, name: str) -> Finding:
    message = f"{name} returned other values when it was called again with the same states and actions"
    cure = (
        "draw random numbers by self.normal or self.uniform (not by NumPy or random), and keep nothing between "
        "calls: what must be remembered belongs into the state"
    )
    return Finding(_where(env, name), message, cure)


def _shape_faults(env: DifferentiableEnv, name: str, out: Tensor, rows: int) -> list[Finding]:
    wrong = out.ndim != 1 if name == "reward" else out.ndim != 2
    if not wrong and len(out) == rows:
        return []
    wanted = "[N], one number for each env" if name == "reward" else "[N, …], one row for each env"
    message = f"{name} returned the shape {list(out.shape)} for {rows} envs"
    return [
        Finding(
            _where(env, name),
            message,
            f"return {wanted} (sum(-1) or [:, 0] drops the last axis, stack adds one)",
        )
    ]


def _flag_faults(env: DifferentiableEnv, out: Tensor, rows: int) -> list[Finding]:
    if out.dtype == torch.bool and tuple(out.shape) == (rows,):
        return []
    message = f"terminated returned {out.dtype} of the shape {list(out.shape)}"
    return [Finding(_where(env, "terminated"), message, "return a comparison: bool [N]")]


def _cut(env: DifferentiableEnv, name: str) -> Finding:
    what = {"reward": "a detached reward: nothing can be learned from it"}.get(
        name, f"a detached result of {name}"
    )
    cure = "compute it from the state and action that were passed in, by torch operations alone"
    return Finding(_where(env, name), f"{what} (it depends on neither state nor action by the graph)", cure)


def _slope_faults(
    env: DifferentiableEnv, name: str, watch: Watch, out: Tensor, state: Tensor, action: Tensor
) -> list[Finding]:
    """A Jacobian with a NaN or infinity: which operation made it?"""
    watch.follow_backward()
    grads = torch.autograd.grad(out.sum(), [state, action], allow_unused=True)
    if not len(bad := bad_rows(*grads)):
        return []
    line, operation = watch.culprit or (_where(env, name), name)
    where = _place(state, bad)
    message = f"the slope of {operation} is not finite {where} (the value itself may be fine)"
    cure = (
        "keep its argument away from the singular point, e.g. (x.square().sum(-1) + 1e-12).sqrt(); "
        "torch.where does not help if it selects only afterwards: mask the argument, too"
    )
    return [Finding(line, message, cure)]


def _value_fault(env: DifferentiableEnv, name: str, watch: Watch, place: Tensor, bad: Tensor) -> Finding:
    """A NaN or infinity: which operation made it first?"""
    line, operation = watch.origin or (_where(env, name), name)
    message = f"{name} is not finite, from {operation} on, {_place(place, bad)}"
    cure = (
        "keep the argument where the function is defined: x.clamp(min=1e-6).log(), no division by 0; bound what grows "
        "without end, or end the episode before, by terminated"
    )
    return Finding(line, message, cure)


def _place(states: Tensor, bad: Tensor) -> str:
    """Which of the states is meant, and how rare such a state is."""
    if len(states) == 1 and not states.any():
        return "at the zero state"
    return f"at the state {_short(states[bad[0]])}, and in {len(bad):,} of {len(states):,} states tried"


# ------------------------------------------------------------------------------------------------ finite differences


def _compare_all(env: DifferentiableEnv, place: Tensor) -> list[Finding]:
    found = []
    action = random_action(env, len(place))
    for name, method in _methods(env).items():
        if name == "terminated" or name.endswith(AFTER):
            continue
        errors = disagreement(env, method, place, action)
        if not (errors > TOLERANCE).any():
            continue
        worst = int(errors.argmax())
        message = (
            f"the gradient of {name} differs from finite differences by {float(errors[worst]):.1e} (relative), "
            f"at the state {_short(place[worst])}"
        )
        cure = (
            "look for a constant that should depend on the state (a detach, .data, a Python number taken from "
            "a tensor), for float32 casts, for floor, round or sign (their slope is 0), or for state that the "
            "method keeps between calls"
        )
        found.append(Finding(_where(env, name), message, cure))
    return found


# ------------------------------------------------------------------------------------------------------------- words


def _where(env: DifferentiableEnv, name: str) -> str:
    """ "file.py:12", the line in which the method's definition begins."""
    method = getattr(type(env), name)
    return f"{inspect.getsourcefile(method)}:{inspect.getsourcelines(method)[1]}"


def _raised(env: DifferentiableEnv, name: str, error: Exception) -> Finding:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if user_line(f.filename)]
    line = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else _where(env, name)
    text = " ".join(str(error).split())
    cure = "make it run on a batch of states [N, S] and actions [N, A] in float64"
    if "dtype" in text or "Float and Double" in text or "Double" in text:
        cure = "do not fix the float type: make constants with self.tensor, cast nothing to float32"
    return Finding(line, f"{name} raised {type(error).__name__}: {text}", cure)


def _short(state: Tensor) -> str:
    return "[" + ", ".join(f"{x:.3g}" for x in state.tolist()) + "]"
