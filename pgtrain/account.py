"""What is said of a run: what it is, how it ended, and the numbers of its summary."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pgtrain.build_observations import parameter_counts
from pgtrain.config import convert, schema
from pgtrain.distributed import RankLost
from pgtrain.envs.vector import VectorEnv
from pgtrain.evaluation import EvalResult
from pgtrain.faults import short_path
from pgtrain.monitor.monitor import Monitor, RunInfo
from pgtrain.progress import Progress
from pgtrain.runner import Runner
from pgtrain.stopwatch import Stopwatch
from pgtrain.types import TrainingError, UserError


def run_info(
    cfg: schema.Config,
    run_dir: Path,
    overrides: list[str],
    env: VectorEnv,
    runner: Runner,
    notices: list[str],
) -> RunInfo:
    """What the sinks are told at the start of a run that is ready."""
    return RunInfo(
        run_dir=run_dir,
        algo=cfg.algo,
        env_id=cfg.env.id,
        seed=cfg.seed,
        total_steps=cfg.total_steps,
        num_envs=cfg.num_envs,
        device=str(next(runner.policy.parameters()).device),
        notices=notices,
        config=convert.to_dict(cfg),
        overrides=overrides,
        policy_parameters=len(runner.update.flat),
        parameter_counts=parameter_counts(runner.policy),
        reward_threshold=env.reward_threshold,
        start_step=runner.progress.steps,
        start_seconds=runner.stopwatch.before[0],
    )


@dataclass
class Outcome:
    """How a run ended."""

    status: str = "finished"  # or interrupted, failed
    error: Exception | None = None
    evaluation: EvalResult | None = None


def one_line(error: BaseException, run_dir: Path) -> Exception:
    """The error that ended a run; what no traceback helps to mend, in one line."""
    if isinstance(error, SystemExit):
        told = TrainingError(f"the env's code called sys.exit({error.code!r})")
    elif isinstance(error, OSError) and error.strerror and not isinstance(error, ConnectionError):
        told = TrainingError(f"{run_dir}: {error.strerror} ({error.filename or 'run folder'})")
    else:
        assert isinstance(error, Exception)
        return error
    told.__cause__ = error
    return told


def tell_failure(monitor: Monitor, error: Exception, run_dir: Path) -> None:
    """The way to a fault of the env's code or of ours goes to `run.log`. (What failed is the last line of all.)"""
    details = error.details if isinstance(error, RankLost) else ""
    if error.__cause__ is not None or not isinstance(error, TrainingError | UserError):
        details += "".join(traceback.format_exception(error))
    if details:
        monitor.message(details, "detail")
        monitor.message(f"the traceback is in {short_path(run_dir / 'run.log')}")


def tell_end(cfg: schema.Config, runner: Runner) -> None:
    """What is notable about a run that has finished."""
    progress = runner.progress
    if progress.updates and progress.skipped_updates == progress.updates:
        runner.monitor.message(
            f"nothing was learned: all {progress.updates} updates were skipped for non-finite numbers",
            "warning",
        )
    over = progress.steps - cfg.total_steps
    if over > 0:
        why = (
            "episodes are played to their end"
            if cfg.collect.unit == "episodes"
            else "each env takes whole steps"
        )
        runner.monitor.message(f"{over:,} steps more than total_steps={cfg.total_steps:,}: {why}")


def make_summary(
    cfg: schema.Config, run_dir: Path, progress: Progress, stopwatch: Stopwatch, outcome: Outcome
) -> dict[str, Any]:
    """The numbers of `summary.json`; null where there is nothing to say (no episode ended, no evaluation)."""
    returns = np.array(progress.recent_returns)
    evaluation = outcome.evaluation
    wall = stopwatch.wall
    return {
        "status": outcome.status,
        "algo": cfg.algo,
        "env": cfg.env.id,
        "policy": cfg.policy.name,
        "seed": cfg.seed,
        "steps": progress.steps,
        "iterations": progress.iterations,
        "episodes": progress.episodes,
        "return_mean": float(returns.mean()) if len(returns) else None,
        "return_std": float(returns.std(ddof=1)) if len(returns) > 1 else None,
        "eval_return_mean": evaluation.mean if evaluation else None,
        "eval_return_std": evaluation.std if evaluation else None,
        "eval_episodes": evaluation.episodes if evaluation else 0,
        "wall_seconds": wall,
        "cpu_seconds": stopwatch.cpu,
        "steps_per_second": progress.steps / max(wall, 1e-9),
        "skipped_updates": progress.skipped_updates,
        "run_dir": str(run_dir),
        "error": str(outcome.error) if outcome.error else None,
    }
