"""`pgtrain eval RUN`: arguments, messages, what is printed and written. Policy and env are stubs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pgtrain import cli
from pgtrain.commands import evaluate as command
from pgtrain.types import UserError


class StubEnv:
    closed = False

    def __enter__(self) -> StubEnv:
        return self

    def __exit__(self, *exc: object) -> None:
        self.closed = True


class Calls(SimpleNamespace):
    """What the command asked of loading.load, make_env and evaluate."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with the `=` and `,` that Hydra could not parse."""
    folder = tmp_path / "sweep" / "lr=1e-3,seed=2"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("env:\n  id: CartPole-v1\neval:\n  episodes: 100\n")
    return folder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    seen = Calls(env=StubEnv(), returns=None, warning=None, run_env="CartPole-v1")

    def load(
        folder: Path, device: str = "cpu", env_id: str | None = None, policy: str | None = None
    ) -> SimpleNamespace:
        seen.folder, seen.device, seen.env_id = folder, device, env_id
        cfg = SimpleNamespace(env=SimpleNamespace(id=seen.run_env), policy=SimpleNamespace(name="mlp"))

        def make_env(num_envs: int, show: None = None) -> StubEnv:
            seen.num_envs = num_envs
            return seen.env

        return SimpleNamespace(policy="the policy", cfg=cfg, make_env=make_env, warning=seen.warning)

    def evaluate(policy, env, episodes, seed, greedy=True) -> SimpleNamespace:
        assert policy == "the policy"
        assert env is seen.env
        seen.episodes, seen.seed, seen.greedy = episodes, seed, greedy
        returns = seen.returns or [float(i) for i in range(episodes)]
        mean = sum(returns) / len(returns)
        return SimpleNamespace(
            returns=returns,
            lengths=([10, 20] * episodes)[:episodes],
            mean=mean,
            std=2.5,
            ci95=(mean - 1, mean + 1),
        )

    monkeypatch.setattr("pgtrain.loading.load", load)
    monkeypatch.setattr("pgtrain.evaluation.evaluate", evaluate)
    return seen


def pgtrain_eval(argv: list[str]) -> int:
    """`pgtrain eval …` as typed."""
    return cli.main(["eval", *argv])


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("pgtrain: error: ")
    return lines[0].removeprefix("pgtrain: error: ")


def test_prints_and_writes_the_evaluation(
    run: Path, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    calls.returns = [1.0, 2.0, 3.0, 6.0]
    assert pgtrain_eval([str(run), "episodes=4", "seed=7", "num_envs=2"]) == 0
    printed = capsys.readouterr().out
    for text in ("3.00 ± 2.50", "2.00 … 4.00", "1.00 … 6.00", "15.0", "greedy", "CartPole-v1", str(run)):
        assert text in printed.replace("\n", ""), text
    report = json.loads((run / "evaluation.json").read_text())
    assert report["return_mean"] == 3.0
    assert report["return_std"] == 2.5
    assert report["return_ci95"] == [2.0, 4.0]
    assert (report["return_min"], report["return_max"], report["length_mean"]) == (1.0, 6.0, 15.0)
    assert report["returns"] == calls.returns
    assert report["lengths"] == [10, 20, 10, 20]
    assert (report["episodes"], report["seed"], report["num_envs"], report["greedy"]) == (4, 7, 2, True)
    assert [path.name for path in run.iterdir() if "evaluation" in path.name] == ["evaluation.json"]


def test_defaults_are_100_greedy_episodes_on_envs_that_share_them_evenly(run: Path, calls: Calls) -> None:
    assert pgtrain_eval([str(run)]) == 0
    assert (calls.episodes, calls.num_envs, calls.greedy, calls.device) == (100, 20, True, "cpu")
    assert calls.env.closed


def test_settings_reach_the_evaluation(run: Path, calls: Calls) -> None:
    assert pgtrain_eval(["greedy=false", "device=cpu", str(run), "seed=1_000", "episodes=1e2"]) == 0
    assert (calls.greedy, calls.device, calls.seed, calls.episodes) == (False, "cpu", 1000, 100)
    assert calls.folder == run


@pytest.mark.parametrize(
    ("episodes", "num_envs", "plan"),
    [(100, None, (20, 100)), (97, None, (1, 97)), (16, None, (16, 16)), (100, 8, (8, 104)), (3, 8, (8, 8))],
)
def test_every_env_plays_the_same_number_of_episodes(
    episodes: int, num_envs: int | None, plan: tuple[int, int], run: Path, calls: Calls
) -> None:
    envs = [] if num_envs is None else [f"num_envs={num_envs}"]
    assert pgtrain_eval([str(run), f"episodes={episodes}", *envs]) == 0
    assert (calls.num_envs, calls.episodes) == plan


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "mps"])
def test_devices(device: str) -> None:
    assert command.parse(["some/run", f"device={device}"])[1].device == device


def test_a_device_that_is_not_there_is_one_line(
    run: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert pgtrain_eval([str(run), "device=cuda"]) == 2
    assert "no CUDA GPU" in error_of(capsys)
    assert not hasattr(calls, "folder")


def test_rounding_up_is_said(run: Path, calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert pgtrain_eval([str(run), "episodes=10", "num_envs=4"]) == 0
    assert "12 (asked for 10), 3 in each of 4 envs" in capsys.readouterr().out


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert pgtrain_eval(["-h"]) == 0
    assert pgtrain_eval(["some/run", "--help"]) == 0
    printed = capsys.readouterr().out
    for setting in command.SETTINGS:
        assert f"{setting}=" in printed


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no run is given"),
        (["RUN", "RUN"], "more than one run"),
        (["RUN", "episods=5"], "did you mean episodes=?"),
        (["RUN", "--greedy"], "neither a run nor a setting"),
        (["RUN", "episodes=0"], "episodes=0: expected an integer of at least 1"),
        (["RUN", "episodes=1.5"], "episodes=1.5: expected an integer"),
        (["RUN", "episodes=inf"], "episodes=inf: expected an integer"),
        (["RUN", "seed=-1"], "seed=-1: expected an integer of at least 0"),
        (["RUN", "greedy=yes"], "greedy=yes: expected true or false"),
        (["RUN", "device=tpu"], "device=tpu: expected auto, cpu, cuda, cuda:N or mps"),
        (["RUN", "seed=1", "seed=2"], "seed= is given twice"),
        (["RUN", "env=Acrobot-v1"], "trained on CartPole-v1"),
        (["nowhere"], "nowhere: no such run folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    argv: list[str], message: str, run: Path, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pgtrain_eval([str(run) if word == "RUN" else word for word in argv]) == 2
    assert message in error_of(capsys)
    assert not (run / "evaluation.json").exists()


def test_a_folder_or_file_that_is_no_run_names_the_right_one(
    run: Path, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pgtrain_eval([str(run.parent)]) == 2
    assert str(run) in error_of(capsys)
    assert pgtrain_eval([str(run / "config.yaml")]) == 2
    assert f"expected the run folder: {run}" in error_of(capsys)


def test_latest_is_the_newest_run(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pgtrain_eval(["latest"]) == 2
    assert "no run under outputs/" in error_of(capsys)
    for age, name in [(30, "old"), (10, "new"), (20, "middle"), (0, "new/.hydra")]:
        (tmp_path / "outputs" / name).mkdir(parents=True)
        config = tmp_path / "outputs" / name / "config.yaml"
        config.write_text("env: {id: CartPole-v1}")
        os.utime(config, (1e9 - age, 1e9 - age))
    assert pgtrain_eval(["latest"]) == 0
    assert calls.folder == Path("outputs/new")


def test_only_the_user_can_allow_the_import_of_a_module(
    run: Path, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `loading.load` may import is what was typed, never what the run's files say."""
    calls.run_env = "my_pkg:MyEnv-v0"
    (run / "config.yaml").write_text("env:\n  id: my_pkg:MyEnv-v0\n")
    assert pgtrain_eval([str(run)]) == 0
    assert calls.env_id is None
    assert pgtrain_eval([str(run), "env=my_pkg:MyEnv-v0"]) == 0
    assert calls.env_id == "my_pkg:MyEnv-v0"


def test_not_a_number_is_null_in_the_file(run: Path, calls: Calls) -> None:
    calls.returns = [float("nan"), 1.0]
    assert pgtrain_eval([str(run), "episodes=2"]) == 0
    report = json.loads((run / "evaluation.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert report["returns"] == [None, 1.0]
    assert report["return_mean"] is None


def test_an_older_checkpoint_is_said(run: Path, calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    calls.warning = "checkpoint.pt cannot be read; using an older one"
    assert pgtrain_eval([str(run)]) == 0
    assert "warning: checkpoint.pt cannot be read" in capsys.readouterr().err


def test_a_user_error_from_below_is_one_line(
    run: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(folder: Path, **settings: object) -> None:
        raise UserError("there is no checkpoint in the run")

    monkeypatch.setattr("pgtrain.loading.load", load)
    assert pgtrain_eval([str(run)]) == 2
    assert error_of(capsys) == "there is no checkpoint in the run"
