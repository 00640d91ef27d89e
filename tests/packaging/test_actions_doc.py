"""docs/actions.md names each kind of action space, each distribution and each source of masks that there is."""

from __future__ import annotations

from pathlib import Path

from gymnasium import spaces

from pgtrain.config.schema import OPTIONS, DistributionConfig
from pgtrain.envs.actions import leaves
from tests.action_spaces import ACTION_SPACES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "actions.md").read_text(encoding="utf-8")


def test_every_option_and_every_space_is_explained() -> None:
    for name in OPTIONS[DistributionConfig]:
        assert f"\n| `{name}`" in TEXT, name
    kinds = {type(leaf).__name__ for space in ACTION_SPACES.values() for _, leaf in leaves(space)}
    for kind in kinds | {spaces.Dict.__name__, spaces.Tuple.__name__}:
        rows = [line for line in TEXT.splitlines() if line.startswith("| ") and kind in line.split("|")[1]]
        assert rows, kind
