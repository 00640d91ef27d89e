"""TensorBoard: one event file in the run folder itself, with ready charts, the legend, and the hyperparameters."""

from __future__ import annotations

import importlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pgtrain.monitor.dashboard import BY_TAG, CHARTS, SECTIONS, section_markdown
from pgtrain.monitor.monitor import RunInfo, Sink

# Metrics that a run has from its first iteration on or never, by the parts that it is built of.
_PARTS = (
    "reward/scale loss/critic policy/std policy/clipped_actions schedule/entropy_coef critic/explained_variance "
    "critic/value policy/clip_fraction policy/ratio_max update/epochs update/kl_guard schedule/kl_coef "
    "update/line_search_trials update/line_search_failed update/cg_residual"
).split()
_FINAL = {
    "Final/evaluation_return": "eval_return_mean",
    "Final/return_100": "return_mean",
    "Final/steps_per_second": "steps_per_second",
}
# Settings of how a run is shown and kept: they change no result, so they are no hyperparameters.
_NOT_HYPERPARAMETERS = ("monitor", "checkpoint", "hydra")
_SUMMARY_ROWS = (
    "status steps iterations episodes return_mean return_std eval_return_mean eval_return_std eval_episodes "
    "wall_seconds cpu_seconds steps_per_second skipped_updates error"
).split()


class TensorBoardSink(Sink):
    """Scalars with the legend as their descriptions, the Custom Scalars layout, Text, and HParams in the same run.

    A point is one Summary with all scalars, some 7 times cheaper than an `add_scalar` call for each. It still costs
    0.5 ms (`log` 0.2 ms, the writer's thread 0.3 ms, on one of two busy cores), so a point is written at most every
    `interval` seconds, which makes 1 % of the time. Faster iterations share a point: the newest number of each
    metric. (`metrics.jsonl` has every entry.) An evaluation is always
    written at its own step. Measured by `python tests/monitor/cost.py`.
    """

    def __init__(self, run_dir: str | Path, interval: float = 0.05) -> None:
        self.run_dir, self.interval = Path(run_dir), interval
        self._writer: Any = None
        self._described: set[str] = set()
        self._held: dict[str, float] = {}  # newest numbers since the last point
        self._next_point = 0.0
        self._last_step = 0
        self._evaluated_at = -1

    def start(self, info: RunInfo) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._proto = _tensorboard("compat.proto.summary_pb2")
        # a file of an earlier part: TensorBoard is told to leave out what it holds of the steps made anew
        self._goes_on = any(self.run_dir.glob("events.out.tfevents.*"))
        purge = info.start_step + 1 if self._goes_on else None
        _await_later_name(self.run_dir)
        self._writer = SummaryWriter(
            log_dir=str(self.run_dir), max_queue=100, flush_secs=10, purge_step=purge
        )
        self._last_step = info.start_step
        self._text("1 run/2 start", _run_markdown(info), info.start_step)
        self._text("3 config", _code(info.config), info.start_step)
        if not self._goes_on:
            for i, section in enumerate(SECTIONS, start=1):
                self._text(f"2 legend/{i} {section}", section_markdown(section))
            self._add(_session_start(info))
        self._writer.flush()

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        if not (self._goes_on or self._described or self._held):  # now it is known which metrics this run has
            self._writer.add_custom_scalars(layout(metrics))
        self._held.update((tag, value) for tag, value in metrics.items() if value is not None)
        self._last_step = step
        evaluated = metrics.get("evaluation/return") is not None
        if evaluated:
            self._evaluated_at = step
        now = time.perf_counter()
        if evaluated or now >= self._next_point:
            self._next_point = now + self.interval
            self._write_point()

    def _write_point(self) -> None:
        summary = self._proto.Summary()
        for tag, value in self._held.items():
            if not math.isfinite(value):
                continue
            if tag in self._described:
                summary.value.add(tag=tag, simple_value=value)
            else:
                self._described.add(tag)
                summary.value.add(tag=tag, simple_value=value, metadata=self._description(tag))
        self._held = {}
        self._add(summary, self._last_step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The final numbers: metrics for the HParams table, the last point of the evaluations' curve, and a text.
        Nothing of a run that failed before its start."""
        if self._writer is None:
            return
        step = int(summary.get("steps") or self._last_step)
        final = {tag: summary.get(key) for tag, key in _FINAL.items()}
        if self._evaluated_at != step:
            final["evaluation/return"] = summary.get("eval_return_mean")
        if self._held:
            self._write_point()
        self._held = {tag: float(value) for tag, value in final.items() if value is not None}
        self._last_step = step
        self._write_point()
        rows = [(key, summary[key]) for key in _SUMMARY_ROWS if summary.get(key) is not None]
        self._text("1 run/1 result", _table(("result", ""), rows), step)
        if (
            summary.get("status") != "interrupted"
        ):  # such a run may go on; TensorBoard keeps the first word it reads
            self._add(_session_end(str(summary.get("status"))))
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(self, summary: Any, step: int | None = None) -> None:
        self._writer.file_writer.add_summary(summary, step)

    def _text(self, tag: str, markdown: str, step: int = 0) -> None:
        self._add(_tensorboard("plugins.text.summary_v2").text_pb(tag, markdown), step)

    def _description(self, tag: str) -> Any:
        """The legend beside a chart's title; read from a tag's first value, and only where the class is given too."""
        metric = BY_TAG[tag]
        text = f"**{metric.name}** ({metric.unit}): {metric.meaning}\n\n**What bad looks like:** {metric.bad}"
        return self._proto.SummaryMetadata(
            plugin_data=self._proto.SummaryMetadata.PluginData(plugin_name="scalars"),
            summary_description=text,
            data_class=self._proto.DATA_CLASS_SCALAR,
        )


def _await_later_name(run_dir: Path) -> None:
    """Event files are read in the order of their names, which tell the second that they were made in."""
    names = [path.name.split(".")[3] for path in run_dir.glob("events.out.tfevents.*")]
    newest = max((int(name) for name in names if name.isdigit()), default=0)
    if int(time.time()) == newest:
        time.sleep(max(0.0, newest + 1 - time.time()))


def layout(metrics: Mapping[str, float | None] | None = None) -> dict[str, dict[str, list[Any]]]:
    """The Custom Scalars layout in the form of `SummaryWriter.add_custom_scalars`.

    `metrics`: a run's first numbers; charts of parts that it doesn't have (a critic, a Gaussian) are left out.
    Lines are patterns that TensorBoard matches against the start of a tag, so each is closed with `$`.
    """
    absent = set() if metrics is None else {tag for tag in _PARTS if metrics.get(tag) is None}
    result: dict[str, dict[str, list[Any]]] = {}
    for section, charts in CHARTS.items():
        result[section] = {
            chart.title: ["Margin", list(chart.tags)]
            if chart.band
            else ["Multiline", [f"{re.escape(tag)}$" for tag in chart.tags]]
            for chart in charts
            if not absent.issuperset(chart.tags)
        }
    return result


def hyperparameters(info: RunInfo) -> dict[str, float | bool | str]:
    """The config as flat `group.key` entries, algo, env and seed always among them."""
    config = {key: value for key, value in info.config.items() if key not in _NOT_HYPERPARAMETERS}
    flat = dict(_flatten(config))
    return {"algo": info.algo, "env.id": info.env_id, "seed": info.seed, **flat}


def _flatten(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | bool | str]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, (bool, int, float, str)):
            yield f"{prefix}{key}", value
        else:
            yield f"{prefix}{key}", "none" if value is None else str(value)


def _session_start(info: RunInfo) -> Any:
    """The run's hyperparameters, for the HParams tab.

    Written without torch's `hparams()`: that adds an Experiment, and of a sweep's Experiments TensorBoard reads only
    the first, so keys that only other runs have would be hidden. Without one it gathers the keys of all runs.
    """
    plugin_data = _tensorboard("plugins.hparams.plugin_data_pb2")
    start = plugin_data.SessionStartInfo(start_time_secs=time.time())
    for key, value in hyperparameters(info).items():
        if isinstance(value, bool):
            start.hparams[key].bool_value = value
        elif isinstance(value, (int, float)):
            start.hparams[key].number_value = value
        else:
            start.hparams[key].string_value = value
    return _hparams_summary("session_start_info", plugin_data.HParamsPluginData(session_start_info=start))


def _session_end(status: str) -> Any:
    api, plugin_data = (
        _tensorboard("plugins.hparams.api_pb2"),
        _tensorboard("plugins.hparams.plugin_data_pb2"),
    )
    codes = {"finished": api.STATUS_SUCCESS, "failed": api.STATUS_FAILURE}
    end = plugin_data.SessionEndInfo(status=codes.get(status, api.STATUS_UNKNOWN), end_time_secs=time.time())
    return _hparams_summary("session_end_info", plugin_data.HParamsPluginData(session_end_info=end))


def _hparams_summary(name: str, content: Any) -> Any:
    metadata, proto = _tensorboard("plugins.hparams.metadata"), _tensorboard("compat.proto.summary_pb2")
    content.version = metadata.PLUGIN_DATA_VERSION
    plugin = proto.SummaryMetadata.PluginData(
        plugin_name=metadata.PLUGIN_NAME, content=content.SerializeToString()
    )
    value = proto.Summary.Value(
        tag=f"_hparams_/{name}",
        metadata=proto.SummaryMetadata(plugin_data=plugin),
        tensor=metadata.NULL_TENSOR,
    )
    return proto.Summary(value=[value])


def _run_markdown(info: RunInfo) -> str:
    solved = "not stated" if info.reward_threshold is None else f"{info.reward_threshold:g}"
    rows = [
        ("algorithm", info.algo),
        ("environment", info.env_id),
        ("solved at a return of", solved),
        ("seed", info.seed),
        ("steps", f"{info.total_steps:,}"),
        ("environments in parallel", info.num_envs),
        ("device", info.device),
        ("parameters", info.parameters.replace(" parameters", "")),
        ("overrides", " ".join(info.overrides) or "none"),
    ]
    if info.start_step:
        rows.append(("resumed at step", f"{info.start_step:,}"))
    return _table(("run", ""), rows + [("notice", notice) for notice in info.notices])


def _table(head: tuple[str, str], rows: list[tuple[str, Any]]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    for name, value in rows:
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        lines.append(f"| {name} | {text.replace('|', '&#124;')} |")
    return "\n".join(lines)


def _code(config: Mapping[str, Any]) -> str:
    text = json.dumps(config, indent=2, default=str, ensure_ascii=False)
    return "\n".join(f"    {line}" for line in text.splitlines())


def _tensorboard(module: str) -> Any:
    """A module of TensorBoard's; those made from protobuf files have no attributes that a type checker could see."""
    return importlib.import_module(f"tensorboard.{module}")
