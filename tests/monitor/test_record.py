"""The run folder: exclusive, complete, never half written, and silent about the user's environment."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml

from pgtrain.monitor import record
from pgtrain.monitor.provenance import git_state
from pgtrain.monitor.record import atomic_write, create_run_dir, final_report, write_provenance, write_summary
from tests.monitor.run_for_tests import SUMMARY


def git(folder: Path, *args: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repo"
    (folder / "sub").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "trunk")
    (folder / "model.py").write_text("lr = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    monkeypatch.chdir(folder / "sub")
    return folder


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return create_run_dir(tmp_path / "runs" / "run")


def test_taken_names_get_a_suffix(tmp_path: Path) -> None:
    names = [create_run_dir(tmp_path / "day" / "run").name for _ in range(3)]
    assert names == ["run", "run_1", "run_2"]
    (tmp_path / "file").write_text("")
    assert create_run_dir(tmp_path / "file").name == "file_1"


def test_folders_are_exclusive_between_threads_and_processes(tmp_path: Path) -> None:
    code = (
        "import sys; from concurrent.futures import ThreadPoolExecutor as E;"
        "from pgtrain.monitor.record import create_run_dir as make;"
        "print('\\n'.join(map(str, E(8).map(lambda _: make(sys.argv[1]), range(20)))))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, env=environment
        )
        for _ in range(2)
    ]
    with ThreadPoolExecutor(8) as pool:
        made = [str(path) for path in pool.map(lambda _: create_run_dir(tmp_path / "run"), range(20))]
    for process in processes:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        made += out.decode().split()
    assert len(made) == len(set(made)) == 60
    assert sorted(map(str, tmp_path.iterdir())) == sorted(made)


def test_config_overrides_and_command(run_dir: Path) -> None:
    overrides = ["algo=a2c", "env.kwargs.name='a: b # c'", 'x="q"', "note=größer"]
    write_provenance(run_dir, "algo: a2c", overrides, ["pgtrain", "note=a b"])
    assert (run_dir / "config.yaml").read_text() == "algo: a2c\n"
    assert yaml.safe_load((run_dir / "overrides.yaml").read_text(encoding="utf-8")) == overrides
    found = json.loads((run_dir / "versions.json").read_text())
    assert found["command"] == "pgtrain 'note=a b'"
    assert found["packages"]["numpy"] == np.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    write_provenance(run_dir, "", [])
    assert yaml.safe_load((run_dir / "overrides.yaml").read_text()) == []


def test_git_state_and_the_diff_of_tracked_files(repo: Path, run_dir: Path) -> None:
    (repo / "model.py").write_text("lr = 2\n")
    (repo / "new.py").write_text("secret = 1\n")
    git(repo, "remote", "add", "origin", "https://me:token123@example.com/x.git")
    write_provenance(run_dir, "", [])
    state = json.loads((run_dir / "git.json").read_text())
    assert state["commit"] == git(repo, "rev-parse", "HEAD") and state["branch"] == "trunk"
    assert state["dirty"] is True and state["untracked"] == ["new.py"] and state["problems"] == []
    assert state["remote"] == "https://example.com/x.git"
    diff = (run_dir / state["diff"]).read_text()
    assert "-lr = 1" in diff and "+lr = 2" in diff and "secret" not in diff  # from a subfolder, too
    git(repo, "checkout", "-q", "--", "model.py")
    patch = subprocess.run(["git", "apply", str(run_dir / "git.diff")], cwd=repo)
    assert patch.returncode == 0 and (repo / "model.py").read_text() == "lr = 2\n"


def test_a_clean_repository_has_no_diff(repo: Path, run_dir: Path) -> None:
    write_provenance(run_dir, "", [])
    state = json.loads((run_dir / "git.json").read_text())
    assert state["dirty"] is False and state["diff"] is None and not (run_dir / "git.diff").exists()


def test_a_repository_without_commits(tmp_path: Path, run_dir: Path) -> None:
    git(tmp_path, "init", "-q")
    state = git_state(tmp_path, run_dir / "git.diff")
    assert state is not None and state["commit"] is None and state["diff"] is None


def test_outside_a_repository_there_are_no_git_files(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    write_provenance(run_dir, "", [])
    assert sorted(path.name for path in run_dir.iterdir()) == [
        "config.yaml",
        "overrides.yaml",
        "versions.json",
    ]


@pytest.mark.parametrize("script", ["#!/bin/sh\nsleep 20\n", "#!/bin/sh\nexit 3\n", None])
def test_git_that_hangs_fails_or_is_missing(
    script: str | None, tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    if script:
        (tools / "git").write_text(script)
        (tools / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}/bin" if script and "sleep" in script else str(tools))
    started = time.perf_counter()
    write_provenance(run_dir, "a: 1", [])
    assert time.perf_counter() - started < 5.0  # the limit is 1 s; a busy machine takes longer
    assert not (run_dir / "git.json").exists() and (run_dir / "versions.json").exists()


def test_a_huge_diff_is_cut(repo: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtrain.monitor.provenance.MAX_DIFF_BYTES", 100)
    (repo / "model.py").write_text("x = 1\n" * 1000)
    state = git_state(repo, run_dir / "git.diff")
    assert state is not None and (run_dir / "git.diff").stat().st_size == 100
    assert "cut to 100" in state["problems"][0]


def test_no_environment_variable_is_kept(repo: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "hunter2-hunter2")
    write_provenance(run_dir, "", [])
    for path in run_dir.iterdir():
        assert "hunter2" not in path.read_text() and "MY_API_KEY" not in path.read_text()


def test_summary_is_strict_json(run_dir: Path) -> None:
    numbers = {
        "return_mean": math.nan,
        "a": np.float32(0.5),
        "b": {"c": [math.inf, np.int64(3)]},
        "run_dir": run_dir,
    }
    path = write_summary(run_dir, numbers)
    back = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert back == {"return_mean": None, "a": 0.5, "b": {"c": [None, 3]}, "run_dir": str(run_dir)}


def test_a_failed_write_leaves_the_old_file(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case RES-04, for the files of this room."""
    atomic_write(run_dir / "x.json", "old")

    def fail(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(record.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        atomic_write(run_dir / "x.json", "new and longer")
    assert (run_dir / "x.json").read_text() == "old"
    assert [path.name for path in run_dir.iterdir()] == ["x.json"]


@pytest.mark.skipif(os.name == "nt", reason="file modes are POSIX's")
def test_files_are_as_readable_as_any_other(run_dir: Path) -> None:
    atomic_write(run_dir / "a", "")
    (run_dir / "b").write_text("")
    assert (run_dir / "a").stat().st_mode == (run_dir / "b").stat().st_mode


def test_final_report_tells_what_was_reached_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "outputs" / "my run"
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1.h").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(record, "_program", lambda name: name)
    text = final_report(SUMMARY, folder)
    assert text.splitlines()[0] == "a2c on CartPole-v1, seed 3: finished"
    for part in (
        "473.5 ± 21.2",
        "500.0 ± 0.0   (100 episodes)",
        "3,000 in 3 iterations, 42 episodes",
        "1 min 32 s   (3,261 steps/s)",
        "tensorboard --logdir 'outputs/my run'",
        "pgtrain eval 'outputs/my run'",
    ):
        assert part in text
    assert "skipped" not in text and "error" not in text
    named = SUMMARY | {"env": "my_pkg:E-v0", "policy": "my_nets:Wide"}
    assert "eval 'outputs/my run' env=my_pkg:E-v0 policy=my_nets:Wide" in final_report(named, folder)


def test_final_report_of_a_run_that_ended_early(tmp_path: Path) -> None:
    summary = {
        "status": "failed",
        "algo": "a2c",
        "env": "E-v0",
        "seed": 0,
        "return_mean": math.nan,
        "steps": 10,
    }
    text = final_report({**summary, "error": "env 3\ndied", "skipped_updates": 2}, tmp_path)
    assert "no episode ended" in text and "env 3 died" in text and "final evaluation" not in text
    assert "2   (loss or gradient not finite" in text
    assert "tensorboard" not in text  # it wrote no event file


def test_programs_are_named_so_that_a_shell_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name in ("python", "tensorboard"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tools / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert record._program("tensorboard") == str(Path(".venv") / "bin" / "tensorboard")
    monkeypatch.setenv("PATH", str(tools))
    assert record._program("tensorboard") == "tensorboard"
    assert record._program("pgtrain") == "pgtrain"
