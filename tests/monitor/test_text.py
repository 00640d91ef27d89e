"""Numbers, times, curves as text."""

from __future__ import annotations

import math

import pytest

from pgtrain.monitor.sinks.text import History, bars, duration, number, resample, to_encoding


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0, "0"),
        (-0.0, "0"),
        (500.0, "500"),
        (7, "7"),
        (187.345, "187.3"),
        (-12.3456, "-12.35"),
        (1.5, "1.500"),
        (0.70512, "0.705"),
        (-0.0091234, "-0.00912"),
        (0.0001234, "1.23e-04"),
        (12345.6, "12,346"),
        (999999.9, "1,000,000"),
        (2.5e6, "2.50e+06"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_number(value: float | None, shown: str) -> None:
    assert number(value) == shown
    assert len(number(value)) <= 9


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "?"),
        (math.inf, "?"),
        (0.4, "0:00"),
        (59.6, "1:00"),
        (754, "12:34"),
        (12345, "3:25:45"),
        (187800, "2d 04:10"),
    ],
)
def test_duration(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


def test_text_in_poorer_encodings() -> None:
    assert to_encoding("a → b · 1 ± 2", "utf-8") == "a → b · 1 ± 2"
    assert to_encoding("a → b · 1 ± 2 ü", "ascii") == "a -> b | 1 +- 2 ?"
    assert to_encoding("1 ± 2 · ü", "latin-1") == "1 ± 2 · ü"
    assert to_encoding("→", "no such encoding") == "->"
    assert to_encoding("→", None) == "->"


def test_history_keeps_the_curve_in_bounded_memory() -> None:
    history = History(capacity=8)
    for i in range(1000):
        history.add(float(i))
        history.add(None)
        history.add(math.nan)
        assert len(history.points) < 8
    assert history.points == sorted(history.points)
    assert history.points[0] < 130 and history.points[-1] > 700


def test_resample_means_and_repeats() -> None:
    assert resample([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert resample([1.0, 2.0], 4) == [1.0, 1.0, 2.0, 2.0]
    assert resample([], 5) == [] and resample([1.0], 0) == []
    assert resample([float(i) for i in range(7)], 3) == [0.5, 2.5, 5.0]


def test_bars() -> None:
    assert bars([0.0, 4.0, 8.0], 0.0, 8.0, 1) == ["▁▄█"]
    assert bars([0.0, 8.0, 16.0], 0.0, 16.0, 2) == ["  █", "▁██"]
    assert bars([3.0, 3.0], 3.0, 3.0, 1) == ["▁▁"]  # a flat curve is seen
    assert "".join(bars([0.0, 1.0, 2.0], 0.0, 2.0, 3, ascii_only=True)).isascii()
