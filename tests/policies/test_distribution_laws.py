"""What every action distribution must obey, at random and extreme parameters, in float32 and float64.

Densities sum or integrate to 1, entropies and KLs are those of the density (by enumeration or quadrature), samples of
both kinds follow it. One dimension (or one factor) is tried by quadrature; several must be the sum of theirs.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.legendre import leggauss
from scipy import stats

from pgtrain.policies.beta import Beta
from pgtrain.policies.discrete import Bernoulli, MultiCategorical, TemperedCategorical
from pgtrain.policies.distributions import Categorical, DiagonalGaussian
from pgtrain.policies.product import Product
from pgtrain.policies.squashed import TanhGaussian

LOW, HIGH = np.array([-2.0]), np.array([3.0])
DTYPES = [torch.float32, torch.float64]
FEW = settings(max_examples=15, deadline=None, derandomize=True)
f64 = torch.float64

# ------------------------------------------------------------------------------- densities on a line, by quadrature

NODES, WEIGHTS = leggauss(20)


def panels(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Composite Gauss-Legendre nodes and weights between sorted edges."""
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (1 + NODES)).ravel(), (half * WEIGHTS).ravel()


def grid(kind: str, params: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Own variable of the distribution and weights da of the env's action: ∫ f da ≈ Σ w f."""
    p, q = params[0].tolist()
    if kind == "beta":  # finer towards both ends and around the hump
        mode = (p - 1 + 1e-9) / (p + q - 2 + 2e-9)
        spread = math.sqrt(p * q / (p + q + 1)) / (p + q)
        ends = np.geomspace(1e-6, 0.5, 40)
        hump = np.clip(mode + spread * np.linspace(-12, 12, 60), 1e-6, 1 - 1e-6)
        x, w = panels(np.unique(np.concatenate([[1e-12], ends, 1 - ends, [1 - 1e-12], hump])))
        return x, 5 * w
    std = math.exp(q)
    near = np.linspace(-6, 6, 60)
    u, w = panels(np.unique(np.concatenate([p + std * np.linspace(-12, 12, 120), near])))
    slope = 1 / np.cosh(np.clip(u, -300, 300)) ** 2 if kind == "tanh" else 1.0
    return u, w * 2.5 * slope


LINES: dict[str, Any] = {
    "gaussian": (DiagonalGaussian(LOW, HIGH), lambda m, s: [m, s]),
    "tanh": (TanhGaussian(LOW, HIGH), lambda m, s: [m, s]),
    "beta": (
        Beta(LOW, HIGH),
        lambda m, s: [1 + math.log1p(math.exp(2 * m)), 1 + math.log1p(math.exp(2 * s))],
    ),
}
EXTREME = [
    (0.0, -5.0),
    (0.0, 2.0),
    (8.0, 0.5),
    (-8.0, 2.0),
    (3.0, -5.0),
    (-7.0, 4.0),
    (4.0, 4.0),
    (-6.0, -6.0),
]


def line_params(kind: str, m: float, s: float, dtype: torch.dtype) -> torch.Tensor:
    s = s if kind == "beta" else min(max(s, -5.0), 2.0)
    return torch.tensor([LINES[kind][1](m, s)], dtype=dtype)


def check_line(kind: str, one: tuple[float, float], two: tuple[float, float], dtype: torch.dtype) -> None:
    d, _ = LINES[kind]
    a, b = line_params(kind, *one, dtype), line_params(kind, *two, dtype)
    own, w = grid(kind, a.double())
    own_t = torch.tensor(own, dtype=dtype)[:, None]
    if kind == "beta" and dtype is torch.float32:
        own = own_t.double().numpy()[:, 0]  # where the points really lie
    at = {k: d.log_prob(p.expand(len(own), 2), own_t).double().numpy() for k, p in (("a", a), ("b", b))}
    p = np.exp(at["a"]) * w
    fine = 2e-4 if dtype is torch.float32 else 1e-6
    assert p.sum() == pytest.approx(1.0, abs=5 * fine if kind == "beta" else fine)
    mass = np.where(p > 0, p, 0.0)
    entropy = -(mass * np.where(mass > 0, at["a"], 0)).sum()
    assert float(d.entropy(a)) == pytest.approx(entropy, abs=10 * fine, rel=10 * fine)
    kl = (mass * np.where(mass > 0, at["a"] - at["b"], 0)).sum()
    assert float(d.kl(a, b)) == pytest.approx(kl, abs=20 * fine, rel=20 * fine)
    assert float(d.kl(a, a)) == pytest.approx(0.0, abs=1e-6)


numbers = st.floats(-4, 4)


@pytest.mark.parametrize("kind", LINES)
@FEW
@given(one=st.tuples(numbers, numbers), two=st.tuples(numbers, numbers), double=st.booleans())
def test_density_entropy_and_kl_agree(kind: str, one: Any, two: Any, double: bool) -> None:
    check_line(kind, one, two, DTYPES[double])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", LINES)
def test_they_agree_at_the_extremes(kind: str, dtype: torch.dtype) -> None:
    for one in EXTREME:
        check_line(kind, one, (one[0] + 0.1, one[1] - 0.2), dtype)


@pytest.mark.parametrize(
    ("by", "dtype"), [("numpy", torch.float32), ("torch", torch.float32), ("torch", torch.float64)]
)
@pytest.mark.parametrize("kind", LINES)
def test_samples_follow_the_density(kind: str, by: str, dtype: torch.dtype) -> None:
    """Kolmogorov-Smirnov against the closed form of the policy's own variable."""
    d, _ = LINES[kind]
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    for m, s in [(0.3, -0.4), (2.0, 0.5), (-3.0, 1.5)]:
        params = line_params(kind, m, s, dtype)
        many = params.expand(20_000, 2)
        drawn = d.sample_numpy(many.numpy(), rng) if by == "numpy" else d.sample(many, generator).numpy()
        p, q = params[0].tolist()
        law = stats.beta(p, q) if kind == "beta" else stats.norm(p, math.exp(q))
        assert stats.kstest(drawn[:, 0], law.cdf).pvalue > 1e-4
        env = d.to_env(drawn)
        assert (env >= LOW).all() and (env <= HIGH).all()


@pytest.mark.parametrize("kind", LINES)
def test_several_dimensions_are_the_sum_of_each(kind: str) -> None:
    low, high = np.array([-2.0, 0.0, 5.0]), np.array([3.0, 1.0, 7.0])
    make = type(LINES[kind][0])
    d, single = make(low, high), [make(low[i : i + 1], high[i : i + 1]) for i in range(3)]
    one, two = torch.rand(2, 5, 6, dtype=f64).add(1.2)  # both are valid params of all kinds
    x = torch.rand(5, 3, dtype=f64)
    part = lambda p, i: p[:, [i, 3 + i]]  # noqa: E731
    for whole, parts in (
        (d.log_prob(one, x), [s.log_prob(part(one, i), x[:, [i]]) for i, s in enumerate(single)]),
        (d.entropy(one), [s.entropy(part(one, i)) for i, s in enumerate(single)]),
        (d.kl(one, two), [s.kl(part(one, i), part(two, i)) for i, s in enumerate(single)]),
    ):
        assert whole.shape == (5,)
        torch.testing.assert_close(whole, torch.stack(parts).sum(0))


# ------------------------------------------------------------------------------------ finite choices, by enumeration

FINITE: dict[str, Any] = {
    "categorical": (Categorical(4), lambda: [(i,) for i in range(4)]),
    "tempered": (TemperedCategorical(3, 0.5), lambda: [(i,) for i in range(3)]),
    "multi": (MultiCategorical([2, 4, 3]), lambda: list(itertools.product(range(2), range(4), range(3)))),
    "bits": (Bernoulli(4), lambda: list(itertools.product(range(2), repeat=4))),
    "product": (
        Product([Categorical(3), Bernoulli(2), MultiCategorical([2, 2])]),
        lambda: list(itertools.product(range(3), *[range(2)] * 4)),
    ),
}


def all_actions(name: str) -> torch.Tensor:
    d, rows = FINITE[name]
    return torch.tensor(rows()).reshape(-1, *d.action_shape)


def masked(name: str, seed: int, dtype: torch.dtype, scale: float, ruled_out: bool) -> torch.Tensor:
    d, _ = FINITE[name]
    rng = torch.Generator().manual_seed(seed)
    params = scale * torch.randn(2, d.param_dim, dtype=dtype, generator=rng)
    if ruled_out:  # each factor keeps a choice
        mask = torch.ones(d.mask_dim)
        mask[1::2] = 0
        if name == "bits":
            mask = torch.tensor([2, 0, 2, 1.0])
        if name == "multi":
            mask = torch.tensor([1, 0, 0, 1, 0, 1, 1, 1, 0.0])
        if name == "product":
            mask = torch.tensor([0, 1, 1, 2, 1, 1, 1, 0, 1.0])
        params = d.apply_mask(params, mask.to(dtype))
    return params


@pytest.mark.parametrize("name", FINITE)
@FEW
@given(
    seed=st.integers(0, 999),
    double=st.booleans(),
    scale=st.sampled_from([0.1, 2.0, 30.0]),
    ruled_out=st.booleans(),
)
def test_probabilities_entropy_and_kl_by_enumeration(
    name: str, seed: int, double: bool, scale: float, ruled_out: bool
) -> None:
    d, _ = FINITE[name]
    params = masked(name, seed, DTYPES[double], scale, ruled_out)
    actions = all_actions(name)
    one, two = (d.log_prob(p.expand(len(actions), -1), actions).double() for p in params)
    p = one.exp()
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-5)
    assert float(d.entropy(params[0])) == pytest.approx(float(-(p * one).nan_to_num(0).sum()), abs=2e-4)
    assert float(d.kl(params[0], params[1])) == pytest.approx(
        float(torch.where(p > 0, p * (one - two), 0).sum()), rel=1e-4, abs=2e-4
    )


@pytest.mark.parametrize("by", ["numpy", "torch"])
@pytest.mark.parametrize("ruled_out", [False, True])
@pytest.mark.parametrize("name", FINITE)
def test_draws_have_the_probabilities(name: str, ruled_out: bool, by: str) -> None:
    """χ² over all joint actions; what has probability 0 is never drawn, and the mode is the likeliest."""
    d, _ = FINITE[name]
    params = masked(name, 3, torch.float32, 1.0, ruled_out)[0]
    actions = all_actions(name)
    p = d.log_prob(params.expand(len(actions), -1), actions).double().exp().numpy()
    many = params.expand(20_000, -1)
    rng, generator = np.random.default_rng(1), torch.Generator().manual_seed(1)
    drawn = d.sample_numpy(many.numpy(), rng) if by == "numpy" else d.sample(many, generator).numpy()
    assert drawn.dtype == np.int64 and drawn.shape == (20_000, *d.action_shape)
    index = {row: i for i, row in enumerate(map(tuple, actions.reshape(len(p), -1).tolist()))}
    counts = np.bincount([index[tuple(a)] for a in drawn.reshape(20_000, -1).tolist()], minlength=len(p))
    assert not counts[p == 0].any() and (p == 0).any() == ruled_out
    live = p > 0
    assert stats.chisquare(counts[live], 20_000 * p[live] / p[live].sum()).pvalue > 1e-4
    for mode in (d.mode(params[None].numpy()), d.mode(params[None]).numpy()):
        assert index[tuple(np.ravel(mode).tolist())] == p.argmax()


@pytest.mark.parametrize("name", FINITE)
def test_masked_choices_leave_every_gradient_finite(name: str) -> None:
    d, _ = FINITE[name]
    head = torch.randn(2, d.param_dim, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mask = torch.tensor([1.0 if i % 2 == 0 else 0.0 for i in range(d.mask_dim)])
    if name == "product":
        mask = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 0, 1])
    if name == "multi":
        mask = torch.tensor([1.0, 0, 1, 0, 0, 0, 0, 1, 1])
    params = d.apply_mask(head, mask)
    action = d.mode(params)
    for loss in (d.log_prob(params, action), d.entropy(params), d.kl(params[:1].detach(), params[1:])):
        (gradient,) = torch.autograd.grad(loss.sum(), head, retain_graph=True)
        assert torch.isfinite(loss).all() and torch.isfinite(gradient).all()
        assert not gradient[:, mask == 0].any()


def test_a_masked_choice_is_as_if_it_were_not_there() -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    keep = [0, 1, 3]
    small, d = Categorical(3), Categorical(4)
    params = d.apply_mask(logits, torch.tensor([1.0, 1, 0, 1]))
    torch.testing.assert_close(d.entropy(params), small.entropy(logits[:, keep]))
    torch.testing.assert_close(
        d.kl(params, params.flip(0)), small.kl(logits[:, keep], logits[:, keep].flip(0))
    )
    a = torch.tensor([0, 1, 3, 0, 1, 3])
    b = torch.tensor([0, 1, 2, 0, 1, 2])
    torch.testing.assert_close(d.log_prob(params, a), small.log_prob(logits[:, keep], b))


def test_a_temperature_divides_the_logits() -> None:
    head, none = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.empty(5, 0)
    for d in (TemperedCategorical(6, 0.4), MultiCategorical([2, 4], 0.4), Bernoulli(6, 0.4)):
        torch.testing.assert_close(d.join(head, None, none), head / 0.4)
        by_numpy = d.join_numpy(head.numpy(), None, none.numpy())
        assert by_numpy.dtype == np.float32
        np.testing.assert_allclose(by_numpy, head.numpy() / 0.4, rtol=1e-6)


# ------------------------------------------------------------------------------------------------------ right answers


def test_beta_has_the_reference_numbers() -> None:
    """From mpmath, over both dimensions."""
    d01, d11 = Beta(np.zeros(2), np.ones(2)), Beta(-np.ones(2), np.ones(2))
    params = torch.tensor([1.5, 3.0, 2.5, 1.2], dtype=f64)
    other = torch.tensor([1.9, 3.4, 3.25, 1.56], dtype=f64)
    x = torch.tensor([0.3, 0.85], dtype=f64)
    assert float(d01.log_prob(params, x)) == pytest.approx(1.227180708750549, rel=1e-9)
    assert float(d01.entropy(params)) == pytest.approx(-0.5322011239358706, rel=1e-9)
    assert float(d01.kl(params, other)) == pytest.approx(0.05055677207303921, rel=1e-8)
    assert float(d11.log_prob(params, x)) == pytest.approx(-0.1591136523693415, rel=1e-9)
    assert float(d11.entropy(params)) == pytest.approx(0.85409323718402, rel=1e-9)
    assert d01.mode(params).tolist() == pytest.approx([0.25, 2 / 2.2], rel=1e-6)


def test_tanh_gaussian_has_the_reference_numbers() -> None:
    low, high = np.array([-2.0, -1.0]), np.array([2.0, 3.0])
    unit, scaled = TanhGaussian(-np.ones(2), np.ones(2)), TanhGaussian(low, high)
    mean = torch.tensor([0.3, -1.2], dtype=f64, requires_grad=True)
    log_std = torch.tensor([-0.5, 0.2], dtype=f64, requires_grad=True)
    params = torch.cat([mean, log_std])
    u = torch.tensor([0.6032653298563166, -2.543543033976187], dtype=f64)
    assert float(unit.log_prob(params, u).detach()) == pytest.approx(1.7890140738749987, rel=1e-10)
    assert float(scaled.log_prob(params, u).detach()) == pytest.approx(0.4027197127551082, rel=1e-10)
    assert scaled.to_env(u.numpy()).tolist() == pytest.approx([1.0787380547198797, -0.9754476744876766])
    entropy = unit.entropy(params)
    assert float(entropy.detach()) == pytest.approx(0.39317479523119153, abs=2e-7)
    assert float(scaled.entropy(params).detach()) == pytest.approx(1.779469156351082, abs=2e-7)
    d_mean, d_log_std = torch.autograd.grad(entropy, [mean, log_std])
    assert d_mean.tolist() == pytest.approx([-0.4572392273760606, 1.151270645005642], abs=1e-5)
    assert d_log_std.tolist() == pytest.approx([0.4564253527150619, -0.14514847277491416], abs=1e-5)
    assert float(unit.kl(params, torch.tensor([0.5, -1.0, -0.6, 0.1], dtype=f64))) == pytest.approx(
        0.10417971167646067, rel=1e-9
    )
    big = torch.tensor([12.0, -25.0, 40.0], dtype=torch.float32)
    slope = TanhGaussian(-np.ones(3), np.ones(3))._log_slope(big)
    assert slope.tolist() == pytest.approx(
        [-22.61370563895561, -48.61370563888011, -78.6137056388801], rel=1e-6
    )


def test_extreme_heads_of_a_beta_stay_finite() -> None:
    d = Beta(LOW, HIGH)
    head = torch.tensor([[-200.0, 200.0], [200.0, -200.0], [-200.0, -200.0], [3e4, 3e4]], requires_grad=True)
    params = d.join(head, None, head[:, :0])
    np.testing.assert_allclose(
        d.join_numpy(head.detach().numpy(), None, np.zeros(0)), params.detach(), rtol=1e-6
    )
    for x in (
        d.sample(params.detach(), None),
        torch.from_numpy(d.sample_numpy(params.detach().numpy(), np.random.default_rng(0))),
    ):
        assert ((x > 0) & (x < 1)).all()
        loss = d.log_prob(params, x) + d.entropy(params) + d.kl(params.detach() + 0.1, params)
        (gradient,) = torch.autograd.grad(loss.sum(), head, retain_graph=True)
        assert torch.isfinite(loss).all() and torch.isfinite(gradient).all()
    assert d.mode(params)[2].item() == pytest.approx(0.5)


def test_actions_at_a_bound_are_counted() -> None:
    beta, tanh = Beta(np.zeros(2), np.ones(2)), TanhGaussian(-np.ones(2), np.ones(2))
    params = torch.tensor([[2.0, 2.0, 2.0, 2.0]])
    assert beta.metrics(params, torch.tensor([[0.004, 0.5]]))["policy/clipped_actions"].tolist() == [0.5]
    assert float(beta.metrics(params, torch.ones(1, 2))["policy/std"]) == pytest.approx(2 * math.sqrt(0.05))
    both = Product([Categorical(2), tanh])
    found = both.metrics(torch.zeros(1, 6), torch.tensor([[1.0, 5.0, 0.1]]))
    assert found["policy/clipped_actions"].tolist() == [0.5] and found["policy/std"].tolist() == [1.0]


def test_a_product_holds_each_part_in_its_place() -> None:
    parts = [
        DiagonalGaussian(LOW, HIGH),
        Categorical(3),
        Beta(LOW, HIGH),
        TanhGaussian(np.zeros(2), np.ones(2)),
    ]
    d = Product(parts)
    assert (d.head_dim, d.param_dim, d.mask_dim, d.action_shape) == (8, 11, 3, (5,))
    assert d.log_std_shape == (3,) and d.action_dtype is torch.float32
    assert d.tanh_mean.tolist() == [True] + [False] * 7
    head = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    log_std = torch.tensor([0.1, -0.2, -0.3])
    params = d.join(head, log_std, head[:, :0])
    np.testing.assert_allclose(
        d.join_numpy(head.numpy(), log_std.numpy(), head.numpy()[:, :0]), params, rtol=1e-6
    )
    action = d.sample(params, torch.Generator().manual_seed(0))
    split = torch.split(params, [p.param_dim for p in parts], -1)
    own = [action[:, :1], action[:, 1].long(), action[:, 2:3], action[:, 3:]]
    expected = sum(p.log_prob(q, a) for p, q, a in zip(parts, split, own, strict=True))
    torch.testing.assert_close(d.log_prob(params, action), expected)
    torch.testing.assert_close(
        d.entropy(params), sum(p.entropy(q) for p, q in zip(parts, split, strict=True))
    )
    env = d.to_env(action.numpy())
    assert env.shape == (6, 5) and np.array_equal(env[:, 1], own[1].numpy())
    assert (env[:, [0, 2]] >= -2).all() and (env[:, 3:] >= 0).all() and (env[:, 3:] <= 1).all()
