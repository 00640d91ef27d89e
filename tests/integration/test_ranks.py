"""Ranks as processes, over gloo and the loopback interface: whole runs, and runs that end badly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pgtrain
from pgtrain import build, checkpoint, launch, origin
from pgtrain.distributed import Ranks
from pgtrain.rollout import Collector
from pgtrain.types import TrainingError

ROOT = Path(__file__).parents[2]
QUIET = ["monitor.terminal=none", "monitor.tensorboard=false", "num_envs=4", "device.ranks=2"]
ON_RANK_1 = "env=tests.rank_envs:Test/OnRank1-v0"


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
    [("raise", r"rank 1 failed: .*the bridge is out"), ("die", r"rank 1 died with exit code 9")],
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
    assert summary["status"] == "failed" and summary["steps"] > 0
    assert (tmp_path / "run" / "checkpoint.pt").exists()
    assert not torch.distributed.is_initialized()


def alive(group: int) -> list[str]:
    """The processes of a group that still run (`ps` tells a dead one that nobody has asked after by a Z)."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True).stdout
    lines = [line.split(maxsplit=2) for line in listed.splitlines()]
    return [line[2] for line in lines if line[0] == str(group) and not line[1].startswith("Z")]


def test_a_signal_ends_all_ranks_though_one_hangs(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole process group; rank 1 is in an env that does not answer."""
    sign, folder = tmp_path / "hangs", tmp_path / "run"
    settings = ["algo=a2c", ON_RANK_1, "env.kwargs.does=hang", f"env.kwargs.sign={sign}", *QUIET]
    process = subprocess.Popen(
        [sys.executable, "-m", "pgtrain", *settings, "total_steps=100000", f"hydra.run.dir={folder}"],
        cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not sign.exists():
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        time.sleep(0.3)  # rank 0 comes to wait for rank 1
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    assert (folder / "checkpoint.pt").exists()
    end = time.monotonic() + 10  # multiprocessing's tracker goes once its pipe is closed
    while (left := alive(process.pid)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left
