"""Each hint fires on the failure that it names, and none on a healthy run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pgtrain.monitor.hints import Hints
from tests.monitor.run_for_tests import NAN, healthy, run_info


def hints_after(*iterations: dict[str, Any], **changes: Any) -> dict[str, str]:
    info = run_info(Path("x"), **{"total_steps": 100 * len(iterations), **changes})
    hints, found = Hints(info), dict[str, str]()
    for i, numbers in enumerate(iterations, start=1):
        found = hints.update(info.start_step + 100 * i, numbers)
    return found


def test_a_healthy_run_has_none() -> None:
    rising = [healthy(episode__return_100=20.0 + 3 * i, policy__entropy=0.69 - 0.004 * i) for i in range(150)]
    assert hints_after(*rising) == {}
    gaussian = healthy(policy__std=0.5, policy__entropy=-3.0, policy__clipped_actions=0.1)
    assert hints_after(gaussian, gaussian) == {}


@pytest.mark.parametrize(
    ("tag", "value", "words"),
    [
        ("policy/entropy", 0.01, "collapsed"),
        ("policy/entropy", NAN, "not a finite number"),
        ("policy/approx_kl", 0.5, "jumps"),
        ("policy/std", 0.001, "no longer explores"),
        ("policy/std", 50.0, "noise"),
        ("policy/clipped_actions", 0.9, "outside the action box"),
        ("loss/actor", NAN, "not a finite number"),
        ("loss/critic", math.inf, "not a finite number"),
        ("gradient/norm", 0.0, "nothing is learned"),
        ("gradient/norm", 500.0, "1000 times its limit"),
        ("gradient/norm", NAN, "not a finite number"),
        ("gradient/skipped_updates", 2, "not finite: see run.log"),
        ("advantage/std", 0.0, "all equal"),
    ],
)
def test_one_bad_number(tag: str, value: float, words: str) -> None:
    found = hints_after(healthy(), healthy(**{tag.replace("/", "__"): value}))
    assert list(found) == [tag] and words in found[tag]


def test_line_searches_that_fail_again_and_again() -> None:
    def searched(failed: int, iteration: int) -> dict[str, Any]:
        return healthy(update__line_search_failed=failed, progress__iteration=iteration)

    assert "find no step" in hints_after(searched(40, 100))["update/line_search_failed"]
    assert hints_after(searched(20, 100)) == {} and hints_after(searched(5, 5)) == {}


def test_the_gradient_of_a_natural_step_has_no_limit() -> None:
    config = {"optim": {"max_grad_norm": 0.5}, "update": {"name": "natural", "cg_iterations": 15}}
    assert hints_after(healthy(gradient__norm=500.0), config=config) == {}
    config["update"] = {"name": "clipped"}
    assert "times its limit" in hints_after(healthy(gradient__norm=500.0), config=config)["gradient/norm"]


def test_actions_at_a_bound_are_told_as_the_distribution_makes_them() -> None:
    many = healthy(policy__clipped_actions=0.9, policy__std=0.5)
    for name in ("tanh_gaussian", "beta"):
        found = hints_after(many, config={"policy": {"distribution": {"name": name}}})
        assert "held at a bound" in found["policy/clipped_actions"]
    found = hints_after(many, config={"policy": {"distribution": {"name": "gaussian"}}})
    assert "try policy/distribution=tanh_gaussian" in found["policy/clipped_actions"]


def test_a_negative_explained_variance_is_bad_after_the_first_iterations() -> None:
    bad = healthy(critic__explained_variance=-0.5)
    assert "critic/explained_variance" not in hints_after(*[bad] * 20)
    dip = [bad] * 25 + [healthy(), bad]
    assert "critic/explained_variance" not in hints_after(*dip)
    assert "worse than a constant" in hints_after(*[bad] * 21)["critic/explained_variance"]
    unknown = hints_after(*[healthy(critic__explained_variance=NAN)] * 30)  # Var(R) = 0: nothing to explain
    assert "critic/explained_variance" not in unknown


def test_a_fallen_return_is_told() -> None:
    found = hints_after(*[healthy(episode__return_100=value) for value in (20.0, 400.0, 150.0)])
    assert "fell from its best 400" in found["episode/return_100"]
    dipped = hints_after(*[healthy(episode__return_100=value) for value in (20.0, 400.0, 300.0)])
    assert dipped == {}
    negative = hints_after(*[healthy(episode__return_100=value) for value in (-1200.0, -200.0, -1100.0)])
    assert "fell from its best -200" in negative["episode/return_100"]


def test_no_progress_is_told_in_the_last_two_thirds() -> None:
    flat = [healthy(episode__return_100=20.0 + i % 2) for i in range(100)]
    assert "no better than at the start" in hints_after(*flat)["episode/return_100"]
    assert hints_after(*flat, reward_threshold=None) == {}  # not known what would be better
    doubled = [
        healthy(episode__return_100=20.0 + 0.2 * i) for i in range(100)
    ]  # far from 475, yet far from its start
    assert hints_after(*doubled) == {}


def test_a_resumed_run_has_time_to_get_better() -> None:
    flat = [healthy(episode__return_100=20.0 + i % 2) for i in range(100)]
    assert hints_after(*flat[:23], start_step=2000, total_steps=10_000) == {}  # to 4,300: 0.29 of its part
    late = hints_after(*flat[:60], start_step=2000, total_steps=10_000)
    assert "no better than at the start" in late["episode/return_100"]


def test_a_solved_task_may_be_certain_of_itself() -> None:
    settled = healthy(episode__return_100=480.0, policy__entropy=0.001, advantage__std=0.0)
    assert hints_after(healthy(), settled) == {}


def test_missing_numbers_are_no_failure() -> None:
    assert hints_after({}, dict.fromkeys(healthy(), None)) == {}
    assert hints_after(healthy(episode__return_100=NAN), healthy(episode__return_100=NAN)) == {}
