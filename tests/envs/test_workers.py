"""The process backend: the same numbers as sync, no trace of its workers, and every death told."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import tests.envs_for_tests  # noqa: F401  # registers the ids
from pgtrain.envs.vector import VectorEnv, make_vector_env
from pgtrain.types import TrainingError, UserError

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parents[2]


def zeros(num_envs: int) -> np.ndarray:
    return np.zeros(num_envs, np.int64)


def play(env: VectorEnv, steps: int) -> None:
    for _ in range(steps):
        env.step(zeros(env.num_envs))


def no_workers_left() -> bool:
    end = time.monotonic() + 10
    while any(p.name.startswith("pgtrain-envs") for p in mp.active_children()) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(p.name.startswith("pgtrain-envs") for p in mp.active_children())


@pytest.mark.parametrize(
    ("env_id", "start_method"),
    [("tests.envs_for_tests:Test/SeedNoise-v0", "forkserver"), ("Test/DictMixed-v0", "spawn")],
)
def test_equals_the_sync_backend_in_every_number_idle_envs_too(env_id: str, start_method: str) -> None:
    """5 envs in 2 workers (3 + 2): resets, ends, final observations and a pause."""
    sync = make_vector_env(env_id, 5, backend="sync")
    rng = np.random.default_rng(0)
    with make_vector_env(env_id, 5, backend="process", workers=2, start_method=start_method) as process:
        assert process.notices == ["5 envs in 2 worker processes"]
        assert (process.obs_dim, process.obs_dtype) == (sync.obs_dim, sync.obs_dtype)
        first = process.reset(3)
        assert np.array_equal(first, sync.reset(3)) and not np.array_equal(first, process.reset(4))
        assert np.array_equal(process.reset(3), sync.reset(3))
        kept = []
        finals = 0
        for t in range(60):
            if t in (20, 40):
                mask = np.array([False, True, False, False, True]) & (t == 20)
                sync.set_idle(mask)
                process.set_idle(mask)
            action = rng.integers(0, 2, 5)
            step = process.step(action)
            for ours, theirs in zip(step, sync.step(action), strict=True):
                assert (ours is None) == (theirs is None)
                assert ours is None or (ours.dtype == theirs.dtype and np.array_equal(ours, theirs))
            finals += step.final_obs is not None
            kept.append((step.obs, step.obs.copy()))
        assert finals > 5
        assert all(np.array_equal(a, b) for a, b in kept)  # no aliases of the shared memory
    assert no_workers_left()
    with pytest.raises(RuntimeError, match="closed"):
        process.step(zeros(5))


def test_box_actions_reach_the_envs_in_their_dtype() -> None:
    with make_vector_env("Test/IntBox-v0", 2, workers=1) as env:
        assert env.backend == "process" and env.notices[0] == "env.backend=process: env.workers=1 was given"
        env.reset(0)
        assert env.step(np.array([[6.7], [20.0]])).reward.tolist() == [0.0, -0.3]


@pytest.mark.parametrize(
    ("name", "kwargs", "told"),
    [
        (
            "Raises",
            {},
            "env=Test/Raises-v0, env index 13, at step 13 (step 5 of episode 2): "
            "ValueError: broken at step 13",
        ),
        (
            "Hangs",
            {},
            "env=Test/Hangs-v0, env index 13: no answer to step within 1 s; the workers were ended",
        ),
        ("Dies", {}, "env=Test/Dies-v0: the worker of envs 12..13 died with exit code 9, in env index 13"),
    ],
)
def test_errors_hangs_and_deaths_name_the_env_and_leave_no_worker(name: str, kwargs: dict, told: str) -> None:
    """The index is the run's: ten envs come before these."""
    timeout = 1.0 if name == "Hangs" else 30.0
    env = make_vector_env(
        f"Test/{name}-v0", 4, backend="process", workers=2, step_timeout=timeout, kwargs=kwargs, before=10
    )
    env.reset(0)
    env.set_idle(np.array([True, True, True, False]))
    begin = time.monotonic()
    with pytest.raises(TrainingError) as caught:
        play(env, 20)
    assert told in str(caught.value) and "\n" not in str(caught.value)
    if name == "Raises":
        assert "broken at" in str(caught.value.__cause__) and "in play" in str(caught.value.__cause__)
    assert no_workers_left() and time.monotonic() - begin < 10
    env.close()  # again: nothing to do


def test_a_mistake_of_the_user_is_told_before_any_process_starts() -> None:
    with pytest.raises(UserError, match=r"env\.kwargs\.lenght"):
        make_vector_env("Test/FixedLen-v0", 2, backend="process", kwargs={"lenght": 1})
    assert no_workers_left()


SCRIPT = """
    import sys
    import gymnasium as gym
    import numpy as np
    from pgtrain.envs.vector import make_vector_env
    from tests.envs_for_tests import FixedLen

    class Mine(FixedLen):
        pass

    gym.register("Mine-v0", entry_point=lambda **kwargs: Mine(length=2, **kwargs))

    def main():
        env = make_vector_env("Mine-v0", 2, backend="process", workers=1)
        env.reset(0)
        print([bool(env.step(np.zeros(2, int)).terminated.all()) for _ in range(4)], flush=True)
        if "stay" in sys.argv:
            while True:
                env.step(np.zeros(2, int))

    if __name__ == "__main__":
        main()
"""


def test_an_env_of_a_script_works_and_nothing_is_left_when_the_script_ends_without_close(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=40
    )
    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, "[False, True, False, True]", "")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for the workers in /proc")
@pytest.mark.parametrize("how", ["the parent is killed", "Ctrl-C in the terminal"])
def test_workers_end_with_their_parent(tmp_path: Path, how: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    run = subprocess.Popen(
        [sys.executable, script, "stay"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # as in a terminal, also where the tests themselves run in the background of a shell, which ignores Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert run.stdout is not None and run.stderr is not None
    assert run.stdout.readline().startswith("[False")
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert workers
    if how == "the parent is killed":
        run.kill()
    else:
        for pid in workers:  # every process of the terminal gets it; the workers leave it to their parent
            os.kill(int(pid), signal.SIGINT)
        time.sleep(0.3)
        assert all(Path(f"/proc/{pid}").exists() for pid in workers) and run.poll() is None
        os.killpg(run.pid, signal.SIGINT)
    errors = run.stderr.read()
    run.wait(20)
    end = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert errors.count("Traceback") == (0 if how == "the parent is killed" else 1), errors
