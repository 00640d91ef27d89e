"""Recipes that go through a differentiable env: whole runs, their record, resume, and what is refused."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pgtrain import build, loading, training
from pgtrain.cli import main
from pgtrain.config import schema
from pgtrain.config.compose import compose
from pgtrain.evaluation import evaluate
from pgtrain.interrupt import Interrupt
from pgtrain.learning import losses
from pgtrain.learning.host.pipeline import HostPipeline
from pgtrain.learning.pathwise_gradients import AlphaOrder, Pathwise
from pgtrain.learning.pathwise_update import TDLambda, WindowReturn
from pgtrain.learning.updates import TorchPipeline
from pgtrain.monitor.dashboard import METRICS
from pgtrain.monitor.monitor import Monitor
from pgtrain.policies.squashed import TanhGaussian
from pgtrain.runner import Runner
from pgtrain.types import UserError
from tests.support import Recorder

QUIET = ["monitor.terminal=none", "monitor.tensorboard=false", "eval.episodes=4", "seed=3"]
SMALL = [*QUIET, "num_envs=8", "env.max_episode_steps=9", "policy.hidden=[8]", "total_steps=480"]
RECIPES = {
    "shac": ["algo=shac", "env=pgtrain/Pendulum-v0", "horizon=8", "update.compare_every=2"],
    "bptt": ["algo=bptt", "env=pgtrain/CartPoleSwingUp-v0"],
    "bptt-windows": ["algo=bptt", "collect.unit=steps", "horizon=6", "env=pgtrain/Quadrotor-v0"],
    "alpha_order": ["algo=alpha_order", "env=pgtrain/Acrobot-v0", "update.groups=3"],
    "alpha_order-bias": ["algo=alpha_order", "env=pgtrain/LQR-v0", "update.groups=3", "update.tolerance=1",
                         "policy/distribution=gaussian"],
    "shac-episodes": ["algo=shac", "env=pgtrain/Pendulum-v0", "collect.unit=episodes", "horizon=null"],
}  # fmt: skip
ORDERS = {"gradient/variance_pathwise", "gradient/variance_score"}
THROUGH_TIME = {
    "gradient/norm_first",
    "gradient/norm_last",
    "gradient/norm_through_time",
    "gradient/norm_peak_step",
}
OF_ALL = {
    "loss/actor", "gradient/norm", "gradient/skipped_share", "gradient/skipped_updates", "policy/entropy", "policy/std",
    "policy/kl", "advantage/std", "schedule/learning_rate", "episode/return", *ORDERS,
}  # fmt: skip
OF_CRITICS = {"loss/critic", "critic/value", "critic/explained_variance", "update/epochs"}


def runner_of(overrides: list[str], tmp_path: Path) -> tuple[Runner, Recorder]:
    cfg = compose(overrides).config
    log = Recorder()
    with build.make_env(cfg, cfg.num_envs) as env:
        runner = build.make_runner(cfg, env, Monitor([log], 1), tmp_path, Interrupt(), [])
    return runner, log


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_and_leaves_a_complete_record(name: str, tmp_path: Path) -> None:
    overrides = [*RECIPES[name], *SMALL]
    composed = compose(overrides)
    result = training.train(composed.config, tmp_path, overrides)
    told = result.summary
    assert (told["status"], told["skipped_updates"], told["eval_episodes"]) == ("finished", 0, 4)
    assert 400 < told["steps"] <= 480 and told["episodes"] > 0
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    wanted = OF_ALL | (OF_CRITICS if schema.has_critic(composed.config) else set())
    wanted |= {"gradient/alpha"} if name.startswith("alpha_order") else THROUGH_TIME
    last: dict[str, Any] = {}
    for row in rows:
        last |= row
    assert wanted <= last.keys(), wanted - last.keys()
    assert last.keys() <= {metric.tag for metric in METRICS} | {"step", "elapsed"}, last.keys()
    assert all(math.isfinite(last[tag]) for tag in wanted)
    assert last["gradient/skipped_share"] == 0 < last["gradient/norm"]
    loaded = loading.load(tmp_path)
    with loaded.make_env(4) as env:
        seed = build.streams(3)["evaluation"]
        assert evaluate(loaded.policy, env, 4, seed).mean == told["eval_return_mean"]


def test_a_run_can_be_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [*RECIPES["shac"], *SMALL]
    training.train(compose(overrides).config, tmp_path, overrides)
    assert main(["eval", str(tmp_path), "episodes=6"]) == 0
    assert "pgtrain/Pendulum-v0" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "evaluation.json").read_text())["returns"]) == 6


@pytest.mark.parametrize("name", RECIPES)
def test_resume_is_bit_exact(name: str, tmp_path: Path) -> None:
    """From the state dicts of a run on its way, through a file that names no code, as if nothing had happened."""
    overrides = [*RECIPES[name], *SMALL]
    one, log = runner_of(overrides, tmp_path)
    for _ in range(3):
        one._iterate()
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    two, other = runner_of(overrides, tmp_path)
    for part in ("policy", "update", "collector", "progress"):
        getattr(two, part).load_state_dict(state[part])
    for key, schedule in two._schedules.items():
        schedule.load_state_dict(state["schedules"][key])
    for runner in (one, two):
        runner._iterate()
        runner._iterate()
    assert torch.equal(one.update.flat.data, two.update.flat.data)
    told = [
        [{k: v for k, v in row.items() if not k.startswith("time/")} for row in x.rows] for x in (log, other)
    ]
    for row in told[1]:  # an entry of the log also counts the episodes since the one before
        for tag in ("episode/count", "episode/return", "episode/length"):
            row.pop(tag, None)
    for mine, theirs in zip(told[0][3:], told[1], strict=True):
        assert str({k: mine[k] for k in theirs}) == str(theirs)  # as text: a NaN equals itself


# ---------------------------------------------------------------------------------------- settings arrive


def test_the_recipes_have_the_settings_of_the_config(tmp_path: Path) -> None:
    runner, _ = runner_of(
        [
            "algo=shac", "env=pgtrain/Pendulum-v0", "gamma=0.9", "advantage.lam=0.7", "update.critic_epochs=3",
            "update.critic_minibatch_size=10", "update.critic_lr_ratio=0.3", "update.target_alpha=0.6",
            "update.compare_every=7", "optim.beta1=0.5", "optim.beta2=0.6", "optim.eps=0.1", "optim.max_grad_norm=2",
            "update/value_loss=huber", "update.value_loss.delta=3", "env.kwargs.g=3", "env.max_episode_steps=17",
            "num_envs=4", "horizon=5", "policy.activation=tanh",
        ],
        tmp_path,
    )  # fmt: skip
    update: Any = runner.update
    assert runner.estimator == TDLambda(0.9, 0.7)
    critic, source = update.critic, update.source
    assert (critic.epochs, critic.minibatch_size, critic.max_grad_norm, update.max_grad_norm) == (3, 10, 2, 2)
    assert critic.source.critic.value_loss == losses.HuberError(3)
    assert (update.critic_lr_ratio, update.target.alpha) == (0.3, 0.6)
    for optimizer in (update.optimizer, critic.optimizer):
        assert (optimizer.betas, optimizer.eps) == ((0.5, 0.6), 0.1)
    assert update.optimizer is not critic.optimizer and update.optimizer.data is update.flat.data
    assert isinstance(source, Pathwise) and source.comparison is not None
    assert (source.gamma, source.comparison.every, source.comparison.groups) == (0.9, 7, 4)
    env: Any = runner.collector.env
    assert (env.g, env.max_episode_steps, env.num_envs) == (3, 17, 4)
    assert isinstance(runner.policy.distribution, TanhGaussian)
    assert (runner.plan.horizon, runner.plan.episodes) == (5, None)


def test_the_recipes_differ_where_they_should(tmp_path: Path) -> None:
    mixed, _ = runner_of(
        [
            "algo=alpha_order",
            "env=pgtrain/Pendulum-v0",
            "update.groups=4",
            "update.tolerance=0.2",
            "update.delta=0.3",
        ],
        tmp_path,
    )
    source: Any = mixed.update.source  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(source, AlphaOrder) and (source.groups, source.tolerance, source.delta) == (4, 0.2, 0.3)
    blind, _ = runner_of(["algo=bptt", "env=pgtrain/Pendulum-v0", "gamma=0.8"], tmp_path)
    update: Any = blind.update
    assert update.critic is update.target is blind.collector.next_value_of is None  # pyright: ignore
    assert blind.estimator == WindowReturn(0.8)
    assert (blind.plan.horizon, blind.plan.episodes) == (None, 1)
    whole, _ = runner_of(
        ["algo=shac", "env=pgtrain/Pendulum-v0", "collect.unit=episodes", "horizon=null"], tmp_path
    )
    assert whole.update.critic.minibatch_size == 8 * 200 / 4  # pyright: ignore


def test_the_published_numbers_are_the_recipes(tmp_path: Path) -> None:
    """Xu et al. 2022, for small tasks: two Adams of betas 0.7, 0.95, norms of at most 1, λ 0.95, α 0.2."""
    cfg: Any = compose(["algo=shac", "env=pgtrain/Pendulum-v0"]).config
    assert (cfg.num_envs, cfg.horizon, cfg.gamma, cfg.advantage.lam) == (8, 16, 0.99, 0.95)
    assert (cfg.optim.beta1, cfg.optim.beta2, cfg.optim.max_grad_norm) == (0.7, 0.95, 1.0)
    assert (cfg.optim.lr.name, cfg.optim.lr.value, cfg.update.target_alpha) == ("linear", 5e-3, 0.2)
    assert cfg.optim.lr.value * cfg.update.critic_lr_ratio == pytest.approx(2e-3)
    assert (cfg.update.critic_epochs, cfg.update.critic_minibatch_size) == (8, 32)
    assert (cfg.policy.activation, cfg.policy.mean, cfg.policy.share) == ("tanh", "identity", 0)


def test_the_critic_learns_by_closed_forms_on_the_host_and_torch_agrees(tmp_path: Path) -> None:
    """One iteration from the same start: the critic's epochs in NumPy, and in torch."""
    parameters = []
    for pipeline in (HostPipeline, TorchPipeline):
        runner, _ = runner_of([*RECIPES["shac"], *SMALL, "optim.eps=1e-2"], tmp_path)
        critic: Any = runner.update.critic  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(critic.pipeline, HostPipeline)
        if pipeline is TorchPipeline:
            critic.pipeline = TorchPipeline(
                critic.source, critic.flat, critic.optimizer, critic.max_grad_norm
            )
        start = runner.update.flat.data.clone()
        runner._iterate()
        parameters.append(runner.update.flat.data - start)
    assert torch.allclose(*parameters, atol=1e-5) and parameters[0].abs().max() > 1e-3


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("algo", ["shac", "bptt", "alpha_order"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "tests.envs_for_tests:Test/AsymBox-v0"])
def test_an_env_without_a_gradient_is_refused_before_anything_is_written(
    algo: str, env: str, tmp_path: Path
) -> None:
    cfg = compose([f"algo={algo}", f"env={env}", *QUIET]).config
    with pytest.raises(
        UserError, match=r"is not differentiable: .*pgtrain/Acrobot-v0.*pgtrain/Quadrotor-v0"
    ) as error:
        training.train(cfg, tmp_path, [])
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_whole_episodes_need_a_limit(tmp_path: Path) -> None:
    endless = "env=tests.integration.endless:Endless-v0"
    runner, _ = runner_of(["algo=bptt", endless, *QUIET], tmp_path)
    with pytest.raises(UserError, match=r"needs a time limit; set env\.max_episode_steps"):
        runner._iterate()
    runner, _ = runner_of(["algo=bptt", endless, *QUIET, "env.max_episode_steps=5"], tmp_path)
    runner._iterate()
    assert runner.progress.steps == 16 * 5


# ---------------------------------------------------------------------------------------- the same physics


@pytest.mark.parametrize("env", ["Pendulum", "CartPole", "CartPoleSwingUp", "Acrobot", "Quadrotor", "LQR"])
def test_ppo_trains_on_the_same_physics(env: str, tmp_path: Path) -> None:
    overrides = ["algo=ppo", f"env=pgtrain/{env}-v0", *SMALL, "horizon=16"]
    result = training.train(compose(overrides).config, tmp_path, overrides)
    assert result.summary["status"] == "finished" and result.summary["episodes"] > 0


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ("pgtrain/Pendulum-v0", "equal to Gymnasium's Pendulum-v1 step by step"),
        ("pgtrain/Quadrotor-v0", "the task itself on tensors"),
        ("CartPole-v1", "equal to Gymnasium's step by step"),
    ],
)
def test_what_a_batched_env_equals_is_told(env: str, text: str) -> None:
    with build.make_vector_env(env, 2) as made:
        assert made.notices[0] == f"env.backend=native: pgtrain's batched {env}, {text}"


@pytest.mark.slow
def test_shac_swings_the_pendulum_up(tmp_path: Path) -> None:
    result = training.train(compose(["algo=shac", "env=pgtrain/Pendulum-v0", "total_steps=100_000",
                                     "monitor.terminal=none"]).config, tmp_path, [])  # fmt: skip
    assert result.summary["eval_return_mean"] > -250
