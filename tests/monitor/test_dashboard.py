"""The legend explains every number, and TensorBoard's layout shows every one that has a curve."""

from __future__ import annotations

import re

import pytest

from pgtrain.monitor import dashboard
from pgtrain.monitor.dashboard import (
    CHARTS,
    METRICS,
    RESULT,
    SECTIONS,
    legend_markdown,
    legend_table,
    section_markdown,
)

LOGGED_BY_THE_RUNNER = """
episode/return episode/return_100 episode/length episode/count loss/actor loss/critic policy/entropy policy/approx_kl
policy/std policy/clipped_actions advantage/mean advantage/std advantage/min advantage/max critic/explained_variance
critic/value gradient/norm gradient/skipped_updates schedule/learning_rate schedule/entropy_coef reward/scale
time/steps_per_second time/collect time/estimate time/update time/log progress/iteration progress/steps
evaluation/return
""".split()


@pytest.mark.parametrize("tag", LOGGED_BY_THE_RUNNER)
def test_each_tag_of_the_runner_is_explained(tag: str) -> None:
    metric = dashboard.BY_TAG[tag]
    assert metric.tag == tag
    for text in metric:
        assert text.strip() == text and text
    assert len(metric.meaning) > 15 and len(metric.bad) > 15


def test_tags_and_names_are_unique() -> None:
    assert len({m.tag for m in METRICS}) == len(METRICS)
    assert len({m.name for m in METRICS}) == len(METRICS)


def test_each_curve_lies_in_one_chart_of_its_own_section() -> None:
    for section, charts in CHARTS.items():
        drawn = [tag for chart in charts for tag in chart.tags]
        assert sorted(drawn) == sorted(m.tag for m in METRICS if m.section == section)
    assert {m.section for m in METRICS} == {*CHARTS, RESULT}
    assert list(CHARTS) == ["Learning", "Losses", "Policy", "Advantage and critic", "Gradient health", "Time"]


def test_bands_have_a_middle_and_two_edges() -> None:
    bands = [chart for charts in CHARTS.values() for chart in charts if chart.band]
    assert [chart.tags for chart in bands] == [("advantage/mean", "advantage/min", "advantage/max")]


def test_legend_holds_every_metric_in_valid_markdown_tables() -> None:
    text = legend_markdown()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "| `" in line]
    assert len(rows) == len(METRICS) == len(legend_table())
    for line, metric in zip(rows, METRICS, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert cells == [metric.name, f"`{metric.tag}`", metric.meaning, metric.unit, metric.bad]
    assert re.findall(r"^\*\*(.*)\*\*$", text, re.MULTILINE) == list(SECTIONS)
    assert not any("|" in field for metric in METRICS for field in metric)


def test_a_section_alone() -> None:
    rows = section_markdown("Losses").splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == ["loss/actor", "loss/critic"]
    assert all(row.count(" | ") == 2 for row in rows)
