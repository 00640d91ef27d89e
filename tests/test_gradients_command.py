"""`pgtrain gradients`: arguments and messages, table, numbers and figure."""

from __future__ import annotations

import builtins
import json
import math
from pathlib import Path
from typing import Any

import pytest

import pgtrain
from pgtrain import cli
from pgtrain.commands import gradients as command
from pgtrain.commands.gradients_run import Line
from pgtrain.commands.gradients_show import WIDE, bar, bar_lengths, bias, make_table, number
from pgtrain.learning.gradient_report import Report
from pgtrain.types import UserError

BANDIT = ["env=pgtrain/SoftmaxBandit-v0", "policy.hidden=[]"]


def test_a_fresh_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["gradients", *BANDIT, "episodes=64", "batch=4", "figure=out.png"]) == 0
    printed = capsys.readouterr().out
    for text in ("pgtrain/SoftmaxBandit-v0: 64 episodes, 64 steps", "true gradient: exact", "optimal step_joint",
                 "return_weighted (a common mistake)", "λ = 0.95", "batch of 4 episodes", "█", "out.png"):  # fmt: skip
        assert text in printed, text
    assert all(len(line) <= WIDE for line in printed.splitlines())
    assert "…" not in printed  # nothing is cut off
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "out.json").read_text())
    assert numbers["reference"] == "exact" and len(numbers["rows"]) == 19
    assert {"family", "baseline", "variance", "low", "high", "snr", "cosine", "bias", "milliseconds"} <= set(
        numbers["rows"][0]
    )


def test_a_true_gradient_of_0_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All arms pay the same: the mean takes everything away, and there is nothing to find."""
    monkeypatch.chdir(tmp_path)
    words = [*BANDIT, "env.kwargs.rewards=[1,1,1]", "episodes=32", "rows=total return"]
    assert cli.main(["gradients", *words]) == 0
    printed = capsys.readouterr().out
    assert "true gradient: exact, length 0;" in printed and "bias is a length" in printed
    assert "these estimates are 0 in every episode" in printed
    assert "∞" not in printed and "×" not in printed and "noise scale" not in printed
    numbers = json.loads((tmp_path / "gradients.json").read_text())
    rows = {row["baseline"]: row for row in numbers["rows"]}
    assert numbers["gradient_norm"] == 0 and numbers["shares"] == {}
    assert rows["none"]["snr"] == 0 and rows["none"]["bias"] < rows["none"]["bias_limit"] < 1
    assert rows["mean"]["snr"] is None and rows["mean"]["cosine"] is None and rows["mean"]["bias"] < 1e-6
    assert not any(row["relative"] for row in rows.values())


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own critic is the value baseline."""
    run = tmp_path / "run"
    pgtrain.train("algo=a2c", "env=CartPole-v1", "env.max_episode_steps=12", "total_steps=200", "num_envs=2",
                  "eval.episodes=0", "monitor=quiet", "monitor.tensorboard=false", "policy.hidden=[8]",
                  run_dir=run)  # fmt: skip
    assert (
        cli.main(["gradients", str(run), "episodes=16", "reference=32", "rows=reward to go", "figure=none"])
        == 0
    )
    printed = capsys.readouterr().out
    assert "critic: the run's own" in printed and "from 32 other episodes" in printed
    assert "GAE" not in printed and "optimal parameter" in printed
    assert (run / "gradients.json").exists() and not (run / "gradients.png").exists()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["episodes=1"], "episodes=1: expected an integer of at least 2"),
        ([*BANDIT, "device.ranks=2"], "device.ranks=2: has no effect on gradients"),
        (["figure=x.jpg"], "expected a name that ends in .png"),
        (["no_such_run"], "no such run folder"),
        (["--cfg"], "gradients has no such option"),
        (["seed=1", "seed=2"], "given twice"),
        (["env=NoSuch-v0"], "NoSuch"),
        (["gammma=0.9"], "gammma"),
        ([*BANDIT, "rows=nothing at all", "episodes=4"], "no estimator has that in its name"),
        ([".", "gamma=0.5"], "the settings of a run are its own"),
        ([BANDIT[0], "policy.hidden=[2000,2000]", "episodes=4096"], "use at most"),
    ],
)
def test_mistakes_are_one_line(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gradients", *argv]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert told in lines[-1] and lines[-1].startswith("pgtrain: error: ")


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gradients", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {key}=" in text for key in command.OWN)


def test_without_matplotlib_one_line_tells_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["gradients", *BANDIT, "episodes=8", "rows=mean"]) == 0
    assert "pip install 'pgtrain[plot]'" in capsys.readouterr().err


def row(variance: float, **changes: Any) -> Report:
    return Report(variance, variance / 2, 2 * variance, 1.0, 0.5, 0.1, 0.2, 8)._replace(**changes)


def test_texts() -> None:
    assert [number(x) for x in (0, 0.123456, 12.34, 999.9, 1234, 1.2e6, 3.4e12, 1e-9, math.nan, math.inf)] == [
        "0", "0.123", "12.3", "1k", "1.23k", "1.2M", "3.4T", "1.0e-9", "–", "∞",
    ]  # fmt: skip
    assert bias(row(1.0)) == "<20%" and bias(row(1.0, bias=0.4)) == "40%" and bias(row(1.0, bias=3.0)) == "3×"
    assert bias(row(1.0, bias=math.nan)) == "–"
    assert bias(row(1.0, relative=False)) == "<0.2" and bias(row(1.0, bias=3.0, relative=False)) == "3"
    short, long = bar_lengths([1.0, 100.0])
    assert 0 < short < long == 1.0 and bar_lengths([0.0, math.nan]) == [0.0, 0.0]
    assert bar(1.0, 4) == "████" and bar(0.0) == "" and bar(0.5, 1) == "▌"


@pytest.mark.parametrize("width", [50, 60, 77, 78, 80, 100, WIDE])
def test_the_table_fits(width: int) -> None:
    from rich.console import Console

    lines = [Line("total return", "return_weighted (a common mistake)", row(12345.6), 123.4)]
    lines += [Line("GAE", "λ = 0.95", row(1.23e12), 0.5), Line("GAE", "λ = 1", row(0.0), 0.5)]
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(make_table(lines, width))
    text = console.export_text()
    assert "…" not in text and "1.23T" in text and ("615G–2.46T" in text) == (width >= 78)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())


def test_more_than_one_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="more than one run"):
        command.parse([str(tmp_path), str(tmp_path)])


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["hydra.run.dir=/tmp/x"], "hydra.run.dir=/tmp/x: gradients makes no run folder; figure=PATH"),
        (["advantage.lam=0.5"], "advantage.lam=0.5: has no effect on gradients"),
        (["advantage/baseline=mean"], "advantage/baseline=mean: has no effect"),
        (["total_steps=100"], "total_steps=100: has no effect"),
        (["episodes=16", "batch=17"], "batch=17: there are only episodes=16"),
        (["figure=no/such/folder/a.png"], "figure=no/such/folder/a.png: there is no folder no/such/folder"),
        (["rows=nothing of this name"], "no estimator has that in its name"),
        (["rows=pathwise"], "no estimator has that in its name"),  # not of a bandit that is no torch env
    ],
)
def test_what_cannot_be_is_refused_before_an_episode_is_played(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def played(*_: Any) -> None:
        raise AssertionError("episodes were played first")

    monkeypatch.setattr("pgtrain.commands.gradients_run.Experiment._collect", played)
    assert cli.main(["gradients", *BANDIT, *argv]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("horizon", ["0", "-1", "2.5"])
def test_an_mdp_has_a_step_at_least(horizon: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["env=pgtrain/TabularMDP-v0", f"env.kwargs.horizon={horizon}", "episodes=4"]
    assert cli.main(["gradients", *words]) == 2
    assert "horizon must be a whole number of steps, 1 or more" in capsys.readouterr().err


def test_the_pathwise_row_of_an_env_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["env=tests.envs.differentiable.registered:Registered-v0", "policy.hidden=[]", "episodes=8"]
    assert cli.main(["gradients", *words, "reference=8", "rows=through", "figure=none"]) == 0
    assert "through the env" in capsys.readouterr().out


def test_a_negative_cosine_has_its_stem_and_its_dot_in_the_panel() -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    from pgtrain.commands.gradients_show import _cosine_panel

    figure, axis = plt.subplots()
    _cosine_panel(axis, [Line("GAE", "λ = 1", row(1.0, cosine=-0.4), 1.0)], [0.0], 8)
    stem, dot = axis.lines[:2]
    assert list(stem.get_xdata()) == [0.0, -0.4] and list(dot.get_xdata()) == [-0.4]
    assert axis.get_xlim()[0] <= -0.45
    plt.close(figure)


@pytest.mark.parametrize("episodes", [2, 3])
def test_intervals_of_very_few_episodes_are_drawn(
    episodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their lower ends may all be 0, which an axis of logarithms does not have."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["gradients", *BANDIT, f"episodes={episodes}", "figure=out.png"]) == 0
    assert (tmp_path / "out.png").stat().st_size > 1000
