"""Generated parts of the README: each lies between `<!-- name:start -->` and `<!-- name:end -->`.

`python benchmarks/readme.py legend` writes the table of dashboard metrics; the benchmarks write theirs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


def replace_block(text: str, name: str, content: str) -> str:
    """`text` with `content` between the markers of `name`. ValueError without exactly one such pair."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise ValueError(f"expected exactly one block {start} … {end}")
    before, rest = text.split(start)
    return f"{before}{start}\n{content.strip()}\n{end}{rest.split(end)[1]}"


def read_block(text: str, name: str) -> str:
    """What lies between the markers of `name`."""
    match = re.search(rf"<!-- {name}:start -->\n(.*?)\n?<!-- {name}:end -->", text, flags=re.DOTALL)
    if match is None:
        raise ValueError(f"no block {name}")
    return match[1]


def write_block(name: str, content: str) -> None:
    README.write_text(replace_block(README.read_text(encoding="utf-8"), name, content), encoding="utf-8")
    print(f"README.md: wrote the block {name}")


if __name__ == "__main__":
    if sys.argv[1:] != ["legend"]:
        sys.exit("usage: python benchmarks/readme.py legend")
    from pgtrain.monitor.dashboard import legend_markdown

    write_block("legend", legend_markdown())
