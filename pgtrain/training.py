"""A run from its first line to its record on disk, and loading what a run left behind."""

from __future__ import annotations

import contextlib
import hashlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pgtrain import build, checkpoint, device, launch
from pgtrain.build_observations import parameter_counts
from pgtrain.config import convert, schema
from pgtrain.distributed import GOODBYE_S, RankLost, Ranks
from pgtrain.envs.vector import VectorEnv
from pgtrain.evaluation import EvalResult, envs_for, evaluate
from pgtrain.following import count_played
from pgtrain.interrupt import Interrupt, Interrupted
from pgtrain.monitor import record
from pgtrain.monitor.monitor import Monitor, RunInfo
from pgtrain.monitor.sinks import make_sinks
from pgtrain.origin import Beginning
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.processes import leave_if_unguarded
from pgtrain.runner import Progress, Runner
from pgtrain.stopwatch import Stopwatch
from pgtrain.types import TrainingError, UserError


@dataclass
class Result:
    """What a training run gives back: the numbers of `summary.json`, where the run lies, and the trained policy."""

    summary: dict[str, Any]
    run_dir: Path
    policy: ActorCritic
    exit_code: int = 0  # 130 after Ctrl-C, 143 after SIGTERM


@dataclass
class Loaded:
    """A finished or interrupted run, ready to be played."""

    policy: ActorCritic
    cfg: schema.Config
    make_env: Callable[[int], VectorEnv]  # number of envs → the run's env
    warning: str | None = None


@dataclass
class _Outcome:
    status: str = "finished"  # or interrupted, failed
    error: Exception | None = None
    evaluation: EvalResult | None = None


def train(cfg: schema.Config, run_dir: Path, overrides: list[str], origin: Beginning | None = None) -> Result:
    """Runs one training from a checked config and leaves a complete record in `run_dir` (made already, empty).

    `origin`: for a run that goes on in its folder.

    Raises: UserError for what only shows once the env exists (nothing is written then), TrainingError for a run that
    had to end, or what the env's code raised; the record is complete all the same. Ctrl-C and SIGTERM do not raise:
    they end the run with a checkpoint and its summary, and `exit_code` says so.
    """
    leave_if_unguarded()  # before it touches the folder that its parent has made
    stopwatch, origin = Stopwatch(), origin or Beginning()
    device.check(cfg.device.name)
    device.use_threads(cfg.device.threads)
    outcome, runner = _Outcome(), None
    with (
        record.busy(run_dir),
        Interrupt() as interrupt,
        launch.start(cfg.device.ranks, follow, cfg, origin) as ranks,
        build.make_share(cfg, ranks) as env,
    ):
        if not ranks.leads:
            raise UserError("torchrun starts single runs of the command line; use device.ranks without it")
        build.refuse_unused(cfg, overrides, env)
        sinks = make_sinks(run_dir, tensorboard=cfg.monitor.tensorboard, terminal=cfg.monitor.terminal)
        with Monitor(sinks, cfg.monitor.log_every) as monitor:
            notices = list(env.notices)
            try:
                # `stepping`: the envs' first reset
                with _recorded(cfg, run_dir, overrides, origin), interrupt.stepping():
                    made = build.make_runner(cfg, env, monitor, run_dir, interrupt, notices, ranks)
                    made.stopwatch = stopwatch
                    notices += origin.restore(cfg, made, env)
                    runner = made
                monitor.start(run_info(cfg, run_dir, overrides, env, runner, notices))
                count_played(runner)
                runner.run()
                _check_together(runner)
                _tell_end(cfg, runner)
                outcome.evaluation = final_evaluation(cfg, runner)
            except (Interrupted, KeyboardInterrupt):  # the latter: a second signal
                interrupt.hold()
                outcome.status = "interrupted"
                monitor.message("interrupted: the checkpoint and the summary are written", "warning")
            except (
                Exception,
                SystemExit,
            ) as error:  # an env that calls sys.exit must not end the run without a word
                if runner is None and isinstance(error, UserError):
                    raise
                if isinstance(error, RankLost) and interrupt.requested:  # the signal was for all ranks
                    outcome.status = "interrupted"
                else:
                    outcome.status, outcome.error = "failed", _told(error, run_dir)
                    _tell_failure(monitor, outcome.error)
            interrupt.hold()
            with interrupt.waiting():
                env.close()  # before the summary: the processor time of workers counts once they have ended
                ranks.close(GOODBYE_S if outcome.status == "finished" else 1.0)
            ranks.close(0.0)
            summary = make_summary(
                cfg, run_dir, runner.progress if runner else Progress(origin.step), stopwatch, outcome
            )
            if outcome.status == "failed" and runner is not None:
                monitor.message(f"to go on from its checkpoint: {record.call('resume', run_dir, summary)}")
            try:
                if runner is not None or not origin.resumes:  # else the one of the part before stays
                    record.write_summary(run_dir, summary)
            except OSError as error:
                outcome.error = outcome.error or _told(error, run_dir)
            monitor.finish(summary)
    if outcome.error is not None:
        raise outcome.error
    if runner is None:  # interrupted before the first step
        raise KeyboardInterrupt
    exit_code = (interrupt.exit_code or 130) if outcome.status == "interrupted" else 0
    return Result(summary, run_dir, runner.policy, exit_code)


def follow_torchrun(cfg: schema.Config) -> None:
    """What a process of torchrun's has to do that is not rank 0."""
    with launch.start(cfg.device.ranks, follow) as ranks:
        follow(ranks, cfg)


def follow(ranks: Ranks, cfg: schema.Config, origin: Beginning | None = None) -> None:
    """A rank above 0 of a run: trains its share and leaves all that is told or written to rank 0."""
    device.use_threads(cfg.device.threads)
    with (
        build.make_share(cfg, ranks) as env,
        Monitor([], cfg.monitor.log_every) as monitor,
    ):
        runner = build.make_runner(cfg, env, monitor, Path(), Interrupt(), [], ranks)
        if origin is not None:
            origin.restore(cfg, runner, env)
        monitor.start(run_info(cfg, Path(), [], env, runner, []))
        count_played(runner)
        runner.run()
        _check_together(runner)


def _check_together(runner: Runner) -> None:
    """Ranks decide and step on the same numbers; one that does not would spoil the run without a word."""
    data = runner.update.flat.data.cpu().numpy().tobytes()
    if len(set(runner.ranks.gather(hashlib.sha256(data).hexdigest()))) > 1:
        raise TrainingError(
            "the ranks' parameters have parted: the policy or an optimiser is not deterministic"
        )


@contextlib.contextmanager
def _recorded(cfg: schema.Config, run_dir: Path, overrides: list[str], origin: Beginning) -> Iterator[None]:
    """Writes what run this is once it was made, or failed to be; nothing if it is refused (UserError)."""
    refused = False
    try:
        yield
    except UserError:
        refused = True
        raise
    finally:
        if not refused:
            origin.write(cfg, run_dir, overrides)


def _told(error: BaseException, run_dir: Path) -> Exception:
    """What cannot be mended by reading a traceback, in one line."""
    if isinstance(error, SystemExit):
        told = TrainingError(f"the env's code called sys.exit({error.code!r})")
    elif isinstance(error, OSError) and error.strerror and not isinstance(error, ConnectionError):
        told = TrainingError(f"{run_dir}: {error.strerror} ({error.filename or 'run folder'})")
    else:
        assert isinstance(error, Exception)
        return error
    told.__cause__ = error
    return told


def _tell_failure(monitor: Monitor, error: Exception) -> None:
    monitor.message(f"the run failed: {error}", "error")
    if isinstance(error, RankLost) and error.details:
        monitor.message(error.details, "error")
    if not isinstance(
        error, TrainingError | UserError
    ):  # a fault of ours or of the env's code: keep the way to it
        monitor.message("".join(traceback.format_exception(error)), "error")


def _tell_end(cfg: schema.Config, runner: Runner) -> None:
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


def final_evaluation(cfg: schema.Config, runner: Runner) -> EvalResult | None:
    """The final parameters (not the best ones on the way), in fresh envs. None if there is to be none, or if the env
    cannot be evaluated: that is told, and the training stays a success."""
    if cfg.eval.episodes == 0:
        return None
    seed = build.streams(cfg.seed)["evaluation"]
    kind = "greedy" if cfg.eval.greedy else "sampled"
    runner.monitor.message(f"final evaluation: {cfg.eval.episodes} {kind} episodes")
    try:
        with build.make_env(cfg, envs_for(cfg.eval.episodes)) as env, runner.interrupt.stepping():
            return evaluate(runner.policy, env, cfg.eval.episodes, seed, cfg.eval.greedy)
    except TrainingError as error:
        runner.monitor.message(f"no final evaluation: {error}", "warning")
        return None


def run_info(
    cfg: schema.Config,
    run_dir: Path,
    overrides: list[str],
    env: VectorEnv,
    runner: Runner,
    notices: list[str],
) -> RunInfo:
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


def make_summary(
    cfg: schema.Config, run_dir: Path, progress: Progress, stopwatch: Stopwatch, outcome: _Outcome
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


def refuse_modules(cfg: schema.Config, env_id: str | None, policy: str | None) -> None:
    """No module is imported that only a run's files name: the user has to repeat the name.

    Raises: UserError.
    """
    for what, name, repeated in (("env", cfg.env.id, env_id), ("policy", cfg.policy.name, policy)):
        if ":" in name and repeated != name:
            raise UserError(
                f"the run's {what} is {name}: loading it imports the module {name.rpartition(':')[0]}; "
                f"repeat {what}={name} if you trust it"
            )


def load(
    run_dir: Path | str,
    device: str | torch.device = "cpu",
    env_id: str | None = None,
    policy: str | None = None,
) -> Loaded:
    """The policy of a run and what is needed to play it.

    A run whose env or network comes from a module (`my_pkg:MyEnv-v0`, `my_pkg:MyNetwork`) is loaded only if `env_id`
    or `policy` repeats that name: a run folder from somebody else must not be able to name code to import.
    """
    run_dir = Path(run_dir)
    state, warning = checkpoint.load(run_dir, device)
    try:
        cfg, parameters = convert.from_dict(state["config"]), state["runner"]["policy"]
    except KeyError as error:
        raise UserError(f"{run_dir}: the checkpoint lacks {error}: it was not written by pgtrain") from error
    refuse_modules(cfg, env_id, policy)
    with build.make_env(cfg, 1) as env:
        trained = build.make_policy(cfg, env)
    try:
        trained.load_state_dict(parameters)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise UserError(
            f"{run_dir}: the checkpoint does not fit env={cfg.env.id} as it is now (have its spaces changed?): {first}"
        ) from error
    return Loaded(trained.to(device), cfg, lambda num_envs: build.make_env(cfg, num_envs), warning)
