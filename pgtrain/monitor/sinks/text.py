"""Numbers, times and curves as text; pure functions that the terminal's views share."""

from __future__ import annotations

import math
from collections.abc import Sequence

_ASCII = {
    "·": "|",
    "…": "...",
    "→": "->",
    "±": "+-",
    "≈": "~",
    "–": "-",
    "—": "-",
    "²": "^2",
    "×": "x",
    "≥": ">=",
}
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = " ..::||##"


def to_encoding(text: str, encoding: str | None) -> str:
    """`text` in characters that `encoding` has: ASCII look-alikes first, then '?'."""
    encoding = encoding or "ascii"
    try:
        text.encode(encoding)
        return text
    except (UnicodeEncodeError, LookupError):
        plain = "".join(_ASCII.get(character, character) for character in text)
        return plain.encode("ascii", errors="replace").decode("ascii")


def number(value: float | None) -> str:
    """A number in at most 9 characters, three or four digits: 0.0123, 187.3, 12,345, 1.23e-05; `-` for None."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    size = abs(value)
    if size == 0.0:
        return "0"
    if size >= 1e6 or size < 1e-3:
        return f"{value:.2e}"
    if size >= 1000.0:
        return f"{value:,.0f}"
    if float(value).is_integer():
        return str(int(value))
    digits = 3 if size >= 1.0 else 2
    return f"{value:.{digits - math.floor(math.log10(size))}f}"


def duration(seconds: float | None) -> str:
    """0:07, 12:34, 3:25:45, 2d 04:10; `?` where unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    whole = max(0, round(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


class History:
    """A curve in bounded memory: at most `capacity` points, neighbours averaged when it is full."""

    def __init__(self, capacity: int = 512) -> None:
        self.points: list[float] = []
        self.capacity = capacity
        self._per_point = 1
        self._sum, self._count = 0.0, 0

    def add(self, value: float | None) -> None:
        """Adds one value; None, NaN and infinity are left out."""
        if value is None or not math.isfinite(value):
            return
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self._per_point:
            return
        self.points.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.points) >= self.capacity:
            self.points = [(a + b) / 2 for a, b in zip(self.points[::2], self.points[1::2], strict=True)]
            self._per_point *= 2


def resample(points: Sequence[float], width: int) -> list[float]:
    """`points` drawn over `width` columns: bucket means where there are more points, repeats where fewer."""
    n = len(points)
    if n == 0 or width <= 0:
        return []
    edges = [(i * n // width, max(i * n // width + 1, (i + 1) * n // width)) for i in range(width)]
    return [sum(points[a:b]) / (b - a) for a, b in edges]


def bars(values: Sequence[float], low: float, high: float, rows: int, ascii_only: bool = False) -> list[str]:
    """A bar chart of one column a value, `rows` lines from the top; `low` is the ground, `high` the ceiling.

    Each cell has 8 levels; every value shows at least the lowest one, so that a curve at the ground is seen.
    """
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    span = high - low if high > low else 1.0
    levels = [min(rows * 8, max(1, round((value - low) / span * rows * 8))) for value in values]
    return [
        "".join(blocks[min(8, max(0, level - row * 8))] for level in levels) for row in reversed(range(rows))
    ]
