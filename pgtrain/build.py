"""Config → objects, in dependency order; training a run from them, and loading what a run left behind."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from pgtrain import checkpoint, device
from pgtrain.callbacks import Checkpointer
from pgtrain.config import checks, convert, schema
from pgtrain.envs.vector import VectorEnv, make_vector_env
from pgtrain.evaluation import EvalResult, envs_for, evaluate
from pgtrain.interrupt import Interrupt, Interrupted
from pgtrain.learning import advantages
from pgtrain.learning.gradients import Backprop
from pgtrain.learning.losses import PolicyGradient, SquaredError
from pgtrain.learning.optimizers import Adam
from pgtrain.learning.schedules import SCHEDULES, Schedule
from pgtrain.learning.updates import Update
from pgtrain.monitor import record
from pgtrain.monitor.monitor import Monitor, RunInfo
from pgtrain.monitor.sinks import make_sinks
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import Categorical, DiagonalGaussian
from pgtrain.policies.networks import MLP
from pgtrain.policies.normalizer import RewardScaler, RunningMoments
from pgtrain.policies.parameters import FlatParameters
from pgtrain.rollout import Collector
from pgtrain.runner import Plan, Runner
from pgtrain.types import TrainingError, UserError

STREAMS = ("network", "env", "action", "minibatch", "evaluation")


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


def streams(seed: int) -> dict[str, int]:
    """One seed per use of randomness, all from the run's seed; using one up never shifts another."""
    return dict(
        zip(STREAMS, (int(s) for s in np.random.SeedSequence(seed).generate_state(len(STREAMS))), strict=True)
    )


def make_env(cfg: schema.Config, num_envs: int) -> VectorEnv:
    env = cfg.env
    return make_vector_env(
        env.id,
        num_envs,
        kwargs=dict(env.kwargs),
        backend=env.backend,
        workers=env.workers
        and min(env.workers, num_envs),  # an evaluation may have fewer envs than the training
        max_episode_steps=env.max_episode_steps,
    )


def make_policy(cfg: schema.Config, env: VectorEnv) -> ActorCritic:
    """The policy on the CPU, initialised from the run's network stream."""
    p = cfg.policy
    space = env.action_space
    discrete = hasattr(space, "n")
    distribution = Categorical(int(space.n)) if discrete else DiagonalGaussian(space.low, space.high)  # pyright: ignore
    standardise = p.normalize_obs == "running" and env.obs_is_float_box
    with torch.random.fork_rng(devices=[]):  # neither takes from the user's global stream nor depends on it
        torch.manual_seed(streams(cfg.seed)["network"])
        network = MLP(
            env.obs_dim,
            distribution.head_dim,
            hidden=p.hidden,
            activation=p.activation,
            share=len(p.hidden) if p.share == "all" else int(p.share),
            critic=schema.has_critic(cfg),
            last_gain=p.last_layer_gain,
        )
    return ActorCritic(
        network,
        distribution,
        RunningMoments(env.obs_dim) if standardise else None,
        value_moments=RunningMoments(1, clip=math.inf, eps=1e-4) if p.normalize_value == "running" else None,
        mean=p.mean,
        log_std_init=p.log_std_init,
        log_std_min=p.log_std_min,
        log_std_max=p.log_std_max,
    )


def make_estimator(cfg: schema.Config) -> advantages.Estimator:
    a = cfg.advantage
    if isinstance(a, schema.MonteCarloConfig):
        scope = getattr(a.baseline, "scope", "scalar")
        return advantages.MonteCarlo(cfg.gamma, a.returns, a.truncation_bootstrap, a.baseline.name, scope)
    if isinstance(a, schema.TdConfig):
        return advantages.TD(cfg.gamma)
    if isinstance(a, schema.NStepConfig):
        return advantages.NStep(cfg.gamma, a.n)
    assert isinstance(a, schema.GaeConfig)
    return advantages.GAE(cfg.gamma, a.lam)


def make_update(cfg: schema.Config, policy: ActorCritic, flat: FlatParameters) -> Update:
    u = cfg.update
    source = Backprop(
        policy,
        flat,
        policy_loss=PolicyGradient(u.mean_over),
        value_loss=SquaredError(),
        value_coef=u.value_coef or 0.0,
        normalize_advantage=cfg.advantage.normalize,
    )
    assert isinstance(cfg.optim, schema.AdamConfig)
    return Update(
        source,
        flat,
        Adam(flat.data, eps=cfg.optim.eps),
        torch.Generator().manual_seed(streams(cfg.seed)["minibatch"]),
        epochs=u.epochs,
        minibatch_size=u.minibatch_size,
        max_grad_norm=cfg.optim.max_grad_norm,
    )


def make_schedule(cfg: Any) -> Schedule:
    return SCHEDULES[cfg.name](cfg.coef if isinstance(cfg, schema.EntropyConfig) else cfg.value)


def make_runner(
    cfg: schema.Config,
    env: VectorEnv,
    monitor: Monitor,
    run_dir: Path,
    interrupt: Interrupt,
    notices: list[str],
) -> Runner:
    """Everything a run needs, in dependency order. Cross-checks that need the env are made here."""
    policy = make_policy(cfg, env)
    where, notice = device.resolve(cfg.device.name, sum(p.numel() for p in policy.parameters()))
    notices += [notice] if notice else []
    policy.to(where)
    flat = FlatParameters(policy)
    seeds = streams(cfg.seed)
    whole = cfg.collect.unit == "episodes"
    return Runner(
        plan=Plan(cfg.total_steps, None if whole else cfg.horizon, cfg.collect.episodes if whole else None),
        policy=policy,
        collector=Collector(
            env, policy, policy.actor(env.num_envs, seeds["action"]), seeds["env"], cfg.horizon or 512
        ),
        reward_scaler=make_reward_scaler(cfg, env, where),
        estimator=make_estimator(cfg),
        update=make_update(cfg, policy, flat),
        learning_rate=make_schedule(cfg.optim.lr),
        entropy_coef=make_schedule(cfg.entropy),
        discount=cfg.gamma if cfg.advantage.discount_states else None,
        monitor=monitor,
        callbacks=[
            Checkpointer(run_dir, cfg.checkpoint.every_steps, convert.to_dict(cfg), cfg.checkpoint.keep or 1)
        ],
        max_skipped_in_a_row=cfg.update.max_skipped_in_a_row,
        interrupt=interrupt,
    )


def refuse_unused(cfg: schema.Config, overrides: list[str], env: VectorEnv) -> None:
    """Settings that this env's spaces leave without effect are refused, not ignored."""
    if hasattr(env.action_space, "n"):
        keys = ["policy.mean", "policy.log_std_init", "policy.log_std_min", "policy.log_std_max"]
        checks.refuse_unused(overrides, keys, f"with the discrete actions of {cfg.env.id}")
    if not env.obs_is_float_box and cfg.policy.normalize_obs == "running":
        why = f"with the observations of {cfg.env.id}, which are no floats"
        checks.refuse_unused(overrides, ["policy.normalize_obs"], why)


def make_reward_scaler(cfg: schema.Config, env: VectorEnv, where: torch.device) -> RewardScaler | None:
    if cfg.reward.scaling == "none":
        return None
    return RewardScaler(env.num_envs, cfg.gamma, clip=cfg.reward.clip or 10.0).to(where)


def train(cfg: schema.Config, run_dir: Path, overrides: list[str]) -> Result:
    """Runs one training from a checked config and leaves a complete record in `run_dir` (made already, empty).

    Raises: UserError for what only shows once the env exists, TrainingError for a run that had to end. Ctrl-C and
    SIGTERM do not raise: they end the run with a checkpoint and its summary, and `exit_code` says so.
    """
    torch.set_num_threads(cfg.device.threads)
    record.write_provenance(run_dir, OmegaConf.to_yaml(OmegaConf.create(convert.to_dict(cfg))), overrides)
    started = time.perf_counter(), time.process_time()
    with (
        make_env(cfg, cfg.num_envs) as env,
        Monitor(
            make_sinks(run_dir, tensorboard=cfg.monitor.tensorboard, terminal=cfg.monitor.terminal),
            cfg.monitor.log_every,
        ) as monitor,
    ):
        refuse_unused(cfg, overrides, env)
        notices = list(env.notices)
        with Interrupt() as interrupt:
            runner = make_runner(cfg, env, monitor, run_dir, interrupt, notices)
            monitor.start(run_info(cfg, run_dir, overrides, env, runner, notices))
            outcome = _run(cfg, runner)
            summary = make_summary(cfg, run_dir, runner, started, *outcome)
            record.write_summary(run_dir, summary)
            monitor.finish(summary)
            error = outcome[1]
            if error is not None:
                raise error
            return Result(summary, run_dir, runner.policy, interrupt.exit_code)


def _run(cfg: schema.Config, runner: Runner) -> tuple[str, Exception | None, EvalResult | None]:
    """(status, error, final evaluation). Whatever ends the run, the checkpoint is written and the summary can be."""
    try:
        runner.run()
        return "finished", None, final_evaluation(cfg, runner)
    except Interrupted:
        runner.monitor.message("interrupted: the checkpoint and the summary are written", "warning")
        return "interrupted", None, None
    except Exception as error:
        runner.monitor.message(f"the run failed: {error}", "error")
        if not isinstance(
            error, TrainingError | UserError
        ):  # a fault of ours or of the env's code: keep the way to it
            runner.monitor.message(traceback.format_exc(), "error")
        return "failed", error, None


def final_evaluation(cfg: schema.Config, runner: Runner) -> EvalResult | None:
    """The final parameters (not the best ones on the way), in fresh envs."""
    if cfg.eval.episodes == 0:
        return None
    with make_env(cfg, envs_for(cfg.eval.episodes)) as env, runner.interrupt.stepping():
        return evaluate(
            runner.policy, env, cfg.eval.episodes, streams(cfg.seed)["evaluation"], cfg.eval.greedy
        )


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
        reward_threshold=env.reward_threshold,
    )


def make_summary(
    cfg: schema.Config,
    run_dir: Path,
    runner: Runner,
    started: tuple[float, float],
    status: str,
    error: Exception | None,
    evaluation: EvalResult | None,
) -> dict[str, Any]:
    """The numbers of `summary.json`; null where there is nothing to say (no episode ended, no evaluation)."""
    p = runner.progress
    returns = np.array(p.recent_returns)
    wall = time.perf_counter() - started[0]
    return {
        "status": status,
        "algo": cfg.algo,
        "env": cfg.env.id,
        "seed": cfg.seed,
        "steps": p.steps,
        "iterations": p.iterations,
        "episodes": p.episodes,
        "return_mean": float(returns.mean()) if len(returns) else None,
        "return_std": float(returns.std(ddof=1)) if len(returns) > 1 else None,
        "eval_return_mean": evaluation.mean if evaluation else None,
        "eval_return_std": evaluation.std if evaluation else None,
        "eval_episodes": evaluation.episodes if evaluation else 0,
        "wall_seconds": wall,
        "cpu_seconds": time.process_time() - started[1],
        "steps_per_second": p.steps / max(wall, 1e-9),
        "skipped_updates": p.skipped_updates,
        "run_dir": str(run_dir),
        "error": str(error) if error else None,
    }


def load(run_dir: Path | str, device: str = "cpu", env_id: str | None = None) -> Loaded:
    """The policy of a run and what is needed to play it.

    A run whose env comes from a module (`my_pkg:MyEnv-v0`) is loaded only if `env_id` repeats that id: a run folder
    from somebody else must not be able to name code to import.
    """
    run_dir = Path(run_dir)
    state, warning = checkpoint.load(run_dir, device)
    cfg = convert.from_dict(state["config"])
    if ":" in cfg.env.id and env_id != cfg.env.id:
        raise UserError(
            f"the run's env is {cfg.env.id}: loading it imports the module {cfg.env.id.rpartition(':')[0]}; "
            f"repeat env={cfg.env.id} if you trust it"
        )
    with make_env(cfg, 1) as env:
        policy = make_policy(cfg, env)
    policy.load_state_dict(state["runner"]["policy"])
    return Loaded(policy.to(device), cfg, lambda num_envs: make_env(cfg, num_envs), warning)
