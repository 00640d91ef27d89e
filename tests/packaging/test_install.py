"""The console script works from any folder, installed from the wheel and from a checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = ["num_envs=2", "horizon=8", "total_steps=32", "eval.episodes=2", "monitor.terminal=plain"]


def call(*command: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command outside the repository, without the PYTHONPATH of the tests."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env={**clean, **env}, capture_output=True, text=True, timeout=240
    )


def ok(*command: object, cwd: Path) -> str:
    done = call(*command, cwd=cwd)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    ok(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (path,) = folder.glob("pgtrain-*.whl")
    return path


@pytest.fixture(scope="module", params=["wheel", "checkout"])
def bin_dir(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new venv that has pgtrain of its own and sees the packages of the test env.

    A path in a .pth file is searched, but the .pth files in it are not read: an editable pgtrain there is
    not seen.
    """
    venv = tmp_path_factory.mktemp("venv")
    ok(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
    (site / "of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    what = [wheel] if request.param == "wheel" else ["--no-build-isolation", "-e", ROOT]
    python = venv / "bin" / "python"
    ok(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        *what,
        cwd=venv,
    )
    expected = site / "pgtrain" if request.param == "wheel" else ROOT / "pgtrain"
    found = ok(python, "-c", "import pgtrain; print(pgtrain.__file__)", cwd=venv).strip()
    assert Path(found).parent == expected
    assert (site / "pgtrain").exists() == (request.param == "wheel"), (
        "an editable install leaves no copy of conf"
    )
    return venv / "bin"


def test_the_wheel_holds_every_config_and_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    configs = {f"pgtrain/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "pgtrain").rglob("*.py")}
    assert "pgtrain/conf/config.yaml" in configs
    assert configs | modules <= names
    others = {name for name in names - configs - modules if ".dist-info/" not in name}
    assert not others, "only the package and its configs belong in the wheel"
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_help_from_another_folder(bin_dir: Path, tmp_path: Path) -> None:
    printed = ok(bin_dir / "pgtrain", "--help", cwd=tmp_path)
    for word in ("reinforce", "a2c", "CartPole-v1"):
        assert word in printed


def test_two_iterations_from_another_folder(bin_dir: Path, tmp_path: Path) -> None:
    """Trains, writes below the current folder, and evaluates the result."""
    ok(bin_dir / "pgtrain", "algo=a2c", "env=CartPole-v1", *TINY, cwd=tmp_path)
    (path,) = (tmp_path / "outputs").rglob("summary.json")
    summary = json.loads(path.read_text())
    assert (summary["status"], summary["iterations"], summary["steps"]) == ("finished", 2, 32)
    ok(bin_dir / "pgtrain", "eval", path.parent, "episodes=2", cwd=tmp_path)
    assert json.loads((path.parent / "evaluation.json").read_text())["episodes"] == 2


def test_an_env_of_a_module_in_the_current_folder(bin_dir: Path, tmp_path: Path) -> None:
    """A console script does not have this folder on sys.path by itself. Evaluation asks before it imports."""
    (tmp_path / "my_pkg.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gym.register('MyEnv-v0', entry_point=CartPoleEnv, max_episode_steps=50)\n"
    )
    ok(bin_dir / "pgtrain", "algo=a2c", "env=my_pkg:MyEnv-v0", *TINY, "hydra.run.dir=here", cwd=tmp_path)
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["steps"] == 32
    refused = call(bin_dir / "pgtrain", "eval", "here", "episodes=2", cwd=tmp_path)
    assert refused.returncode == 2
    assert "env=my_pkg:MyEnv-v0" in refused.stderr
    ok(bin_dir / "pgtrain", "eval", "here", "episodes=2", "env=my_pkg:MyEnv-v0", cwd=tmp_path)
