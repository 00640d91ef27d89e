"""Closed formulas in NumPy against automatic differentiation of the same losses, and the pipeline around them."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from pgtrain.learning import losses
from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.gradients import ActorLoss, Backprop, CriticBackprop
from pgtrain.learning.host.natural import make_model
from pgtrain.learning.host.pipeline import HostPipeline, make_pipeline
from pgtrain.learning.host.rules import make_rule
from pgtrain.learning.host.source import make_source, to_rows
from pgtrain.learning.natural_gradient import (
    AutogradActor,
    FixedStep,
    LineSearch,
    NaturalUpdate,
    actor_parameters,
)
from pgtrain.learning.optimizers import SGD, Adam, RMSprop
from pgtrain.learning.updates import TorchPipeline, Update
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.masks import Masked, MaskedNetwork
from pgtrain.policies.normalizer import RunningMoments
from pgtrain.policies.parameters import FlatParameters
from tests.support import box, make_policy

SPACES: dict[str, Any] = {
    "discrete": spaces.Discrete(3),
    "box": box([-1, 0], [1, 5]),
    "unbounded": box([-np.inf, -1], [np.inf, 1]),
}
COEFFICIENTS = Coefficients(1e-3, 0.03, clip=0.1, value_clip=0.3)
POLICY_LOSSES: dict[str, Any] = {
    "policy_gradient": lambda d: losses.PolicyGradient(),
    "policy_gradient_episodes": lambda d: losses.PolicyGradient("episodes"),
    "surrogate": lambda d: losses.Surrogate(),
    "clipped": lambda d: losses.ClippedSurrogate(),
    "clipped_episodes": lambda d: losses.ClippedSurrogate("episodes"),
    "dual_clip": lambda d: losses.ClippedSurrogate(dual_clip=1.2),
    "kl_penalty": lambda d: losses.KLPenalty(d, beta=0.7),
}
VALUE_LOSSES: dict[str, Any] = {
    "squared": losses.SquaredError(),
    "clip_max": losses.ClippedError("clip_max"),
    "clip_only": losses.ClippedError("clip_only"),
    "huber": losses.HuberError(0.5),
}
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12}


def moved(
    space: str = "discrete",
    rows: int = 40,
    seed: int = 0,
    popart: bool = False,
    apart: float = 0.2,
    **settings: Any,
) -> tuple[ActorCritic, Batch]:
    """A policy, and rows collected by one that differs from it; values, targets and weights at random."""
    generator = torch.Generator().manual_seed(seed)
    policy = make_policy(3, SPACES[space], seed=seed, **settings)
    if popart:
        policy.value_moments = RunningMoments(1, eps=1e-4)
        policy.value_moments.update(50 + 7 * torch.randn(100, 1, generator=generator))
    if policy.log_std is not None:
        policy.log_std.data.uniform_(-1, 0.5, generator=generator)
    inputs = torch.randn(rows, 3, generator=generator)
    with torch.no_grad():
        params, value = policy(inputs)
        params = params + apart * torch.randn(params.shape, generator=generator)
        action = policy.distribution.sample(params, generator)
        log_prob = policy.distribution.log_prob(params, action)
    noise = torch.randn(4, rows, generator=generator)
    old = torch.zeros(rows) if value is None else value + noise[0] * (7 if popart else 1)
    target = old + noise[1] * (7 if popart else 1)
    discount = 0.9 ** torch.arange(rows)
    columns = (inputs, action, params, log_prob, noise[2], target, old, torch.ones(rows), discount)
    return policy, Batch(**dict(zip(Batch.COLUMNS, columns, strict=True)), episodes=4.0)


def in_dtype(policy: ActorCritic, batch: Batch, dtype: torch.dtype) -> tuple[ActorCritic, Batch]:
    return policy.to(dtype), batch.map(lambda x: x.to(dtype) if x.is_floating_point() else x)


def both_gradients(source: Backprop | CriticBackprop, batch: Batch, c: Coefficients = COEFFICIENTS) -> Any:
    """Gradient and statistics by automatic differentiation and by formula."""
    host = make_source(source)
    assert host is not None
    stats = source(batch, c)
    expected = source.flat.grad.clone()
    source.flat.grad.fill_(torch.nan)  # whatever is left of it shows
    return expected, stats, source.flat.grad, host(to_rows(batch), c)


def agree(source: Backprop | CriticBackprop, batch: Batch, dtype: torch.dtype = torch.float64) -> None:
    expected, stats, got, told = both_gradients(source, batch)
    scale = expected.abs().max()
    assert scale > 1e-4
    assert (got - expected).abs().max() <= TOLERANCE[dtype] * scale
    assert told.keys() == stats.keys()
    for name, x in stats.items():
        assert told[name] == pytest.approx(float(x), rel=100 * TOLERANCE[dtype], abs=TOLERANCE[dtype]), name


def backprop(
    policy: ActorCritic, loss: str = "clipped", value: str = "squared", normalize: bool = False
) -> Backprop:
    return Backprop(
        policy,
        FlatParameters(policy),
        policy_loss=POLICY_LOSSES[loss](policy.distribution),
        value_loss=VALUE_LOSSES[value],
        value_coef=0.7,
        normalize_advantage=normalize,
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("loss", POLICY_LOSSES)
@pytest.mark.parametrize("space", SPACES)
def test_every_policy_loss_and_distribution(space: str, loss: str, dtype: torch.dtype) -> None:
    policy, batch = in_dtype(*moved(space), dtype)
    for normalize in (False, True):
        agree(backprop(policy, loss, normalize=normalize), batch, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("popart", [False, True])
@pytest.mark.parametrize("value", VALUE_LOSSES)
def test_every_value_loss(value: str, popart: bool, dtype: torch.dtype) -> None:
    policy, batch = moved(popart=popart)
    policy, batch = in_dtype(policy, batch, dtype)
    # values around 50: their own rounding in float32, not the gradient's, is what is left
    loose = torch.float32 if popart else dtype
    expected, stats, got, told = both_gradients(backprop(policy, value=value), batch)
    assert (got - expected).abs().max() <= (20 if popart else 1) * TOLERANCE[loose] * expected.abs().max()
    assert told["loss/critic"] == pytest.approx(float(stats["loss/critic"]), rel=1e-4)
    critic = CriticBackprop(policy, FlatParameters(policy), VALUE_LOSSES[value])
    expected, _, got, _ = both_gradients(critic, batch)
    assert (got - expected).abs().max() <= (20 if popart else 1) * TOLERANCE[loose] * expected.abs().max()
    assert (got == 0).any()  # the actor's


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu", "leaky_relu"])
@pytest.mark.parametrize(
    ("hidden", "share"), [((8, 8), 0), ((8, 6), 1), ((8, 6), 2), ((), 0), ((5,), 0), ((5, 7, 6), 2)]
)
def test_every_kind_of_network(activation: str, hidden: tuple[int, ...], share: int) -> None:
    for critic, space in itertools.product((True, False), ("discrete", "box")):
        policy, batch = moved(space, activation=activation, hidden=hidden, share=share, critic=critic)
        agree(
            backprop(*in_dtype(policy, batch, torch.float64)[:1]), in_dtype(policy, batch, torch.float64)[1]
        )


def test_a_critic_alone_with_shared_layers() -> None:
    policy, batch = in_dtype(*moved(hidden=(8, 6), share=1), torch.float64)
    agree(CriticBackprop(policy, FlatParameters(policy), VALUE_LOSSES["squared"]), batch)


def test_a_standard_deviation_at_its_limit_has_no_gradient() -> None:
    policy, batch = moved("box")
    assert policy.log_std is not None
    policy.log_std.data.copy_(torch.tensor([5.0, 0.0]))
    policy, batch = in_dtype(policy, batch, torch.float64)
    source = backprop(policy)
    agree(source, batch)
    assert source.flat.grad[source.flat.slices["log_std"]].tolist()[0] == 0


def test_ratios_held_at_their_limit_have_no_gradient() -> None:
    policy, batch = in_dtype(*moved(), torch.float64)
    batch.log_prob[:5] -= 25.0
    batch.log_prob[5:9] += 25.0
    agree(backprop(policy, "surrogate"), batch)


def test_rows_of_weight_0_do_not_matter_whatever_they_hold() -> None:
    policy, batch = in_dtype(*moved("box", rows=30), torch.float64)
    batch.weight[::4] = 0
    batch.weight[1] = 0.5
    for tensor in (batch.inputs, batch.advantage, batch.value_target, batch.log_prob, batch.value):
        tensor[::4] = torch.nan
    for loss in POLICY_LOSSES:
        _, _, got, told = both_gradients(backprop(policy, loss, normalize=True), batch)
        assert torch.isfinite(got).all() and np.isfinite(told["loss"])
    kept = torch.arange(30) % 4 > 0
    fewer = batch.map(lambda x: x[kept])
    for loss in POLICY_LOSSES:
        source = backprop(policy, loss, normalize=True)
        _, _, got, _ = both_gradients(source, batch)
        got = got.clone()
        agree(source, fewer)
        assert torch.allclose(got, source.flat.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "advantage", [[2.0], [1.0, 1.0, 1.0], [1.0, float("nan"), 2.0], [1.0, float("inf"), 2.0]]
)
def test_normalisation_of_odd_advantages(advantage: list[float]) -> None:
    from pgtrain.learning.host.source import normalize
    from pgtrain.learning.statistics import normalize as original

    x, w = torch.tensor(advantage), torch.ones(len(advantage))
    with np.errstate(invalid="ignore"):
        assert np.array_equal(normalize(x.numpy(), w.numpy()), original(x, w).numpy(), equal_nan=True)


OPTIMIZERS: dict[str, Any] = {
    "adam": Adam,
    "rmsprop": RMSprop,
    "rmsprop_tf": lambda data: RMSprop(data, tensorflow=True),
    "sgd": SGD,
    "momentum": lambda data: SGD(data, momentum=0.9),
}


def both_pipelines(optimizer: str, policy: ActorCritic, max_grad_norm: float | None = 0.5) -> list[Update]:
    """The same update by torch and by NumPy, from copies of the policy."""
    updates = []
    for kind in (TorchPipeline, None):
        flat = FlatParameters(mine := copy.deepcopy(policy))
        source, o = _sourced(mine, flat), OPTIMIZERS[optimizer](flat.data)
        pipeline = None if kind is TorchPipeline else make_pipeline(source, flat, o, max_grad_norm)
        assert kind is TorchPipeline or isinstance(pipeline, HostPipeline)
        updates.append(
            Update(
                source,
                flat,
                o,
                torch.Generator().manual_seed(3),
                epochs=3,
                minibatch_size=16,
                max_grad_norm=max_grad_norm,
                pipeline=pipeline,
            )
        )
    return updates


def _sourced(policy: ActorCritic, flat: FlatParameters) -> Backprop:
    return Backprop(
        policy,
        flat,
        policy_loss=losses.ClippedSurrogate(),
        value_loss=losses.SquaredError(),
        value_coef=0.5,
        normalize_advantage=True,
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("max_grad_norm", [0.5, None])
def test_epochs_of_minibatches_end_at_the_same_parameters_and_moments(
    optimizer: str, max_grad_norm: float | None
) -> None:
    policy, batch = in_dtype(*moved("box", rows=50), torch.float64)
    torchs, host = both_pipelines(optimizer, policy, max_grad_norm)
    expected, got = torchs(batch, COEFFICIENTS), host(batch, COEFFICIENTS)
    assert expected.ok.tolist() == got.ok.tolist() == [True] * 12
    assert (torchs.flat.data - host.flat.data).abs().max() < 1e-11
    for name, x in torchs.optimizer.state_dict().items():
        assert torch.allclose(x, host.optimizer.state_dict()[name], rtol=1e-9, atol=1e-12), name
    assert expected.stats.keys() == got.stats.keys()
    for name, x in expected.stats.items():
        assert float(got.stats[name]) == pytest.approx(float(x), rel=1e-9), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_non_finite_update_is_skipped_and_leaves_moments_alone(optimizer: str) -> None:
    policy, batch = moved("box", rows=50)
    batch.advantage[7] = torch.nan
    torchs, host = both_pipelines(optimizer, policy)
    expected, got = torchs(batch, COEFFICIENTS), host(batch, COEFFICIENTS)
    assert got.ok.tolist() == expected.ok.tolist() and got.ok.sum() == 9  # one of 4 parts in each of 3 epochs
    assert torch.allclose(torchs.flat.data, host.flat.data, atol=1e-5)
    batch.advantage.fill_(torch.inf)
    before = host.flat.data.clone(), {k: v.clone() for k, v in host.optimizer.state_dict().items()}
    assert not host(batch, COEFFICIENTS).ok.any()
    assert torch.equal(before[0], host.flat.data)
    assert all(torch.equal(v, host.optimizer.state_dict()[k]) for k, v in before[1].items())


def test_restored_moments_are_those_that_the_rule_works_on() -> None:
    flat = FlatParameters(torch.nn.Linear(2, 2))
    adam, fresh = Adam(flat.data), Adam(flat.data)
    rule = make_rule(adam)
    assert rule is not None
    rule(np.ones(len(flat), np.float32), 0.1)
    fresh.load_state_dict(adam.state_dict())
    again = make_rule(fresh)
    assert again is not None
    again(np.ones(len(flat), np.float32), 0.1)
    assert float(fresh.count) == 2 and float(adam.count) == 1 and fresh.m.max() > adam.m.max()


class Odd(losses.PolicyGradient):
    """A loss of somebody's own."""


def test_what_has_no_formula_goes_by_torch() -> None:
    policy, _ = moved(activation="gelu")
    flat = FlatParameters(policy)
    assert isinstance(make_pipeline(_sourced(policy, flat), flat, Adam(flat.data), None), TorchPipeline)
    policy, _ = moved()
    flat = FlatParameters(policy)
    source = Backprop(
        policy,
        flat,
        policy_loss=Odd(),
        value_loss=losses.SquaredError(),
        value_coef=1,
        normalize_advantage=False,
    )
    assert make_source(source) is None
    assert make_source(_sourced(policy, flat)) is not None
    plain = make_policy(3)
    masked = ActorCritic(MaskedNetwork(plain.network, 3), Masked(plain.distribution), None)  # pyright: ignore
    flat = FlatParameters(masked)
    assert make_source(_sourced(masked, flat)) is None
    assert make_model(masked, flat, ActorLoss(losses.Surrogate(), False)) is None


@pytest.mark.parametrize(
    ("hidden", "activation"), [((8, 6), "tanh"), ((), "tanh"), ((7,), "silu"), ((5, 6, 7), "elu")]
)
@pytest.mark.parametrize("space", SPACES)
def test_fisher_products_are_those_of_the_kl_differentiated_twice(
    space: str, hidden: tuple[int, ...], activation: str
) -> None:
    policy, batch = in_dtype(*moved(space, hidden=hidden, activation=activation), torch.float64)
    batch.weight[3] = 0.25
    flat = FlatParameters(policy)
    loss = ActorLoss(losses.Surrogate(), normalize_advantage=True)
    host = make_model(policy, flat, loss)
    assert host is not None
    torchs = AutogradActor(policy, actor_parameters(policy, flat), loss)
    for model in (host, torchs):
        model.gradient(batch, COEFFICIENTS)
    expected, got = torchs.fisher(batch, 0.1), host.fisher(batch, 0.1)
    for seed in range(3):
        v = torch.randn(host.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert torch.allclose(got(v), expected(v), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("rule", [LineSearch(), FixedStep(0.1)])
@pytest.mark.parametrize("space", SPACES)
def test_a_natural_step_is_the_same_by_formula(space: str, rule: Any) -> None:
    found = []
    for by_formula in (False, True):
        policy, batch = in_dtype(*moved(space, rows=60, apart=0.0), torch.float64)
        flat = FlatParameters(policy)
        loss = ActorLoss(losses.Surrogate(), normalize_advantage=True)
        model = make_model(policy, flat, loss) if by_formula else None
        assert not by_formula or model is not None
        update = NaturalUpdate(policy, flat, loss, rule, None, cg_iterations=10, model=model)
        before = flat.data.clone()
        results = [update(batch, COEFFICIENTS) for _ in range(3)]
        assert (flat.data - before).abs().max() > 1e-3
        found.append((flat.data, results))
    assert torch.allclose(found[0][0], found[1][0], rtol=0, atol=1e-9)
    for expected, got in zip(found[0][1], found[1][1], strict=True):
        assert expected.stats.keys() == got.stats.keys()
        for name, x in expected.stats.items():
            assert float(got.stats[name]) == pytest.approx(float(x), rel=1e-6, nan_ok=True), name
