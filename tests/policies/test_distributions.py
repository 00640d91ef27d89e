"""Action distributions against torch.distributions, quadrature, statistical tests and numbers worked out by hand."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, kl_divergence

from pgtrain.policies.distributions import Categorical, DiagonalGaussian
from tests.envs_for_tests import AsymBox, HalfBoundedBox, IntBox, UnboundedBox

INF = float("inf")
BOXES: dict[str, tuple[list[float], list[float]]] = {
    "symmetric": ([-1.0, -1.0], [1.0, 1.0]),
    "asymmetric": ([-2.0, 0.0, -3.0], [2.0, 5.0, -2.0]),
    "half bounded": ([0.0, -1.0, -INF], [INF, 1.0, 3.0]),
    "unbounded": ([-INF], [INF]),
}


def gaussian(name: str) -> DiagonalGaussian:
    low, high = BOXES[name]
    return DiagonalGaussian(np.array(low), np.array(high))


def env_units(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Center and half-width of each dimension, from the bounds: (0, 1) unless both are finite."""
    both = [math.isfinite(a) and math.isfinite(b) for a, b in zip(*BOXES[name], strict=True)]
    center = [(a + b) / 2 if ok else 0.0 for a, b, ok in zip(*BOXES[name], both, strict=True)]
    half = [(b - a) / 2 if ok else 1.0 for a, b, ok in zip(*BOXES[name], both, strict=True)]
    return torch.tensor(center, dtype=torch.float64), torch.tensor(half, dtype=torch.float64)


def reference(name: str, params: torch.Tensor) -> Independent:
    """The distribution of the env's action before clipping, in float64."""
    center, half = env_units(name)
    mean, log_std = params.double().chunk(2, -1)
    return Independent(Normal(center + half * mean, half * log_std.exp()), 1)


# ------------------------------------------------------------------------------------------------ categorical


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("shape", [(), (5,), (4, 3)])
def test_categorical_equals_torch(scale: float, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    old, new = (scale * torch.randn(*shape, 6, generator=generator) for _ in range(2))
    action = torch.randint(6, shape, generator=generator)
    d = Categorical(6)
    mine, other = TorchCategorical(logits=old.double()), TorchCategorical(logits=new.double())
    tight = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(d.log_prob(old, action).double(), mine.log_prob(action), **tight)
    torch.testing.assert_close(d.entropy(old).double(), mine.entropy(), **tight)
    torch.testing.assert_close(d.kl(old, new).double(), kl_divergence(mine, other), **tight)
    assert d.log_prob(old, action).shape == d.entropy(old).shape == d.kl(old, new).shape == shape


def test_categorical_vectors() -> None:
    d = Categorical(4)
    logits = torch.tensor([0.1, -2.0, 1.3, 0.4], dtype=torch.float64)
    other = torch.tensor([0.07, -1.3, 1.11, 0.58], dtype=torch.float64)
    log_prob = d.log_prob(logits.expand(4, 4), torch.arange(4))
    assert log_prob.tolist() == pytest.approx(
        [-1.7565522653120078, -3.8565522653120077, -0.5565522653120079, -1.4565522653120078], rel=1e-7
    )
    assert float(d.entropy(logits)) == pytest.approx(1.043218153299093, rel=1e-7)
    assert float(d.kl(logits, other)) == pytest.approx(0.019745006020584654, rel=1e-6)
    assert float(d.kl(other, logits)) == pytest.approx(0.021950565193207032, rel=1e-6)
    half, skewed = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log()
    assert float(Categorical(2).kl(half, skewed)) == pytest.approx(0.5108256, abs=1e-6)


def test_categorical_extremes_are_finite_and_so_are_their_gradients() -> None:
    d = Categorical(3)
    sure = torch.tensor([0.0, -2000.0, -2000.0], requires_grad=True)
    other = torch.tensor([-300.0, 0.0, -300.0])
    assert d.entropy(sure).item() == 0.0
    assert d.kl(sure, other).item() == pytest.approx(300.0)
    assert d.log_prob(sure, torch.tensor(1)).item() == -2000.0
    (d.entropy(sure) + d.kl(other, sure) / 1e4 + d.log_prob(sure, torch.tensor(0))).backward()
    assert torch.isfinite(sure.grad).all()
    never = torch.tensor([0.0, 0.0, -INF])
    assert float(d.entropy(never)) == pytest.approx(math.log(2))
    assert float(d.kl(never, never)) == 0.0


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_categorical_samples_have_the_right_frequencies(kind: str) -> None:
    d, draws = Categorical(4), 40_000
    logits = np.array([[0.1, -2.0, 1.3, 0.4], [3.0, 0.0, 0.0, -3.0]], np.float32)
    batch = np.broadcast_to(logits, (draws, 2, 4))
    if kind == "numpy":
        samples = d.sample_numpy(batch, np.random.default_rng(5))
    else:
        samples = d.sample(torch.from_numpy(batch.copy()), torch.Generator().manual_seed(5)).numpy()
    assert samples.shape == (draws, 2)
    for row in range(2):
        p = np.exp(logits[row].astype(float))
        counts = np.bincount(samples[:, row], minlength=4)
        assert stats.chisquare(counts, draws * p / p.sum()).pvalue > 1e-3
    table = np.histogram2d(samples[:, 0], samples[:, 1], bins=(range(5), range(5)))[0] + 0.5
    assert stats.chi2_contingency(table).pvalue > 1e-3  # envs draw independently
    assert (d.mode(logits) == [2, 0]).all()


def test_categorical_survives_a_noise_of_exactly_zero_without_a_warning() -> None:
    class Zeros:
        def standard_exponential(self, shape: Any, dtype: Any = None) -> np.ndarray:
            return np.zeros(shape, dtype)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        action = Categorical(3).sample_numpy(np.array([[0.0, 5.0, 1.0]], np.float32), Zeros())  # pyright: ignore
    assert action.tolist() == [1]


# --------------------------------------------------------------------------------------------------- Gaussian


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_gaussian_equals_torch_in_the_units_of_the_env(name: str, spread: float) -> None:
    d = gaussian(name)
    generator = torch.Generator().manual_seed(1)
    shape = (5, 3, 2 * d.dim)
    old = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    new = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    u = 3 * torch.randn(5, 3, d.dim, generator=generator, dtype=torch.float64)
    center, half = env_units(name)
    mine, other = reference(name, old), reference(name, new)
    torch.testing.assert_close(d.log_prob(old, u), mine.log_prob(center + half * u), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(d.entropy(old), mine.entropy(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(d.kl(old, new), kl_divergence(mine, other), rtol=1e-9, atol=1e-9)
    assert d.log_prob(old, u).shape == d.entropy(old).shape == d.kl(old, new).shape == (5, 3)


def test_gaussian_in_float32_at_the_limits_of_the_log_std() -> None:
    d = gaussian("symmetric")
    for log_std in (-20.0, 10.0):
        params = torch.tensor([0.3, -0.7, log_std, log_std])
        u = params[:2] + 2.5 * math.exp(log_std)
        expected = reference("symmetric", params).log_prob(u.double())
        assert torch.isfinite(d.log_prob(params, u))
        if log_std > 0:  # at e^-20 a float32 u cannot tell 2.5 σ from the mean
            assert float(d.log_prob(params, u)) == pytest.approx(float(expected), rel=1e-5)
        assert float(d.kl(params, params)) == 0.0


def test_gaussian_vectors() -> None:
    free = DiagonalGaussian(np.full(2, -INF), np.full(2, INF))
    one = torch.tensor([0.3, -1.2, -0.5, 0.2], dtype=torch.float64)
    two = torch.tensor([0.5, -1.0, -0.6, 0.1], dtype=torch.float64)
    u = torch.tensor([0.6032653298563166, -2.543543033976187], dtype=torch.float64)
    assert float(free.log_prob(one, u)) == pytest.approx(-2.267877066409345, rel=1e-7)
    assert float(free.entropy(one)) == pytest.approx(2.5378770664093455, rel=1e-7)
    assert float(free.kl(one, two)) == pytest.approx(0.10417971167646067, rel=1e-6)
    three = DiagonalGaussian(np.full(3, -INF), np.full(3, INF))
    params = torch.tensor([0, 0, 0, 0, math.log(2), math.log(0.5)])
    log_prob = three.log_prob(params, torch.tensor([1, -2, 0.5]))
    assert log_prob.shape == () and three.entropy(params).shape == ()
    assert float(log_prob) == pytest.approx(-4.2568156, abs=1e-5)
    assert float(three.entropy(params)) == pytest.approx(4.2568156, abs=1e-5)
    narrow = DiagonalGaussian(np.array([-INF]), np.array([INF]))
    assert float(narrow.entropy(torch.tensor([0.0, math.log(0.1)]))) == pytest.approx(-0.8836466, abs=1e-6)
    assert float(narrow.kl(torch.tensor([0.0, 0.0]), torch.tensor([1.0, math.log(2)]))) == pytest.approx(
        0.4431472, abs=1e-6
    )


def test_gaussian_score_is_the_formula() -> None:
    free = DiagonalGaussian(np.full(2, -INF), np.full(2, INF))
    params = torch.tensor([0.3, -1.2, -0.5, 0.2], dtype=torch.float64, requires_grad=True)
    u = torch.tensor([0.6032653298563166, -2.543543033976187], dtype=torch.float64)
    free.log_prob(params, u).backward()
    assert params.grad.tolist() == pytest.approx(
        [0.8243606353500639, -0.9006038283857801, -0.75, 0.21], rel=1e-6
    )


def test_gaussian_density_integrates_to_one_over_env_actions() -> None:
    """∫ p(a) da = 1 and H = −∫ p log p da, a in the env's units: both fail without the width of the box."""
    d = DiagonalGaussian(np.array([0.0]), np.array([5.0]))
    params = torch.tensor([0.4, math.log(0.3)], dtype=torch.float64)

    def log_p(a: float) -> float:
        return float(d.log_prob(params, torch.tensor([(a - 2.5) / 2.5], dtype=torch.float64)))

    mass = integrate.quad(lambda a: math.exp(log_p(a)), -10, 20)[0]
    entropy = integrate.quad(lambda a: -math.exp(log_p(a)) * log_p(a), -10, 20)[0]
    assert mass == pytest.approx(1.0, abs=1e-8)
    assert float(d.entropy(params)) == pytest.approx(entropy, abs=1e-7)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_gaussian_samples_have_the_right_distribution(kind: str) -> None:
    d, draws = gaussian("half bounded"), 20_000
    params = np.array([0.3, -1.2, 5.0, -0.5, 0.2, 1.0], np.float32)
    batch = np.broadcast_to(params, (draws, 6))
    if kind == "numpy":
        samples = d.sample_numpy(batch, np.random.default_rng(7))
    else:
        samples = d.sample(torch.from_numpy(batch.copy()), torch.Generator().manual_seed(7)).numpy()
    assert samples.shape == (draws, 3) and samples.dtype == np.float32
    for j in range(3):
        cdf = stats.norm(params[j], math.exp(params[3 + j])).cdf
        assert stats.kstest(samples[:, j], cdf).pvalue > 1e-3
    correlation = np.corrcoef(samples.T)
    assert np.abs(correlation - np.eye(3)).max() < 0.03
    assert (d.mode(params) == params[:3]).all()


def test_env_actions_span_the_box_and_stay_inside() -> None:
    d = gaussian("asymmetric")
    u = np.array([[-1, -1, -1], [1, 1, 1], [0, 0, 0], [-9, 9, -9], [0.5, 0.5, 0.5]], np.float32)
    expected = [[-2, 0, -3], [2, 5, -2], [0, 2.5, -2.5], [-2, 5, -3], [1, 3.75, -2.25]]
    assert np.allclose(d.to_env(u), expected, atol=1e-7)
    half = gaussian("half bounded")
    assert np.allclose(half.to_env(np.array([[-4.0, 2.0, 9.0], [7.0, 0.5, -8.0]])), [[0, 1, 3], [7, 0.5, -8]])
    free = gaussian("unbounded")
    assert np.allclose(free.to_env(np.array([[1e6], [-3.5]])), [[1e6], [-3.5]])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("env", [AsymBox, HalfBoundedBox, UnboundedBox, IntBox])
def test_no_env_ever_sees_a_foreign_action(env: Any) -> None:
    """Bounds that float32 rounds, far samples, NaN and infinity: always a member of the space after its cast."""
    space = env().action_space
    d = DiagonalGaussian(space.low, space.high)
    rng = np.random.default_rng(0)
    u = (100 * rng.standard_normal((200, d.dim))).astype(np.float32)
    u[0], u[1], u[2] = np.nan, np.inf, -np.inf
    for action in d.to_env(u):
        assert np.isfinite(action).all()
        cast = np.rint(action) if space.dtype == np.int64 else action
        assert space.contains(cast.astype(space.dtype))


def test_a_box_without_width_leaves_its_only_action() -> None:
    d = DiagonalGaussian(np.array([2.0, -1.0]), np.array([2.0, 1.0]))
    params = torch.tensor([0.1, 0.2, 0.0, 0.0])
    assert torch.isfinite(d.log_prob(params, torch.tensor([5.0, 0.3])))
    assert d.to_env(np.array([[5.0, 0.3]])).tolist() == [[2.0, pytest.approx(0.3)]]


def test_gaussian_metrics() -> None:
    d = gaussian("half bounded")  # u bounds: [0, ∞), [−1, 1], (−∞, 3]
    u = torch.tensor([[-0.1, 0.0, 0.0], [1e9, 1.5, 3.5], [0.0, -1.0, 3.0]])
    params = torch.cat([torch.zeros(3, 3), torch.tensor([0.0, 1.0, 2.0]).expand(3, 3)], -1)
    metrics = d.metrics(params, u)
    assert metrics["policy/clipped_actions"].tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    assert metrics["policy/std"].tolist() == pytest.approx([(1 + math.e + math.e**2) / 3] * 3, rel=1e-6)
    assert Categorical(2).metrics(torch.zeros(1, 2), torch.zeros(1)) == {}
