"""Each fault is provoked, and told with the line that it stands in and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pgtrain.envs.differentiable.base import DifferentiableEnv
from pgtrain.envs.differentiable.check import check, in_double
from pgtrain.envs.differentiable.finite_differences import disagreement
from pgtrain.envs.differentiable.registration import TASKS, make
from pgtrain.envs.differentiable.visited import visited_states
from tests.envs.differentiable import faulty

SOURCE = Path(faulty.__file__).read_text(encoding="utf-8").splitlines()

FAULTS = {
    "NumpyInReward": ("NumPy is called with a tensor", "torch.sin"),
    "NumpyDetached": (".numpy() leaves torch", "torch's function"),
    "InPlaceRow": ("in-place write into a graph (x[…] = …)", "torch.stack"),
    "InPlaceAdd": ("in-place write into a graph", "x = x + y"),
    "Item": (".item() takes a number out of the graph", "torch.where"),
    "Branch": ("a Python branch on a tensor", "torch.where"),
    "DetachedReward": (".detach() cuts the graph", "drop it"),
    "DataReward": (".data cuts the graph", "drop it"),
    "ConstantReward": ("a detached reward", "from the state and action"),
    "WrongSlope": ("the gradient of reward differs from finite differences", "a constant that should depend"),
    "RootAtZero": ("the slope of sqrt is not finite at the zero state", "1e-12"),
    "MaskedTooLate": ("is not finite at the zero state", "mask the argument"),
    "RareValue": ("reward is not finite, from log on, at the state [0.9", "x.clamp(min=1e-6).log()"),
    "RareSlope": ("the slope of sqrt is not finite at the state [0.9", "1e-12"),
    "LateValue": ("reward is not finite, from log on, at the state [", "x.clamp(min=1e-6).log()"),
    "EndObservation": ("observation is not finite, from sqrt on, at the state [", "x.clamp(min=1e-6).log()"),
    "StateAfterReset": ("reward is not finite, from log on, at the state [", "x.clamp(min=1e-6).log()"),
    "RareWrongSlope": (
        "the gradient of reward differs from finite differences",
        "a constant that should depend",
    ),
    "RewardColumn": ("reward returned the shape [256, 1] for 256 envs", "[N]"),
    "FloatFlag": ("terminated returned torch.float64", "bool [N]"),
    "GlobalNoise": ("randn draws random numbers that neither the env's seed", "self.normal"),
    "GlobalNoiseInPlace": ("normal_ draws random numbers that neither", "self.normal"),
    "NumpyNoise": ("dynamics returned other values when it was called again", "not by NumPy or random"),
    "Remembers": ("reward returned other values when it was called again", "belongs into the state"),
    "SinglePrecision": ("dynamics raised RuntimeError", "self.tensor"),
}


def line_of_fault(name: str) -> int:
    """The line of class `name` that is marked, counted from 1."""
    first = next(i for i, line in enumerate(SOURCE) if line.startswith(f"class {name}("))
    return next(i + 1 for i, line in enumerate(SOURCE) if i > first and line.endswith("# FAULT"))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_with_its_line_and_its_cure(name: str) -> None:
    found = check(getattr(faulty, name)(3))
    message, cure = FAULTS[name]
    matching = [f for f in found if message in f.message]
    assert matching, found
    assert matching[0].line == f"{faulty.__file__}:{line_of_fault(name)}"
    assert cure in matching[0].cure
    assert "\n" not in str(matching[0])


def test_every_faulty_env_is_tested() -> None:
    classes = {n for n, c in vars(faulty).items() if isinstance(c, type) and issubclass(c, DifferentiableEnv)}
    assert classes - {"Good", "DifferentiableEnv"} == set(FAULTS)


def test_the_state_that_is_told_is_one_in_which_it_happens() -> None:
    """Its first coordinate, where the logarithm's argument is 0.98 − x, and how many there were."""
    (finding,) = check(faulty.RareValue(1))
    state = re.search(r"at the state \[([\d.]+), .*and in (\d+) of 256 states tried", finding.message)
    assert state is not None and float(state[1]) >= 0.98 and 1 <= int(state[2]) <= 12  # 1 in 100 on average
    (finding,) = check(faulty.RareWrongSlope(1))
    state = re.search(r"at the state \[([-\d.]+), ", finding.message)
    assert state is not None and float(state[1]) > 0


def test_states_of_every_age_are_visited_and_fresh_ones() -> None:
    env = in_double(faulty.Good(1))
    states, actions = visited_states(env, 20, envs=30)
    assert states.shape == (600, 2) and actions.shape == (600, 1)
    states, actions = states.view(20, 30, 2), actions.view(20, 30, 1)
    went_on = torch.isclose(
        env.dynamics(states[:-1].flatten(0, 1), actions[:-1].flatten(0, 1)), states[1:].flatten(0, 1)
    )
    cuts = (~went_on.all(-1)).view(19, 30)
    assert cuts.any(0).all()  # the limit is 5: each env was reset, not all in the same step
    assert ((cuts.sum(0) >= 3) & (cuts.sum(0) <= 4)).all() and len(set(cuts.int().argmax(0).tolist())) > 2


def test_a_kink_is_no_fault() -> None:
    """At the very edge of a clip there is no one slope to compare with."""
    env, action = in_double(faulty.Good(1)), torch.zeros(2, 1, dtype=torch.float64)
    state = torch.tensor([[1.0, 0.0], [0.5, 0.0]], dtype=torch.float64)
    errors = disagreement(env, lambda s, a: s[:, 0].clamp(max=1.0), state, action)
    assert (errors < 1e-6).all()
    assert (disagreement(env, lambda s, a: s[:, 0].detach(), state, action) > 0.5).all()


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_else_is_blamed(name: str) -> None:
    """One fault must not raise a cloud of others in the methods that are sound."""
    lines = {f.line for f in check(getattr(faulty, name)(3))}
    assert lines == {f"{faulty.__file__}:{line_of_fault(name)}"}


def test_a_sound_env_has_no_finding() -> None:
    assert check(faulty.Good(3)) == []


@pytest.mark.parametrize("env_id", [name for name, task in TASKS.items() if not task.choices])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_our_own_tasks_are_sound(env_id: str, dtype: torch.dtype) -> None:
    assert check(make(env_id, 3, dtype=dtype)) == []


def test_checking_leaves_the_env_alone() -> None:
    env = faulty.Good(3)
    env.reset(4)
    before = {k: v for k, v in env.state_dict().items() if k != "generator"}
    check(env)
    after = env.state_dict()
    assert env.dtype == torch.float32
    assert all(torch.equal(after[k], v) for k, v in before.items() if isinstance(v, torch.Tensor))
