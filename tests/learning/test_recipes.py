"""Updates as recipes put them together: equivalences between them, bad input, and whole runs.

The runner comes from a small a2c config; its update is replaced by the one under test.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from pgtrain.collector import Collector
from pgtrain.learning.advantages import GAE
from pgtrain.learning.batch import Batch, Coefficients, flatten
from pgtrain.learning.gradients import ActorLoss, Backprop, CriticBackprop
from pgtrain.learning.kl_guard import LearningRate, Skip, Stop, measure_kl
from pgtrain.learning.losses import (
    ClippedError,
    ClippedSurrogate,
    HuberError,
    KLPenalty,
    PolicyGradient,
    SquaredError,
    Surrogate,
)
from pgtrain.learning.natural_gradient import FixedStep, LineSearch, NaturalUpdate
from pgtrain.learning.optimizers import Adam
from pgtrain.learning.schedules import Plateau, ReturnGated, TargetEntropy, linear
from pgtrain.learning.updates import Update
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import make_actor
from pgtrain.policies.parameters import FlatParameters
from pgtrain.rollout import revalue
from pgtrain.runner import Runner
from tests.learning.test_gradients import SPACES, experience
from tests.support import ScriptedEnv, configure, critic_only, make_policy, make_runner


def pipeline(
    policy: ActorCritic,
    loss: Any,
    *,
    flat: FlatParameters | None = None,
    value_loss: Any = None,
    normalize: bool = True,
    **options: Any,
) -> Update:
    flat = flat or FlatParameters(policy)
    source = Backprop(
        policy,
        flat,
        policy_loss=loss,
        value_loss=value_loss or SquaredError(),
        value_coef=0.5,
        normalize_advantage=normalize,
    )
    generator = torch.Generator().manual_seed(0)
    return Update(source, flat, Adam(flat.data), generator, measure_kl=partial(measure_kl, policy), **options)


def natural(
    policy: ActorCritic, rule: Any, flat: FlatParameters | None = None, normalize: bool = True
) -> NaturalUpdate:
    flat = flat or FlatParameters(policy)
    generator = torch.Generator().manual_seed(0)
    source = CriticBackprop(policy, flat, SquaredError())
    critic = Update(source, flat, Adam(flat.data), generator, epochs=3, minibatch_size=5)
    return NaturalUpdate(policy, flat, ActorLoss(Surrogate(), normalize), rule, critic)


def penalised(policy: ActorCritic, **options: Any) -> Update:
    penalty = KLPenalty(policy.distribution)
    return pipeline(policy, penalty, guards=[penalty], **options)


PPO: dict[str, Any] = {"epochs": 4, "minibatch_size": 5}
UPDATES: dict[str, Any] = {
    "a2c": lambda policy, **o: pipeline(policy, PolicyGradient(), **o),
    "ppo": lambda policy, **o: pipeline(policy, ClippedSurrogate(), value_loss=ClippedError(), **PPO, **o),
    "ppo dual": lambda policy, **o: pipeline(
        policy, ClippedSurrogate(dual_clip=3.0), guards=[Stop(0.02)], **PPO, **o
    ),
    "ppo skip": lambda policy, **o: pipeline(policy, ClippedSurrogate(), guards=[Skip(0.2)], **PPO, **o),
    "ppo rate": lambda policy, **o: pipeline(
        policy, ClippedSurrogate(), value_loss=HuberError(), guards=[LearningRate(0.01, 1e-3)], **PPO, **o
    ),
    "ppo_kl": lambda policy, **o: penalised(policy, **PPO, **o),
    "npg": lambda policy, **o: natural(policy, FixedStep(0.05), **o),
    "trpo": lambda policy, **o: natural(policy, LineSearch(), **o),
}


# ----------------------------------------------------------------------------------------------- equivalences


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("loss", ["surrogate", "clipped", "dual clip", "kl penalty"])
def test_a2c_is_ppo_with_one_epoch_one_batch_and_no_normalisation(space: str, loss: str) -> None:
    """Huang et al. 2022: the same parameters to 1e-6, here after 20 updates of fresh experience."""
    found = []
    for which in ("a2c", loss):
        policy = make_policy(3, SPACES[space], gain=0.5)
        losses = {
            "a2c": PolicyGradient(),
            "surrogate": Surrogate(),
            "clipped": ClippedSurrogate(),
            "dual clip": ClippedSurrogate(dual_clip=3.0),
            "kl penalty": KLPenalty(policy.distribution, beta=5.0),
        }
        update = pipeline(policy, losses[which], normalize=False)
        for k in range(20):
            result = update(flatten(experience(policy, seed=k), 0.9), Coefficients(1e-3, 0.01))
            assert result.ok.all()
            if which != "a2c":
                assert float(result.stats["policy/ratio_max"]) == pytest.approx(1.0, abs=1e-5)
            assert float(result.stats.get("policy/clip_fraction", 0.0)) == 0.0
        found.append(update.flat.data.clone())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)
    assert (found[0] - FlatParameters(make_policy(3, SPACES[space], gain=0.5)).data).abs().max() > 0.01


def test_a2c_run_is_a_ppo_run(tmp_path: Path) -> None:
    """The same through the runner: rollouts, advantages and all."""
    found = []
    for loss in (PolicyGradient(), ClippedSurrogate()):
        runner = small_run(tmp_path, total_steps=400)
        runner.update.source.actor.policy_loss = loss  # pyright: ignore
        runner.run()
        found.append(runner.update.flat.data.clone())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)


def test_more_epochs_differ_and_clip() -> None:
    found = {}
    for clip in (0.02, 9.0):
        policy = make_policy(3, SPACES["discrete"], gain=0.5)
        update = pipeline(policy, ClippedSurrogate(), **PPO)
        result = update(flatten(experience(policy), None), Coefficients(0.01, 0.0, clip=clip))
        found[clip] = update.flat.data.clone(), float(result.stats["policy/clip_fraction"])
    assert found[0.02][1] > 0.2 and found[9.0][1] == 0.0
    assert not torch.allclose(found[0.02][0], found[9.0][0], atol=1e-4)


def test_the_value_clip_is_a_coefficient() -> None:
    """A value further than ε from that of the rollout is not pulled on."""
    policy = make_policy()
    batch = flatten(experience(policy), None)
    with torch.no_grad():
        batch = batch.replace(value=policy.value(batch.inputs) + 1.0)
    update = pipeline(policy, ClippedSurrogate(), value_loss=ClippedError("clip_only"))
    part = update.flat.slices["network.critic.0.weight"]
    for value_clip, learns in ((0.9, False), (1.1, True)):
        update.source(batch, Coefficients(0.01, 0.0, value_clip=value_clip))
        assert bool(update.flat.grad[part].any()) == learns


# --------------------------------------------------------------------------------------- values estimated anew


def test_revalued_rollout_is_the_rollout_of_the_critic_of_today() -> None:
    """Ends, cuts and unfinished episodes: what a collector with the new critic would have stored."""
    policy = make_policy(3, spaces.Discrete(3))
    env = ScriptedEnv([[3, 4], [7], [20]], [["terminated", "truncated"], ["truncated"], ["terminated"]])
    rollout, _ = Collector(env, policy, make_actor(policy, 3, 0), 0).collect_steps(12)
    same = revalue(policy, rollout)
    torch.testing.assert_close(same.value, rollout.value)
    torch.testing.assert_close(same.next_value, rollout.next_value)
    with torch.no_grad():
        for p in policy.network.critic.parameters():  # pyright: ignore
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    new = revalue(policy, rollout)
    assert not torch.allclose(new.value, rollout.value)  # pyright: ignore
    for n, log in enumerate(env.log):
        for t, step in enumerate(log):
            after = policy.value(torch.as_tensor(step.next_obs, dtype=torch.float32))
            assert float(new.next_value[t, n]) == pytest.approx(float(after.detach()), abs=1e-5)  # pyright: ignore
    assert torch.equal(new.log_prob, rollout.log_prob) and torch.equal(new.params, rollout.params)


def test_epochs_after_the_first_use_the_estimates_made_anew() -> None:
    policy = make_policy()
    batch = flatten(experience(policy), None)
    batch = batch.replace(value=torch.full_like(batch.value, 3.0))
    seen: list[Batch] = []

    class Source:
        def __call__(self, batch: Batch, coefficients: Coefficients) -> dict[str, torch.Tensor]:
            seen.append(batch)
            return {"loss": torch.zeros(())}

    flat = FlatParameters(policy)
    update = Update(Source(), flat, Adam(flat.data), torch.Generator(), epochs=3)
    made = iter(range(1, 10))

    def anew() -> Batch:
        k = float(next(made))
        return batch.replace(
            **{name: torch.full_like(batch.value, k) for name in ("advantage", "value", "value_target")}
        )

    update(batch, Coefficients(0.0, 0.0), anew)
    assert seen[0] is batch and next(made) == 3
    for k in (1, 2):
        assert (seen[k].advantage == k).all() and (seen[k].value_target == k).all()
        assert (seen[k].value == 3.0).all()  # values are clipped to those of the rollout


def test_recomputed_advantages_through_the_runner(tmp_path: Path) -> None:
    """Epoch 2 must see GAE of the critic after epoch 1."""
    runner = small_run(tmp_path, total_steps=40, num_envs=2, horizon=20)
    runner.recompute_advantages = True
    update: Any = runner.update
    update.epochs = 2
    seen: list[torch.Tensor] = []
    inner = update.pipeline
    rollouts: list[Any] = []

    def epoch(batch: Batch, *arguments: Any) -> Any:
        if seen:
            rollout = revalue(runner.policy, rollouts[-1])
            expected = flatten(GAE(0.9, 0.95)(rollout), None)
            torch.testing.assert_close(batch.advantage, expected.advantage)
            torch.testing.assert_close(batch.value_target, expected.value_target)
            assert not torch.allclose(batch.advantage, seen[0])
        seen.append(batch.advantage.clone())
        return inner.epoch(batch, *arguments)

    update.pipeline = SimpleNamespace(epoch=epoch)
    estimator = runner.estimator

    def remember(rollout: Any) -> Any:
        rollouts.append(rollout)
        return estimator(rollout)

    runner.estimator = remember  # pyright: ignore
    runner.run()
    assert len(seen) == 2


# -------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(
    "case",
    ["zero", "constant", "huge", "one sample", "two samples", "nan", "minus infinity", "identical rows"],
)
def test_nothing_becomes_nan(name: str, space: str, case: str) -> None:
    """After bad input all parameters are finite, and good input goes on to be learned from."""
    policy = make_policy(3, SPACES[space], gain=0.5)
    good = flatten(experience(policy), None)
    a = good.advantage
    one = torch.ones_like(a)
    batch = {
        "zero": good.replace(advantage=0 * a, value_target=0 * a),
        "constant": good.replace(advantage=7.3 * one, value_target=7.3 * one),
        "huge": good.replace(advantage=1e8 * a, value_target=1e8 * one),
        "one sample": good.rows(torch.tensor([2])),
        "two samples": good.rows(torch.tensor([2, 7])),
        "nan": good.replace(advantage=torch.where(a > a.median(), a, torch.nan)),
        "minus infinity": good.replace(advantage=-torch.inf * one, value_target=-torch.inf * one),
        "identical rows": good.rows(torch.tensor([3] * 12)),
    }[case]
    update = UPDATES[name](policy)
    before = update.flat.snapshot()
    result = update(batch, Coefficients(1e-3, 0.0))
    assert torch.isfinite(update.flat.data).all()
    assert result.ok.all() == (case not in ("nan", "minus infinity"))
    if case == "minus infinity":
        assert not result.ok.any() and torch.equal(update.flat.data, before)
    elif case != "nan":
        shown = {k: float(v) for k, v in result.stats.items()}
        assert all(math.isfinite(v) for v in shown.values()), shown
    after = update.flat.snapshot()
    again = update(good, Coefficients(1e-3, 0.0))
    assert (
        again.ok.all() and torch.isfinite(update.flat.data).all() and not torch.equal(update.flat.data, after)
    )


# -------------------------------------------------------------------------------------------------- whole runs


def small_run(tmp_path: Path, env: Any = None, **settings: Any) -> Runner:
    options: dict[str, Any] = {
        "num_envs": 4,
        "horizon": 20,
        "total_steps": 160,
        "policy": {"normalize_value": "none"},
        **critic_only(),
    }
    return make_runner(configure(**(options | settings)), tmp_path, env)[0]


@pytest.mark.parametrize("name", UPDATES)
def test_every_update_runs_and_what_it_tells_is_on_the_dashboard(tmp_path: Path, name: str) -> None:
    for env in ("CartPole-v1", "Pendulum-v1"):
        cfg = configure(
            env,
            num_envs=4,
            horizon=20,
            total_steps=240,
            policy={"normalize_value": "running"},
            **critic_only(),
        )
        runner, log = make_runner(cfg, tmp_path)
        runner.update = UPDATES[name](runner.policy, flat=runner.update.flat)
        before = runner.update.flat.snapshot()
        runner.run()
        assert torch.isfinite(runner.update.flat.data).all() and not torch.equal(
            runner.update.flat.data, before
        )
        assert log.column("progress/iteration") == [1, 2, 3]
        assert not any(level == "warning" for level, _ in log.messages)
        tags = set(log.rows[-1])
        if name.startswith("ppo"):
            assert {"policy/ratio_max", "update/epochs"} <= tags
            assert ("policy/clip_fraction" in tags) == (name != "ppo_kl") and (
                "schedule/kl_coef" in tags
            ) == (name == "ppo_kl")
            assert ("update/kl_guard" in tags) == (name in ("ppo dual", "ppo skip", "ppo rate"))
        assert ("update/line_search_failed" in tags) == (name == "trpo")
        kls = log.column("policy/kl")
        assert all(0 <= kl < 1 for kl in kls) and max(kls) > 0
        if name == "trpo":
            assert max(kls) <= 0.0101


def test_measuring_schedules_are_shown_every_iteration(tmp_path: Path) -> None:
    runner = small_run(tmp_path, ScriptedEnv([[5]] * 4), total_steps=800)  # pyright: ignore
    gate, rate = ReturnGated(0.1, episodes=3), Plateau(0.01, patience=2)
    runner.entropy_coef, runner.learning_rate, runner.clip = gate, rate, linear(0.3)
    runner.run()
    assert len(gate.first) == 3 and gate.progress == pytest.approx(0.9) and rate.best > -math.inf
    state = runner.state_dict()["schedules"]
    assert state.keys() == {"learning_rate", "entropy_coef", "clip"}  # an a2c has no clip range of its own
    assert state["learning_rate"] == rate.state_dict()
    target = TargetEntropy(0.1, target=99.0)
    runner = small_run(tmp_path)
    runner.entropy_coef = target
    runner.run()
    assert target(0.0) == pytest.approx(0.1 * np.exp(2 * 0.05))  # two iterations, 1 nat and more too low
