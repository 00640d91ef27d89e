"""What the terminal shows: the view for every size and encoding, the plain lines, and which of them is chosen."""

from __future__ import annotations

import io
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pgtrain.monitor.monitor import Monitor, Sink
from pgtrain.monitor.sinks import live, terminal
from pgtrain.monitor.sinks.live import LiveSink, View
from pgtrain.monitor.sinks.terminal import PlainSink, terminal_sink
from tests.monitor.run_for_tests import SUMMARY, healthy, run_info

COLLAPSED = {"policy__entropy": 0.001, "episode__return_100": 30.0}


def view_of(
    iterations: int = 60, ascii_only: bool = False, last: dict[str, Any] | None = None, **info: Any
) -> View:
    view = View(run_info(Path("x"), total_steps=1000 * iterations, **info), ascii_only)
    for i in range(1, iterations + 1):
        extra = last if last and i == iterations else {}
        view.update(
            1000 * i, healthy(**{"episode__return": 10.0 * i, "episode__return_100": 9.0 * i, **extra})
        )
    return view


def shown(view: View, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in view.lines(width, height))


def test_view_at_80_columns_shows_what_matters() -> None:
    text = shown(view_of(last=COLLAPSED))
    for part in (
        "a2c on CartPole-v1 · seed 3 · 8 envs · cpu · 9,155 parameters",
        "100 %  60,000 / 60,000 steps",
        "elapsed 0:",
        "left 0:00",
        "steps/s",
        "min 10   max 600   solved at 475",
        "step 60,000",
        "! entropy 0.00100: near 0, the policy has collapsed",
        "! return, last 100 30: fell from its best 531",
    ):
        assert part in text, f"{part!r} is missing in\n{text}"
    for name in (
        "return, last 100",
        "episode length",
        "entropy",
        "actor loss",
        "critic loss",
        "KL",
        "gradient norm",
    ):
        assert name in text
    assert "explained variance" in text and "learning rate" in text
    assert "action std" not in text  # no Gaussian policy here
    assert any(set("▁▂▃▄▅▆▇█") & set(line) for line in text.splitlines())


@pytest.mark.parametrize("width", [1, 12, 30, 44, 60, 80, 120, 300])
@pytest.mark.parametrize("height", [1, 2, 6, 10, 24, 60])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_view_fits_every_terminal(width: int, height: int, ascii_only: bool) -> None:
    lines = view_of(ascii_only=ascii_only, last=COLLAPSED).lines(width, height)
    assert len(lines) <= max(1, height - 1)
    assert all(line.cell_len <= max(width, 1) for line in lines)
    assert all("\n" not in line.plain for line in lines)


def test_view_before_the_first_episode_ends() -> None:
    view = View(run_info(Path("x")))
    assert "no episode has ended yet" in shown(view)
    view.update(100, healthy(episode__return=None, episode__return_100=None, episode__length=None))
    text = shown(view)
    row = next(line for line in text.splitlines() if "return, last 100" in line)
    assert "no episode has ended yet" in text and row.split()[3] == "-"


def test_view_without_threshold_and_steps_beyond_the_budget() -> None:
    view = view_of(reward_threshold=None)
    view.update(70_000, healthy())
    text = shown(view)
    assert "solved" not in text and "100 %  70,000 / 60,000 steps" in text


def test_a_return_that_never_changes_is_drawn() -> None:
    view = View(run_info(Path("x"), reward_threshold=None))
    for i in range(5):
        view.update(i, healthy(episode__return=-21.0))
    assert "min -21   max -21" in shown(view) and "▁" in shown(view)


def test_a_hint_stays_for_some_seconds_then_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(live.time, "perf_counter", lambda: clock[0])
    view = view_of(2, last={"policy__approx_kl": 0.9})
    view.update(2500, healthy())
    assert "KL 0.900: the policy jumps" in shown(view)  # the number that was bad, not today's
    clock[0] += live.HINT_SECONDS + 1
    view.update(2600, healthy())
    assert "policy jumps" not in shown(view)


def screen(encoding: str = "utf-8", **options: Any) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    size = {"width": 80, "height": 24}
    return Console(
        file=file, force_terminal=True, color_system=None, legacy_windows=False, **{**size, **options}
    )


def written(console: Console) -> str:
    return console.file.buffer.getvalue().decode(console.file.encoding)  # type: ignore[attr-defined]


def run_through(sink: Sink, iterations: int = 30) -> None:
    monitor = Monitor([sink])
    monitor.start(run_info(Path("x"), total_steps=1000 * iterations))
    for i in range(1, iterations + 1):
        monitor.log(1000 * i, healthy(episode__return=10.0 * i))
    monitor.message("loss was NaN · skipped → see run.log", "warning")
    monitor.finish(SUMMARY)
    assert monitor.sinks, "the sink failed"
    monitor.close()


def test_live_prints_messages_and_the_last_state() -> None:
    console = screen()
    run_through(LiveSink(console))
    text = written(console)
    assert "env.backend=native: a notice" in text and "warning: loss was NaN · skipped → see run.log" in text
    assert "30,000 / 30,000 steps" in text
    assert (
        text.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in text[text.rindex("\x1b[?25l") :]
    )  # the cursor is back


def test_the_last_picture_shows_no_hint_that_is_over() -> None:
    sink = LiveSink(screen())
    sink.start(run_info(Path("x")))
    sink.log(1000, healthy(policy__approx_kl=0.9))
    sink.log(2000, healthy(policy__entropy=0.001))
    sink.finish(SUMMARY)
    text = shown(sink.view)
    sink.close()
    assert "policy jumps" not in text and "collapsed" in text


def test_live_in_an_ascii_terminal() -> None:
    console = screen("ascii")
    run_through(LiveSink(console))
    assert "warning: loss was NaN | skipped -> see run.log" in written(console)
    assert "30,000 / 30,000 steps" in written(console)


def test_live_draws_seldom_and_only_from_log(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(LiveSink, "_draw", lambda self: drawn.append(time.perf_counter()))
    sink = LiveSink(screen())
    sink.start(run_info(Path("x")))
    started = time.perf_counter()
    while time.perf_counter() - started < 0.6:
        sink.log(1, healthy())
    sink.close()
    assert 1 <= len(drawn) <= 3


def test_a_slow_drawing_is_done_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def slow(self: LiveSink) -> None:
        drawn.append(1)
        time.sleep(0.02)  # 1 % of the time is then one drawing in 2 s

    monkeypatch.setattr(LiveSink, "_draw", slow)
    sink = LiveSink(screen())
    sink.start(run_info(Path("x")))
    started = time.perf_counter()
    while time.perf_counter() - started < 1.0:
        sink.log(1, healthy())
        time.sleep(0.01)
    sink.close()
    assert len(drawn) == 2  # the second tells that the first was no accident


def test_a_narrowed_terminal_starts_clean_and_keeps_the_messages() -> None:
    console = screen()
    sink = LiveSink(console)
    sink.start(run_info(Path("x")))
    sink.message("keep me", "info")
    sink.log(1000, healthy())
    console.width = 50
    sink._next_draw = 0.0
    sink.log(2000, healthy())
    sink.close()
    after = written(console).split("\x1b[2J")[1]  # what follows the clearing
    assert "keep me" in after and "2,000 / 3,000 steps" in after


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    run_through(PlainSink(), iterations=30)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a2c on CartPole-v1 · seed 3 · 8 envs · cpu · 9,155 parameters · 30,000 steps"
    progress = [line for line in lines if line.startswith("step")]
    assert len(progress) == 2  # the first and the last; 30 iterations took no 2 s
    for part in (
        "30,000/30,000 100 %",
        "return     20",
        "length      1",
        "entropy  0.690",
        "steps/s",
        "left 0:00",
    ):
        assert part in progress[-1]
    assert "warning: loss was NaN · skipped → see run.log" in lines


def test_plain_lines_come_at_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    sink = PlainSink(interval=0.1)
    sink.start(run_info(Path("x")))
    started = time.perf_counter()
    while time.perf_counter() - started < 0.35:
        sink.log(1000, healthy())
    assert 2 <= capsys.readouterr().out.count("step ") <= 5


def test_plain_tells_a_hint_once(capsys: pytest.CaptureFixture[str]) -> None:
    sink = PlainSink()
    sink.start(run_info(Path("x")))
    for i in range(5):
        sink.log(1000 + i, healthy(policy__approx_kl=0.5))
    out = capsys.readouterr().out
    assert out.count("warning: KL 0.500: the policy jumps") == 1


def test_plain_survives_an_ascii_pipe() -> None:
    code = (
        "from pathlib import Path; from tests.monitor.test_terminal import run_through;"
        "from pgtrain.monitor.sinks.terminal import PlainSink; run_through(PlainSink())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=child_env(PYTHONIOENCODING="ascii")
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"loss was NaN | skipped -> see run.log" in done.stdout


def child_env(**changes: str) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, **changes}


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("mode", "tty", "term", "chosen"),
    [
        ("auto", True, "xterm", "LiveSink"),
        ("auto", True, "dumb", "PlainSink"),
        ("auto", False, "xterm", "PlainSink"),
        ("plain", True, "xterm", "PlainSink"),
        ("live", True, "xterm", "LiveSink"),
        ("live", False, "xterm", "PlainSink"),
        ("live", True, "dumb", "PlainSink"),
    ],
)
def test_choice_of_the_view(
    mode: str, tty: bool, term: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Tty() if tty else io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(terminal, "_in_notebook", lambda: False)
    sink = terminal_sink(mode)
    assert type(sink).__name__ == chosen
    if mode == "live" and isinstance(sink, PlainSink):  # what was asked for is not dropped in silence
        sink.start(run_info(Path("x")))
        assert "monitor.terminal=live needs a terminal" in output.getvalue()


def test_notebooks_get_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Tty())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(terminal, "_in_notebook", lambda: True)
    assert isinstance(terminal_sink("auto"), PlainSink)


@pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals are POSIX's")
def test_live_in_a_real_terminal_gives_the_cursor_back_even_when_not_closed() -> None:
    import pty

    code = (
        "from pathlib import Path; from tests.monitor.run_for_tests import healthy, run_info;"
        "from pgtrain.monitor.sinks.terminal import terminal_sink; sink = terminal_sink('auto');"
        "sink.start(run_info(Path('x'))); print('printed by an env'); sink.log(1500, healthy()); 1 / 0"
    )
    main, side = pty.openpty()
    environment = child_env(TERM="xterm-256color", COLUMNS="80", LINES="24", PYTHONIOENCODING="utf-8")
    child = subprocess.Popen([sys.executable, "-c", code], stdout=side, stderr=side, env=environment)
    os.close(side)
    data = b""
    while select.select([main], [], [], 60)[0]:
        try:
            chunk = os.read(main, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not chunk:
            break
        data += chunk
    child.wait(60)
    os.close(main)
    text = data.decode()
    assert "1,500 / 3,000 steps" in text and "printed by an env" in text and "ZeroDivisionError" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
