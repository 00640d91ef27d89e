"""`pgtrain resume`: which runs go on, with which settings, what becomes of their files, and what is told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pgtrain
from pgtrain import checkpoint, training
from pgtrain.cli import main
from pgtrain.config.compose import compose, from_yaml
from pgtrain.envs.sync import SyncEnv
from pgtrain.monitor import record
from pgtrain.monitor.sinks.jsonl import cut_after
from pgtrain.types import UserError
from tests.support import env_id

QUIET = ["monitor.terminal=none", "monitor.tensorboard=false", "eval.episodes=0"]
SMALL = [
    "algo=a2c",
    "env=CartPole-v1",
    "num_envs=4",
    "horizon=8",
    "total_steps=320",
    "policy.hidden=[8]",
    *QUIET,
]


def train(folder: Path, *changes: str) -> training.Result:
    given = {text.partition("=")[0]: text for text in [*SMALL, *changes]}
    folder.mkdir()
    return training.train(compose(list(given.values())).config, folder, list(given.values()))


def entries(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def log(folder: Path) -> str:
    return (folder / "run.log").read_text()


def rewrite(folder: Path, **changes: Any) -> None:
    """Changes the checkpoint of a run."""
    path = folder / "checkpoint.pt"
    torch.save(torch.load(path, weights_only=True) | changes, path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train(folder, "optim/lr=linear", "monitor.log_every=1")
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to be changed."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


# ------------------------------------------------------------------------------------------------ killed, still going


def test_a_killed_run_goes_on_without_a_gap_or_a_double_step(tmp_path: Path) -> None:
    """While it lives, it is refused. Killed, it goes on from its checkpoint: each step once in every record."""
    folder = tmp_path / "run"
    given = [
        *SMALL[:-3],
        "num_envs=16",
        "total_steps=60160",
        "checkpoint.every_steps=3000",
        "monitor.terminal=none",
    ]
    given = list({text.partition("=")[0]: text for text in given}.values())
    command = [sys.executable, "-m", "pgtrain", *given, "eval.episodes=2", f"hydra.run.dir={folder}"]
    process = subprocess.Popen(command)
    try:
        while not (folder / "checkpoint.1.pt").exists():
            assert process.poll() is None
            time.sleep(0.02)
        with pytest.raises(UserError, match="still going on in another process"):
            pgtrain.resume(folder)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (folder / "summary.json").exists()
    before = checkpoint.load(folder)[0]["runner"]["progress"]
    kept = [line for line in entries_of_whole_lines(folder) if line["step"] <= before["steps"]]
    summary = pgtrain.resume(folder).summary
    assert summary["status"] == "finished" and summary["steps"] == 60160 and summary["eval_episodes"] == 2
    rows = entries(folder)
    assert rows[: len(kept)] == kept and before["steps"] > 0
    steps, elapsed = [row["step"] for row in rows], [row["elapsed"] for row in rows]
    assert steps == sorted(set(steps)) and elapsed == sorted(elapsed)
    assert sum(row["episode/count"] for row in rows) == summary["episodes"]
    events = EventAccumulator(str(folder), {"scalars": 0}).Reload()
    assert len(list(folder.glob("events.out.tfevents.*"))) == 2
    for tag in ("progress/iteration", "loss/actor", "policy/entropy"):
        points = [point.step for point in events.Scalars(tag)]
        assert points == sorted(set(points)), tag
        assert points[0] < before["steps"] < points[-1]
    iterations = [(point.step, point.value) for point in events.Scalars("progress/iteration")]
    assert all(step == 128 * value for step, value in iterations)


def entries_of_whole_lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def test_a_folder_is_busy_for_others_until_its_run_is_over(tmp_path: Path) -> None:
    with record.busy(tmp_path), pytest.raises(UserError, match="still going on"), record.busy(tmp_path):
        pass
    with record.busy(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_entries_after_a_step_are_set_aside(tmp_path: Path) -> None:
    assert cut_after(tmp_path, 5) == 0
    path, aside = tmp_path / "metrics.jsonl", tmp_path / "metrics.discarded.jsonl"
    early = '{"step": 1, "x": null}\nno entry\n{"step": 5}\n'
    path.write_text(early + '{"step": 6}\n{"step": 7, "x": 0.1')
    assert cut_after(tmp_path, 5) == 1
    assert path.read_text() == early and aside.read_text() == '{"step": 6}\n'
    path.write_text(early + '{"step": 8}\n')
    assert cut_after(tmp_path, 5) == 1 and cut_after(tmp_path, 5) == 0
    assert path.read_text() == early and aside.read_text() == '{"step": 6}\n{"step": 8}\n'


# ------------------------------------------------------------------------------------------------ longer


def test_a_finished_run_is_trained_longer(run: Path) -> None:
    before = json.loads((run / "summary.json").read_text())
    with pytest.raises(
        UserError, match=r"the run is finished \(320 steps\); to train it longer give total_steps=N"
    ):
        pgtrain.resume(run)
    result = pgtrain.resume(run, "monitor.log_every=2", total_steps=640)
    assert result.run_dir == run.resolve() and result.exit_code == 0
    assert (result.summary["status"], result.summary["steps"]) == ("finished", 640)
    for key in ("wall_seconds", "cpu_seconds"):
        assert result.summary[key] > before[key]
    rows = entries(run)
    assert [row["step"] for row in rows] == [*range(32, 321, 32), *range(384, 641, 64)]
    # the learning rate falls to 0 over total_steps: stretched, it jumps from near 0 to a half of its start
    rates = {row["step"]: row["schedule/learning_rate"] for row in rows}
    start = rates[32]
    assert rates[320] == pytest.approx(start * (1 - 288 / 320))
    assert rates[384] == pytest.approx(start * (1 - 352 / 640))
    assert "optim.lr (linear) follows the share of it that is done, which is now 50% instead of 100%" in log(
        run
    )
    assert "resume at step 320: a2c on CartPole-v1, seed 0, 640 steps" in log(run)
    assert from_yaml(run / "config.yaml").total_steps == 640
    typed = compose(read_overrides(run)).config
    assert (typed.total_steps, typed.monitor.log_every, typed.optim.lr.name) == (640, 2, "linear")
    (told,) = entries(run, "resumes.jsonl")
    assert (told["step"], told["overrides"]) == (320, ["monitor.log_every=2", "total_steps=640"])
    assert told["summary_before"]["steps"] == 320 and told["versions"]["packages"]["torch"]


def read_overrides(folder: Path) -> list[str]:
    import yaml

    return yaml.safe_load((folder / "overrides.yaml").read_text())


def test_a_run_whose_evaluation_was_cut_off_is_evaluated(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"status": "interrupted"}))
    result = pgtrain.resume(run, "eval.episodes=3")
    assert (result.summary["status"], result.summary["steps"]) == ("finished", 320)
    assert result.summary["eval_episodes"] == 3 and len(entries(run)) == 10


# ------------------------------------------------------------------------------------------------ failed, other envs


def test_a_run_that_its_env_ended_goes_on_with_new_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The env breaks in the 13th step of its life: each part makes one iteration of 8. No seed is used again."""
    seeds: list[int] = []
    reset = SyncEnv.reset

    def recorded(self: SyncEnv, seed: int) -> Any:
        seeds.append(seed)
        return reset(self, seed)

    monkeypatch.setattr(SyncEnv, "reset", recorded)
    folder, name = tmp_path / "run", env_id("Raises")
    with pytest.raises(Exception, match="broken at"):
        train(folder, f"env={name}", "reward.scaling=running_std")
    assert f"to go on from its checkpoint: {record.call('resume', folder, {'env': name})}" in log(folder)
    first = json.loads((folder / "summary.json").read_text())
    assert (first["status"], first["iterations"]) == ("failed", 1)
    with pytest.raises(
        UserError, match=rf"imports the module tests.envs_for_tests; repeat env={name} if you trust"
    ):
        pgtrain.resume(folder)
    for part in (2, 3):
        with pytest.raises(Exception, match="broken at"):
            pgtrain.resume(folder, env=name)
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["status"], summary["iterations"]) == ("failed", part)
    assert (
        "env.backend=sync: these envs cannot go on in the middle of an episode; all begin a new one"
        in log(folder)
    )
    # each part resets with the run's seed when it is built; a resumed one then with one of its own
    assert len(seeds) == 5 and seeds[0] == seeds[1] == seeds[3] and len(set(seeds)) == 3


def test_new_episodes_leave_nothing_of_the_old_ones(tmp_path: Path) -> None:
    """Memory, discounted returns and tallies belong to episodes that are gone."""
    from pgtrain.config import convert

    folder = tmp_path / "run"
    given = [
        "policy/memory=gru",
        "policy.memory.size=4",
        "reward.scaling=running_std",
        f"env={env_id('SeedNoise')}",
    ]
    train(folder, *given)
    state = checkpoint.load(folder)[0]
    cfg = convert.from_dict(state["config"])
    from tests.support import make_runner

    runner, _ = make_runner(cfg, tmp_path)
    runner.load_state_dict(state["runner"])
    scaler: Any = runner.reward_scaler
    actor: Any = runner.collector.actor
    assert float(scaler.accumulator.abs().sum()) > 0
    actor.start[:] = False
    runner.restart_episodes(7)
    assert float(scaler.accumulator.abs().sum()) == 0 and actor.start.all()
    collector: Any = runner.collector
    assert collector.episodes.partial_length.sum() == 0
    assert (collector.obs == collector.env.reset(7)).all()


def test_a_run_goes_on_on_another_backend(run: Path) -> None:
    result = pgtrain.resume(run, "env.backend=sync", total_steps=640)
    assert result.summary["steps"] == 640 and "env.backend=sync: these envs cannot go on" in log(run)
    back = pgtrain.resume(run, "env.backend=native", total_steps=960)
    assert back.summary["steps"] == 960 and "env.backend=native: these envs cannot go on" in log(run)


def test_what_is_measured_of_the_gradient_may_change(run: Path) -> None:
    pgtrain.resume(run, "monitor.gradient=full", "monitor.gradient_every=1", total_steps=640)
    assert "gradient/snr" not in entries(run)[9] and "gradient/snr" in entries(run)[10]
    assert pgtrain.resume(run, "monitor=default", total_steps=960).summary["steps"] == 960
    assert "gradient/snr" not in entries(run)[-1]


def test_a_run_given_up_for_skipped_updates_gets_another_chance(run: Path) -> None:
    state = checkpoint.load(run)[0]["runner"]
    state["progress"] |= {"skipped_in_a_row": 10, "steps": 160}
    rewrite(run, runner=state)
    assert pgtrain.resume(run).summary["status"] == "finished"
    assert checkpoint.load(run)[0]["runner"]["progress"]["skipped_in_a_row"] == 0


@pytest.mark.parametrize("algo", ["a2c", "npg"])
def test_on_another_device_random_numbers_begin_anew(tmp_path: Path, algo: str) -> None:
    """As if the checkpoint came from a GPU, whose generators have a state of another form."""
    run = tmp_path / "run"
    train(run, f"algo={algo}", "update.epochs=1" if algo == "a2c" else "update.critic_epochs=1")
    runner = checkpoint.load(run)[0]["runner"]
    was = runner["collector"]["actor"].pop("numpy")
    runner["collector"]["actor"]["torch"] = torch.zeros(16, dtype=torch.uint8)
    update = runner["update"] if algo == "a2c" else runner["update"]["critic"]
    minibatches = update["minibatch_rng"]
    update["minibatch_rng"] = torch.zeros(16, dtype=torch.uint8)
    rewrite(run, runner=runner | {"device": "cuda"})
    assert pgtrain.resume(run, total_steps=640).summary["steps"] == 640
    assert "device=cpu in place of cuda: random numbers begin anew" in log(run)
    runner = checkpoint.load(run)[0]["runner"]
    update = runner["update"] if algo == "a2c" else runner["update"]["critic"]
    assert runner["device"] == "cpu" and runner["collector"]["actor"]["numpy"] != was
    assert len(update["minibatch_rng"]) == len(minibatches)


@pytest.mark.parametrize("given", [["algo=shac"], ["num_envs=1025", "horizon=1", "total_steps=1025"]])
def test_a_task_in_torch_stays_on_its_device(tmp_path: Path, given: list[str]) -> None:
    run = tmp_path / "run"
    train(run, "env=pgtrain/Pendulum-v0", *given)
    rewrite(run, runner=checkpoint.load(run)[0]["runner"] | {"device": "cuda"})
    with pytest.raises(UserError, match="computed its envs on cuda, where it has to go on; give device=cuda"):
        pgtrain.resume(run, total_steps=6400)


# ------------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["seed=3"], "seed=3: a run goes on with what it began with, seed=0; start a new run for another value"),
        (["algo=ppo"], "algo=ppo: a run goes on with what it began with, algo=a2c"),
        (["env=Acrobot-v1"], "env=Acrobot-v1: a run goes on with what it began with, env.id=CartPole-v1"),
        (["optim/lr=constant"], "a run goes on with what it began with, optim.lr.name=linear"),
        (["optim.lr.value=1"], "What may change: total_steps, monitor.*"),
        (["device.ranks=2"], "device.ranks=2: a run goes on with what it began with, device.ranks=1"),
        (["totl_steps=1e6"], "totl_steps=1e6: the run has no setting 'totl_steps'. Did you mean total_steps?"),
        (["monitor.log_evry=1"], "Did you mean monitor.log_every?"),
        (["update.epochs.x=1"], "the run has no setting 'update.epochs.x'"),
        (["total_steps=x"], "total_steps=x: must be a whole number"),
        (["total_steps=320"], "the run is finished (320 steps)"),
        (["total_steps=100"], "total_steps=100: the run has made 320 steps already; give more"),
        (["total_steps=1e6", "env.workers=9"], "env.workers=9"),
        (["total_steps=1e3,1e4"], "several values are a sweep"),
        (["+total_steps=1e3"], "+total_steps=1e3: settings of a run that goes on are written key=value"),
        (["hydra.run.dir=x"], "hydra.run.dir=x: belongs to a new run"),
        (["total_steps=1e6", "env=my_pkg:CartPole-v1"], "env=my_pkg:CartPole-v1: a run goes on with"),
    ],
)  # fmt: skip
def test_what_cannot_change_is_told_in_one_line(
    finished: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in finished.iterdir()}
    assert main(["resume", str(finished), *words]) == 2
    text = capsys.readouterr().err
    assert told in text and text.count("\n") == 1
    assert before == {path.name: path.stat().st_mtime_ns for path in finished.iterdir()}


def test_what_is_no_run_is_told_in_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*words: str) -> str:
        assert main(["resume", *words]) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        return text

    assert "no run is given; expected: pgtrain resume RUN" in told()
    assert "more than one run is given (a, b)" in told("a", "b")
    assert "nowhere: no such run folder" in told("nowhere")
    assert f"is no run folder (it has no config.yaml); runs in it: {run}" in told(
        str(run.parent)
    )  # a sweep's folder
    assert "is a file; expected the run folder" in told(str(run / "run.log"))
    state = checkpoint.load(run)[0]
    rewrite(run, pgtrain="0.0.1")
    assert "the checkpoint was written by pgtrain 0.0.1, this is pgtrain" in told(str(run), "total_steps=640")
    torch.save({"format": 1, "config": state["config"], "runner": {}}, run / "checkpoint.pt")
    assert "was written by an older pgtrain" in told(str(run))
    rewrite(run, pgtrain=pgtrain.__version__)
    assert "the checkpoint lacks what a run needs to go on ('progress')" in told(str(run))
    runner = state["runner"] | {"update": {}}
    rewrite(run, **(state | {"runner": runner}))
    assert "the checkpoint does not fit env=CartPole-v1" in told(str(run), "total_steps=640")
    (run / "checkpoint.pt").write_bytes(b"x")
    (run / "checkpoint.1.pt").unlink(missing_ok=True)
    assert "no checkpoint in" in told(str(run), "total_steps=640")
    (run / "checkpoint.pt").unlink()
    assert "holds no checkpoint" in told(str(run))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert "not under torchrun" in told(str(run))


def test_a_damaged_newest_checkpoint_is_passed_over_and_told(run: Path) -> None:
    pgtrain.resume(run, total_steps=640)
    (run / "checkpoint.pt").write_bytes(b"x")
    result = pgtrain.resume(run)  # checkpoint.1.pt is of step 320
    assert result.summary["steps"] == 640  # as last asked for, not the 320 in that checkpoint
    assert "checkpoint.pt: " in log(run) and "using the older" in log(run)
    assert (run / "checkpoint.discarded.pt").read_bytes() == b"x"
    assert entries(run, "resumes.jsonl")[-1]["set_aside"] == ["checkpoint.discarded.pt"]


def test_the_command_prints_its_help_and_the_report(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", "--help"]) == 0 and "pgtrain resume RUN" in capsys.readouterr().out
    assert main(["resume", str(run), "total_steps=640", "seed=0", "monitor=quiet"]) == 0
    text = capsys.readouterr().out
    assert "a2c on CartPole-v1, seed 0: finished" in text and "640 in" in text and "resume" not in text


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    summary = {"status": "interrupted", "env": "my_pkg:MyEnv-v0", "policy": "mlp"}
    assert f"pgtrain resume {tmp_path} env=my_pkg:MyEnv-v0" in record.final_report(summary, tmp_path)
    assert "pgtrain resume" not in record.final_report(summary | {"status": "finished"}, tmp_path)


def test_interrupted_before_it_could_go_on_a_run_stays_as_it_is(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgtrain import origin

    def interrupted(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")

    names = {path.name: path.read_bytes() for path in run.iterdir() if path.name != "run.log"}
    monkeypatch.setattr(origin.Resumed, "restore", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pgtrain.resume(run, total_steps=640)
    assert names == {path.name: path.read_bytes() for path in run.iterdir() if path.name != "run.log"}


def test_a_run_older_than_a_setting_goes_on_with_its_default(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    assert text.count("  threads: null\n") == 1
    (run / "config.yaml").write_text(text.replace("  threads: null\n", ""))
    kept = checkpoint.load(run)[0]["config"]
    kept["env"].pop("threads")
    rewrite(run, config=kept)
    assert pgtrain.resume(run, total_steps=640).summary["steps"] == 640
