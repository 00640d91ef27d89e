"""The README's legend is the one that the program shows: `python -m pgtrain.monitor.dashboard` prints it."""

from __future__ import annotations

from pathlib import Path

from pgtrain.monitor.dashboard import legend_markdown

README = Path(__file__).resolve().parents[2] / "README.md"
START, END = "<!-- legend:start -->", "<!-- legend:end -->"


def test_readme_shows_the_legend() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.count(START) == 1 and text.count(END) == 1, f"README.md needs the markers {START} and {END}"
    shown = text.split(START)[1].split(END)[0]
    assert shown.strip() == legend_markdown().strip(), (
        "paste the output of: python -m pgtrain.monitor.dashboard"
    )
