"""How many cores and threads envs may use, and where threads are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgtrain.envs import cores
from pgtrain.envs.vector import make_vector_env
from pgtrain.types import UserError


@pytest.mark.parametrize(
    ("quota", "affinity", "ranks", "expected"),
    [
        ("max 100000", 8, 1, 8),
        ("max 100000", 8, 3, 2),
        ("max 100000", 2, 4, 1),
        ("350000 100000", 8, 1, 4),  # 3.5 cores
        ("50000 100000", 8, 1, 1),
        ("400000 100000", 2, 1, 2),
        ("400000 100000", 8, 2, 2),
        ("", 8, 1, 8),
        (None, 8, 1, 8),
    ],
)
def test_cores_are_those_of_affinity_quota_and_ranks(
    quota: str | None,
    affinity: int,
    ranks: int,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(f"{quota}\n")
    monkeypatch.setattr(cores, "_QUOTA", file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)), raising=False)
    assert cores.cores(ranks) == expected


def test_without_affinity_the_machines_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_QUOTA", tmp_path / "none")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert cores.cores() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.cores() == 1


@pytest.mark.parametrize(
    ("step_ms", "num_envs", "available", "threads"),
    [(0.2, 8, 8, 1), (0.49, 8, 8, 1), (0.5, 8, 8, 2), (1.1, 8, 8, 4), (90.0, 8, 16, 8), (90.0, 64, 16, 16)],
)
def test_a_thread_has_a_quarter_of_a_millisecond_of_work(
    step_ms: float, num_envs: int, available: int, threads: int
) -> None:
    assert cores.threads_worth(step_ms, num_envs, available) == threads


@pytest.mark.parametrize(
    ("env_id", "backend", "told"),
    [
        (
            "CartPole-v1",
            "native",
            "steps in one thread; only native batches of MuJoCo tasks and of Atari games",
        ),
        ("CartPole-v1", "auto", "env=CartPole-v1 with env.backend=native steps in one thread"),
        ("HalfCheetah-v5", "sync", "env=HalfCheetah-v5 with env.backend=sync steps in one thread"),
        ("HalfCheetah-v4", "auto", "env=HalfCheetah-v4 with env.backend=sync steps in one thread"),
        ("HalfCheetah-v5", "auto", None),
    ],
)
def test_threads_where_there_are_none_are_refused(env_id: str, backend: str, told: str | None) -> None:
    if told is None:
        make_vector_env(env_id, 2, backend=backend, threads=2).close()
        return
    with pytest.raises(UserError, match=rf"^env\.threads=2: .*{told}"):
        make_vector_env(env_id, 2, backend=backend, threads=2)


def test_more_threads_than_envs_are_refused() -> None:
    with pytest.raises(UserError, match=r"^env\.threads=3: must be between 1 and num_envs=2$"):
        make_vector_env("HalfCheetah-v5", 2, threads=3)
