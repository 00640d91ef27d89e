"""What a user's code raised is told in one line, with the file and line it came from."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from pgtrain.envs.registry import find_spec
from pgtrain.envs.vector import VectorEnv, make_vector_env
from pgtrain.faults import import_module
from pgtrain.policies.registry import find_policy
from pgtrain.types import TrainingError, UserError

LEAVES = '''
import sys
import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Leaves(gym.Env):
    """Calls sys.exit where it is told to."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def __init__(self, where):
        self.where = where
        if where == "made":
            sys.exit("no licence")

    def reset(self, *, seed=None, options=None):
        if self.where == "reset":
            sys.exit("no licence")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        sys.exit("no licence")


gym.register("Test/Leaves-v0", entry_point=Leaves)
'''


def play(env: VectorEnv, steps: int) -> None:
    with env:
        env.reset(0)
        for _ in range(steps):
            env.step(np.zeros(env.num_envs, np.int64))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\ny = 1 / 0\n", "ZeroDivisionError: division by zero (own_code.py:2)"),
        ("x = (\n", "SyntaxError: '(' was never closed (own_code.py, line 1)"),
        ("import sys\nsys.exit(3)\n", "its code called sys.exit(3) (own_code.py:2)"),
        (
            "import sys\n\nsys.exit('usage:\\n  x')\n",
            "its code called sys.exit('usage:\\n  x') (own_code.py:3)",
        ),
        ("raise ValueError('two\\nlines')\n", "ValueError: two lines (own_code.py:1)"),
        (
            "import json\n\njson.loads('{')\n",
            "(own_code.py:3)",
        ),  # the line that called, not one of the library's
        ("import numpy as np\nnp.ones(2) @ np.ones(3)\n", "(own_code.py:2)"),
        ("import no_such_package\n", ": No module named 'no_such_package'"),
    ],
)
def test_a_module_that_cannot_be_imported(home: Path, source: str, expected: str) -> None:
    (home / "own_code.py").write_text(source)
    sys.modules.pop("own_code", None)
    for setting, find in (("env=own_code:X-v0", find_spec), ("policy=own_code:Net", find_policy)):
        with pytest.raises(UserError) as caught:
            find(setting.partition("=")[2])
        text = str(caught.value)
        assert text.startswith(f"{setting}: cannot import 'own_code': ") and "\n" not in text
        assert expected in text and "looked for" not in text


def test_a_module_that_is_not_there(home: Path) -> None:
    with pytest.raises(
        UserError, match=r"^x=1: cannot import 'nowhere.at': .*looked for in the current folder"
    ):
        import_module("nowhere.at", "x=1")


def test_what_pgtrain_itself_finds_has_no_place() -> None:
    env = make_vector_env("tests.envs_for_tests:Test/ShapeChange-v0", 1)
    env.reset(0)
    with pytest.raises(TrainingError, match=r"expected shape \(2,\), got \(3,\)$"):
        play(env, 6)


def test_a_place_outside_the_current_folder_is_told_in_full(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "own_code.py").write_text("1 / 0\n")
    (home / "sub").mkdir()
    monkeypatch.chdir(home / "sub")
    sys.modules.pop("own_code", None)
    with pytest.raises(UserError, match=str(home / "own_code.py:1")):
        import_module("own_code", "env=own_code:X")


@pytest.mark.parametrize("backend", ["auto", "sync", "process"])
@pytest.mark.parametrize("where", ["made", "reset", "step"])
def test_an_env_that_calls_exit_ends_nothing_without_a_word(home: Path, backend: str, where: str) -> None:
    (home / "leaving.py").write_text(LEAVES)
    sys.modules.pop("leaving", None)
    gym.registry.pop("Test/Leaves-v0", None)
    env_id, line = "leaving:Test/Leaves-v0", {"made": 16, "reset": 20, "step": 24}[where]
    with pytest.raises(UserError if where == "made" else TrainingError) as caught:
        play(make_vector_env(env_id, 4, kwargs={"where": where}, backend=backend), 1)
    text = str(caught.value)
    assert text.startswith(f"env={env_id}") and "\n" not in text
    assert text.endswith(f"its code called sys.exit('no licence') (leaving.py:{line})")
