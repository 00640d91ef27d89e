"""A baseline of the other episodes where there is none is told, and nothing else is."""

from __future__ import annotations

import pytest

from pgtrain.config.compose import compose
from pgtrain.config.notices import lonely_episode

ONE = ["num_envs=1", "collect.episodes=1"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*ONE], True),  # reinforce's own is leave-one-out
        ([*ONE, "advantage/baseline=optimal"], True),
        ([*ONE, "advantage/baseline=optimal", "advantage.baseline.fit=split"], True),
        ([*ONE, "advantage/baseline=optimal", "advantage.baseline.fit=previous_batch"], False),
        ([*ONE, "advantage/baseline=value"], False),
        ([*ONE, "advantage/baseline=none"], False),
        (["num_envs=2", "collect.episodes=1"], False),
        (["num_envs=1", "collect.episodes=2", "advantage/baseline=optimal"], False),
    ],
)
def test_a_baseline_of_other_episodes_needs_them(words: list[str], told: bool) -> None:
    found = lonely_episode(compose(["algo=reinforce", *words]).config)
    assert bool(found) == told
    assert not found or "subtracts nothing" in found[0]


def test_windows_are_another_matter() -> None:
    assert not lonely_episode(compose(["algo=a2c", "num_envs=1"]).config)
