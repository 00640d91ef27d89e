"""The event file, read back with TensorBoard's own reader and its HParams backend."""

# pyright: reportAttributeAccessIssue=false
# (modules made from protobuf files)
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.backend.event_processing.plugin_event_multiplexer import (
    EventMultiplexer as PluginMultiplexer,
)
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.hparams.backend_context import Context

from pgtrain.monitor.dashboard import CHARTS, METRICS, SECTIONS
from pgtrain.monitor.monitor import Monitor
from pgtrain.monitor.sinks.tensorboard import TensorBoardSink, hyperparameters, layout
from tests.monitor.run_for_tests import NAN, SUMMARY, TAGS, healthy, run_info


def write_run(
    run_dir: Path, numbers: dict[str, Any] | None = None, summary: Any = SUMMARY, **changes: Any
) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    monitor = Monitor([TensorBoardSink(run_dir, interval=0.0)])
    monitor.start(run_info(run_dir, **changes))
    for step in (1000, 2000, 3000):
        monitor.log(step, numbers or healthy(episode__return=step / 10, evaluation__return=None))
    monitor.finish(summary)
    assert monitor.sinks, "the sink failed"
    monitor.close()


def read(run_dir: Path) -> EventAccumulator:
    events = EventAccumulator(str(run_dir))
    events.Reload()
    return events


def text(events: EventAccumulator, tag: str) -> str:
    return events.Tensors(tag)[0].tensor_proto.string_val[0].decode()


def test_one_run_in_one_file_of_the_run_folder_itself(tmp_path: Path) -> None:
    """Case LOG-01: hparams in a run of their own show each run twice."""
    write_run(tmp_path / "a" / "b")
    assert len(list(tmp_path.rglob("events.out.tfevents.*"))) == 1
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload().Runs()
    assert list(runs) == ["a/b"]


def test_scalars_come_back(tmp_path: Path) -> None:
    write_run(tmp_path)
    events = read(tmp_path)
    points = [(event.step, event.value) for event in events.Scalars("episode/return")]
    assert points == [(1000, 100.0), (2000, 200.0), (3000, 300.0)]
    present = {tag for tag, value in healthy().items() if value is not None}
    final = {"Final/evaluation_return", "Final/return_100", "Final/steps_per_second"}
    assert set(events.Tags()["scalars"]) == present | final
    assert events.Scalars("Final/return_100")[0].value == 473.5


def test_fast_iterations_share_a_point_and_lose_no_evaluation(tmp_path: Path) -> None:
    monitor = Monitor([TensorBoardSink(tmp_path, interval=60.0)])
    monitor.start(run_info(tmp_path))
    for i in range(1, 11):
        numbers = healthy(episode__return=float(i) if i != 10 else None, evaluation__return=None)
        monitor.log(100 * i, numbers | ({"evaluation/return": 7.0} if i == 5 else {}))
    monitor.finish({**SUMMARY, "steps": 1000, "eval_return_mean": None})
    monitor.close()
    events = read(tmp_path)
    points = [(event.step, event.value) for event in events.Scalars("episode/return")]
    assert points == [
        (100, 1.0),
        (500, 5.0),
        (1000, 9.0),
    ]  # the first, the evaluation's, the last; newest numbers
    assert [(e.step, e.value) for e in events.Scalars("evaluation/return")] == [(500, 7.0)]


def test_nan_and_none_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, healthy(critic__explained_variance=NAN, policy__std=None))
    tags = read(tmp_path).Tags()["scalars"]
    assert "critic/explained_variance" not in tags and "policy/std" not in tags and "loss/actor" in tags


def test_the_final_evaluation_ends_its_curve_once(tmp_path: Path) -> None:
    write_run(tmp_path / "not yet")
    assert [e.value for e in read(tmp_path / "not yet").Scalars("evaluation/return")] == [500.0]
    write_run(tmp_path / "logged", healthy(evaluation__return=490.0))
    assert [e.value for e in read(tmp_path / "logged").Scalars("evaluation/return")] == [490.0] * 3


def test_each_chart_carries_its_legend(tmp_path: Path) -> None:
    write_run(tmp_path)
    events = read(tmp_path)
    for metric in METRICS:
        if metric.tag in events.Tags()["scalars"]:
            described = events.SummaryMetadata(metric.tag)
            assert (
                metric.meaning in described.summary_description
                and metric.bad in described.summary_description
            )
            assert (
                described.plugin_data.plugin_name == "scalars"
            )  # else TensorBoard's fast reader drops the text


def test_layout(tmp_path: Path) -> None:
    write_run(tmp_path)
    proto = layout_pb2.Layout()
    proto.ParseFromString(read(tmp_path).Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    assert [category.title for category in proto.category] == list(CHARTS)
    titles = [chart.title for category in proto.category for chart in category.chart]
    assert "Return" in titles and "Critic loss" in titles
    assert "Gaussian policy: std, clipped actions" not in titles  # a categorical policy has none
    band = next(
        c for category in proto.category for c in category.chart if c.title.startswith("Advantage: mean")
    )
    series = band.margin.series[0]
    assert (series.value, series.lower, series.upper) == ("advantage/mean", "advantage/min", "advantage/max")


def test_layout_patterns_match_their_own_tags_only() -> None:
    for charts in layout().values():
        for kind, patterns in charts.values():
            if kind == "Multiline":
                for pattern in patterns:
                    assert [tag for tag in TAGS if re.match(pattern, tag)] == [pattern.removesuffix("$")]


def test_texts_tell_run_config_legend_and_result(tmp_path: Path) -> None:
    write_run(tmp_path, overrides=["env.kwargs.a=1|2"])
    events = read(tmp_path)
    assert "env.kwargs.a=1&#124;2" in text(events, "1 run/2 start")  # a bar would end the table's cell
    assert '"max_grad_norm": 0.5' in text(events, "3 config")
    assert "| return_mean | 473.5 |" in text(events, "1 run/1 result")
    for i, section in enumerate(SECTIONS, start=1):
        legend = text(events, f"2 legend/{i} {section}")
        assert all(f"`{m.tag}`" in legend for m in METRICS if m.section == section)


def session(events: EventAccumulator, name: str) -> Any:
    content = events.SummaryMetadata(f"_hparams_/{name}").plugin_data.content
    parse = {
        "session_start_info": metadata.parse_session_start_info_plugin_data,
        "session_end_info": metadata.parse_session_end_info_plugin_data,
    }
    return parse[name](content)


@pytest.mark.parametrize(
    ("status", "code"), [("finished", api_pb2.STATUS_SUCCESS), ("failed", api_pb2.STATUS_FAILURE)]
)
def test_hyperparameters_and_status(status: str, code: int, tmp_path: Path) -> None:
    write_run(tmp_path, summary={**SUMMARY, "status": status})
    events = read(tmp_path)
    values = session(events, "session_start_info").hparams
    assert values["optim.lr.value"].number_value == 1e-3
    assert values["advantage.normalize"].bool_value is True
    assert values["env.id"].string_value == "CartPole-v1"
    assert values["policy.hidden"].string_value == "[64, 64]"
    assert values["env.workers"].string_value == "none"
    assert not any(key.startswith("monitor") for key in values)
    assert session(events, "session_end_info").status == code


def test_hyperparameters_name_the_run_even_without_a_config(tmp_path: Path) -> None:
    flat = hyperparameters(run_info(tmp_path, config={}))
    assert flat == {"algo": "a2c", "env.id": "CartPole-v1", "seed": 3}


def test_keys_that_only_some_runs_have_are_all_visible(tmp_path: Path) -> None:
    """Case LOG-01: TensorBoard's own HParams backend over two runs with different keys."""
    write_run(tmp_path / "a", config={"gamma": 0.9, "advantage": {"lam": 0.95}})
    write_run(tmp_path / "b", config={"gamma": 0.8, "update": {"clip": {"value": 0.2}}})
    multiplexer = PluginMultiplexer().AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(tmp_path))
    context = Context(TBContext(data_provider=provider))
    request = RequestContext()
    experiment = context.experiment_from_metadata(
        request,
        "",
        True,
        context.hparams_metadata(request, ""),
        context.hparams_from_data_provider(request, "", 0),
    )
    keys = {info.name for info in experiment.hparam_infos}
    assert {"gamma", "advantage.lam", "update.clip.value", "algo", "seed"} <= keys
    first = [info.name.tag for info in experiment.metric_infos][:3]
    assert first == ["Final/evaluation_return", "Final/return_100", "Final/steps_per_second"]


def test_needs_no_display(tmp_path: Path) -> None:
    """Case LOG-05: a machine without a screen writes everything."""
    code = (
        "import sys; from tests.monitor.test_tensorboard import write_run; from pathlib import Path;"
        "write_run(Path(sys.argv[1])); assert 'matplotlib' not in sys.modules"
    )
    root = str(Path(__file__).resolve().parents[2])
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])}
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], check=True, env=environment, timeout=120
    )
    assert len(read(tmp_path / "run").Scalars("loss/actor")) == 3
