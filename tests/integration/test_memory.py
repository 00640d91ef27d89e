"""Memory end to end: every recipe, settings that arrive or are refused, and a task that needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pgtrain import loading, training
from pgtrain.build_observations import parameter_counts
from pgtrain.config import memory_checks
from pgtrain.config.compose import compose
from pgtrain.config.errors import ConfigError
from pgtrain.evaluation import evaluate
from pgtrain.learning import per_sample
from pgtrain.policies.memory import RecurrentNetwork
from pgtrain.policies.recurrence import GRU, LSTM
from pgtrain.types import UserError
from tests.action_envs import MASKED
from tests.integration.test_updates import runner_of, trained
from tests.memory_support import memory_env
from tests.support import configure, env_id

RECIPES = ("reinforce", "actor_critic", "a2c", "ppo", "ppo_kl", "npg", "trpo")
TINY = [
    "num_envs=4", "total_steps=64", "eval.episodes=0", "monitor.terminal=none", "monitor.log_every=1",
    "monitor.tensorboard=false", "policy.memory.size=6", "policy.hidden=[8]",
]  # fmt: skip
WINDOW = ["horizon=8"]
PPO = ["algo=ppo", "policy/memory=gru"]


def network_of(policy: Any) -> RecurrentNetwork:
    assert isinstance(policy.network, RecurrentNetwork)
    return policy.network


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("algo", RECIPES)
def test_every_recipe_learns_with_memory(tmp_path: Path, algo: str, memory: str) -> None:
    """Two iterations of 8 steps in 4 envs whose episodes have 3 and 5 steps: all parameters move, the core's too."""
    env = [f"env={env_id('FixedLen')}", "env.kwargs.length=3", "advantage.normalize=false"]
    more = [] if algo == "reinforce" else WINDOW
    runner, _ = runner_of(tmp_path, f"algo={algo}", f"policy/memory={memory}", *env, *more, small=TINY)
    before = runner.update.flat.snapshot()
    runner.plan.total_steps = 64 if more else 24
    runner.run()
    assert runner.progress.iterations == 2 and not runner.progress.skipped_updates
    assert isinstance(network_of(runner.policy).core, {"gru": GRU, "lstm": LSTM}[memory])
    moved = runner.update.flat.data != before
    for name, part in runner.update.flat.slices.items():
        if "core" in name and "bias" not in name and algo != "trpo":  # whose line search may find no step
            assert moved[part].any(), name


UPDATES = {
    "kl_guard=stop": ["update/kl_guard=stop", "update.kl_guard.limit=1e-9", "optim/lr=constant"],
    "kl_guard=skip": ["update/kl_guard=skip", "update.kl_guard.limit=1e-9"],
    "kl_guard=learning_rate": ["update/kl_guard=learning_rate", "optim/lr=constant"],
    "value_loss=clip_max": ["update/value_loss=clip_max"],
    "recompute_advantages": ["update.recompute_advantages=true"],
    "sequence": ["policy.memory.sequence=3", "update.minibatch_size=6"],
    "episodes": ["collect.unit=episodes", "horizon=null", "policy.memory.sequence=4"],
    "dual_clip": ["update.dual_clip=3"],
    "reward scaling": ["reward.scaling=running_std"],
    "shared layers": ["policy.share=all"],
    "apart": ["policy.memory.share=false"],
    "discount_states": ["advantage.discount_states=true"],
}


@pytest.mark.parametrize("name", UPDATES)
def test_every_part_of_an_update_takes_sequences(tmp_path: Path, name: str) -> None:
    more = UPDATES[name] if name == "episodes" else [*UPDATES[name], *WINDOW]
    runner, log = trained(tmp_path, *PPO, f"env={env_id('SeedNoise')}", *more, small=TINY)
    assert runner.progress.iterations >= 1 and not runner.progress.skipped_updates
    assert all(np.isfinite(x) for x in log.column("policy/approx_kl"))
    if name in ("kl_guard=stop", "kl_guard=skip"):
        assert log.column("update/kl_guard")[0] == 1  # the guard saw how far it went


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("AsymBox", []),
        ("StartAt", ["update=trust_region", "optim/lr=constant"]),
    ],
)
def test_kinds_of_actions(tmp_path: Path, name: str, more: list[str]) -> None:
    runner, _ = trained(tmp_path, *PPO, *WINDOW, f"env={env_id(name)}", *more, small=TINY)
    assert runner.progress.iterations == 2 and not runner.progress.skipped_updates


@pytest.mark.parametrize("algo", ["ppo", "trpo", "reinforce"])
@pytest.mark.parametrize("kind", MASKED)
def test_masks(tmp_path: Path, kind: str, algo: str) -> None:
    """The env asserts that each action was allowed; the update sees the masks of the steps, too."""
    where = ["env=tests.action_envs:Test/Masked-v0", f"env.kwargs.kind={kind}"]
    more = [] if algo == "reinforce" else WINDOW
    runner, log = trained(tmp_path, f"algo={algo}", "policy/memory=gru", *where, *more, small=TINY)
    assert runner.progress.iterations >= 1 and not runner.progress.skipped_updates
    assert all(np.isfinite(x) for x in log.column("policy/approx_kl"))
    rollout, _ = runner.collector.collect_steps(12)
    policy = runner.policy
    new = policy.evaluate(rollout.inputs, rollout.action)
    torch.testing.assert_close(new.log_prob, rollout.log_prob, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(new.params, rollout.params, rtol=1e-4, atol=1e-5)
    assert (rollout.params == -1e30).any()  # choices that a mask ruled out


@pytest.mark.parametrize("d", ["tanh_gaussian", "beta", "gsde"])
def test_distributions(tmp_path: Path, d: str) -> None:
    env = f"env={env_id('AsymBox')}"
    runner, _ = trained(tmp_path, *PPO, *WINDOW, env, f"policy/distribution={d}", small=TINY)
    assert runner.progress.iterations == 2 and not runner.progress.skipped_updates


@pytest.mark.parametrize("share", ["null", "false"])
def test_pictures(tmp_path: Path, share: str) -> None:
    env = "env=tests.spaces_for_tests:Test/TinyImage-v0"
    runner, _ = trained(tmp_path, *PPO, *WINDOW, env, f"policy.encoder.share={share}", small=TINY)
    network = network_of(runner.policy)
    assert (network.critic_encoder is None) == (network.critic_core is None) == (share == "null")
    assert network.encoder is not None and runner.policy.input_dtype == torch.float32
    assert not runner.progress.skipped_updates
    counts = parameter_counts(runner.policy)
    assert sum(counts.values()) == len(runner.update.flat)
    assert (counts["shared"] > 0) == (share == "null")


def test_settings_arrive(tmp_path: Path) -> None:
    def made(*overrides: str, algo: str = "ppo") -> Any:
        start = [f"algo={algo}", "policy/memory=gru", f"env={memory_env('TMaze')}", *WINDOW]
        small = [x for x in TINY if x.partition("=")[0] not in {o.partition("=")[0] for o in overrides}]
        return runner_of(tmp_path, *start, *overrides, small=small)[0]

    network = network_of(made("policy.memory.size=7").policy)
    assert network.core.size == 7 and network.critic_core is None
    assert network.core.weight_ih.shape == (21, 2)
    assert network_of(made("policy.memory.share=false").policy).critic_core is not None
    gate = network_of(made("policy.ortho_init=false").policy).core.weight_hh[:6]
    assert not torch.allclose(gate @ gate.t(), torch.eye(6), atol=1e-3)
    natural = network_of(made(algo="npg").policy)
    assert natural.critic_core is not None
    runner = made("policy.memory.sequence=4")
    rollout, _ = runner.collector.collect_steps(8)
    batch = runner.to_batch(runner.estimator(rollout), None)
    assert batch.weight.shape == (4, 8)
    rollout, _ = (whole := made()).collector.collect_steps(8)
    assert whole.to_batch(whole.estimator(rollout), None).weight.shape == (8, 4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy.memory.size=8"], r"policy.memory.size.*policy/memory=gru"),
        (
            ["policy/memory=gru", "policy.memory.share=true", "algo=npg"],
            r"policy.memory.share=true: update=natural",
        ),
        (["policy/memory=gru", "policy.memory.share=true"], r"policy.memory.share=true has no effect without a"),
        (
            ["policy/memory=gru", "algo=ppo", "policy.memory.share=false", "policy.share=1"],
            r"policy.memory.share=false needs hidden layers of their own",
        ),
        (
            ["policy/memory=gru", "algo=ppo", "policy.memory.share=true", "policy.encoder.share=false"],
            r"policy.memory.share=true: one memory reads one encoder",
        ),
        (
            ["policy/memory=lstm", "algo=ppo", "policy.memory.sequence=64", "horizon=32"],
            r"policy.memory.sequence=64: must be at most horizon=32",
        ),
        (
            ["policy/memory=lstm", "algo=ppo", "update.minibatch_size=16", "horizon=32"],
            r"update.minibatch_size=16: must be at least 32 with policy/memory=lstm",
        ),
        (["policy/memory=gru", "policy=tests.nets_for_tests:Any"], r"policy=tests.nets_for_tests:Any has no memory"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(overrides)


def test_a_network_of_ones_own_is_refused_in_a_config_of_yaml_too() -> None:
    cfg = configure(policy={"memory": {"name": "lstm"}}, collect={"unit": "episodes"})
    cfg.policy.name = "module:Mine"
    with pytest.raises(ConfigError, match=r"policy/memory=lstm needs policy=mlp .given: policy=module:Mine"):
        memory_checks.check_memory(cfg)


@pytest.mark.parametrize(
    "overrides",
    [["advantage/baseline=optimal"], ["advantage/baseline=optimal", "advantage.baseline.scope=parameter"],
     ["monitor.gradient=full"], ["algo=ppo", "monitor.gradient=full"]],
)  # fmt: skip
def test_statistics_of_single_steps_are_refused(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match=r" works on single steps .* policy/memory=gru"):
        compose(["policy/memory=gru", *overrides])


@pytest.mark.parametrize(("group", "name"), [("update", "pathwise"), ("advantage/baseline", "optimal")])
def test_what_works_on_single_steps_is_refused(group: str, name: str) -> None:
    cfg = configure(policy={"memory": {"name": "gru"}}, collect={"unit": "episodes"})
    part: Any = cfg.update if group == "update" else cfg.advantage.baseline  # pyright: ignore[reportAttributeAccessIssue]
    part.name = name
    with pytest.raises(ConfigError, match=rf"{group}={name} works on single steps .* policy/memory=gru"):
        memory_checks.check_memory(cfg)


def test_per_sample_gradients_are_refused(tmp_path: Path) -> None:
    runner, _ = runner_of(tmp_path, *PPO, *WINDOW, f"env={memory_env('TMaze')}", small=TINY)
    rollout, _ = runner.collector.collect_steps(4)
    with pytest.raises(UserError, match="use policy/memory=none"):
        per_sample.squared_norms(runner.policy, rollout.inputs.flatten(0, 1), rollout.action.flatten())


def test_the_size_of_minibatches_is_told() -> None:
    def told(*overrides: str) -> list[str]:
        return memory_checks.tell_sequences(compose(["algo=ppo", *overrides]).config)

    assert told("policy/memory=gru", "horizon=32", "update.minibatch_size=64") == []
    assert told("horizon=32", "update.minibatch_size=48") == []
    (one,) = told("policy/memory=gru", "horizon=32", "update.minibatch_size=80")
    assert one.endswith("whole sequences of 32 steps: 64 steps")
    (two,) = told("policy/memory=gru", "collect.unit=episodes", "horizon=null", "update.minibatch_size=64")
    assert "as many as fit" in two
    assert compose(["algo=ppo", "policy/memory=gru", "horizon=300"]).config.update.minibatch_size == 300  # pyright: ignore


def test_a_run_with_memory_is_loaded_and_evaluated(tmp_path: Path) -> None:
    overrides = [*PPO, *WINDOW, f"env={memory_env('TMaze')}", *TINY]
    result = training.train(compose(overrides).config, tmp_path, overrides)
    loaded = loading.load(tmp_path, env_id=memory_env("TMaze"))
    for (name, one), two in zip(
        loaded.policy.state_dict().items(), result.policy.state_dict().values(), strict=True
    ):
        assert torch.equal(one, two), name
    with loaded.make_env(2) as env:
        first = evaluate(loaded.policy, env, 6, seed=1).returns.tolist()
        assert first == evaluate(result.policy, env, 6, seed=1).returns.tolist()


@pytest.mark.slow
@pytest.mark.timeout(900)  # seconds; half a minute on an idle core
@pytest.mark.parametrize("memory", ["gru", "lstm", "none"])
def test_a_maze_needs_memory(tmp_path: Path, memory: str) -> None:
    """TMaze of 8 steps: the return of a policy without memory is 0 on average whatever it does; with memory 1."""
    overrides = [
        "algo=ppo", f"env={memory_env('TMaze')}", f"policy/memory={memory}", "num_envs=16", "horizon=32",
        "total_steps=40_000", "optim.lr.value=2e-3", "monitor=quiet", "monitor.tensorboard=false", "eval.episodes=200",
    ]  # fmt: skip
    overrides += ["policy.memory.size=32"] if memory != "none" else []
    reached = training.train(compose(overrides).config, tmp_path, overrides).summary["eval_return_mean"]
    if memory == "none":
        assert abs(reached) < 4.5 / np.sqrt(200)  # the standard deviation is 1
    else:
        assert reached > 0.95


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("algo", "back", "steps", "least"), [("ppo", 2, 40_000, 0.6), ("a2c", 1, 80_000, 0.35)]
)
def test_repeating_needs_memory(tmp_path: Path, algo: str, back: int, steps: int, least: float) -> None:
    """RepeatPrevious: at most 0.25 on average without memory, 1 with it; PPO learns from pieces of 16 steps."""
    overrides = [
        f"algo={algo}", f"env={memory_env('RepeatPrevious')}", f"env.kwargs.back={back}", "policy/memory=gru",
        "num_envs=16", "horizon=32", f"total_steps={steps}", "optim.lr.value=2e-3", "monitor=quiet",
        "monitor.tensorboard=false", "eval.episodes=50",
    ]  # fmt: skip
    overrides += ["policy.memory.sequence=16"] if algo == "ppo" else []
    assert training.train(compose(overrides).config, tmp_path, overrides).summary["eval_return_mean"] > least
