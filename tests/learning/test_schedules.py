"""Schedules of a coefficient."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrain.learning.schedules import (
    SCHEDULES,
    Measured,
    Plateau,
    ReturnGated,
    TargetEntropy,
    constant,
    cosine,
    linear,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "schedules.json").read_text(encoding="utf-8"))


def seen(returns: Any = (), mean: float = math.nan, entropy: float = math.nan) -> Measured:
    return Measured(returns, mean, entropy)


def test_linear_over_four_updates() -> None:
    """Progress before each of 4 equal iterations is 0, ¼, ½, ¾: the last update still learns."""
    schedule = linear(0.004)
    assert [schedule(u / 4) for u in range(4)] == pytest.approx([0.004, 0.003, 0.002, 0.001])


def test_linear_is_held_at_its_ends() -> None:
    assert linear(0.5)(1.0) == 0.0 and linear(0.5)(1.7) == 0.0 and linear(0.5)(-0.2) == 0.5
    assert linear(1.0, 0.2)(0.5) == pytest.approx(0.6) and linear(1.0, 0.2)(3.0) == pytest.approx(0.2)


def test_constant() -> None:
    assert [constant(0.3)(p) for p in (0.0, 0.5, 2.0)] == [0.3] * 3


def test_linear_and_cosine_golden() -> None:
    inputs, expected = GOLDEN["inputs"], GOLDEN["expected"]
    n = inputs["n_updates"]
    down = linear(inputs["linear_from"])
    assert [down(u / n) for u in range(n)] == pytest.approx(expected["linear"], rel=1e-9)
    curve = cosine(inputs["linear_from"], inputs["cosine_to"])
    assert [curve(u / n) for u in range(n)] == pytest.approx(expected["cosine"], rel=1e-9)


def test_cosine_is_held_at_its_ends() -> None:
    assert cosine(0.5)(0.0) == 0.5 and cosine(0.5)(0.5) == pytest.approx(0.25)
    assert cosine(0.5)(1.0) == pytest.approx(0.0, abs=1e-15) and cosine(0.5)(1.9) == pytest.approx(
        0.0, abs=1e-15
    )


def test_by_name() -> None:
    assert SCHEDULES["constant"](2.0)(0.5) == 2.0 and SCHEDULES["linear"](2.0)(0.5) == 1.0
    assert SCHEDULES["cosine"](2.0)(0.5) == pytest.approx(1.0)
    for name in ("return_gated", "plateau"):
        assert SCHEDULES[name](2.0)(0.0) == 2.0
    assert SCHEDULES["target"](0.3, target=1.0)(0.0) == 0.3


EVERY: dict[str, Any] = {
    "constant": lambda v: constant(v),
    "linear": lambda v: linear(v),
    "cosine": lambda v: cosine(v),
    "return_gated": lambda v: ReturnGated(v, episodes=2),
    "target": lambda v: TargetEntropy(v, target=0.5, rate=1.0),
    "plateau": lambda v: Plateau(v, patience=1),
}
numbers = st.one_of(st.floats(-1e9, 1e9), st.sampled_from([math.nan, math.inf, -math.inf]))


@pytest.mark.parametrize("name", EVERY)
@given(
    value=st.floats(0, 1),
    shown=st.lists(st.tuples(numbers, numbers, numbers, st.floats(0, 1.5)), max_size=30),
)
def test_never_negative_never_above_its_limit_whatever_is_measured(
    name: str, value: float, shown: Any
) -> None:
    schedule = EVERY[name](value)
    for r, mean, entropy, progress in shown:
        assert 0 <= schedule(progress) <= max(value, 1.0 if name == "target" else 0.0)
        schedule.observe(Measured([r], mean, entropy))


# ---------------------------------------------------------------------------------------------- return gated


def test_gate_opens_when_the_return_has_clearly_risen_and_then_decays_to_the_end() -> None:
    """First episodes 10, 12, 14: mean 12, std 2. One std above is 14: 14 itself is not clearly above, 14.1 is."""
    gate = ReturnGated(0.1, end=0.02, rise=1.0, episodes=3)
    for progress, returns, mean in ((0.0, [10.0, 12.0], 11.0), (0.1, [14.0, 99.0], 33.0), (0.2, [], 14.0)):
        assert gate(progress) == 0.1
        gate.observe(seen(returns, mean))
    assert gate(0.4) == 0.1
    gate.observe(seen([20.0], 14.1))
    assert gate(0.4) == 0.1
    assert gate(0.7) == pytest.approx(0.06)
    gate.observe(seen([], 0.0))  # what falls again does not close it
    assert (
        gate(0.7) == pytest.approx(0.06)
        and gate(1.0) == pytest.approx(0.02)
        and gate(1.3) == pytest.approx(0.02)
    )


def test_gate_stays_shut_without_progress() -> None:
    """Returns that are all alike (−200 until a goal is first reached) need a rise of 1 % of their size."""
    gate = ReturnGated(0.1, episodes=5)
    for k in range(10):
        gate(k / 10)
        gate.observe(seen([-200.0] * 5, -200.0))
    assert gate(0.999) == 0.1
    gate.observe(seen([-150.0], -199.5))
    assert gate.opened is None
    gate.observe(seen([-150.0], -197.9))
    assert gate.opened is not None


# -------------------------------------------------------------------------------------------- target entropy


def test_target_raises_the_coefficient_while_the_entropy_is_too_low() -> None:
    schedule = TargetEntropy(0.01, target=0.5, rate=0.1)
    schedule.observe(seen(entropy=0.2))
    assert schedule(0.5) == pytest.approx(0.01 * math.exp(0.03))
    schedule.observe(seen(entropy=0.5))
    assert schedule(0.5) == pytest.approx(0.01 * math.exp(0.03))
    schedule.observe(seen(entropy=9.0))  # errors count as 1 nat at most
    assert schedule(0.5) == pytest.approx(0.01 * math.exp(0.03 - 0.1))
    schedule.observe(seen(entropy=math.nan))
    assert schedule(0.5) == pytest.approx(0.01 * math.exp(0.03 - 0.1))


def test_target_holds_the_entropy_of_a_simple_policy() -> None:
    """An entropy that answers to the coefficient, H = 0.3 + 10 c with some lag, settles at the target 0.8: c = 0.05."""
    schedule, entropy = TargetEntropy(0.5, target=0.8, rate=0.1), 1.0
    for _ in range(600):
        entropy += 0.3 * (0.3 + 10 * schedule(0.0) - entropy)
        schedule.observe(seen(entropy=entropy))
    assert schedule(0.0) == pytest.approx(0.05, rel=0.01) and entropy == pytest.approx(0.8, rel=0.01)


# --------------------------------------------------------------------------------------------------- plateau


def test_plateau_halves_after_patience_iterations_without_a_better_return() -> None:
    schedule = Plateau(0.01, factor=0.5, patience=3, threshold=0.1)
    found = []
    for mean in (math.nan, 10, 10.5, 11.5, 11.5, 12, 12, 12, 11, 11, 20, 20, 20):
        schedule.observe(seen(mean=float(mean)))
        found.append(schedule(0.5) / 0.01)
    # best 10; 10.5 is within 10 % of it; 11.5 is better; three in vain; three more; 20 is better; two in vain
    assert found == pytest.approx([1, 1, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25])


def test_plateau_knows_negative_returns_and_a_least_rate() -> None:
    schedule = Plateau(0.01, patience=1, threshold=0.01, smallest=0.002)
    schedule.observe(seen(mean=-200.0))
    schedule.observe(seen(mean=-190.0))
    assert schedule(0.0) == 0.01
    for _ in range(10):
        schedule.observe(seen(mean=-190.0))
    assert schedule(0.0) == 0.002
    assert Plateau(1e-9)(0.0) == 1e-9  # a rate below the least one is left as it is


# ------------------------------------------------------------------------------------------------------ state


@pytest.mark.parametrize("name", EVERY)
def test_restored_schedules_go_on_as_if_nothing_had_happened(name: str) -> None:
    def show(schedule: Any, k: int) -> None:
        schedule(k / 20)
        schedule.observe(Measured([float(k), 2.0 * k], 5.0 + (k > 8) * k, 1.0 / (k + 1)))

    whole, first, second = (EVERY[name](0.3) for _ in range(3))
    for k in range(6):
        show(whole, k)
        show(first, k)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for k in range(6, 14):
        show(whole, k)
        show(second, k)
        assert whole(k / 20) == second(k / 20)
