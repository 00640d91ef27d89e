"""The command line: help, dispatch, exit codes, run folders, sweeps, and the Python API beside it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pgtrain
from pgtrain import cli
from pgtrain.commands import sweep, sweep_report
from pgtrain.commands import train as train_command
from pgtrain.config.errors import ConfigError
from pgtrain.config.overrides import parse
from pgtrain.config.paths import conf_dir
from pgtrain.config.schema import Config
from pgtrain.types import TrainingError, UserError

ROOT = Path(__file__).parents[1]


class Builder(types.ModuleType):
    """Stands in for `pgtrain.training`: notes what it is asked to train, and does as it is told."""

    def __init__(self) -> None:
        super().__init__("pgtrain.training")
        self.calls: list[tuple[Config, Path, list[str]]] = []
        self.behave: Callable[[Config], int] = lambda config: 0  # exit code, or raises

    def train(self, config: Config, run_dir: Path, overrides: list[str]) -> Any:
        from pgtrain.monitor.record import write_summary

        self.calls.append((config, run_dir, overrides))
        code = self.behave(config)
        summary = {"status": "finished" if code == 0 else "interrupted", "return_mean": float(config.seed)}
        write_summary(run_dir, summary)
        return types.SimpleNamespace(summary=summary, run_dir=run_dir, policy="policy", exit_code=code)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Builder:
    """No training; the current folder is a new one."""
    stub = Builder()
    monkeypatch.setitem(sys.modules, "pgtrain.training", stub)
    monkeypatch.setattr(pgtrain, "training", stub, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return stub


def failing(error: Exception, *seeds: int) -> Callable[[Config], int]:
    def behave(config: Config) -> int:
        if config.seed in seeds:
            raise error
        return 0

    return behave


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    assert said.startswith("pgtrain: error: ")
    assert said.count("\n") == 1, said
    return said


# ------------------------------------------------------------------------------------ help and dispatch
@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"], ["train", "--help"], ["algo=a2c", "-h"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    for path in (conf_dir() / "algo").glob("*.yaml"):
        assert path.stem in text
    assert "reinforce*" in text
    assert re.search(r"advantage/baseline= .*loo\*", text)
    assert re.search(r"seed=0 +of every random number", text)
    assert "CartPole-v1*" in text
    examples = text.partition("\nexamples\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) == 9
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("command", ["eval", "resume", "gradients", "check"])
def test_the_help_of_a_command_fits_a_terminal_of_100_columns(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"pgtrain {command}") and max(map(len, lines)) <= 100


def test_the_examples_of_the_help_compose(capsys: pytest.CaptureFixture[str]) -> None:
    from pgtrain.config.compose import compose

    cli.main(["--help"])
    examples = capsys.readouterr().out.partition("\nexamples\n")[2].partition("\n\n")[0].splitlines()
    runs = [
        line.split()[1:] for line in examples if line.split()[1] not in ("-m", "eval", "gradients", "resume")
    ]
    assert len(runs) == 5
    for words in runs:
        compose([word for word in words if not word.startswith("env=LunarLander")])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pgtrain {pgtrain.__version__}\n"


def test_the_first_word_picks_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(cli, "_run", lambda module, words: asked.append((module, words)) or 5)
    assert cli.main(["eval", "run", "--help"]) == 5
    assert cli.main(["train", "seed=1"]) == 5
    assert cli.main(["seed=1"]) == 5
    assert cli.main(["train"]) == 5
    assert asked == [
        ("pgtrain.commands.evaluate", ["run", "--help"]),
        ("pgtrain.commands.train", ["seed=1"]),
        ("pgtrain.commands.train", ["seed=1"]),
        ("pgtrain.commands.train", []),
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["trian"],
            "no such command (train, resume, eval, check, gradients, help), and settings are written key=value. "
            "Did you mean train?",
        ),
        (["CartPole-v1"], "Did you mean env=CartPole-v1?"),
        (["algo=a2c", "eval"], "eval: settings are written key=value"),
        (["gama=0.9"], "there is no setting 'gama'. Did you mean gamma?"),
        (["--seed", "1"], "--seed: no such option; settings are written without dashes, e.g. seed=1"),
        (["--multirn", "seed=1"], "Did you mean --multirun?"),
        (["--cfg", "jab"], "invalid choice: 'jab'"),
        (["--cfg", "job", "gama=1"], "Did you mean gamma?"),
        (["--cfg", "job", "-m"], "only one of --cfg and --multirun can be given"),
        (["seed=1", "--resolve"], "--resolve and --package belong to --cfg"),
        (["--config-dir", "no/such", "seed=1"], "--config-dir no/such: there is no such folder"),
        (["--experimental-rerun", "x"], "repeat a run with its overrides.yaml"),
        (["seed=1,2"], "which needs -m: pgtrain -m seed=1,2"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: list[str], text: str, builder: Builder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert text in one_error(capsys)
    assert not builder.calls
    assert not list(Path().iterdir())


def run_python(code: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["--help"], ["torch", "gymnasium", "hydra", "omegaconf", "numpy"]),
        (["algo=a2c", "gama=1"], ["torch", "tensorboard"]),
        (["env=nosuch"], ["torch", "tensorboard"]),
        (["-m", "seed=1,x"], ["torch", "tensorboard"]),
        (["--cfg", "job"], ["torch", "tensorboard"]),
        (["-sc", "query=bash"], ["torch", "gymnasium"]),
    ],
)
def test_what_stays_unimported(words: list[str], unwanted: list[str], tmp_path: Path) -> None:
    """Help, completion and config errors come at once because the heavy packages stay out."""
    code = (
        "import os, sys; from pgtrain.cli import main; os.chdir(sys.argv[1]); main(sys.argv[2:]); "
        "print('LOADED', *sorted(m for m in sys.modules if '.' not in m))"
    )
    done = run_python(code, str(tmp_path), *words, COMP_LINE="pgtrain algo=")
    loaded = done.stdout.rpartition("LOADED")[2].split()
    assert "pgtrain" in loaded, done.stderr
    assert not set(unwanted) & set(loaded)
    assert not list(tmp_path.iterdir())


def test_import_pgtrain_is_light_and_lazy() -> None:
    done = run_python(
        "import sys, pgtrain; print(pgtrain.__version__, 'torch' in sys.modules, 'hydra' in sys.modules); "
        "print(callable(pgtrain.train), 'torch' in sys.modules, sorted({'train', 'load'} - set(dir(pgtrain))))"
    )
    assert done.stdout.split("\n")[:2] == ["0.1.0 False False", "True False []"], done.stderr


def test_the_public_names() -> None:
    assert pgtrain.UserError is UserError
    assert pgtrain.returns.__name__ == "pgtrain.learning.returns"
    with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
        _ = pgtrain.nosuch


def test_exit_code_and_streams_of_the_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pgtrain", "gama=0.9"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "pgtrain: error: gama=0.9: there is no setting 'gama'. Did you mean gamma?\n"


# ------------------------------------------------------------------------------------ what Hydra shows
def test_cfg_job(builder: Builder, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--cfg", "job", "algo=a2c", "seed=3"]) == 0
    text = capsys.readouterr().out
    assert "seed: 3" in text
    assert "lam: 1.0" in text
    assert "hydra" not in text
    assert cli.main(["algo=a2c", "--cfg", "job", "-p", "optim.lr"]) == 0
    assert capsys.readouterr().out == "# @package optim.lr\nname: linear\nvalue: 0.002\nend: 0.0\n"
    assert not builder.calls
    assert not list(Path().iterdir())


def test_hydra_help_and_info() -> None:
    """In a process of their own: they set up logging."""
    done = run_python("from pgtrain.cli import main; main(['--hydra-help'])")
    assert "Powered by Hydra" in done.stdout or "Hydra (" in done.stdout
    done = run_python("from pgtrain.cli import main; main(['--info', 'searchpath'])")
    assert re.search(r"main .*conf", done.stdout)
    assert "pgtrain://" in done.stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("pgtrain algo=", "algo=a2c"),
        ("pgtrain env=Acro", "env=Acrobot-v1"),
        ("pgtrain train optim.lr.", "optim.lr.value="),
        ("pgtrain algo=a2c advantage.", "advantage.lam="),
        ("pgtrain advantage/baseline=", "advantage/baseline=loo"),
        ("pgtrain ", "eval"),
        ("pgtrain ev", "eval"),
    ],
)
def test_tab_completion(
    line: str, offered: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    assert cli.main(["-sc", "query=bash"]) == 0
    assert offered in capsys.readouterr().out.split()


@pytest.mark.parametrize("line", ["pgtrain policy.hidden=[6", "pgtrain env=nosuch se", "pgtrain gama=1 se"])
def test_tab_completion_of_a_mistake_is_silent(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    cli.main(["-sc", "query=bash"])
    assert capsys.readouterr() == ("\n", "") or capsys.readouterr() == ("", "")


def test_completion_can_be_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-sc", "install=bash"]) == 0
    assert "hydra_bash_completion" in capsys.readouterr().out
    assert cli.main(["-sc", "install=nosuch"]) == 2
    assert "No completion plugin for 'nosuch'" in one_error(capsys)


# ------------------------------------------------------------------------------------ one run
def test_a_run_gets_settings_folder_and_overrides(
    builder: Builder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["algo=a2c", "seed=3", "total_steps=1e5"]) == 0
    ((config, folder, overrides),) = builder.calls
    assert (config.algo, config.seed, config.total_steps) == ("a2c", 3, 100_000)
    assert overrides == ["algo=a2c", "seed=3", "total_steps=1e5"]
    assert re.fullmatch(
        r"outputs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d_a2c_CartPole-v1_s3", str(folder.relative_to(Path.cwd()))
    )
    assert [path.name for path in folder.iterdir()] == ["summary.json"]
    said = capsys.readouterr()
    assert str(folder.relative_to(Path.cwd())) in said.out
    assert said.err == ""


@pytest.mark.parametrize("code", [130, 143])
def test_an_interrupted_run_says_so_by_its_exit_code(code: int, builder: Builder) -> None:
    builder.behave = lambda config: code
    assert cli.main(["seed=0"]) == code


def test_a_run_that_had_to_end_is_exit_code_1(builder: Builder, capsys: pytest.CaptureFixture[str]) -> None:
    builder.behave = failing(TrainingError("10 updates in a row were not finite"), 0)
    assert cli.main(["seed=0"]) == 1
    assert one_error(capsys) == "pgtrain: error: 10 updates in a row were not finite\n"


def test_a_mistake_that_only_shows_with_the_env_is_exit_code_2(
    builder: Builder, capsys: pytest.CaptureFixture[str]
) -> None:
    builder.behave = failing(UserError("env.kwargs.x: no such argument"), 0)
    assert cli.main(["hydra.run.dir=here/run"]) == 2
    assert "env.kwargs.x" in one_error(capsys)
    assert not Path("here/run").exists(), "an empty folder is left behind"


def test_a_fault_of_ours_keeps_its_traceback(builder: Builder) -> None:
    builder.behave = failing(ZeroDivisionError("bug"), 0)
    with pytest.raises(ZeroDivisionError, match="bug"):
        cli.main(["seed=0"])


def test_ctrl_c_before_training_is_one_line(builder: Builder, capsys: pytest.CaptureFixture[str]) -> None:
    def behave(config: Config) -> int:
        raise KeyboardInterrupt

    builder.behave = behave
    assert cli.main(["seed=0"]) == 130
    assert capsys.readouterr().err == "pgtrain: interrupted\n"


def test_run_folders_never_collide(builder: Builder) -> None:
    for _ in range(3):
        assert cli.main(["hydra.run.dir=runs/mine"]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["mine", "mine_1", "mine_2"]


def test_an_empty_folder_of_the_users_is_taken_as_it_is(builder: Builder) -> None:
    Path("mine").mkdir()
    assert cli.main(["hydra.run.dir=mine"]) == 0
    assert Path("mine/summary.json").exists()
    assert cli.main(["hydra.run.dir=mine"]) == 0
    assert Path("mine_1/summary.json").exists()


@pytest.mark.parametrize("name", ["a=b,c", "it's", "with space", "x'y\\'"])
def test_a_run_folder_may_have_any_name(name: str, builder: Builder) -> None:
    assert cli.main([f"hydra.run.dir={train_command.quoted(name)}"]) == 0
    assert Path(name, "summary.json").exists()
    assert [path.name for path in Path().iterdir()] == [name]


def test_a_folder_that_cannot_be_made(builder: Builder, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert cli.main(["hydra.run.dir=file/run"]) == 2
    assert "hydra.run.dir=file/run: the folder cannot be made" in one_error(capsys)


def test_options_and_overrides_in_any_order(builder: Builder, tmp_path: Path) -> None:
    (tmp_path / "mine/env").mkdir(parents=True)
    (tmp_path / "mine/env/short.yaml").write_text("id: CartPole-v1\nmax_episode_steps: 9\n")
    assert cli.main(["env=short", "--config-dir", "mine", "seed=2"]) == 0
    ((config, folder, _),) = builder.calls
    assert (config.env.max_episode_steps, config.seed) == (9, 2)
    assert folder.name.endswith("_reinforce_CartPole-v1_s2")


def test_a_module_of_the_current_folder_is_found(builder: Builder, tmp_path: Path) -> None:
    (tmp_path / "pkg_of_cli_test.py").write_text(
        "import gymnasium\ngymnasium.register('Cli-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    assert cli.main(["env=pkg_of_cli_test:Cli-v0"]) == 0
    assert builder.calls[0][1].name.endswith("_reinforce_pkg_of_cli_test-Cli-v0_s0")


# ------------------------------------------------------------------------------------ sweeps
def sweep_folders() -> list[Path]:
    return sorted(path for path in Path("outputs/multirun").glob("*/*/*") if path.is_dir())


def test_a_sweep_runs_each_combination_in_its_own_folder(
    builder: Builder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["-m", "algo=reinforce,a2c", "seed=0,1", "total_steps=500"]) == 0
    runs = [(config.algo, config.seed, config.total_steps) for config, _, _ in builder.calls]
    assert runs == [("reinforce", 0, 500), ("reinforce", 1, 500), ("a2c", 0, 500), ("a2c", 1, 500)]
    names = [folder.name for folder in sweep_folders()]
    assert names == [
        "0_algo-reinforce_seed-0",
        "1_algo-reinforce_seed-1",
        "2_algo-a2c_seed-0",
        "3_algo-a2c_seed-1",
    ]
    assert [folder.resolve() for _, folder, _ in builder.calls] == [
        folder.resolve() for folder in sweep_folders()
    ]
    assert builder.calls[0][2] == ["algo=reinforce", "seed=0", "total_steps=500"]
    said = capsys.readouterr().out
    assert "run 3 of 4: algo=a2c seed=0 total_steps=500" in said
    assert "all with total_steps=500" in said
    for name in names:
        assert name in said


def test_a_failing_run_does_not_stop_the_others_and_is_named(
    builder: Builder, capsys: pytest.CaptureFixture[str]
) -> None:
    builder.behave = failing(TrainingError("env 3 died"), 1)
    assert cli.main(["-m", "seed=0,1,2"]) == 1
    assert len(builder.calls) == 3
    said = capsys.readouterr()
    assert "pgtrain: 1 of 3 runs failed:\n  run 2 (seed=1): env 3 died\n" in said.err
    assert "Traceback" not in said.err
    rows = {
        line.split("│")[2].strip(): line.split("│")[3].strip()
        for line in said.out.splitlines()
        if "│" in line
    }
    assert rows == {"seed=0": "finished", "seed=1": "failed", "seed=2": "finished"}


def test_a_fault_in_one_run_shows_its_traceback_and_the_others_go_on(
    builder: Builder, capsys: pytest.CaptureFixture[str]
) -> None:
    builder.behave = failing(ZeroDivisionError("bug\nhere"), 0)
    assert cli.main(["-m", "seed=0,1", "hydra.sweeper.max_batch_size=1"]) == 1
    assert [config.seed for config, _, _ in builder.calls] == [0, 1]
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "run 1 (seed=0): ZeroDivisionError: bug here" in said


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["seed=0,1,x"], "run 3 of 3 (seed=x): seed=x: must be a whole number"),
        (
            ["algo=a2c", "advantage=gae,gea"],
            "run 2 of 2 (algo=a2c advantage=gea): advantage=gea: must be one of",
        ),
        (
            ["algo=a2c,reinforce", "horizon=8"],
            "run 2 of 2 (algo=reinforce horizon=8): horizon=8 has no effect",
        ),
        (["env=CartPole-v1,nosuch"], "run 2 of 2 (env=nosuch): env=nosuch"),
        (["gama=1,2"], "run 1 of 2 (gama=1): gama=1: there is no setting 'gama'"),
    ],
)
def test_nothing_of_a_sweep_starts_if_one_run_cannot(
    words: list[str], text: str, builder: Builder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["-m", *words]) == 2
    said = one_error(capsys)
    assert text in said
    assert said.endswith("; nothing was started\n")
    assert not builder.calls
    assert not list(Path().iterdir())


@pytest.mark.parametrize("code", [130, 143])
def test_ctrl_c_ends_the_whole_sweep(code: int, builder: Builder, capsys: pytest.CaptureFixture[str]) -> None:
    builder.behave = lambda config: code if config.seed == 1 else 0
    assert cli.main(["-m", "seed=0,1,2"]) == code
    assert [config.seed for config, _, _ in builder.calls] == [0, 1]
    said = capsys.readouterr()
    assert "the sweep was interrupted, 2 of 3 runs had started" in said.err
    assert "interrupted" in said.out


def test_ctrl_c_before_a_run_began_ends_the_sweep_too(builder: Builder) -> None:
    def behave(config: Config) -> int:
        raise KeyboardInterrupt

    builder.behave = behave
    assert cli.main(["-m", "seed=0,1"]) == 130
    assert len(builder.calls) == 1


def test_two_sweeps_into_one_folder_get_two(builder: Builder) -> None:
    for _ in range(2):
        assert cli.main(["-m", "seed=0,1", "hydra.sweep.dir=sw"]) == 0
    assert sorted(path.name for path in Path().iterdir()) == ["sw", "sw_1"]
    assert sorted(path.name for path in Path("sw_1").iterdir() if path.is_dir()) == ["0_seed-0", "1_seed-1"]


@pytest.mark.parametrize("words", [["seed=range(2)"], ["seed=1,2"], ["hydra.mode=MULTIRUN", "seed=3,4"]])
def test_ways_to_write_a_sweep(words: list[str], builder: Builder) -> None:
    flag = [] if "hydra.mode=MULTIRUN" in words else ["-m"]
    assert cli.main([*words, *flag]) == 0
    assert len(builder.calls) == 2


def test_globs_and_ids_mix_in_a_sweep(builder: Builder) -> None:
    assert cli.main(["-m", "env=Acrobot-v1,CartPole-long"]) == 0
    assert [config.env.id for config, _, _ in builder.calls] == ["Acrobot-v1", "CartPole-v1"]
    builder.calls.clear()
    assert cli.main(["-m", "algo=glob(a*c*)"]) == 0
    assert sorted(config.algo for config, _, _ in builder.calls) == ["a2c", "actor_critic"]


def test_a_preset_may_be_a_sweep(builder: Builder, tmp_path: Path) -> None:
    (tmp_path / "mine/algo").mkdir(parents=True)
    (tmp_path / "mine/algo/seeds.yaml").write_text(
        "# @package _global_\ndefaults:\n  - a2c\n\n"
        "hydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      seed: 5,6\n"
    )
    assert cli.main(["--config-dir", "mine", "algo=seeds"]) == 0
    assert [(config.algo, config.seed) for config, _, _ in builder.calls] == [("seeds", 5), ("seeds", 6)]
    assert cli.main(["--config-dir", "mine", "algo=seeds", "num_envs=2,4"]) == 0
    assert len(builder.calls) == 6


def test_names_of_a_sweep_have_no_special_characters(builder: Builder) -> None:
    words = [
        "-m",
        "env=Acrobot-v1,CartPole-v1",
        "policy.hidden=[8,8],[4]",
        "env.kwargs={a: 1}",
        "optim/lr=linear",
    ]
    assert cli.main(words) == 0
    for folder in sweep_folders():
        assert re.fullmatch(r"\d_[\w.+-]+", folder.name), folder.name
    assert len(sweep_folders()) == 4


def test_a_sweeper_maximises_the_final_return() -> None:
    assert sweep.objective({"eval_return_mean": 3, "return_mean": 5}) == 3
    assert sweep.objective({"eval_return_mean": None, "return_mean": 5}) == 5
    assert sweep.objective({}) != sweep.objective({})


def test_the_return_in_the_table() -> None:
    summary = {"eval_return_mean": 482.13, "eval_return_std": 30.2, "return_mean": 1.0}
    assert sweep_report.shown_return(summary) == "482.1 ± 30.2 (final evaluation)"
    assert sweep_report.shown_return({"eval_return_mean": None, "return_mean": 1.0}) == "1.0 (training)"
    assert sweep_report.shown_return({}) == "-"


def test_a_launcher_of_its_own_processes(builder: Builder, capsys: pytest.CaptureFixture[str]) -> None:
    """What comes back from other processes is told like the runs of this one."""
    from hydra.core.utils import JobReturn, JobStatus
    from omegaconf import OmegaConf

    def returned(folder: str, status: JobStatus, value: object) -> JobReturn:
        config = OmegaConf.create({"hydra": {"runtime": {"output_dir": folder}}})
        job = JobReturn(overrides=[f"seed={folder}"], hydra_cfg=config, status=status)
        job.return_value = value
        return job

    jobs = [returned("1", JobStatus.COMPLETED, 3.0), returned("2", JobStatus.FAILED, RuntimeError("a\nb"))]
    records = sweep._merged([sweep_report.Record(["seed=0"], Path("0"))], jobs)
    assert [(r.overrides, r.error) for r in records] == [
        (["seed=0"], None),
        (["seed=1"], None),
        (["seed=2"], "RuntimeError: a b"),
    ]


def test_joblib(builder: Builder) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    assert cli.main(["-m", "hydra/launcher=joblib", "seed=0,1", "hydra.launcher.backend=threading"]) == 0
    assert len(builder.calls) == 2


# ------------------------------------------------------------------------------------ from Python
def test_train_from_python(builder: Builder) -> None:
    result = pgtrain.train(
        "algo=a2c", env="Acrobot-v1", seed=4, **{"optim.lr.value": 1e-3, "policy.hidden": [8, 4]}
    )
    ((config, folder, overrides),) = builder.calls
    assert (config.algo, config.env.id, config.seed) == ("a2c", "Acrobot-v1", 4)
    assert (config.optim.lr.value, config.policy.hidden) == (1e-3, [8, 4])
    assert result.run_dir == folder
    assert folder.relative_to(Path.cwd()).parts[0] == "outputs"
    assert overrides == [
        "algo=a2c",
        "env=Acrobot-v1",
        "seed=4",
        "optim.lr.value=0.001",
        "policy.hidden=[8,4]",
    ]


def test_run_dir_and_config_dir_from_python(builder: Builder, tmp_path: Path) -> None:
    (tmp_path / "conf/env").mkdir(parents=True)
    (tmp_path / "conf/env/short.yaml").write_text("id: CartPole-v1\nmax_episode_steps: 9\n")
    first = pgtrain.train("env=short", run_dir=tmp_path / "a=b,c", config_dir="conf")
    second = pgtrain.train("hydra.run.dir=mine", run_dir=tmp_path / "a=b,c")
    third = pgtrain.train("hydra.run.dir=mine")
    assert builder.calls[0][0].env.max_episode_steps == 9
    assert first.run_dir == tmp_path / "a=b,c"
    assert second.run_dir == tmp_path / "a=b,c_1"
    assert third.run_dir == Path("mine").resolve()


@pytest.mark.parametrize(
    ("words", "settings", "text"),
    [
        ((), {"gama": 1}, "Did you mean gamma"),
        (("seed=1",), {"seed": 2}, "seed is set twice"),
        (("seed=1,2",), {}, "needs -m"),
        (("hydra.job.chdir=true",), {}, "is for the command line"),
        (("seed",), {}, "settings are written key=value"),
        ((), {"env": "a, b"}, "env=a, b"),
    ],
)
def test_mistakes_from_python_are_user_errors(
    words: tuple[str, ...], settings: dict[str, Any], text: str, builder: Builder
) -> None:
    with pytest.raises(UserError, match=text):
        pgtrain.train(*words, **settings)
    assert not builder.calls
    assert not list(Path().iterdir())


def test_train_inside_another_hydra_app(builder: Builder) -> None:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        app = GlobalHydra.instance().hydra
        pgtrain.train("algo=a2c", seed=2)
        assert GlobalHydra.instance().hydra is app
    assert builder.calls[0][0].seed == 2


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        3,
        -2.5,
        1e-05,
        1e22,
        "text",
        "true",
        "null",
        "1e3",
        "a b",
        "a,b",
        "it's",
        'say "x"',
        "back\\slash",
        "end\\",
        "quote\\'",
        "ALE/Pong-v5",
        "pkg:Id-v0",
        "",
        "[1]",
        "(x)",
        [1, "a b", None, [True]],
        {"a": 1, "b": "c d"},
    ],
)
def test_python_values_survive_the_grammar(value: Any) -> None:
    (override,) = parse([f"key={train_command.as_override(value)}"])

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            return [plain(item) for item in node]
        if isinstance(node, dict):
            return {plain(key): plain(item) for key, item in node.items()}
        return node.text if hasattr(node, "text") else node

    result = plain(override.value())
    assert result == value
    assert type(result) is type(value)


def test_numpy_numbers_are_numbers() -> None:
    np = pytest.importorskip("numpy")
    assert train_command.as_override(np.float64(0.5)) == "0.5"
    assert train_command.as_override(np.int64(3)) == "3"


def test_config_errors_are_user_errors_and_values() -> None:
    error = ConfigError("a\nb", "key")
    assert isinstance(error, UserError)
    assert (str(error), error.key) == ("a b", "key")


def test_summary_of_a_broken_run_is_empty(tmp_path: Path) -> None:
    assert sweep_report.read_summary(tmp_path) == {}
    (tmp_path / "summary.json").write_text("{")
    assert sweep_report.read_summary(tmp_path) == {}
    (tmp_path / "summary.json").write_text(json.dumps({"status": "finished"}))
    assert sweep_report.read_summary(tmp_path) == {"status": "finished"}
