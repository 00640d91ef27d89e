"""The live view: progress, the returns' curve, the key numbers with what is wrong about them; drawn with rich.

It is drawn from inside `log` alone (no thread), at most 4 times a second, and less often where drawing is slow: the
time until the next drawing is at least 100 times what the last one took, so that it costs 1 % at most.
"""

from __future__ import annotations

import atexit
import textwrap
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pgtrain.monitor.dashboard import BY_TAG
from pgtrain.monitor.hints import Hints
from pgtrain.monitor.monitor import RunInfo, Sink
from pgtrain.monitor.sinks.terminal import Pace, headline
from pgtrain.monitor.sinks.text import History, bars, duration, number, resample, to_encoding

MAX_WIDTH = 100
REFRESH_SECONDS = 0.25
COST_SHARE = 0.01
HINT_SECONDS = 4.0
MAX_HINTS = 3
_LEVEL_STYLE = {"info": "dim", "warning": "yellow", "error": "bold red"}

# The key numbers in two columns; a run without a critic or a Gaussian leaves its own out.
_LEFT = ("episode/return_100", "episode/length", "policy/entropy", "policy/approx_kl", "policy/std")
_RIGHT = ("loss/actor", "loss/critic", "critic/explained_variance", "gradient/norm", "schedule/learning_rate")
_ALWAYS = ("episode/return_100", "episode/length")  # shown as '-' until the first episode ends


class LiveSink(Sink):
    """Redraws a block at the bottom of the terminal; messages and anything printed go above it and stay."""

    live = True

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=False)
        self.ascii = self.console.legacy_windows or self.console.options.ascii_only
        self._live: Live | None = None
        self._messages: deque[Text] = deque(maxlen=6)
        self._next_draw = 0.0
        self._last_cost = 0.0
        self._dirty = False

    def start(self, info: RunInfo) -> None:
        self.view = View(info, self.ascii)
        self._width = self.console.width
        live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")
        live.start()
        self._live = live
        atexit.register(self.close)  # whatever happens, the cursor comes back

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self.view.update(step, metrics)
        self._dirty = True
        now = time.perf_counter()
        if now >= self._next_draw:
            self._draw()
            done = time.perf_counter()
            # the cheaper of two: the first drawing loads modules, any may be held up by another program
            cost, self._last_cost = min(done - now, self._last_cost), done - now
            self._next_draw = done + max(REFRESH_SECONDS, cost / COST_SHARE)

    def message(self, text: str, level: str) -> None:
        if level == "detail":
            return
        prefix = "" if level == "info" else f"{level}: "
        line = Text(self._encode(prefix + text), style=_LEVEL_STYLE[level])
        self._messages.append(line)
        self.console.print(line)

    def finish(self, summary: Mapping[str, Any]) -> None:
        recent = self.view.recent
        self.view.recent = {tag: seen for tag, seen in recent.items() if tag in self.view.found}
        if self._dirty or self.view.recent != recent:
            self._draw()

    def close(self) -> None:
        atexit.unregister(self.close)
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _draw(self) -> None:
        if self._live is None:
            return
        size = self.console.size
        if size.width < self._width:
            # A narrower terminal has wrapped the old block, so it can't be overwritten line by line: start clean.
            self.console.clear()
            for line in self._messages:
                self.console.print(line)
        self._width = size.width
        lines = self.view.lines(size.width, size.height)
        self._live.update(Group(*(self._to_encoding(line) for line in lines)), refresh=True)
        self._dirty = False

    def _to_encoding(self, line: Text) -> Text:
        if self.ascii:
            line.plain = to_encoding(line.plain, "ascii")
        line.no_wrap, line.overflow = True, "crop"
        return line

    def _encode(self, text: str) -> str:
        return to_encoding(text, "ascii" if self.ascii else self.console.encoding)


class View:
    """What is known of the run, and its picture as lines of text for a given width and height."""

    def __init__(self, info: RunInfo, ascii_only: bool = False) -> None:
        self.info, self.ascii = info, ascii_only
        self.hints, self.pace, self.history = Hints(info), Pace(info), History()
        self.step, self.elapsed, self.rate, self.left = info.start_step, 0.0, 0.0, None
        self.metrics: Mapping[str, float | None] = {}
        self.last: dict[str, float] = {}  # newest value of a number that not every iteration has
        self.found: dict[str, str] = {}  # this iteration's hints by tag
        self.recent: dict[str, tuple[float, str, str]] = {}  # hints by tag: when, the number then, the hint

    def update(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self.step, self.metrics = step, metrics
        self.last.update({tag: value for tag, value in metrics.items() if value is not None})
        self.found = self.hints.update(step, metrics)
        self._remember()
        self.history.add(metrics.get("episode/return"))
        self.elapsed, self.rate, self.left = self.pace.update(step, metrics.get("time/steps_per_second"))

    def _remember(self) -> None:
        """A hint stays for some seconds after its last cause, with the number that was bad, so that it can be read."""
        now = time.perf_counter()
        kept = {tag: seen for tag, seen in self.recent.items() if now - seen[0] < HINT_SECONDS}
        self.recent = {**kept, **{tag: (now, self._value(tag), text) for tag, text in self.found.items()}}

    def lines(self, width: int, height: int) -> list[Text]:
        """The picture, no line longer than `width`, at most `height` - 1 lines; the least important goes first."""
        inner = max(10, min(width, MAX_WIDTH) - 2)
        numbers = self._numbers(inner)
        hints = self._hint_lines(inner)
        head = [Text(headline(self.info), style="bold"), self._bar(inner), self._pace_line(inner)]
        around = 4 + bool(hints)  # the chart's caption and axis, and blank lines between the blocks
        room = height - 1 - len(head) - len(numbers) - len(hints) - around
        chart = self._chart(inner, min(8, room)) if room >= 1 else []
        blocks = [block for block in (head, chart, numbers, hints) if block]
        lines = [line for i, block in enumerate(blocks) for line in ([Text("")] if i else []) + block]
        if len(lines) > height - 1:
            lines = (head + hints + numbers)[: max(1, height - 1)]
        return [self._fit(line, width) for line in lines]

    def _fit(self, line: Text, width: int) -> Text:
        shown = Text(" ") + line
        shown.truncate(max(1, width - 1), overflow="crop" if self.ascii else "ellipsis")
        return shown

    def _bar(self, width: int) -> Text:
        share = min(1.0, self.step / max(self.info.total_steps, 1))
        counter = f" {100 * share:3.0f} %  {self.step:,} / {self.info.total_steps:,} steps"
        cells = width - len(counter)
        if cells < 8:
            return Text(counter.strip())
        full = int(share * cells)
        done, rest = ("#", "-") if self.ascii else ("━", "─")
        style = "green" if share >= 1.0 else "cyan"
        return Text.assemble((done * full, style), (rest * (cells - full), "bright_black"), counter)

    def _pace_line(self, width: int) -> Text:
        parts = [
            f"elapsed {duration(self.elapsed)}",
            f"left {duration(self.left)}",
            f"{self.rate:,.0f} steps/s",
        ]
        iteration = self.metrics.get("progress/iteration")
        if iteration is not None:
            parts.append(f"iteration {iteration:,.0f}")
        while len(" · ".join(parts)) > width and len(parts) > 2:
            parts.pop()
        return Text(" · ".join(parts), style="dim")

    def _chart(self, width: int, rows: int) -> list[Text]:
        """The returns over the steps so far, from their minimum to their maximum or the 'solved at' line."""
        points = self.history.points
        if not points:
            return [Text("return: no episode has ended yet", style="dim")]
        solved = self.info.reward_threshold
        low, high = min(points), max(points)
        floor, top = (low, high) if solved is None else (min(low, solved), max(high, solved))
        margin = max(len(number(floor)), len(number(top))) + 1
        columns = resample(points, max(1, width - margin - 1))
        drawn = bars(columns, floor, top, rows, self.ascii)
        goal = (
            None
            if solved is None
            else rows - 1 - min(rows - 1, int((solved - floor) / ((top - floor) or 1) * rows))
        )
        caption = Text.assemble(
            ("return per iteration", "bold"), (f"   min {number(low)}   max {number(high)}", "dim")
        )
        if solved is not None:
            reached = any(value >= solved for value in points)
            caption.append(f"   solved at {number(solved)}", style="green" if reached else "dim")
        lines = [caption]
        for i, text in enumerate(drawn):
            label = number(top) if i == 0 else (number(floor) if i == rows - 1 else "")
            line = Text(f"{label:>{margin - 1}} ", style="dim")
            if i == goal:  # the goal shows where no bar stands yet
                text = text.replace(" ", "." if self.ascii else "╌")
            line.append("|" if self.ascii else "│", style="bright_black")
            line.append(text, style="cyan")
            lines.append(line)
        right = f"step {self.step:,}"
        start = f"{self.info.start_step:,}"
        gap = max(1, len(columns) - len(start) - len(right))
        lines.append(Text(" " * (margin + 1) + start + " " * gap + right, style="dim"))
        return lines

    def _numbers(self, width: int) -> list[Text]:
        def shown(tags: tuple[str, ...]) -> list[str]:
            return [tag for tag in tags if tag in self.last or tag in _ALWAYS]

        left, right = shown(_LEFT), shown(_RIGHT)
        if width < 58:
            return [self._cell(tag, min(20, width - 10)) for tag in left + right]
        half = width // 2
        name_width = min(22, half - 11)
        lines = []
        for i in range(max(len(left), len(right))):
            line = self._cell(left[i], name_width) if i < len(left) else Text("")
            line.pad_right(max(0, half - line.cell_len))
            if i < len(right):
                line.append_text(self._cell(right[i], name_width))
            lines.append(line)
        return lines

    def _cell(self, tag: str, name_width: int) -> Text:
        """`name  value`, marked with ! (and colour) where a hint speaks of it."""
        bad = tag in self.found
        value = self._value(tag)
        good = tag == "episode/return_100" and self.hints.solved(self.metrics)
        style = "bold yellow" if bad else ("bold green" if good else "bold")
        mark = "!" if bad else " "
        return Text.assemble(f"{BY_TAG[tag].name[:name_width]:<{name_width}}", (f"{value:>9}{mark}", style))

    def _value(self, tag: str) -> str:
        return number(self.last.get(tag))

    def _hint_lines(self, width: int) -> list[Text]:
        lines = []
        for tag, (_, value, text) in list(self.recent.items())[:MAX_HINTS]:
            head = f"{BY_TAG[tag].name} {value}: "
            parts = textwrap.wrap(head + text, max(8, width - 2), max_lines=2, placeholder="…")
            for i, part in enumerate(parts):
                line = Text("! " if i == 0 else "  ", style="bold yellow")
                line.append(part, style="not bold yellow")
                lines.append(line)
        return lines
