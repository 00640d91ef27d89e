"""Every recipe with discrete and continuous actions: composed, trained, and its run folder read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgtrain import build, loading, training
from pgtrain.config import schema
from pgtrain.config.compose import compose
from pgtrain.evaluation import evaluate
from pgtrain.monitor.dashboard import METRICS

RECIPES = {
    "reinforce": ["algo=reinforce"],
    "reinforce-none": ["algo=reinforce", "advantage/baseline=none"],
    "reinforce-mean": ["algo=reinforce", "advantage/baseline=mean", "advantage.baseline.scope=step"],
    "reinforce-loo": ["algo=reinforce", "advantage/baseline=loo"],
    "reinforce-value": ["algo=reinforce", "advantage/baseline=value", "policy.share=1"],
    "reinforce-optimal": ["algo=reinforce", "advantage/baseline=optimal", "advantage.baseline.scope=step_joint"],
    "reinforce-parameter": ["algo=reinforce", "advantage/baseline=optimal", "advantage.baseline.scope=parameter"],
    "reinforce-total": ["algo=reinforce", "advantage.returns=total", "update.mean_over=episodes"],
    "actor_critic": ["algo=actor_critic"],
    "a2c": ["algo=a2c", "policy.share=all", "reward.scaling=running_std"],
    "n_step": ["algo=a2c", "advantage=n_step", "advantage.discount_states=true"],
    "a2c-rmsprop_tf": [
        "algo=a2c", "optim=rmsprop_tf", "optim/lr=plateau", "entropy=return_gated", "policy.ortho_init=false",
    ],
    "ppo": ["algo=ppo", "update.minibatch_size=20"],
    "ppo-stop": [
        "algo=ppo", "update.minibatch_size=32", "update/kl_guard=stop", "update.dual_clip=3", "entropy=target",
        "update/clip=linear", "update/value_loss=clip_max", "update.recompute_advantages=true",
    ],
    "ppo-skip": [
        "algo=ppo", "update.minibatch_size=32", "update/kl_guard=skip", "entropy=linear", "optim/lr=cosine",
        "update/value_loss=clip_only", "optim=rmsprop", "update.kl_guard.estimate=k3",
    ],
    "ppo-rate": [
        "algo=ppo", "update.minibatch_size=32", "update/kl_guard=learning_rate", "optim/lr=constant", "optim=sgd",
        "optim.momentum=0.9", "update/value_loss=huber", "entropy=cosine", "policy.share=1",
    ],
    "ppo_kl": ["algo=ppo_kl", "update.minibatch_size=32"],
    "npg": ["algo=npg"],
    "trpo": ["algo=trpo", "update/value_loss=clip_max"],
    "reinforce-trust_region": ["algo=reinforce", "update=trust_region"],
}  # fmt: skip
ENVS = {
    "discrete": ["env=CartPole-v1", "env.max_episode_steps=12"],
    "box": ["env=Pendulum-v1", "env.max_episode_steps=12"],
}
FEW = ["num_envs=4", "seed=5", "eval.episodes=4", "monitor.terminal=none"]
FILES = {
    "config.yaml", "overrides.yaml", "versions.json", "metrics.jsonl", "run.log", "summary.json", "checkpoint.pt",
}  # fmt: skip

# Metrics that stay away, and why. The rest has to be there.
NEVER = {"evaluation/return"}  # nothing evaluates on the way yet
FULL = {  # monitor.gradient=full
    "gradient/variance", "gradient/snr", "gradient/noise_scale", "gradient/update_cosine", "gradient/share_first",
    "gradient/share_hidden", "gradient/share_last", "gradient/share_spread",
}  # fmt: skip
WITHOUT_CRITIC = {"loss/critic", "critic/value", "critic/explained_variance"}
DISCRETE = {"policy/std", "policy/clipped_actions"}
CLIP, SEARCH = (
    {"policy/clip_fraction", "schedule/clip"},
    {"update/line_search_trials", "update/line_search_failed"},
)
# Metrics that need not differ between iterations: constants of these runs, and of envs whose rewards are all alike
STILL = {
    "schedule/learning_rate", "schedule/entropy_coef", "gradient/skipped_updates", "gradient/skipped_share",
    "episode/count", "episode/length",
    "episode/return", "episode/return_100", "policy/clipped_actions", "update/epochs", "update/kl_guard",
    "schedule/clip", "policy/clip_fraction", *SEARCH,
}  # fmt: skip


def settings(recipe: str, env: str, tmp_path: Path) -> tuple[list[str], Any]:
    whole = recipe.startswith("reinforce")
    size = [] if whole else ["horizon=16"]
    overrides = [*RECIPES[recipe], *ENVS[env], *FEW, *size, "total_steps=192"]
    return overrides, compose(overrides)


def of_other_updates(config: Any) -> set[str]:
    """Tags that only another update, guard or step rule has."""
    update = config.update
    critic = schema.has_critic(config)
    through_time = {"gradient/alpha", "gradient/variance_pathwise", "gradient/variance_score"}
    through_time |= {"gradient/norm_first", "gradient/norm_last", "gradient/norm_through_time"}
    through_time |= {"gradient/norm_peak_step"}
    natural = isinstance(update, schema.NaturalConfig)
    absent = set() if isinstance(update, schema.ClippedConfig) else set(CLIP)
    absent |= set() if isinstance(update, schema.KLPenaltyConfig) else {"schedule/kl_coef"}
    absent |= {"policy/ratio_max"} if natural or update.name == "policy_gradient" else set()
    absent |= set() if natural else {"update/cg_residual", *SEARCH}
    absent |= SEARCH if natural and update.step.name == "fixed" else set()
    absent |= {"update/epochs", "schedule/learning_rate"} if natural and not critic else set()
    if natural or update.kl_guard.name == "none":
        absent |= {"update/kl_guard"}
    return absent | through_time | (set() if critic else WITHOUT_CRITIC)


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_and_leaves_a_complete_record(tmp_path: Path, recipe: str, env: str) -> None:
    overrides, composed = settings(recipe, env, tmp_path)
    tensorboard = recipe == "a2c"  # slow to write, the same for all
    composed.config.monitor.tensorboard = tensorboard
    result = training.train(composed.config, tmp_path, overrides)

    names = {p.name for p in tmp_path.iterdir()}
    assert names >= FILES and not [n for n in names if n.endswith(".tmp")]
    assert bool(list(tmp_path.glob("events.out.tfevents.*"))) == tensorboard
    told = json.loads((tmp_path / "summary.json").read_text())
    assert told["status"] == "finished" and told["skipped_updates"] == 0 and told["eval_episodes"] == 4
    assert told["iterations"] >= 3 and told["episodes"] > 0 and told["seed"] == 5
    assert told["return_mean"] == result.summary["return_mean"] and told["eval_return_mean"] is not None
    assert yaml.safe_load((tmp_path / "overrides.yaml").read_text()) == overrides
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == yaml.safe_load(composed.yaml) | {
        "monitor": yaml.safe_load(composed.yaml)["monitor"] | {"tensorboard": tensorboard}
    }

    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == told["iterations"] and rows[-1]["progress/steps"] == told["steps"]
    absent = NEVER | FULL | of_other_updates(composed.config) | (DISCRETE if env == "discrete" else set())
    absent |= set() if composed.config.reward.scaling == "running_std" else {"reward/scale"}
    still = STILL | (
        {"advantage/min", "advantage/max"} if recipe in ("reinforce-none", "reinforce-parameter") else set()
    )  # returns of 1 and 12 steps
    for metric in METRICS:
        if metric.section == "Result":
            continue  # written once, to TensorBoard
        values = [row.get(metric.tag) for row in rows]
        if metric.tag in absent:
            assert values == [None] * len(rows), metric.tag
            continue
        assert all(v is not None for v in values), (metric.tag, values)
        if metric.tag not in still:
            assert len(set(values)) > 1, (metric.tag, values)

    loaded = loading.load(tmp_path, env_id=composed.config.env.id)
    with loaded.make_env(4) as vec:
        assert (
            evaluate(loaded.policy, vec, 4, build.streams(5)["evaluation"]).mean == told["eval_return_mean"]
        )


@pytest.mark.parametrize("recipe", ["reinforce", "a2c"])
def test_tensorboard_holds_the_same_numbers_in_one_run(tmp_path: Path, recipe: str) -> None:
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    overrides, composed = settings(recipe, "discrete", tmp_path)
    training.train(composed.config, tmp_path, overrides)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    runs = EventMultiplexer()
    runs.AddRunsFromDirectory(str(tmp_path))
    runs.Reload()
    assert list(runs.Runs()) == ["."]  # hparams make no second one
    for tag in ("episode/return", "loss/actor", "gradient/norm", "policy/approx_kl"):
        scalars = runs.Scalars(".", tag)
        by_step = {row["progress/steps"]: row[tag] for row in rows}  # the sink may thin out what comes fast
        assert {rows[0]["progress/steps"], rows[-1]["progress/steps"]} <= {s.step for s in scalars}
        assert [s.value for s in scalars] == pytest.approx(
            [by_step[s.step] for s in scalars], rel=1e-5, abs=1e-12
        )


def test_minibatches_and_epochs_through_the_config(tmp_path: Path) -> None:
    overrides = [*RECIPES["a2c"], *ENVS["discrete"], *FEW, "horizon=16", "total_steps=192"]
    overrides += ["update.epochs=3", "update.minibatch_size=20", "optim/lr=linear", "optim.lr.value=3e-3"]
    composed = compose(overrides)
    result = training.train(composed.config, tmp_path, overrides)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["schedule/learning_rate"] for row in rows] == pytest.approx([3e-3, 2e-3, 1e-3])
    from pgtrain import checkpoint

    state, _ = checkpoint.load(tmp_path)
    assert (
        float(state["runner"]["update"]["optimizer"]["count"]) == 3 * 3 * 4
    )  # iterations × epochs × ⌈64/20⌉
    assert result.summary["status"] == "finished"
