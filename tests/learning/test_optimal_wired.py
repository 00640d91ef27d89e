"""advantage/baseline=optimal as a run uses it: config → build → estimator → source, against the enumerated MDP."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from pgtrain import build
from pgtrain.build_update import make_update
from pgtrain.config.checks import settle
from pgtrain.config.compose import compose
from pgtrain.config.convert import from_dict, to_dict
from pgtrain.config.errors import ConfigError
from pgtrain.learning import per_sample
from pgtrain.learning.batch import Coefficients, flatten
from pgtrain.learning.host.scores import HostScores
from pgtrain.learning.optimal_advantage import OptimalAdvantage, ParameterAdvantage
from pgtrain.learning.optimal_baselines import PreviousBatch, joint
from pgtrain.learning.optimal_estimator import Episodes
from pgtrain.monitor.hints import Hints
from pgtrain.policies.parameters import FlatParameters
from pgtrain.rollout import Rollout
from tests.learning.exact import softmax_policy
from tests.learning.test_estimators_exact import ALL, GAMMA, GOLDEN, THETA, exact_values
from tests.monitor.run_for_tests import run_info
from tests.support import make_policy, make_rollout, make_runner

f64 = torch.float64
GRADIENT = torch.tensor(GOLDEN["expected"]["grad"], dtype=f64)


def configure(baseline: dict[str, Any], **changes: Any) -> Any:
    data: dict[str, Any] = {
        "gamma": GAMMA,
        "collect": {"unit": "episodes"},
        "advantage": {"name": "monte_carlo", "baseline": baseline} | changes.pop("advantage", {}),
    }
    return settle(from_dict(data | changes))


def by_probability(*terms: Tensor) -> tuple[Tensor, ...]:
    """A fit over all trajectories, each with its probability: what a batch without end would give."""
    weighted = (x * ALL.probability.reshape(-1, *[1] * (x.dim() - 1)) for x in terms)
    return tuple(x.sum(0, keepdim=True) for x in weighted)


def enumerated() -> tuple[Any, Rollout]:
    """The softmax policy and all 191 trajectories, each an env of its own; values are the exact ones."""
    policy = softmax_policy(THETA)
    rollout = make_rollout(
        ALL.reward,
        terminated=ALL.terminated,
        weight=ALL.weight,
        inputs=torch.eye(2, dtype=f64)[ALL.state],
        action=ALL.action,
        policy=policy,
        whole_episodes=True,
    )
    return policy, rollout.replace(reward=ALL.reward, value=exact_values(), next_value=exact_values())


def moments(parts: Tensor) -> tuple[Tensor, float]:
    """Exact mean and variance trace of per-trajectory gradients [191, P]."""
    mean = ALL.probability @ parts
    return mean, float(ALL.probability @ (parts - mean).square().sum(1))


def exactly(estimator: Any, policy: Any, rollout: Rollout, gamma: float | None) -> tuple[Tensor, float]:
    """Through the advantage and the batch's γᵗ, as the update gets them."""
    rollout = estimator(rollout)
    batch = flatten(rollout, gamma)
    episode, used = Episodes.of(rollout).episode, rollout.weight.flatten() > 0
    order = episode[used]
    weight = batch.advantage * batch.discount * batch.weight
    return moments(
        per_sample.gradients(
            policy, batch.inputs, batch.action, episode=order, weight=weight, prepared=True
        ).double()
    )


TRACES = {
    ("none", "total"): 5.703,
    ("none", "reward_to_go"): 2.965,
    ("value", "reward_to_go"): 0.959,
    ("scalar", "total"): 1.739,
    ("scalar", "reward_to_go"): 1.033,
    ("step", "reward_to_go"): 0.887,
    ("step_joint", "reward_to_go"): 0.872,
    ("step_joint", "gpomdp"): None,
}


@pytest.mark.parametrize(("scope", "form"), TRACES)
def test_bias_and_variance_on_the_enumerated_mdp(scope: str, form: str) -> None:
    """Greensmith et al. 2004, Peters & Schaal 2008: traces as enumerated elsewhere; no bias."""
    discount = form == "reward_to_go"
    plain = scope in ("none", "value")
    baseline = {"name": scope} if plain else {"name": "optimal", "scope": scope, "form": form}
    returns = {"returns": form} if plain else {}
    cfg = configure(baseline, advantage={"discount_states": discount, **returns})
    policy, rollout = enumerated()
    estimator: Any = build.make_estimator(cfg, policy)
    if not plain:
        assert isinstance(estimator, OptimalAdvantage)
        estimator = replace(estimator, baseline=replace(estimator.baseline, fit=by_probability, prior=0.0))
    mean, trace = exactly(estimator, policy, rollout, cfg.gamma if cfg.advantage.discount_states else None)
    torch.testing.assert_close(mean, GRADIENT, rtol=1e-5, atol=1e-6)
    expected = TRACES[scope, form]
    if expected is not None:
        assert trace == pytest.approx(expected, abs=6e-4)
    else:  # a baseline that all parameters share cannot beat one for each; both are joint optima
        assert 0.8602 < trace < 0.95


def test_parameter_scope_on_the_enumerated_mdp() -> None:
    """The mean over trajectories is ∇J, and the flat gradient is −∇J (times episodes / steps for mean_over=steps)."""
    for over in ("episodes", "steps"):
        cfg = configure(
            {"name": "optimal", "scope": "parameter"},
            advantage={"discount_states": True},
            update={"name": "policy_gradient", "mean_over": over},
        )
        policy, rollout = enumerated()
        flat = FlatParameters(policy)
        estimator = build.make_estimator(cfg, policy)
        assert isinstance(estimator, ParameterAdvantage)
        estimator.baseline.fit = lambda *terms: by_probability(*terms)
        update = make_update(cfg, policy, flat, 0, estimator)
        batch = flatten(estimator(rollout), cfg.gamma)
        # each trajectory weighs 1/191 in a batch; the baseline is the same for all, so parts can be weighed anew
        assert update.pipeline.source is update.source  # pyright: ignore
        update.source(batch, Coefficients(0.0, 0.0))  # pyright: ignore
        scale = 191 / float(rollout.weight.sum()) if over == "steps" else 1.0
        torch.testing.assert_close(flat.grad, -estimator.gradient * scale)
        steps = GAMMA ** rollout.episode_step.flatten() * rollout.weight.flatten()
        scores, weighted = (
            per_sample.gradients(policy, rollout.inputs.flatten(0, 1), rollout.action.flatten(),
                                 episode=Episodes.of(rollout).episode, weight=w, prepared=True).double()
            for w in (steps, steps * estimator.returns(rollout).advantage.flatten())
        )  # fmt: skip
        b = (ALL.probability @ (scores * weighted)) / (ALL.probability @ scores.square())
        parts = weighted - b * scores
        torch.testing.assert_close(parts.mean(0), estimator.gradient.double(), rtol=1e-5, atol=1e-6)
        mean, trace = moments(parts)
        torch.testing.assert_close(mean, GRADIENT, rtol=1e-5, atol=1e-6)
        assert (
            0.860 < trace < 1.033
        )  # one b for all of an episode's steps: no worse than one for all parameters


def test_joint_per_parameter_is_the_least_of_all() -> None:
    policy, rollout = enumerated()
    steps = GAMMA ** torch.arange(3, dtype=f64)
    rows = rollout.inputs.flatten(0, 1), rollout.action.flatten()
    scores = per_sample.gradients(policy, *rows, prepared=True).double().view(3, 191, 4)
    z = (scores * rollout.weight[..., None] * steps[:, None, None]).permute(1, 2, 0)  # [E, H, L]
    target = Episodes.of(rollout).pad(configured_returns(policy, rollout))
    b = joint(z[..., None] * z[..., None, :], target, by_probability)
    mean, trace = moments((z * (target[:, None] - b)).sum(-1))
    torch.testing.assert_close(mean, GRADIENT, rtol=1e-6, atol=1e-6)
    assert trace == pytest.approx(0.860, abs=6e-4)


def configured_returns(policy: Any, rollout: Rollout) -> Tensor:
    cfg = configure({"name": "none"})
    advantage = build.make_estimator(cfg, policy)(rollout).advantage
    assert advantage is not None
    return advantage


def test_a_prior_holds_the_joint_baseline_down() -> None:
    """Much more of it: the stepwise baseline; none: the normal equations of the few."""
    torch.manual_seed(1)
    z, target = torch.randn(3, 5, 7, dtype=f64), torch.randn(3, 5, dtype=f64)
    gram = z @ z.mT
    square = z.square().sum(-1)
    others = square.sum(0) - square
    step = ((square * target).sum(0) - square * target) / others
    torch.testing.assert_close(joint(gram, target, prior=1e9), step, rtol=1e-6, atol=1e-6)
    assert (joint(gram, target) - step).abs().max() > 0.01
    assert (joint(gram, target, prior=5.0) - step).abs().max() < (joint(gram, target) - step).abs().max()


# ---------------------------------------------------------------------------------------------- ill cases

SCOPES = ("scalar", "step", "step_joint", "parameter")


def ill(kind: str) -> tuple[Any, Rollout]:
    torch.manual_seed(0)
    choices = 1 if kind == "no gradient" else 3  # whoever has no choice has nothing to learn
    policy = make_policy(3, spaces.Discrete(choices), critic=False)
    reward = torch.randn(4, 3)
    ends: Any = [[0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 1, 1]]
    if kind == "one episode":
        reward, ends = reward[:, :1], [[0], [0], [0], [1]]
    if kind == "equal returns":
        reward = torch.zeros(4, 3)
    if kind == "1e8 returns":
        reward = 1e8 * reward
    if kind == "dead layer":
        with torch.no_grad():
            policy.network.actor[-1].weight.zero_()
    inputs, action = torch.randn(*reward.shape, 3), torch.randint(choices, reward.shape)
    return policy, make_rollout(
        reward, terminated=ends, inputs=inputs, action=action, policy=policy, whole_episodes=True
    )


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("kind", ["one episode", "equal returns", "1e8 returns", "dead layer", "no gradient"])
def test_ill_cases_are_finite(kind: str, scope: str) -> None:
    policy, rollout = ill(kind)
    flat = FlatParameters(policy)
    fits = ("leave_one_out", "split", "pooled", "previous_batch")
    for fit, on_host in itertools.product(fits, (False, True)):
        cfg = configure({"name": "optimal", "scope": scope, "fit": fit})
        estimator = build.make_estimator(cfg, policy, flat if on_host else None)
        assert isinstance(estimator.scores, HostScores) == on_host  # type: ignore[union-attr]
        update: Any = make_update(cfg, policy, flat, 0, estimator)
        out = estimator(rollout)
        assert out.advantage is not None and out.advantage.isfinite().all()
        stats = update.source(flatten(out, None), Coefficients(0.0, 0.0))
        assert flat.grad.isfinite().all() and stats["loss"].isfinite()
        if kind == "one episode" and fit != "pooled":  # nothing to learn a baseline from: none
            bare = build.make_estimator(configure({"name": "none"}), policy)(rollout)
            torch.testing.assert_close(out.advantage, bare.advantage)
        if kind in ("equal returns", "no gradient"):
            assert (flat.grad == 0).all()
        if kind == "dead layer":
            assert flat.grad[flat.slices["network.actor.0.weight"]].eq(0).all() and flat.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("equal returns", "advantages are all equal, nothing tells good actions from bad"),
        ("no gradient", "nothing is learned"),
        ("1e8 returns", "times its limit: large rewards?"),
    ],
)
def test_ill_cases_are_told_while_training(kind: str, told: str) -> None:
    """One episode is told before it starts: tests/config/test_notices.py. A dead layer still learns above it."""
    policy, rollout = ill(kind)
    cfg = configure({"name": "optimal"})
    flat = FlatParameters(policy)
    estimator = build.make_estimator(cfg, policy, flat)
    out = estimator(rollout)
    assert out.advantage is not None
    update: Any = make_update(cfg, policy, flat, 0, estimator)
    stats = update.source(flatten(out, None), Coefficients(0.0, 0.0))
    numbers = {"gradient/norm": float(flat.grad.norm()), "advantage/std": float(out.advantage.std())}
    hints = Hints(run_info(Path("x"), config=to_dict(cfg)))
    assert stats["loss"].isfinite() and told in " ".join(hints.update(100, numbers).values())


# -------------------------------------------------------------------------------------- state, residual, refusals


def test_the_batch_before_goes_into_the_checkpoint() -> None:
    policy, rollout = ill("")
    for scope in SCOPES:
        cfg = configure({"name": "optimal", "scope": scope, "fit": "previous_batch"})
        first, second, fresh = (build.make_estimator(cfg, policy) for _ in range(3))
        first(rollout)  # type: ignore[operator]
        second.load_state_dict(first.state_dict())  # pyright: ignore
        found = [e(rollout.replace(reward=2 * rollout.reward)) for e in (first, second, fresh)]
        results = [
            e.gradient if isinstance(e, ParameterAdvantage) else r.advantage
            for e, r in zip((first, second, fresh), found, strict=True)
        ]
        torch.testing.assert_close(results[0], results[1])
        assert not torch.allclose(results[0], results[2])  # without the state there is no baseline yet
        assert isinstance(first.baseline.fit, PreviousBatch)  # pyright: ignore


def test_on_value_is_the_optimal_baseline_of_the_residual() -> None:
    policy, rollout = ill("")
    value = torch.randn(4, 3)
    rollout = rollout.replace(value=value, next_value=value)
    on = build.make_estimator(configure({"name": "optimal", "on_value": True}), policy)
    alone = build.make_estimator(configure({"name": "optimal"}), policy)
    assert on.needs_critic and not alone.needs_critic
    below = build.make_estimator(configure({"name": "value"}), policy)(rollout).advantage
    assert isinstance(alone, OptimalAdvantage) and below is not None
    expected = below - alone.baseline(alone.scores, rollout, below)
    torch.testing.assert_close(on(rollout).advantage, expected)


OPTIMAL = {"name": "optimal"}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (OPTIMAL, {"collect": {"unit": "steps"}}, "weighs whole episodes"),
    (OPTIMAL | {"form": "gpomdp"}, {"advantage": {"returns": "total"}}, "contradicts"),
    (OPTIMAL | {"form": "total"}, {"advantage": {"discount_states": True}}, "discount twice"),
    (OPTIMAL | {"form": "gpomdp", "on_value": True}, {}, "on_value=true has no effect"),
    (OPTIMAL | {"form": "gpomdp"}, {"advantage": {"truncation_bootstrap": "mean_return"}}, "has no effect"),
    (OPTIMAL | {"form": "gpomdp", "fit": "previous_batch"}, {}, "does not go with"),
    (OPTIMAL | {"scope": "parameter"}, {"update": {"name": "clipped"}}, "gives a gradient, not an advantage"),
    (OPTIMAL | {"scope": "parameter"}, {"update": {"name": "trust_region"}}, "gives a gradient"),
    (
        OPTIMAL | {"scope": "parameter"},
        {"update": {"name": "policy_gradient", "epochs": 2}},
        "epochs=2: must be 1",
    ),
    (
        OPTIMAL | {"scope": "parameter"},
        {"update": {"name": "policy_gradient", "minibatch_size": 32}},
        "minibatch_size=32: must be null",
    ),
    (OPTIMAL | {"scope": "parameter"}, {"advantage": {"normalize": True}}, "normalize=true has no effect"),
    (OPTIMAL | {"scope": "parameter"}, {"monitor": {"gradient": "full"}}, "monitor.gradient=full measures"),
    (OPTIMAL, {"monitor": {"gradient_every": 5}}, "gradient_every=5 has no effect"),
    (OPTIMAL | {"scope": "time"}, {}, "must be one of scalar, step, step_joint, parameter"),
]


@pytest.mark.parametrize(("baseline", "changes", "told"), REFUSED)
def test_what_does_not_go_together_is_told(
    baseline: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        configure(baseline, **changes)
    assert "\n" not in str(caught.value)


def test_every_setting_arrives() -> None:
    policy = make_policy(3, critic=False)
    made = build.make_estimator(
        configure({"name": "optimal", "scope": "step", "form": "gpomdp", "fit": "split", "memory_mb": 7}),
        policy,
    )
    assert isinstance(made, OptimalAdvantage)
    b = made.baseline
    assert (b.scope, b.form, b.fit.__name__, made.scores.memory_limit, b.gamma) == (  # pyright: ignore
        "step", "gpomdp", "split", 7 * 2**20, GAMMA,
    )  # fmt: skip
    total = configure({"name": "optimal", "form": "total"})
    assert total.advantage.returns == "total"  # the returns are those of the form
    assert configure({"name": "optimal"}, advantage={"returns": "total"}).advantage.baseline.form == "total"
    discounted = build.make_estimator(
        configure({"name": "optimal"}, advantage={"discount_states": True}), policy
    )
    assert discounted.baseline.discount_states  # pyright: ignore


@pytest.mark.parametrize("fit", ["leave_one_out", "split", "previous_batch", "pooled"])
@pytest.mark.parametrize("form", ["reward_to_go", "total", "gpomdp"])
@pytest.mark.parametrize("scope", SCOPES)
def test_every_fit_goes_with_every_form_and_scope(scope: str, form: str, fit: str, tmp_path: Path) -> None:
    """Two iterations of CartPole each; what the batch before cannot serve is refused in one line."""
    words = [f"advantage.baseline.{key}={x}" for key, x in (("scope", scope), ("form", form), ("fit", fit))]
    words += [
        "algo=reinforce",
        "env=CartPole-v1",
        "env.max_episode_steps=30",
        "num_envs=3",
        "collect.episodes=2",
    ]
    if (form, fit) == ("gpomdp", "previous_batch"):
        with pytest.raises(ConfigError, match="fit=previous_batch does not go with") as caught:
            compose([*words, "advantage/baseline=optimal"])
        assert "\n" not in str(caught.value)
        return
    runner, recorder = make_runner(compose([*words, "advantage/baseline=optimal"]).config, tmp_path)
    before = runner.policy.network.actor[0].weight.detach().clone()
    for _ in range(2):
        runner._iterate()
    assert all(0 < x < float("inf") for x in recorder.column("gradient/norm"))
    assert not torch.equal(before, runner.policy.network.actor[0].weight)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_run_with_each_scope(tmp_path: Path, scope: str, env: str) -> None:
    """Two iterations with idle rows, shared layers below a critic, and (Pendulum) gSDE."""
    import pgtrain

    more = ["policy/distribution=gsde"] if env == "Pendulum-v1" else ["policy.share=1"]
    result = pgtrain.train(
        "algo=reinforce", f"env={env}", "env.max_episode_steps=9", "num_envs=3", "collect.episodes=2",
        "advantage/baseline=optimal", f"advantage.baseline.scope={scope}", "advantage.baseline.on_value=true",
        "advantage.baseline.fit=previous_batch", "total_steps=160", "eval.episodes=0", "monitor=quiet",
        "monitor.tensorboard=false", "policy.hidden=[8]", *more, run_dir=tmp_path / "run",
    )  # fmt: skip
    assert result.summary["iterations"] >= 2 and result.summary["skipped_updates"] == 0
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["runner"]
    assert len(state["estimator"]["sums"]) >= 2
