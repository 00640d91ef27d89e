"""`pgtrain check env=ID`: does a gradient really flow through this env? Each fault with its line and its cure."""

from __future__ import annotations

import difflib
from typing import Any

import yaml

from pgtrain.types import UserError

HELP = """\
pgtrain check env=ID [setting=value …]   look for what spoils the gradient of a task in torch

The env's methods are run in float64 while every torch call is watched, at 256 start states, in the
states that random actions lead to (with ends and resets), and at zero: are values and slopes finite
in each? In some of them the slopes are compared with central differences. Each fault is a line:
file and line of the code, what is wrong, in which state, and the cure. Exit code 0 where there is
none, 1 otherwise.

settings
  env=ID | module:ID    of a task in torch, registered with pgtrain.envs.differentiable.register
  env.kwargs.NAME=VALUE arguments of the env itself
  seed=0                of the states and actions that are tried
  rollout=200           random steps of 64 envs, in whose states the methods are tried again; 0:
                        start states alone

examples
  pgtrain check env=pgtrain/Pendulum-v0
  pgtrain check env=my_module:MyEnv-v0 env.kwargs.mass=2
"""
NUMBERS = ("seed", "rollout")


def parse(argv: list[str]) -> tuple[str, dict[str, Any], dict[str, int]]:
    """The env's id, its arguments, and the settings of the check.

    Raises: UserError in one line.
    """
    env_id, kwargs, numbers = "", {}, {"seed": 0, "rollout": 200}
    for word in argv:
        key, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"{word}: settings are written key=value, for example pgtrain check env={word}")
        if key == "env":
            env_id = text
        elif key.startswith("env.kwargs.") and len(key) > len("env.kwargs."):
            kwargs[key.removeprefix("env.kwargs.")] = _value(word, text)
        elif key in NUMBERS:
            if not text.isdecimal():
                raise UserError(f"{word}: expected a whole number of at least 0")
            numbers[key] = int(text)
        else:
            near = difflib.get_close_matches(key, ["env", *NUMBERS], n=1)
            hint = f"; did you mean {near[0]}=?" if near else ""
            raise UserError(
                f"{word}: no setting of check{hint} (settings: env, env.kwargs.*, {', '.join(NUMBERS)})"
            )
    if not env_id:
        raise UserError(
            "no env is given; expected: pgtrain check env=ID, for example env=pgtrain/Pendulum-v0"
        )
    return env_id, kwargs, numbers


def _value(word: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{word}: {text!r} is not YAML") from error


def main(argv: list[str]) -> int:
    """`pgtrain check …` without the word check; the exit code.

    Raises: UserError for a mistake in `argv`, an unknown env or one that is not differentiable.
    """
    if {"-h", "--help"} & set(argv):
        print(HELP, end="")
        return 0
    env_id, kwargs, numbers = parse(argv)
    from pgtrain.envs.differentiable.check import check
    from pgtrain.envs.differentiable.registration import make

    found = check(make(env_id, 1, **kwargs), **numbers)
    for finding in found:
        print(finding)
    faults = "1 fault" if len(found) == 1 else f"{len(found)} faults"
    print(
        f"{env_id}: {faults if found else 'no fault found: gradients flow, and agree with finite differences'}"
    )
    return 1 if found else 0
