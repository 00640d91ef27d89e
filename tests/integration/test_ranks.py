"""Ranks as processes, over gloo and the loopback interface: whole runs, and runs that end badly."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pgtrain
from pgtrain import build, checkpoint, launch, origin
from pgtrain.collector import Collector
from pgtrain.distributed import Ranks
from pgtrain.types import TrainingError

ROOT = Path(__file__).parents[2]
QUIET = ["monitor.terminal=none", "monitor.tensorboard=false", "num_envs=4", "device.ranks=2"]
ON_RANK_1 = "env=tests.rank_envs:Test/OnRank1-v0"
# rank 0 has envs 0 and 1 of the run; each episode lasts 8 steps
WHERE = r"env=tests\.rank_envs:Test/OnRank1-v0, env index 2, at step 30 \(step 6 of episode 4\)"


def exchange(ranks: Ranks, folder: str) -> None:
    """Each rank writes down what it got from the others."""
    numbers = torch.tensor([1.5, 2.5]) * (ranks.rank + 1)
    first = numbers.clone()
    ranks.copy_from_first_(first)
    got: list[Any] = [
        ranks.gather(f"I am {ranks.rank}"),
        [len(text) for text in ranks.gather("x" * 5000 * ranks.rank)],  # longer than a short message
        ranks.gather_tensor(numbers).tolist(),
        ranks.sum_(numbers.clone()).tolist(),
        first.tolist(),
        [ranks.first(ranks.leads), ranks.first(not ranks.leads)],
        ranks.minibatches(10 + 90 * ranks.rank, 11),
    ]
    Path(folder, f"{ranks.rank}.json").write_text(json.dumps(got))


def test_what_ranks_tell_each_other(tmp_path: Path) -> None:
    with launch.start(2, exchange, str(tmp_path)) as ranks:
        exchange(ranks, str(tmp_path))
    here, there = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert here == there
    assert here == [
        ["I am 0", "I am 1"], [0, 5000], [[1.5, 2.5], [3.0, 5.0]], [4.5, 7.5], [1.5, 2.5], [True, False], 10,
    ]  # fmt: skip
    assert not torch.distributed.is_initialized()


def test_a_run_of_two_ranks(tmp_path: Path) -> None:
    """Its summary counts the steps and episodes of both; only rank 0 writes; the policy can be played."""
    result = pgtrain.train(
        "algo=ppo", "env=CartPole-v1", *QUIET, "horizon=64", "total_steps=1100", "eval.episodes=2",
        "monitor.log_every=1", run_dir=tmp_path / "run",
    )  # fmt: skip
    summary = result.summary
    assert (summary["status"], summary["steps"], summary["iterations"]) == ("finished", 1100, 5)
    assert summary["eval_episodes"] == 2 and summary["skipped_updates"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    moments = result.policy.normalizer
    assert moments is not None and int(moments.count) == 1100
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["episode/count"] for row in rows) == summary["episodes"]
    # random play lasts about 20 steps: the episodes of one rank alone would be half as many
    assert summary["episodes"] > 1100 / 50
    observed = np.array([[0.0, 0.0, 0.0, 0.0]])
    assert pgtrain.load(tmp_path / "run").policy.prepare(torch.from_numpy(observed)).isfinite().all()


def test_a_run_of_two_ranks_goes_on(tmp_path: Path) -> None:
    """Parameters and statistics go on on both; what each rank draws, and its episodes, begin anew."""
    folder = tmp_path / "run"
    pgtrain.train(
        "algo=ppo", "env=CartPole-v1", *QUIET, "horizon=16", "total_steps=128", "eval.episodes=0",
        "update.minibatch_size=32", run_dir=folder,
    )  # fmt: skip
    before = checkpoint.load(folder)[0]["runner"]
    result = pgtrain.resume(folder, total_steps=256)
    assert (result.summary["status"], result.summary["steps"], result.summary["iterations"]) == (
        "finished",
        256,
        4,
    )
    assert (
        "device.ranks=2: random numbers and episodes of every rank begin anew"
        in (folder / "run.log").read_text()
    )
    after = checkpoint.load(folder)[0]["runner"]
    assert (
        int(before["policy"]["normalizer.count"]) == 128 and int(after["policy"]["normalizer.count"]) == 256
    )
    assert float(after["update"]["optimizer"]["count"]) == 2 * float(before["update"]["optimizer"]["count"])


def test_ranks_that_go_on_draw_numbers_of_their_own() -> None:
    state = {"collector": {"actor": {"numpy": {}}}, "update": {"critic": None, "minibatch_rng": None}}
    runner: Any = SimpleNamespace(collector=object.__new__(Collector))
    runner.collector.actor = SimpleNamespace(state_dict=lambda: {"numpy": {}})
    drawn = []
    for rank in range(2):
        made = origin.with_new_streams(state, runner, build.streams(0, rank))
        drawn.append((made["collector"]["actor"]["numpy"]["state"], made["update"]["minibatch_rng"].tolist()))
    assert drawn[0][0] != drawn[1][0] and drawn[0][1] != drawn[1][1]


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("raise", rf"^rank 1 failed: {WHERE}: ValueError: the bridge is out \(tests/rank_envs\.py:\d+\)$"),
        ("exit", rf"^rank 1 failed: {WHERE}: its code called sys.exit\(3\) \(tests/rank_envs\.py:\d+\)$"),
        ("die", r"^rank 1 died with exit code 9 after 58 steps of its envs$"),
    ],
)
def test_a_rank_that_ends_ends_the_run_with_one_line(tmp_path: Path, does: str, told: str) -> None:
    start = time.monotonic()
    with pytest.raises(TrainingError, match=told) as caught:
        pgtrain.train(
            "algo=reinforce", ON_RANK_1, f"env.kwargs.does={does}", *QUIET, "total_steps=4000", run_dir=tmp_path / "run"
        )  # fmt: skip
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 60
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    # three episodes in each of 4 envs, a fourth in those of rank 0, and 5 steps of it in each env of rank 1
    assert summary["status"] == "failed" and summary["steps"] == 4 * 24 + 2 * 8 + 2 * 5
    assert steps_of(tmp_path / "run") == summary["steps"]
    assert not torch.distributed.is_initialized()


def steps_of(folder: Path) -> int:
    return checkpoint.load(folder)[0]["runner"]["progress"]["steps"]


def alive(group: int) -> list[str]:
    """The processes of a group that still run (`ps` tells a dead one that nobody has asked after by a Z)."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True).stdout
    lines = [line.split(maxsplit=2) for line in listed.splitlines()]
    return [line[2] for line in lines if line[0] == str(group) and not line[1].startswith("Z")]


@contextlib.contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Python in a process group of its own, of which nothing is left."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        wait_for(lambda: not alive(process.pid))  # multiprocessing's tracker goes once its pipe is closed
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited a minute in vain"
        if process is not None and process.poll() is not None:
            pytest.fail(f"the run ended: {process.communicate()}")
        time.sleep(0.01)


@pytest.mark.parametrize("signals", [1, 2])
def test_signals_end_all_ranks_though_one_hangs(tmp_path: Path, signals: int) -> None:
    """Ctrl-C reaches the whole process group; rank 1 is in an env that does not answer. What it has played counts.

    A second one comes while rank 1 is waited for: the record is written all the same.
    """
    folder = tmp_path / "run"
    settings = ["algo=a2c", "horizon=32", ON_RANK_1, "env.kwargs.does=hang", f"env.kwargs.sign={tmp_path}/at"]
    with program(
        "-m", "pgtrain", *settings, *QUIET, "total_steps=100000", f"hydra.run.dir={folder}"
    ) as process:
        for rank in range(2):
            wait_for((tmp_path / f"at{rank}").exists, process)
        os.killpg(process.pid, signal.SIGINT)
        if signals == 2:
            wait_for((folder / "checkpoint.pt").exists)
            os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    # 29 steps in each of the 4 envs; rank 0 may have gone on to the end of its window
    assert 4 * 29 <= summary["steps"] <= 2 * 29 + 2 * 32
    assert steps_of(folder) == summary["steps"]


@pytest.mark.parametrize("setting", ["device.ranks=2", "env.workers=2"])
def test_a_script_without_a_guard_gets_one_line(tmp_path: Path, setting: str) -> None:
    script = tmp_path / "unguarded.py"
    settings = ["algo=a2c", "env=CartPole-v1", *QUIET[:3], setting]
    script.write_text(
        "import pgtrain\n"
        f"try:\n    pgtrain.train(*{settings}, run_dir={str(tmp_path / 'run')!r})\n"
        "except Exception as error:\n    print(error)\n"
    )
    with program(str(script)) as process:
        told, errors = process.communicate(timeout=120)
    assert errors == ""
    assert told.count("\n") == 1 and "could not start: each process imports the script" in told
    assert told.endswith("guard the script's entry point with: if __name__ == '__main__':\n")
    assert list(tmp_path.iterdir()) == [script]


KILLED = """
import os, signal
from pgtrain import checkpoint, launch

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    launch.Gloo = killed  # by now the other ranks have started, and look for rank 0
    launch.start(3, print)
"""


def test_when_rank_0_is_killed_the_others_end_with_one_line(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    with program(str(script)) as process:
        told, errors = process.communicate(timeout=120)  # until all have closed it
    assert process.returncode == -signal.SIGKILL
    assert (told, errors) == ("", "pgtrain: rank 0 is gone: the other ranks end\n")
