"""Schedules of a coefficient."""

from __future__ import annotations

import pytest

from pgtrain.learning.schedules import SCHEDULES, constant, linear


def test_linear_over_four_updates() -> None:
    """Progress before each of 4 equal iterations is 0, ¼, ½, ¾: the last update still learns."""
    schedule = linear(0.004)
    assert [schedule(u / 4) for u in range(4)] == pytest.approx([0.004, 0.003, 0.002, 0.001])


def test_linear_is_held_at_its_ends() -> None:
    assert linear(0.5)(1.0) == 0.0 and linear(0.5)(1.7) == 0.0 and linear(0.5)(-0.2) == 0.5
    assert linear(1.0, 0.2)(0.5) == pytest.approx(0.6) and linear(1.0, 0.2)(3.0) == pytest.approx(0.2)


def test_constant() -> None:
    assert [constant(0.3)(p) for p in (0.0, 0.5, 2.0)] == [0.3] * 3


def test_by_name() -> None:
    assert SCHEDULES["constant"](2.0)(0.5) == 2.0 and SCHEDULES["linear"](2.0)(0.5) == 1.0
