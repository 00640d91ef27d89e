"""A made-up run for the monitor's tests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pgtrain.monitor.dashboard import METRICS, RESULT
from pgtrain.monitor.monitor import RunInfo

TAGS = [metric.tag for metric in METRICS if metric.section != RESULT]
SUMMARY: dict[str, Any] = {
    "status": "finished",
    "steps": 3000,
    "iterations": 3,
    "episodes": 42,
    "return_mean": 473.5,
    "return_std": 21.25,
    "eval_return_mean": 500.0,
    "eval_return_std": 0.0,
    "eval_episodes": 100,
    "wall_seconds": 92.0,
    "cpu_seconds": 91.0,
    "steps_per_second": 3261.4,
    "skipped_updates": 0,
    "algo": "a2c",
    "env": "CartPole-v1",
    "seed": 3,
    "error": None,
}


def run_info(run_dir: Path, **changes: Any) -> RunInfo:
    values: dict[str, Any] = {
        "run_dir": run_dir,
        "algo": "a2c",
        "env_id": "CartPole-v1",
        "seed": 3,
        "total_steps": 3000,
        "num_envs": 8,
        "notices": ["env.backend=native: a notice"],
        "config": {
            "algo": "a2c",
            "seed": 3,
            "env": {"id": "CartPole-v1", "kwargs": {}, "workers": None},
            "policy": {"hidden": [64, 64]},
            "advantage": {"lam": 0.95, "normalize": True},
            "optim": {"lr": {"value": 1e-3}, "max_grad_norm": 0.5},
            "monitor": {"tensorboard": True},
        },
        "overrides": ["algo=a2c", "seed=3"],
        "policy_parameters": 9155,
        "reward_threshold": 475.0,
    }
    return RunInfo(**{**values, **changes})


def healthy(**changes: Any) -> dict[str, Any]:
    """One iteration's numbers, all well."""
    numbers: dict[str, Any] = dict.fromkeys(TAGS, 1.0)
    numbers.update(
        {
            "episode/return": 20.0,
            "episode/return_100": 20.0,
            "policy/entropy": 0.69,
            "policy/approx_kl": 0.005,
            "policy/std": None,
            "policy/clipped_actions": None,
            "gradient/skipped_updates": 0,
        }
    )
    numbers.update({tag.replace("__", "/"): value for tag, value in changes.items()})
    return numbers


NAN = math.nan
