"""KL guards: what they do when an update moves the policy too far, and that they do nothing else."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtrain.learning.batch import Batch, Coefficients, flatten
from pgtrain.learning.gradients import Backprop
from pgtrain.learning.kl_guard import LearningRate, Skip, Stop, measure_kl
from pgtrain.learning.losses import ClippedSurrogate, KLPenalty, SquaredError
from pgtrain.learning.optimizers import SGD, Adam, RMSprop
from pgtrain.learning.updates import Update
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters
from tests.learning.test_gradients import SPACES, experience
from tests.support import make_policy

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "schedules.json").read_text(encoding="utf-8"))
RULES: dict[str, Any] = {"adam": Adam, "rmsprop": RMSprop, "sgd": partial(SGD, momentum=0.9)}


def ppo(
    policy: ActorCritic,
    *,
    guards: Any = (),
    epochs: int = 6,
    rule: str = "adam",
    estimate: str = "exact",
    loss: Any = None,
) -> Update:
    flat = FlatParameters(policy)
    source = Backprop(
        policy,
        flat,
        policy_loss=ClippedSurrogate() if loss is None else loss,
        value_loss=SquaredError(),
        value_coef=0.5,
        normalize_advantage=True,
    )
    return Update(
        source,
        flat,
        RULES[rule](flat.data),
        torch.Generator().manual_seed(0),
        epochs=epochs,
        minibatch_size=5,
        guards=guards,
        measure_kl=partial(measure_kl, policy, estimate=estimate),
    )


def setting(space: str = "discrete", **options: Any) -> tuple[ActorCritic, Batch, Update]:
    policy = make_policy(3, SPACES[space], gain=0.5)
    return policy, flatten(experience(policy), None), ppo(policy, **options)


def kl_after(epochs: int, space: str = "discrete", rate: float = 0.02) -> list[float]:
    """KL after each epoch of an unguarded run."""
    found = []
    for k in range(1, epochs + 1):
        policy, batch, update = setting(space, epochs=k)
        update(batch, Coefficients(rate, 0.0))
        found.append(float(measure_kl(policy, batch)))
    return found


# --------------------------------------------------------------------------------------------------- measures


@pytest.mark.parametrize("space", SPACES)
def test_measured_kl_is_that_of_the_stored_policy_to_todays(space: str) -> None:
    policy, batch, update = setting(space)
    assert float(measure_kl(policy, batch)) == pytest.approx(0.0, abs=1e-9)
    update(batch, Coefficients(0.02, 0.0))
    new = policy.evaluate(batch.inputs, batch.action)
    if space == "discrete":
        p, q = (torch.distributions.Categorical(logits=x) for x in (batch.params, new.params))
        expected = torch.distributions.kl_divergence(p, q).mean().detach()
    else:
        p, q = (torch.distributions.Normal(x[:, :2], x[:, 2:].exp()) for x in (batch.params, new.params))
        expected = torch.distributions.kl_divergence(p, q).sum(-1).mean().detach()
    assert float(measure_kl(policy, batch)) == pytest.approx(float(expected), rel=1e-4)
    ratio = (new.log_prob - batch.log_prob).detach().double().exp()
    k3 = (ratio - 1 - ratio.log()).mean()
    assert float(measure_kl(policy, batch, "k3")) == pytest.approx(float(k3), rel=1e-6)
    assert float(k3) != pytest.approx(float(expected), rel=1e-3)


# ------------------------------------------------------------------------------------------------------- stop


@pytest.mark.parametrize("space", SPACES)
def test_stop_ends_the_epochs_after_the_first_one_over_the_limit(space: str) -> None:
    kls = kl_after(6, space)
    limit = (kls[1] + kls[2]) / 2
    first = next(k for k, kl in enumerate(kls) if kl > limit)
    assert 0 < first < 5
    policy, batch, update = setting(space, guards=[Stop(limit)])
    result = update(batch, Coefficients(0.02, 0.0))
    assert float(result.stats["update/epochs"]) == first + 1 and float(result.stats["update/kl_guard"]) == 1
    assert len(result.ok) == (first + 1) * 3
    assert float(measure_kl(policy, batch)) == kls[first]
    _, batch, update = setting(space, guards=[Stop(2 * max(kls))])
    result = update(batch, Coefficients(0.02, 0.0))
    assert float(result.stats["update/epochs"]) == 6 and float(result.stats["update/kl_guard"]) == 0


def test_stop_measures_once_an_epoch_and_not_after_the_last() -> None:
    _, batch, update = setting(guards=[Stop(9.0), Stop(99.0)])
    calls = []
    inner = update.measure_kl
    update.measure_kl = lambda b: (calls.append(1), inner(b))[1]  # pyright: ignore[reportOptionalCall]
    update(batch, Coefficients(0.02, 0.0))
    assert len(calls) == 5
    _, batch, update = setting(guards=[Stop(0.0)], epochs=1)
    update.measure_kl = None
    assert float(update(batch, Coefficients(0.02, 0.0)).stats["update/kl_guard"]) == 0


def test_guards_are_what_the_update_is_without_them_as_long_as_they_do_not_act() -> None:
    _, batch, plain = setting()
    plain(batch, Coefficients(0.003, 0.01))
    for guard in (Stop(99.0), Skip(99.0), LearningRate(1e9, start=0.003, largest=0.003)):
        _, batch, update = setting(guards=[guard])
        update(batch, Coefficients(0.003, 0.01))
        assert torch.equal(update.flat.data, plain.flat.data)


# ------------------------------------------------------------------------------------------------------- skip


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("factor", [0.0, 1.5])
def test_skip_puts_everything_back_bit_for_bit(rule: str, factor: float) -> None:
    """Limits that the first epoch breaks (0), and a later one (1.5 times the KL after the first)."""
    rate = 0.02 if rule == "adam" else 0.005

    def prepared() -> Any:
        policy, batch, update = setting(rule=rule, epochs=8)
        for _ in range(2):  # moments that are not 0
            update(batch, Coefficients(1e-5, 0.0))
        return policy, batch, update

    policy, batch, update = prepared()
    update.epochs = 1
    update(batch, Coefficients(rate, 0.0))
    guard = Skip(factor * float(measure_kl(policy, batch)))
    policy, batch, update = prepared()
    before = {n: x.clone() for n, x in {"data": update.flat.data, **update.optimizer.state_dict()}.items()}
    update.guards = [guard]
    result = update(batch, Coefficients(rate, 0.0))
    assert float(result.stats["update/kl_guard"]) == 1 and result.ok.all()
    assert (float(result.stats["update/epochs"]) > 1) == (factor > 0)
    for name, x in {"data": update.flat.data, **update.optimizer.state_dict()}.items():
        assert torch.equal(x, before[name]), name
    guard.limit = 99.0
    result = update(batch, Coefficients(rate, 0.0))  # and it goes on
    assert float(result.stats["update/kl_guard"]) == 0 and not torch.equal(update.flat.data, before["data"])


@pytest.mark.parametrize("guard", [Stop(1.0), Skip(1.0)])
def test_a_kl_that_is_no_number_is_too_large(guard: Any) -> None:
    _, batch, update = setting(guards=[guard])
    before = update.flat.snapshot()
    result = update(batch.replace(params=batch.params * torch.nan), Coefficients(0.01, 0.0))
    assert float(result.stats["update/kl_guard"]) == 1 and float(result.stats["update/epochs"]) == 1
    assert torch.equal(update.flat.data, before) == isinstance(guard, Skip)


@settings(max_examples=25, deadline=None)
@given(
    limit=st.floats(1e-8, 1.0),
    rate=st.floats(1e-4, 0.3),
    epochs=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
def test_after_skip_the_policy_is_within_the_limit_or_untouched(
    limit: float, rate: float, epochs: int, seed: int
) -> None:
    policy = make_policy(3, spaces.Discrete(3), gain=0.5, seed=seed)
    batch = flatten(experience(policy, seed=seed), None)
    update = ppo(policy, guards=[Skip(limit)], epochs=epochs)
    before = update.flat.snapshot()
    result = update(batch, Coefficients(rate, 0.0))
    acted = bool(result.stats["update/kl_guard"])
    assert acted == torch.equal(update.flat.data, before)
    assert float(measure_kl(policy, batch)) <= (1e-9 if acted else limit)


@settings(max_examples=25, deadline=None)
@given(
    limit=st.floats(1e-6, 1.0),
    rate=st.floats(1e-4, 0.3),
    epochs=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
def test_stop_leaves_no_epoch_after_one_over_the_limit(
    limit: float, rate: float, epochs: int, seed: int
) -> None:
    policy = make_policy(3, spaces.Discrete(3), gain=0.5, seed=seed)
    batch = flatten(experience(policy, seed=seed), None)
    update = ppo(policy, guards=[Stop(limit)], epochs=epochs)
    seen: list[float] = []
    inner = update.measure_kl
    update.measure_kl = lambda b: (seen.append(float(inner(b))), inner(b))[1]  # pyright: ignore
    result = update(batch, Coefficients(rate, 0.0))
    done, acted = int(result.stats["update/epochs"]), bool(result.stats["update/kl_guard"])
    assert all(kl <= limit for kl in seen[:-1]) and len(result.ok) == 3 * done
    assert acted == (done < epochs or (bool(seen) and seen[-1] > limit))
    assert acted == any(kl > limit for kl in seen)


# ---------------------------------------------------------------------------------------------- learning rate


def test_learning_rate_follows_the_rule_of_rsl_rl() -> None:
    given = GOLDEN["inputs"]
    guard = LearningRate(
        given["desired_kl"], start=given["lr0"], smallest=given["lr_min"], largest=given["lr_max"]
    )
    found, acted = [], []
    for kl in given["kl_sequence"]:
        guard.begin(None)  # pyright: ignore[reportArgumentType]
        assert guard.after_epoch(lambda kl=kl: torch.tensor(kl, dtype=torch.float64), last=False)
        found.append(float(guard.learning_rate(123.0)))
        acted.append(int(guard.finish(lambda: torch.zeros(()))["update/kl_guard"]))
    assert found == pytest.approx(GOLDEN["expected"]["rsl_rl_lr"], rel=1e-6)
    assert acted == [1, 1, 0, 1, 0, 1, 1, 1]


@pytest.mark.parametrize("kl", [0.005, 0.01, 0.02, 0.0, torch.nan])
def test_rate_stays_at_and_between_the_bounds(kl: float) -> None:
    guard = LearningRate(0.01, start=1e-3)
    guard.after_epoch(lambda: torch.tensor(kl, dtype=torch.float64), last=False)
    assert float(guard.rate) == pytest.approx(1e-3)


@given(st.lists(st.one_of(st.floats(0, 10), st.just(float("nan")), st.just(float("inf"))), max_size=40))
def test_rate_keeps_to_its_limits(kls: list[float]) -> None:
    guard = LearningRate(0.01, start=1e-3)
    for kl in kls:
        guard.after_epoch(lambda kl=kl: torch.tensor(kl), last=False)
        assert 1e-5 * (1 - 1e-6) <= float(guard.rate) <= 1e-2 * (1 + 1e-6)


def test_the_update_uses_and_tells_the_guards_rate() -> None:
    guard = LearningRate(1e-9, start=0.01)
    _, batch, update = setting(guards=[guard], epochs=4)
    rates = []
    inner = update.optimizer.step
    update.optimizer.step = lambda g, ok, lr: (rates.append(float(lr)), inner(g, ok, lr))  # pyright: ignore
    result = update(batch, Coefficients(123.0, 0.0))
    expected = [0.01 / 1.5**k for k in range(4) for _ in range(3)]
    assert rates == pytest.approx(expected, rel=1e-5)
    assert float(result.stats["schedule/learning_rate"]) == pytest.approx(0.01 / 1.5**4, rel=1e-5)
    assert float(result.stats["update/kl_guard"]) == 4
    other = ppo(make_policy(), guards=[LearningRate(1e-9, start=0.5)])
    other.load_state_dict(update.state_dict())
    assert torch.equal(other.guards[0].rate, guard.rate)  # pyright: ignore[reportAttributeAccessIssue]


# ------------------------------------------------------------------------------------------------- KL penalty


def test_penalty_is_told_of_the_kl_once_even_if_the_update_was_undone() -> None:
    """Skip measures 0 after it has put the policy back; β must learn of the KL that made it do so."""
    policy = make_policy(3, SPACES["box"], gain=0.5)
    batch = flatten(experience(policy), None)
    penalty = KLPenalty(policy.distribution, beta=0.1, target=1e-6)
    update = ppo(policy, loss=penalty, guards=[Skip(1e-5), penalty])
    result = update(batch, Coefficients(0.02, 0.0))
    assert float(result.stats["update/kl_guard"]) == 1
    assert float(result.stats["schedule/kl_coef"]) == pytest.approx(0.1)
    assert float(penalty.beta) == pytest.approx(0.2)


def test_a_heavier_penalty_keeps_the_policy_nearer() -> None:
    kls = []
    for beta in (0.0, 1.0, 100.0):
        policy = make_policy(3, SPACES["box"], gain=0.5)
        batch = flatten(experience(policy), None)
        penalty = KLPenalty(policy.distribution, beta=beta, target=None)
        ppo(policy, loss=penalty, guards=[penalty], epochs=20)(batch, Coefficients(0.003, 0.0))
        kls.append(float(measure_kl(policy, batch)))
    assert kls[0] > 1.5 * kls[1] > 3 * kls[2] > 0, kls
    assert np.isfinite(kls).all()
