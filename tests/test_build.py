"""From a config to a trained run folder, and back from the folder to a policy."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from pgtrain import build, build_update, checkpoint, loading, training
from pgtrain.config import schema
from pgtrain.evaluation import evaluate
from pgtrain.learning import advantages, kl_guard, losses, schedules
from pgtrain.learning.natural_gradient import FixedStep, LineSearch
from pgtrain.policies.distributions import Categorical, DiagonalGaussian
from pgtrain.policies.gsde import StateDependentGaussian
from pgtrain.policies.parameters import FlatParameters
from pgtrain.policies.squashed import TanhGaussian
from pgtrain.types import TrainingError, UserError
from tests.support import configure, critic_only, env_id

A2C = critic_only(horizon=8)
REINFORCE: dict[str, Any] = {"collect": {"unit": "episodes"}}


def train(folder: Path, env: Any, overrides: list[str] | None = None, **settings: Any) -> training.Result:
    defaults: dict[str, Any] = {"num_envs": 4, "total_steps": 128}
    return training.train(configure(env, **(defaults | settings)), folder, overrides or [])


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


# ---------------------------------------------------------------------------------------------------- objects


def test_streams_are_distinct_and_from_the_seed() -> None:
    one, two = build.streams(0), build.streams(1)
    assert len(set(one.values())) == len(one) == 5
    assert not set(one.values()) & set(two.values()) and build.streams(0) == one


def test_estimators() -> None:
    def made(**advantage: Any) -> Any:
        whole = advantage["name"] == "monte_carlo"
        return build.make_estimator(configure(advantage=advantage, **(REINFORCE if whole else {}), gamma=0.7))

    assert made(name="td") == advantages.TD(0.7)
    assert made(name="n_step", n=3) == advantages.NStep(0.7, 3)
    assert made(name="gae", lam=0.4) == advantages.GAE(0.7, 0.4)
    loo = made(name="monte_carlo", baseline={"name": "loo", "scope": "step"})
    assert loo == advantages.MonteCarlo(0.7, "reward_to_go", "none", "loo", "step")
    total = made(
        name="monte_carlo", returns="total", truncation_bootstrap="mean_return", baseline={"name": "none"}
    )
    assert total == advantages.MonteCarlo(0.7, "total", "mean_return", "none", "scalar")
    value = made(name="monte_carlo", truncation_bootstrap="value", baseline={"name": "value"})
    assert value == advantages.MonteCarlo(0.7, "reward_to_go", "value", "value", "scalar")
    with_value = schema.MonteCarloConfig(baseline=schema.ValueBaselineConfig())
    for config in (schema.MonteCarloConfig(), schema.GaeConfig(), with_value):
        cfg = schema.Config(advantage=config)
        assert schema.has_critic(cfg) == build.make_estimator(cfg).needs_critic


def test_policies_fit_their_envs() -> None:
    cfg = configure(policy={"hidden": [5, 7], "share": "all", "log_std_init": -1.0}, **A2C)
    with build.make_env(cfg, 2) as env:
        policy = build.make_policy(cfg, env)
    assert isinstance(policy.distribution, Categorical) and policy.distribution.param_dim == 2
    assert policy.normalizer is not None and policy.has_critic
    # 4 inputs: 4·5+5 and 5·7+7 shared, heads 7·2+2 and 7+1
    assert sum(p.numel() for p in policy.parameters()) == 25 + 42 + 16 + 8
    settings = {"hidden": [5], "log_std_init": -1.0, "normalize_obs": "none"}
    cfg = configure(env_id("AsymBox"), policy=settings, **REINFORCE)
    second = configure(env_id("AsymBox"), policy=settings, seed=1, **REINFORCE)
    with build.make_env(cfg, 2) as env:
        policy = build.make_policy(cfg, env)
        same, other = build.make_policy(cfg, env), build.make_policy(second, env)
    assert isinstance(policy.distribution, DiagonalGaussian)
    assert policy.distribution.high.tolist() == [1, 5, -2]
    assert policy.normalizer is None and not policy.has_critic
    assert policy.log_std.tolist() == [-1.0] * 3
    # 1 input: 1·5+5, head 5·3+3, 3 log stds
    assert sum(p.numel() for p in policy.parameters()) == 10 + 18 + 3
    assert torch.equal(policy.network.actor[0].weight, same.network.actor[0].weight)
    assert not torch.equal(policy.network.actor[0].weight, other.network.actor[0].weight)


def made(env: str = "Pendulum-v1", **settings: Any) -> Any:
    """The update that a config asks for."""
    cfg = configure(env, **(A2C | settings))
    with build.make_env(cfg, 2) as vec:
        policy = build.make_policy(cfg, vec)
    return build_update.make_update(cfg, policy, FlatParameters(policy), 0)


def test_updates_have_the_settings_of_the_config() -> None:
    clipped = made(
        update={
            "name": "clipped",
            "epochs": 3,
            "minibatch_size": 7,
            "value_coef": 0.25,
            "dual_clip": 4.0,
            "value_loss": {"name": "clip_only"},
            "kl_guard": {"name": "stop", "limit": 0.7, "estimate": "k3"},
        },
        advantage={"name": "gae", "normalize": True},
        optim={"name": "rmsprop_tf", "alpha": 0.9, "eps": 0.1, "max_grad_norm": None},
    )
    assert (clipped.epochs, clipped.minibatch_size, clipped.max_grad_norm) == (3, 7, None)
    assert clipped.source.value_coef == 0.25 and clipped.source.actor.normalize
    assert clipped.source.actor.policy_loss == losses.ClippedSurrogate("steps", 4.0)
    assert clipped.source.critic.value_loss == losses.ClippedError("clip_only")
    assert clipped.guards == [kl_guard.Stop(0.7)] and clipped.measure_kl.keywords == {"estimate": "k3"}
    o = clipped.optimizer
    assert (o.name, o.alpha, o.eps, o.tensorflow) == (
        "rmsprop",
        0.9,
        0.1,
        True,
    ) and o.data is clipped.flat.data
    penalty = made(
        update={
            "name": "kl_penalty",
            "beta": 3.0,
            "target": 0.2,
            "value_loss": {"name": "huber", "delta": 2.0},
        },
        optim={"name": "rmsprop", "alpha": 0.8},
    )
    loss = penalty.source.actor.policy_loss
    assert (float(loss.beta), loss.target) == (3.0, 0.2) and penalty.guards == [loss]
    assert penalty.source.critic.value_loss == losses.HuberError(2.0)
    assert (penalty.optimizer.alpha, penalty.optimizer.tensorflow) == (0.8, False)
    rate = made(
        update={
            "name": "policy_gradient",
            "kl_guard": {"name": "learning_rate", "target": 0.3, "smallest": 1e-4, "largest": 1e-2},
        },
        optim={"name": "sgd", "momentum": 0.7, "lr": {"name": "constant", "value": 2e-3}},
    )
    (guard,) = rate.guards
    assert (guard.target, guard.start, guard.smallest, guard.largest) == (0.3, 2e-3, 1e-4, 1e-2)
    assert rate.optimizer.momentum == 0.7 and made(update={"name": "clipped"}).guards == []
    (skip,) = made(update={"name": "clipped", "kl_guard": {"name": "skip", "limit": 0.4}}).guards
    assert skip == kl_guard.Skip(0.4)


def test_natural_updates_have_the_settings_of_the_config() -> None:
    settings = {"damping": 0.3, "cg_iterations": 4, "cg_tolerance": 1e-3, "critic_epochs": 6}
    search = {"name": "line_search", "max_kl": 0.5, "shrink": 0.6, "trials": 3}
    sizes = {"critic_minibatch_size": 5, "step": search, "value_loss": {"name": "clip_max"}}
    update = made(update={"name": "natural", **settings, **sizes}, optim={"name": "adam", "eps": 0.2})
    assert (update.damping, update.cg_iterations, update.cg_tolerance) == (0.3, 4, 1e-3)
    assert update.rule == LineSearch(0.5, 0.6, 3) and not update.actor_loss.normalize
    assert (update.critic.epochs, update.critic.minibatch_size, update.critic.optimizer.eps) == (6, 5, 0.2)
    assert update.critic.source.critic.value_loss == losses.ClippedError("clip_max")
    assert made(update={"name": "natural", "step": {"name": "fixed", "size": 0.7}}).rule == FixedStep(0.7)
    alone = made(
        advantage={"name": "monte_carlo"}, update={"name": "trust_region"}, horizon=None, **REINFORCE
    )
    assert alone.critic is None and alone.rule == LineSearch(0.01, 0.8, 10)


def test_schedules_have_the_settings_of_the_config() -> None:
    def at(schedule: Any, progress: float) -> float:
        return build_update.make_schedule(schedule)(progress)

    assert at(schema.LinearClipConfig(value=0.4, end=0.2), 0.5) == pytest.approx(0.3)
    assert at(schema.LinearEntropyConfig(coef=0.4, end=0.2), 0.5) == pytest.approx(0.3)
    assert at(schema.CosineEntropyConfig(coef=0.4), 0.5) == pytest.approx(0.2)
    assert at(schema.CosineLearningRateConfig(value=0.4, end=0.2), 1.0) == pytest.approx(0.2)
    gated = schema.ReturnGatedEntropyConfig(coef=0.4, end=0.1, rise=2.0, episodes=7)
    assert build_update.make_schedule(gated) == schedules.ReturnGated(0.4, 0.1, 2.0, 7)
    target = schema.TargetEntropyConfig(coef=0.4, target=-3.0, rate=0.1, smallest=0.2, largest=0.9)
    assert build_update.make_schedule(target) == schedules.TargetEntropy(0.4, -3.0, 0.1, 0.2, 0.9)
    plateau = schema.PlateauLearningRateConfig(
        value=0.4, factor=0.3, patience=5, threshold=0.2, smallest=1e-4
    )
    assert build_update.make_schedule(plateau) == schedules.Plateau(0.4, 0.3, 5, 0.2, 1e-4)


def test_gsde_has_the_settings_of_the_config() -> None:
    noise = {"name": "gsde", "sample_freq": 3, "expln": True, "learn_features": True}
    settings: dict[str, Any] = {"policy": {"hidden": [5, 7], "distribution": noise, "log_std_init": -2.0}}
    for learn in (True, False):
        noise["learn_features"] = learn
        cfg = configure(env_id("AsymBox"), **settings, **A2C)
        with build.make_env(cfg, 2) as env:
            policy = build.make_policy(cfg, env)
        d: Any = policy.distribution
        assert isinstance(d, StateDependentGaussian) and (d.sample_freq, d.expln, d.features) == (3, True, 7)
        assert policy.log_std is not None and policy.log_std.shape == (7, 3) and (policy.log_std == -2).all()
        assert policy.network.actor[-1].detach is not learn
    settings["policy"]["hidden"] = []
    with build.make_env(cfg := configure(env_id("AsymBox"), **settings, **A2C), 2) as env:
        assert build.make_policy(cfg, env).log_std.shape == (1, 3)  # the observation itself


def test_tanh_gaussian_is_squashed_once() -> None:
    cfg = configure(env_id("AsymBox"), policy={"distribution": {"name": "tanh_gaussian"}}, **A2C)
    assert cfg.policy.mean == "identity" and configure(env_id("AsymBox"), **A2C).policy.mean == "tanh"
    with build.make_env(cfg, 2) as env:
        policy = build.make_policy(cfg, env)
    assert isinstance(policy.distribution, TanhGaussian) and not policy.squashed.any()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("UnboundedBox", "tanh_gaussian has nothing to squash in the actions Box.*have no bounds"),
        ("FixedLen", "tanh_gaussian needs continuous actions"),
    ],
)
def test_tanh_gaussian_needs_a_bounded_box(name: str, text: str) -> None:
    cfg = configure(env_id(name), policy={"distribution": {"name": "tanh_gaussian"}}, **A2C)
    with build.make_env(cfg, 1) as env, pytest.raises(UserError, match=text):
        build.make_policy(cfg, env)


def test_initial_weights() -> None:
    def last(**policy: Any) -> Any:
        cfg = configure(policy=policy, **A2C)
        with build.make_env(cfg, 2) as env:
            return build.make_policy(cfg, env).network.actor[-1]

    assert last().weight.norm(dim=1).tolist() == pytest.approx([0.01] * 2)
    assert last(last_layer_gain=0.5).weight.norm(dim=1).tolist() == pytest.approx([0.5] * 2)
    plain = last(ortho_init=False)
    assert plain.bias.abs().min() > 0 and plain.weight.abs().max() <= 1 / 8


def test_only_numbers_without_a_scale_are_standardised() -> None:
    cfg = configure(env_id("DictMixed"), **A2C)
    with build.make_env(cfg, 1) as env:
        policy = build.make_policy(cfg, env)
        (vec,) = [leaf for leaf in env.layout if leaf.name == "in.vec"]
    assert policy.normalizer is not None
    assert policy.normalizer.columns.tolist() == list(range(vec.start, vec.stop)) and vec.width == 3


@pytest.mark.parametrize(
    ("override", "env"),
    [
        ("policy.mean=identity", "CartPole-v1"),
        ("policy.log_std_init=-1", "CartPole-v1"),
        ("policy.normalize_obs=running", "FrozenLake-v1"),
    ],
)
def test_settings_that_the_spaces_leave_without_effect_are_refused(
    tmp_path: Path, override: str, env: str
) -> None:
    with pytest.raises(UserError, match=f"{override}.*{env.rpartition('/')[2]}"):
        train(tmp_path, env, [override], **A2C)


# ------------------------------------------------------------------------------------------------------- runs


def test_a_run_leaves_a_summary_and_a_policy_that_plays(tmp_path: Path) -> None:
    result = train(tmp_path, "CartPole-v1", eval={"episodes": 10}, seed=3, **A2C)
    told = summary(tmp_path)
    assert told == result.summary | {"run_dir": str(tmp_path)}
    assert told["status"] == "finished" and told["error"] is None and result.exit_code == 0
    assert told["steps"] == 128 and told["iterations"] == 4 and told["seed"] == 3
    assert told["eval_episodes"] == 10 and told["eval_return_mean"] >= 8
    returns = checkpoint.load(tmp_path)[0]["runner"]["progress"]["recent_returns"]
    assert (
        told["return_mean"] == pytest.approx(statistics.mean(returns))
        and len(returns) == told["episodes"] > 1
    )
    assert told["return_std"] == pytest.approx(statistics.stdev(returns))
    assert told["wall_seconds"] > 0 and told["steps_per_second"] == pytest.approx(128 / told["wall_seconds"])
    loaded = loading.load(tmp_path)
    assert loaded.warning is None and loaded.cfg.seed == 3
    for name, x in result.policy.state_dict().items():
        assert torch.equal(x, loaded.policy.state_dict()[name]), name
    with loaded.make_env(10) as env:  # the same episodes again
        again = evaluate(loaded.policy, env, 10, build.streams(3)["evaluation"])
    assert again.mean == told["eval_return_mean"] and again.std == pytest.approx(told["eval_return_std"])


def test_returns_in_the_summary_are_raw(tmp_path: Path) -> None:
    env = {"id": env_id("FixedLen"), "kwargs": {"length": 5, "reward": 100.0}}
    result = train(tmp_path, env, reward={"scaling": "running_std"}, eval={"episodes": 4}, **A2C)
    assert result.summary["return_mean"] == 500.0 == result.summary["eval_return_mean"]
    assert result.summary["return_std"] == 0.0 == result.summary["eval_return_std"]
    assert result.summary["episodes"] == 4 * (32 // 5)


@pytest.mark.parametrize("backend", ["sync", "process"])
@pytest.mark.parametrize("where", ["step", "reset"])
def test_an_env_that_raises_ends_the_run_in_good_order(tmp_path: Path, backend: str, where: str) -> None:
    """The original message and the env's index; the last checkpoint and a summary that says failed."""
    env = {"id": env_id("Raises"), "kwargs": {"where": where}, "backend": backend}
    said = r"env index 0, .*broken at (step 13|reset 3)"
    with pytest.raises(TrainingError, match=said) as error:
        train(tmp_path, env, **critic_only(horizon=4))
    assert "\n" not in str(error.value)
    told = summary(tmp_path)
    assert told["status"] == "failed" and told["error"] == str(error.value)
    assert (
        told["steps"] >= 4 * 12 and told["iterations"] == told["steps"] // 16 and told["eval_episodes"] == 0
    )
    assert loading.load(tmp_path, env_id=env["id"]).policy is not None
    log = (tmp_path / "run.log").read_text()
    place = re.search(r"envs_for_tests\.py:(\d+)\)$", str(error.value))
    assert (
        place and f'envs_for_tests.py", line {place[1]}, in {"play" if where == "step" else "reset"}' in log
    )
    assert log.count(f"the run failed: {error.value}") == 1


def test_numbers_that_stay_bad_end_the_run_in_good_order(tmp_path: Path) -> None:
    env = {"id": env_id("FixedLen"), "kwargs": {"reward": float("nan")}}
    with pytest.raises(
        TrainingError, match=r"all updates of 2 iterations in a row.*reward in env 0.*reward nan"
    ):
        train(tmp_path, env, update={"max_skipped_in_a_row": 2}, total_steps=1000, **A2C)
    told = summary(tmp_path)
    assert told["status"] == "failed" and told["skipped_updates"] == 2 and told["iterations"] == 2
    state, _ = checkpoint.load(tmp_path)
    assert all(torch.isfinite(x).all() for x in state["runner"]["policy"].values())


@pytest.mark.parametrize("kind", ["episode", "ragged", "none"])
def test_odd_infos_do_no_harm(tmp_path: Path, kind: str) -> None:
    result = train(tmp_path, {"id": env_id("BadInfo"), "kwargs": {"kind": kind}}, **A2C)
    assert result.summary["status"] == "finished" and result.summary["return_mean"] == 8.0


@pytest.mark.parametrize("log_std", [-80.0, 80.0])
@pytest.mark.parametrize(
    "env", ["AsymBox", "HalfBoundedBox", "UnboundedBox", "IntBox", "Float64", "MatrixBox"]
)
def test_all_kinds_of_boxes_train_with_extreme_log_stds(tmp_path: Path, env: str, log_std: float) -> None:
    """Each env raises when an action is no member of its space."""
    result = train(tmp_path, env_id(env), policy={"log_std_init": log_std}, eval={"episodes": 4}, **A2C)
    assert result.summary["skipped_updates"] == 0 and result.summary["steps"] == 128
    assert all(torch.isfinite(p).all() for p in result.policy.parameters())


def test_episodes_without_end_leave_a_run_without_updates(tmp_path: Path) -> None:
    result = train(tmp_path, env_id("NeverEnds"), **REINFORCE)
    assert result.summary["status"] == "finished" and result.summary["iterations"] == 0
    assert result.summary["return_mean"] is None and 128 <= result.summary["steps"] < 132
    assert "did not end" in (tmp_path / "run.log").read_text()
    assert loading.load(tmp_path, env_id=env_id("NeverEnds")).policy is not None


def test_fewer_evaluation_envs_than_workers(tmp_path: Path) -> None:
    """4 workers for 4 training envs; the evaluation of 3 episodes has 3 envs, loading makes 1."""
    env = {"id": env_id("FixedLen"), "backend": "process", "workers": 4}
    result = train(tmp_path, env, eval={"episodes": 3}, total_steps=32, **A2C)
    assert result.summary["eval_episodes"] == 3
    assert loading.load(tmp_path, env_id=env["id"]).policy is not None


# ---------------------------------------------------------------------------------------------------- loading


def test_a_run_cannot_name_code_to_import(tmp_path: Path) -> None:
    id_ = env_id("FixedLen")
    train(tmp_path, id_, total_steps=32, **A2C)
    for repeated in (None, "CartPole-v1", env_id("OneStep")):
        with pytest.raises(UserError, match=r"imports the module tests.envs_for_tests.*repeat env=") as error:
            loading.load(tmp_path, env_id=repeated)
        assert "\n" not in str(error.value)
    assert loading.load(tmp_path, env_id=id_).cfg.env.id == id_


def test_a_module_is_not_imported_before_it_was_repeated(tmp_path: Path) -> None:
    """The id is read from the checkpoint, which may come from a stranger."""
    train(tmp_path, "CartPole-v1", total_steps=32, **A2C)
    state, _ = checkpoint.load(tmp_path)
    state["config"]["env"]["id"] = "a_module_that_is_not_there:Env-v0"
    checkpoint.save(tmp_path, state)
    with pytest.raises(UserError, match="repeat env=a_module_that_is_not_there:Env-v0"):
        loading.load(tmp_path)


def test_loading_an_older_checkpoint_warns(tmp_path: Path) -> None:
    train(tmp_path, "CartPole-v1", checkpoint={"every_steps": 32, "keep": 2}, **A2C)
    (tmp_path / "checkpoint.pt").write_bytes(b"cut")
    loaded = loading.load(tmp_path)
    assert loaded.warning is not None and "checkpoint.1.pt" in loaded.warning
