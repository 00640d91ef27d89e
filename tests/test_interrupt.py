"""Ctrl-C and SIGTERM: the handler by itself, and whole runs in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pgtrain import checkpoint
from pgtrain.interrupt import Interrupt, Interrupted
from tests.support import env_id

ROOT = Path(__file__).parents[1]
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)


# ------------------------------------------------------------------------------------------------- the handler


@pytest.mark.parametrize(("signum", "code"), SIGNALS)
def test_while_an_env_is_stepped_a_signal_ends_it_at_once(signum: int, code: int) -> None:
    with Interrupt() as interrupt:
        assert interrupt.exit_code == 0 and not interrupt.requested
        with pytest.raises(Interrupted), interrupt.stepping():
            send(signum)  # raises here: nothing more of the block would run
        assert interrupt.requested and interrupt.exit_code == code
        with pytest.raises(Interrupted), interrupt.stepping():
            pytest.fail("stepping began after the signal")


@pytest.mark.parametrize(("signum", "code"), SIGNALS)
def test_elsewhere_a_signal_is_only_noted(signum: int, code: int) -> None:
    with Interrupt() as interrupt:
        with interrupt.stepping():
            pass
        send(signum)
        assert interrupt.requested and interrupt.exit_code == code


def test_a_signal_on_the_way_into_stepping_is_not_lost() -> None:
    class Late(Interrupt):
        """The signal arrives just as `stepping` has looked whether there was one."""

        @property
        def requested(self) -> bool:
            was = self.signum is not None
            if not was:
                send(signal.SIGINT)
            return was

    interrupt = Late()
    previous = signal.signal(signal.SIGINT, lambda *_: _once(interrupt))
    try:
        with pytest.raises(Interrupted), interrupt.stepping():
            pytest.fail("an env that hangs would now hang for good")
    finally:
        signal.signal(signal.SIGINT, previous)


def _once(interrupt: Interrupt) -> None:
    """What the handler does with a first signal."""
    interrupt.signum = signal.SIGINT
    if interrupt._stepping:
        raise Interrupted


def test_a_second_signal_is_the_ordinary_keyboard_interrupt() -> None:
    with Interrupt():
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_once_the_run_ends_a_second_signal_only_cuts_waiting_short(signum: int) -> None:
    with Interrupt() as interrupt:
        with pytest.raises(Interrupted), interrupt.stepping():
            send(signum)
        send(signum)  # the record is being written: noted
        done: list[str] = []
        with interrupt.waiting():
            done.append("waits")
            send(signum)
            done.append("waits on")
        send(signum)
    assert done == ["waits"] and interrupt.exit_code == 128 + signum


def test_what_is_written_is_written_whole() -> None:
    with Interrupt() as interrupt:
        send(signal.SIGINT)  # in an update: the iteration goes on
        with interrupt.held():
            send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_no_env_can_swallow_it() -> None:
    with (
        Interrupt() as interrupt,
        pytest.raises(Interrupted),
        interrupt.stepping(),
        contextlib.suppress(Exception),
    ):
        send(signal.SIGINT)


def test_the_former_handlers_come_back() -> None:
    before = [signal.getsignal(s) for s, _ in SIGNALS]
    with pytest.raises(ZeroDivisionError), Interrupt():
        _ = 1 / ([signal.getsignal(s) for s, _ in SIGNALS] == before)  # by 0: the handlers are others now
    assert [signal.getsignal(s) for s, _ in SIGNALS] == before


def test_in_another_thread_it_does_nothing() -> None:
    seen: list[Any] = []

    def work() -> None:
        before = signal.getsignal(signal.SIGINT)
        with Interrupt() as interrupt, interrupt.stepping():
            seen.append(signal.getsignal(signal.SIGINT) == before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]


# ------------------------------------------------------------------------------------------------ whole runs


@contextlib.contextmanager
def run(folder: Path, *overrides: str) -> Iterator[subprocess.Popen[str]]:
    code = "import sys; from pgtrain.cli import main; sys.exit(main())"
    settings = [
        *overrides,
        f"hydra.run.dir={folder}",
        "total_steps=1000000000",
        "monitor.terminal=none",
        "monitor.log_every=1",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *settings, "monitor.tensorboard=false"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> Any:
    for _ in range(1200):
        if result := condition():
            return result
        if process is not None and process.poll() is not None:
            pytest.fail(f"the run ended: {process.communicate()}")
        time.sleep(0.05)
    pytest.fail("waited a minute in vain")


def lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def children(pid: int) -> list[int]:
    """All processes below `pid` (Linux)."""
    try:
        direct = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return direct + [x for child in direct for x in children(child)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def check_end(folder: Path, process: subprocess.Popen[str], code: int, workers: list[int]) -> dict[str, Any]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, (out, err)
    assert "Traceback" not in out + err and "Traceback" not in (folder / "run.log").read_text()
    told = json.loads((folder / "summary.json").read_text())
    assert told["status"] == "interrupted" and told["error"] is None
    state, warning = checkpoint.load(folder)
    assert warning is None and state["runner"]["progress"]["steps"] == told["steps"]
    assert "interrupted" in (folder / "run.log").read_text()
    wait_for(lambda: not any(map(alive, workers)))
    return told


def test_ctrl_c_before_the_first_episode_ends(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with run(folder, "algo=reinforce", f"env={env_id('NeverEnds')}") as process:
        wait_for(lambda: lines(folder / "run.log"), process)
        process.send_signal(signal.SIGINT)
        told = check_end(folder, process, 130, [])
    assert told["iterations"] == 0 and told["return_mean"] is None


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for the workers in /proc")
def test_sigterm_ends_a_run_with_workers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = [
        "algo=a2c",
        f"env={env_id('SeedNoise')}",
        "env.backend=process",
        "env.workers=2",
        "num_envs=2",
    ]
    with run(folder, *settings) as process:
        wait_for(lambda: lines(folder / "metrics.jsonl") >= 2, process)
        workers = children(process.pid)
        assert len(workers) >= 2
        process.send_signal(signal.SIGTERM)
        told = check_end(folder, process, 143, workers)
    assert told["iterations"] >= 2 and told["steps"] >= told["iterations"] * 32


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for the workers in /proc")
def test_ctrl_c_while_an_env_hangs(tmp_path: Path) -> None:
    """Step 9 of each episode sleeps for an hour: the second window of 8 rows never comes back."""
    folder = tmp_path / "run"
    settings = [
        "algo=a2c",
        f"env={env_id('Hangs')}",
        "env.backend=process",
        "env.workers=2",
        "num_envs=2",
        "horizon=8",
    ]
    with run(folder, *settings) as process:
        wait_for(lambda: lines(folder / "metrics.jsonl"), process)
        workers = children(process.pid)
        time.sleep(0.3)  # into the hanging step, most likely; right whether or not it is there yet
        process.send_signal(signal.SIGINT)
        told = check_end(folder, process, 130, workers)
    assert told["iterations"] == 1


@pytest.mark.slow
def test_kill_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = [
        "algo=a2c",
        f"env={env_id('SeedNoise')}",
        "checkpoint.every_steps=1",
        "num_envs=2",
        "horizon=2",
    ]
    with run(folder, *settings) as process:
        wait_for(lambda: lines(folder / "metrics.jsonl") >= 20, process)
        process.kill()
        process.wait()
    state, _ = checkpoint.load(folder)
    assert state["runner"]["progress"]["steps"] >= 4 * 19
