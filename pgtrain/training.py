"""A run from its first line to its record on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgtrain import build, device, launch
from pgtrain.account import Outcome, make_summary, one_line, run_info, tell_end, tell_failure
from pgtrain.config import schema
from pgtrain.distributed import GOODBYE_S, RankLost
from pgtrain.evaluation import EvalResult, envs_for, evaluate
from pgtrain.following import check_together, count_played, follow
from pgtrain.interrupt import Interrupt, Interrupted
from pgtrain.monitor import record
from pgtrain.monitor.monitor import Monitor
from pgtrain.monitor.sinks import make_sinks
from pgtrain.origin import Beginning
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.processes import leave_if_unguarded
from pgtrain.progress import Progress
from pgtrain.runner import Runner
from pgtrain.stopwatch import Stopwatch
from pgtrain.types import TrainingError, UserError


@dataclass
class Result:
    """What a training run gives back: the numbers of `summary.json`, where the run lies, and the trained policy."""

    summary: dict[str, Any]
    run_dir: Path
    policy: ActorCritic
    exit_code: int = 0  # 130 after Ctrl-C, 143 after SIGTERM


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
    outcome, runner = Outcome(), None
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
                check_together(runner)
                tell_end(cfg, runner)
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
                    outcome.status, outcome.error = "failed", one_line(error, run_dir)
                    tell_failure(monitor, outcome.error, run_dir)
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
                outcome.error = outcome.error or one_line(error, run_dir)
            monitor.finish(summary)
    if outcome.error is not None:
        raise outcome.error
    if runner is None:  # interrupted before the first step
        raise KeyboardInterrupt
    exit_code = (interrupt.exit_code or 130) if outcome.status == "interrupted" else 0
    return Result(summary, run_dir, runner.policy, exit_code)


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
