"""Every recipe with every kind of action space, with masks, and that such policies learn."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pgtrain import build, checkpoint, loading, training
from pgtrain.config import checks, schema
from pgtrain.config.compose import compose
from pgtrain.evaluation import evaluate
from pgtrain.policies.actors import NumpyActor, TorchActor
from pgtrain.types import UserError
from tests.action_envs import MASKED, action_env
from tests.action_spaces import ACTION_SPACES
from tests.support import configure, make_runner

RECIPES = ["reinforce", "actor_critic", "a2c", "ppo", "ppo_kl", "npg", "trpo"]
KINDS = {name: action_env("AnyAction", space=name) for name in ACTION_SPACES} | {
    f"masked {kind}": action_env("Masked", kind=kind) for kind in MASKED
}
# what differs in the code that a recipe runs: one of each for the recipes, all for PPO
EACH = [
    "Discrete with a start",
    "MultiDiscrete, 2-D",
    "MultiBinary",
    "Box of integers",
    "Dict, nested",
    "masked multi",
]


@functools.cache
def recipe(algo: str) -> schema.Config:
    small = [] if algo == "reinforce" else ["horizon=16"]
    small += ["num_envs=2", "total_steps=64", "eval.episodes=0", "policy.hidden=[8]"]
    return compose([f"algo={algo}", *small, "monitor.terminal=none", "monitor.tensorboard=false"]).config


def config(algo: str, env: dict[str, Any], distribution: Any = None, **policy: Any) -> schema.Config:
    cfg = recipe(algo)
    policy = {"distribution": distribution or cfg.policy.distribution, "mean": None} | policy
    policy["last_layer_gain"] = 1.0
    return checks.settle(
        dataclasses.replace(
            cfg,
            env=schema.EnvConfig(**env),
            policy=dataclasses.replace(cfg.policy, **policy),
            update=dataclasses.replace(cfg.update, minibatch_size=None)
            if hasattr(cfg.update, "minibatch_size")
            else cfg.update,
        )
    )


def two_iterations(cfg: schema.Config, folder: Path) -> Any:
    """The envs of these tests raise where an action is no member of the space, or is ruled out by a mask."""
    runner, log = make_runner(cfg, folder)
    runner.run()
    assert len(log.rows) >= 2 and torch.isfinite(runner.update.flat.data).all()
    assert all(row["gradient/skipped_updates"] == 0 for row in log.rows)
    assert all(
        np.isfinite(row[tag])
        for row in log.rows
        for tag in ("policy/entropy", "policy/kl", "policy/approx_kl")
    )
    runner.collector.env.close()
    return runner


@pytest.mark.parametrize(
    ("algo", "kind"),
    [(algo, kind) for algo in RECIPES for kind in (KINDS if algo == "ppo" else EACH)],
)
def test_every_recipe_with_every_kind_of_action(tmp_path: Path, algo: str, kind: str) -> None:
    two_iterations(config(algo, KINDS[kind]), tmp_path)


@pytest.mark.parametrize("algo", ["ppo", "trpo"])
@pytest.mark.parametrize("d", [schema.TanhGaussianConfig(), schema.BetaConfig()], ids=["tanh", "beta"])
@pytest.mark.parametrize("kind", ["Box", "Box, 2-D float64", "Box of integers", "Dict, nested"])
def test_bounded_distributions_with_boxes_of_all_kinds(tmp_path: Path, algo: str, d: Any, kind: str) -> None:
    two_iterations(config(algo, KINDS[kind], d), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_both_actors_and_the_update_agree(tmp_path: Path, kind: str) -> None:
    cfg = config("a2c", KINDS[kind], temperature=0.7 if "Box" not in kind else 1.0)
    runner, _ = make_runner(cfg, tmp_path)
    policy, obs = runner.policy, runner.collector.obs.repeat(8, 0)
    policy.observe(torch.from_numpy(obs))
    by_numpy, by_torch = NumpyActor(policy, policy.network.actor_numpy(), 0), TorchActor(policy, 0)
    a, b = by_numpy.act(obs, greedy=True), by_torch.act(obs, greedy=True)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, torch.as_tensor(y).numpy(), rtol=1e-5, atol=1e-5)
    for actor in (by_numpy, by_torch):
        _, action, params, inputs = (torch.as_tensor(x) for x in actor.act(obs))
        new = policy.evaluate(inputs, action)
        old = policy.distribution.log_prob(params, action)
        assert (new.log_prob - old).abs().max() < 1e-4 and (old > -1e4).all()
        assert policy.distribution.kl(params, new.params).abs().max() < 1e-5
    runner.collector.env.close()


def test_a_masked_policy_comes_back_from_its_folder(tmp_path: Path) -> None:
    cfg = config("ppo", action_env("Masked", where="action_mask"))
    cfg = dataclasses.replace(cfg, eval=schema.EvalConfig(episodes=4))
    result = training.train(cfg, tmp_path, [])
    loaded = loading.load(tmp_path, env_id=cfg.env.id)
    with loaded.make_env(4) as env:
        assert (env.obs_dim, env.mask_dim) == (8, 6)
        again = evaluate(loaded.policy, env, 4, build.streams(0)["evaluation"])
    assert again.mean == result.summary["eval_return_mean"]
    state, _ = checkpoint.load(tmp_path)
    assert "network.inner.actor.0.weight" in state["runner"]["policy"]


def test_the_normaliser_leaves_masks_alone(tmp_path: Path) -> None:
    runner, _ = make_runner(config("a2c", action_env("Masked")), tmp_path)
    policy, obs = runner.policy, torch.from_numpy(runner.collector.obs)
    policy.observe(100 + 50 * torch.randn(500, 8))
    assert policy.normalizer is not None and policy.normalizer.mean.shape == (2,)
    inputs = policy.prepare(obs)
    assert torch.equal(inputs[:, 2:], obs[:, 2:]) and not torch.equal(inputs[:, :2], obs[:, :2])
    value = policy.value(inputs)
    inputs[:, 2:] = 1 - inputs[:, 2:]
    assert torch.equal(policy.value(inputs), value)  # a mask is no feature
    runner.collector.env.close()


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("kind", "policy", "text"),
    [
        (
            "Box without bounds",
            {"distribution": schema.BetaConfig()},
            "beta needs two bounds.*dimension 0, 1",
        ),
        ("Box with one bound", {"distribution": schema.BetaConfig()}, r"lack one in dimension 0: use"),
        (
            "Dict",
            {"distribution": schema.StateDependentConfig()},
            r"gsde cannot serve the actions Box.* at steer",
        ),
        ("MultiBinary", {"distribution": schema.BetaConfig()}, "beta needs continuous actions"),
        ("Box", {"temperature": 2.0}, r"policy\.temperature=2 needs discrete actions"),
    ],
)
def test_what_a_space_cannot_have_is_refused(tmp_path: Path, kind: str, policy: Any, text: str) -> None:
    with pytest.raises(UserError, match=text) as error:
        make_runner(config("a2c", KINDS[kind], **policy), tmp_path)
    assert "Test/AnyAction-v0" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "override", "distribution", "text"),
    [
        ("MultiBinary", "policy.mean=identity", None, "with the discrete actions"),
        ("Box", "policy.temperature=1", None, "with the continuous actions"),
        ("Box", "policy.log_std_init=0", schema.BetaConfig(), "with policy/distribution=beta"),
    ],
)
def test_settings_without_effect_are_refused(kind: str, override: str, distribution: Any, text: str) -> None:
    cfg = config("a2c", KINDS[kind], distribution)
    with build.make_env(cfg, 1) as env, pytest.raises(UserError, match=f"{override} has no effect {text}"):
        build.refuse_unused(cfg, [override], env)


# ------------------------------------------------------------------------------------------------------ learning

PPO: dict[str, Any] = {
    "advantage": {"name": "gae"},
    "update": {"name": "clipped", "epochs": 4, "minibatch_size": 64},
    "optim": {"lr": {"value": 5e-3}},
    "num_envs": 8,
    "horizon": 32,
    "gamma": 0.5,
    "eval": {"episodes": 40},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "best"),
    [
        (action_env("Match"), 8.0),
        (action_env("Match", bits=True), 8.0),
        # E[largest allowed index] = 5 − Σ_{k<5} P(max ≤ k): the sure place is at most k, the 5 − k above are not set
        (action_env("Masked"), 8 / 5 * (5 - sum((k + 1) / 6 * 0.5 ** (5 - k) for k in range(5)))),
    ],
    ids=["multi_discrete", "multi_binary", "masked"],
)
def test_toys_reach_their_optimum(tmp_path: Path, env: dict[str, Any], best: float) -> None:
    result = training.train(configure(env, total_steps=12_000, **PPO), tmp_path, [])
    assert result.summary["eval_return_mean"] == pytest.approx(best, abs=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tanh_gaussian", "beta"])
def test_bounded_distributions_find_a_corner(tmp_path: Path, kind: str) -> None:
    """AsymBox: the upper corner is best, 8 in all."""
    policy = {"distribution": {"name": kind}}
    env = "tests.envs_for_tests:Test/AsymBox-v0"
    result = training.train(configure(env, total_steps=16_000, policy=policy, **PPO), tmp_path, [])
    assert result.summary["eval_return_mean"] > 7.5


@pytest.mark.slow
def test_mountain_car_continuous_with_its_preset(tmp_path: Path) -> None:
    """The trap of the env: doing nothing gives 0, and a policy that never reaches the flag stays there."""
    overrides = ["+experiment=trpo/MountainCarContinuous-v0", "monitor.terminal=none", "eval.episodes=20"]
    result = training.train(compose(overrides).config, tmp_path, overrides)
    assert result.summary["eval_return_mean"] > 85
