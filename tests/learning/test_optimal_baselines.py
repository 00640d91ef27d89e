"""Optimal baselines: exact bias and variance over all outcomes of small problems, batches of samples, and ill cases."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pgtrain.learning import optimal_baselines as ob
from pgtrain.learning.parameter_baselines import episode_gradient, gradient_from_sums, stepwise_gradient
from pgtrain.learning.per_sample import Moments
from tests.learning.exact import f64, golden, tensor
from tests.learning.test_estimators_exact import ALL, EXPECTED, GAMMA, HORIZON, THETA, exact_values, rtg

# ------------------------------------------------------------------------- the enumerated MDP of 191 trajectories

P = ALL.probability  # [E]
STEP = torch.arange(HORIZON)
DISCOUNT = GAMMA ** STEP.to(f64)  # [L]
GRAD = tensor(EXPECTED["grad"])
_, STORED = golden("optimal_baselines_mdp")


def step_scores() -> Tensor:
    """∇log π(a_t|s_t) = 1[s_t, a] − 1[s_t] π(a|s_t) by hand, [E, L, 4], 0 past the end."""
    state = torch.nn.functional.one_hot(ALL.state, 2).to(f64).transpose(0, 1)  # [E, L, S]
    action = torch.nn.functional.one_hot(ALL.action, 2).to(f64).transpose(0, 1)
    pi = THETA.softmax(1)[ALL.state].transpose(0, 1)
    s = state[..., :, None] * (action - pi)[..., None, :]
    return s.flatten(2) * ALL.weight.T[..., None]


S = step_scores()
TOTAL = (ALL.reward * DISCOUNT[:, None]).sum(0)  # R [E]
REWARDS = (ALL.reward * DISCOUNT[:, None]).T  # γˡ r_l [E, L]
TO_GO = rtg().T  # G [E, L]
Z = S * DISCOUNT[:, None]  # γᵗ s_t
C = S.cumsum(1)
WHOLE = S.sum(1)  # Σ_t s_t [E, H]


def gram(scores: Tensor) -> Tensor:
    return scores @ scores.mT


def gram_h(scores: Tensor) -> Tensor:
    """[E, L, H] → one problem for each parameter, [E, H, L, L]."""
    by_parameter = scores.mT
    return by_parameter[..., :, None] * by_parameter[..., None, :]


def b_scalar() -> Tensor:
    return ob.scalar(WHOLE.square().sum(-1), TOTAL, ob.pooled, P)


def estimators() -> dict[str, Any]:
    """Name → (one trajectory's estimate [E, H], the baseline, and its name among the stored ones)."""
    pooled: dict[str, Any] = {"fit": ob.pooled, "probability": P}
    y = (Z * TO_GO[..., None]).sum(1)
    shared = ob.ratio((Z.sum(1) * y).sum(1), Z.sum(1).square().sum(1), **pooled)
    found: dict[str, Any] = {
        "reinforce_full_return": (WHOLE * TOTAL[:, None], None, ""),
        "reinforce_b_value_J": (WHOLE * (TOTAL - P @ TOTAL)[:, None], P @ TOTAL, "b_value_J"),
        "reinforce_b_norm": (WHOLE * (TOTAL - b_scalar())[:, None], b_scalar(), "b_norm"),
        "rtg": (y, None, ""),
        "rtg_b_scalar_true": (y - shared * Z.sum(1), shared, "rtg_b_scalar_true"),
        "rtg_b_state_value": ((Z * (TO_GO - exact_values().T)[..., None]).sum(1), None, ""),
        "gpomdp": ((C * REWARDS[..., None]).sum(1), None, ""),
    }
    b = ob.scalar(WHOLE.square(), TOTAL, **pooled)
    found["reinforce_b_param"] = (WHOLE * (TOTAL[:, None] - b), b, "b_param")
    for name, scores, target in [("rtg", Z, TO_GO), ("gpomdp", C, REWARDS)]:
        by_step = {
            "b_time_stepwise": ob.scalar(scores.square().sum(-1), target, **pooled)[..., None],
            "b_time_joint": ob.joint(gram(scores), target, **pooled)[..., None],
            "b_time_param_stepwise": ob.scalar(scores.square(), target, **pooled),
            "b_time_param_joint": ob.joint(gram_h(scores), target, **pooled).mT,
        }
        by_step["b_time_param_peters_schaal"] = by_step["b_time_param_stepwise"]
        for kind, b in by_step.items():
            estimate = (scores * (target[..., None] - b)).sum(1)
            found[f"{name}_{kind}"] = (estimate, b.squeeze(0).squeeze(-1), f"{name}_{kind}")
    return found


ESTIMATORS = estimators()
PRINTED = {
    "reinforce_full_return": 5.703,
    "reinforce_b_value_J": 1.753,
    "reinforce_b_norm": 1.739,
    "reinforce_b_param": 1.738,
    "rtg": 2.965,
    "rtg_b_scalar_true": 1.033,
    "rtg_b_state_value": 0.959,
    "rtg_b_time_stepwise": 0.887,
    "rtg_b_time_joint": 0.872,
    "rtg_b_time_param_stepwise": 0.914,
    "rtg_b_time_param_joint": 0.860,
    "gpomdp": 2.965,
    "gpomdp_b_time_param_peters_schaal": 0.906,
    "gpomdp_b_time_param_joint": 0.86023,
}


def moments_of(estimate: Tensor) -> tuple[Tensor, float]:
    """Exact mean [H] and trace of the covariance over all trajectories."""
    mean = P @ estimate
    return mean, float(P @ (estimate - mean).square().sum(1))


@pytest.mark.parametrize("name", PRINTED)
def test_exact_bias_and_variance(name: str) -> None:
    estimate, baseline, stored = ESTIMATORS[name]
    mean, variance = moments_of(estimate)
    assert (mean - GRAD).abs().max() < 1e-8
    assert variance == pytest.approx(STORED["var_trace"][name], abs=1e-8)
    digits = len(str(PRINTED[name]).partition(".")[2])
    assert round(variance, digits) == pytest.approx(PRINTED[name], abs=1e-9)
    if baseline is not None:
        torch.testing.assert_close(
            torch.as_tensor(baseline).squeeze(), tensor(STORED["baselines"][stored]), rtol=1e-8, atol=1e-8
        )


def test_the_optima_are_optimal() -> None:
    """No other baseline of the same kind has a smaller variance; the stepwise one is not the best of its kind."""
    generator = torch.Generator().manual_seed(0)

    def variance(scores: Tensor, target: Tensor, b: Tensor) -> float:
        return moments_of((scores * (target[..., None] - b)).sum(1))[1]

    for scores, target in [(Z, TO_GO), (C, REWARDS)]:
        best_shared = ob.joint(gram(scores), target, ob.pooled, P)[..., None]
        best = ob.joint(gram_h(scores), target, ob.pooled, P).mT
        for _ in range(20):
            step = 0.1 * torch.randn(1, HORIZON, 4, generator=generator, dtype=f64)
            assert variance(scores, target, best_shared + step[..., :1]) > variance(
                scores, target, best_shared
            )
            assert variance(scores, target, best + step) > variance(scores, target, best) - 1e-12
    both = [ESTIMATORS[f"{k}_b_time_param_joint"][0] for k in ("rtg", "gpomdp")]
    assert moments_of(both[0])[1] == pytest.approx(moments_of(both[1])[1], abs=1e-10)  # the same span
    b = float(b_scalar())
    at = [moments_of(WHOLE * (TOTAL - x)[:, None])[1] for x in (b - 0.1, b, b + 0.1)]
    assert at[1] < min(at[0], at[2])


def test_gpomdp_with_scores_masked_after_the_end_is_biased() -> None:
    """C_l must last: masked to living steps it has bias norm 0.105, or 0.085 with the baselines of the full C."""
    masked = C * ALL.weight.T[..., None]
    for fitted_on, norm in [(masked, 0.105), (C, 0.085)]:
        b = ob.scalar(fitted_on.square(), REWARDS, ob.pooled, P)
        mean, variance = moments_of((masked * (REWARDS[..., None] - b)).sum(1))
        assert float((mean - GRAD).norm()) == pytest.approx(norm, abs=5e-4)
        if fitted_on is masked:
            assert variance == pytest.approx(STORED["var_trace"]["wrong_gpomdp_masked_C"], abs=1e-8)


def test_gpomdp_through_step_weights() -> None:
    """`cumulative` and `gpomdp_advantage` give the same as the cumulative scores themselves."""
    torch.testing.assert_close(ob.cumulative(gram(S)), gram(C))
    b = ob.scalar(gram(C).diagonal(dim1=1, dim2=2), REWARDS, ob.pooled, P)
    advantage = ob.gpomdp_advantage(REWARDS, b)
    torch.testing.assert_close((S * advantage[..., None]).sum(1), (C * (REWARDS - b)[..., None]).sum(1))
    assert (advantage[:, 1:][ALL.weight.T[:, 1:] == 0] != 0).any()  # it counts past the end


def test_correction_of_a_value_baseline() -> None:
    """The best baseline of what a critic leaves over, also of a wrong one: unbiased, below the critic's variance."""
    for value in (exact_values().T, torch.full_like(TO_GO, 1.15), exact_values().T * 0.3 + 1):
        residual = (TO_GO - value) * ALL.weight.T
        plain = moments_of((Z * residual[..., None]).sum(1))
        for b in (
            ob.joint(gram(Z), residual, ob.pooled, P)[..., None],
            ob.joint(gram_h(Z), residual, ob.pooled, P).mT,
        ):
            mean, variance = moments_of((Z * (residual[..., None] - b)).sum(1))
            assert (mean - GRAD).abs().max() < 1e-8
            assert variance < plain[1] - 1e-4


def test_a_return_in_the_weight_raises_the_variance() -> None:
    wrong = ob.return_weighted(WHOLE.square().sum(-1), TOTAL, P)
    by_hand = (P * WHOLE.square().sum(-1) * TOTAL**3).sum() / (P * WHOLE.square().sum(-1) * TOTAL**2).sum()
    assert float(wrong) == pytest.approx(float(by_hand))
    right = moments_of(WHOLE * (TOTAL - b_scalar())[:, None])[1]
    assert moments_of(WHOLE * (TOTAL - wrong)[:, None])[1] > right + 0.1


# ---------------------------------------------------------------------------------------------- bandits

THETA_3, REWARDS_3 = tensor([0.2, -0.4, 0.9]), tensor([1.0, 3.0, -0.5])
PROBS = THETA_3.softmax(0)
SCORES_3 = torch.eye(3, dtype=f64) - PROBS
BANDIT_GRAD = PROBS * (REWARDS_3 - PROBS @ REWARDS_3)


def test_softmax_bandit() -> None:
    square = SCORES_3.square().sum(1)
    b = ob.scalar(square, REWARDS_3, ob.pooled, PROBS)
    b_h = ob.scalar(SCORES_3.square(), REWARDS_3, ob.pooled, PROBS)
    assert float(b) == pytest.approx(1.1661392427902249, rel=1e-9)
    assert b_h[0].tolist() == pytest.approx([0.7893589088420156, 2.5374996912387218, 0.7484687370393799])
    for baseline, trace in [(0, 1.3565546245281077), (b, 0.5705893412141687), (b_h, 0.25397623014424364)]:
        g = SCORES_3 * (REWARDS_3[:, None] - baseline)
        mean = PROBS @ g
        torch.testing.assert_close(mean, BANDIT_GRAD)
        assert float(PROBS @ (g - mean).square().sum(1)) == pytest.approx(trace, rel=1e-9)


FINITE = {
    ("norm_pooled", 2): [0.09760195688829865, 0.14820252508595821, -0.24580448197425686],
    ("param_pooled", 2): [0.05131228491409591, 0.0689611500980224, -0.26229388291611455],
    ("norm_pooled", 3): [0.1297172842309527, 0.21905402212660113, -0.3487713063575539],
    ("param_pooled", 3): [0.08062362510901477, 0.12384367400151423, -0.356236827934533],
}


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("kind", ["norm", "param"])
@pytest.mark.parametrize("fit", ["pooled", "leave_one_out", "split"])
def test_bias_of_finite_batches(n: int, kind: str, fit: str) -> None:
    """Exact mean over every batch of n draws: leave-one-out and split are unbiased, pooled is not."""
    total = torch.zeros(3, dtype=f64)
    for draw in itertools.product(range(3), repeat=n):
        arms = torch.tensor(draw)
        z, r = SCORES_3[arms], REWARDS_3[arms]
        if kind == "param":
            g, parts = episode_gradient(z, r, ob.FITS[fit])
            torch.testing.assert_close(parts.mean(0), g)
        else:
            g = (z * (r - ob.scalar(z.square().sum(1), r, ob.FITS[fit]))[:, None]).mean(0)
        total += PROBS[arms].prod() * g
    if fit == "pooled":
        assert total.tolist() == pytest.approx(FINITE[f"{kind}_pooled", n], abs=1e-8)
        assert (total - BANDIT_GRAD).norm() > 0.1
    else:
        torch.testing.assert_close(total, BANDIT_GRAD, rtol=1e-9, atol=1e-9)


def test_the_previous_batch_is_unbiased_and_pooling_less_biased_with_more_samples() -> None:
    """Over every pair of batches of two: the second batch's gradient with the first one's baseline."""
    total = torch.zeros(3, dtype=f64)
    for draw in itertools.product(range(3), repeat=4):
        arms = torch.tensor(draw)
        fit = ob.PreviousBatch()
        for part in (arms[:2], arms[2:]):
            z, r = SCORES_3[part], REWARDS_3[part]
            b = ob.scalar(z.square().sum(1), r, fit)
        total += PROBS[arms].prod() * (z * (r - b)[:, None]).mean(0)
    torch.testing.assert_close(total, BANDIT_GRAD, rtol=1e-9, atol=1e-9)
    bias = [(tensor(FINITE["norm_pooled", n]) - BANDIT_GRAD).norm() for n in (2, 3)]
    assert bias[1] < bias[0]


GAUSSIAN = [(0.7, 0.5, 2.0, 1.5, -0.3), (-1.1, 0.8, -3.0, 0.4, 0.9)]


@pytest.mark.parametrize(("mu", "sigma", "r0", "k", "m"), GAUSSIAN)
def test_gaussian_bandit(mu: float, sigma: float, r0: float, k: float, m: float) -> None:
    """b*_μ = r0 − kd² − 3kσ², b*_log σ = r0 − kd² − 5kσ², and the least variance 6k²σ² + 8k²d², by quadrature."""
    x, w = np.polynomial.hermite_e.hermegauss(40)
    eps, chance = tensor(x), tensor(w / w.sum())
    r = r0 - k * (mu + sigma * eps - m) ** 2
    scores = torch.stack([eps / sigma, eps**2 - 1], 1)  # μ, log σ
    d = mu - m
    best = [r0 - k * d**2 - c * k * sigma**2 for c in (3, 5)]
    b_h = ob.scalar(scores.square(), r, ob.pooled, chance)
    assert b_h[0].tolist() == pytest.approx(best, rel=1e-9)
    b = ob.scalar(scores.square().sum(1), r, ob.pooled, chance)
    assert float(b) == pytest.approx((best[0] / sigma**2 + 2 * best[1]) / (1 / sigma**2 + 2), rel=1e-9)
    g = scores * (r[:, None] - b_h)
    mean = chance @ g
    assert mean.tolist() == pytest.approx([-2 * k * d, -2 * k * sigma**2], rel=1e-9)
    var = chance @ (g - mean).square()
    assert float(var[0]) == pytest.approx(6 * k**2 * sigma**2 + 8 * k**2 * d**2, rel=1e-9)
    if mu == 0.7:
        assert [*b_h[0].tolist(), float(b)] == pytest.approx([-0.625, -1.375, -0.875], abs=1e-9)
        assert var.tolist() == pytest.approx([21.375, 25.875], abs=1e-8)
        spread = {}
        for name, c in {
            "none": 0.0,
            "wrong": ob.return_weighted(scores.square().sum(1), r, chance),
            "b": b,
        }.items():
            g = scores * (r - c)[:, None]
            spread[name] = float(chance @ (g - chance @ g).square().sum(1))
        assert spread["b"] == pytest.approx(21.625 + 26.375)
        assert spread["wrong"] > spread["none"] > spread["b"]  # the common mistake: worse than no baseline


def test_heaviside_bandit() -> None:
    """R = 1[a > 0]: b*_μ = E[ε² 1(a > 0)] = Φ(c) − c φ(c) with c = μ/σ."""
    c = 1.4
    eps = torch.linspace(-9, 9, 400_001, dtype=f64)
    chance = torch.exp(-(eps**2) / 2)
    chance /= chance.sum()
    b = ob.scalar(eps.square(), (eps > -c).to(f64), ob.pooled, chance)
    normal = torch.distributions.Normal(tensor(0.0), tensor(1.0))
    expected = normal.cdf(tensor(c)) - c * normal.log_prob(tensor(c)).exp()
    assert float(b) == pytest.approx(float(expected), abs=1e-4)
    assert float(expected) == pytest.approx(0.7096248888761861, abs=1e-9)


# ----------------------------------------------------------------------------------------- batches of samples

SAMPLES, SAMPLED = golden("optimal_baseline_samples")


def test_samples() -> None:
    s, r = tensor(SAMPLES["scores"]), tensor(SAMPLES["rewards"])
    discount = SAMPLES["gamma"] ** torch.arange(3, dtype=f64)
    rewards = r * discount
    total, to_go = rewards.sum(1), rewards.flip(1).cumsum(1).flip(1) / discount
    z, c, whole = s * discount[:, None], s.cumsum(1), s.sum(1)
    y = (z * to_go[..., None]).sum(1)
    norm = whole.square().sum(1)
    steps = z.square()
    found = {
        "b_norm": ob.scalar(norm, total, ob.pooled)[0],
        "b_norm_loo": ob.scalar(norm, total),
        "b_param": ob.scalar(whole.square(), total, ob.pooled)[0],
        "b_param_loo": ob.scalar(whole.square(), total),
        "rtg_b_scalar_true": ob.ratio((z.sum(1) * y).sum(1), z.sum(1).square().sum(1), ob.pooled)[0],
        "rtg_b_time_stepwise": ob.scalar(steps.sum(-1), to_go, ob.pooled)[0],
        "rtg_b_time_param_stepwise": ob.scalar(steps, to_go, ob.pooled)[0],
        "rtg_b_time_joint": ob.joint(gram(z), to_go, ob.pooled)[0],
        "gpomdp_b_time_param": ob.scalar(c.square(), rewards, ob.pooled)[0],
    }
    for name, x in found.items():
        torch.testing.assert_close(x, tensor(SAMPLED[name]), rtol=1e-6, atol=1e-8)
    gradients = {
        "b_norm_loo": (whole * (total - found["b_norm_loo"])[:, None]).mean(0),
        "b_param": episode_gradient(whole, total, ob.pooled)[0],
        "b_param_loo": episode_gradient(whole, total)[0],
        "rtg_b_time_param_stepwise": stepwise_gradient(z.unbind(1), to_go, ob.pooled),
        "gpomdp_none": (s * ob.gpomdp_advantage(rewards, torch.zeros(1, 3, dtype=f64))[..., None])
        .sum(1)
        .mean(0),
        "gpomdp_b_time_param": stepwise_gradient(s.unbind(1), rewards, ob.pooled, cumulative=True),
        "rtg_none": episode_gradient(z.sum(1), y, lambda *x: tuple(torch.zeros_like(t) for t in x))[0],
    }
    for name, x in gradients.items():
        torch.testing.assert_close(x, tensor(SAMPLED["gradients"][name]), rtol=1e-6, atol=1e-8)
    sums = Moments(
        len(r),
        whole.sum(0),
        total @ whole,
        whole.square().sum(0),
        total @ whole.square(),
        norm.sum(),
        total @ norm,
    )
    torch.testing.assert_close(gradient_from_sums(sums), gradients["b_param"])


def test_weights_zero_or_small() -> None:
    """Squared norms 2.5 and 0.5 with returns 1 and 4 give 1.5, not the mean; a parameter without gradient gives 0."""
    assert float(ob.scalar(tensor([2.5, 0.5]), tensor([1.0, 4.0]), ob.pooled)) == 1.5
    grads = tensor([[0.5, 1.0, 0.0], [0.5, 0.0, 0.0]])
    assert ob.scalar(grads.square(), tensor([1.0, 4.0]), ob.pooled)[0].tolist() == [2.5, 1.0, 0.0]


@settings(max_examples=50, deadline=None)
@given(
    episodes=st.integers(1, 7),
    steps=st.integers(1, 4),
    size=st.sampled_from([0.0, 1e-30, 1e-12, 1.0, 1e8, 1e12]),
    returns=st.sampled_from(["random", "equal", "huge", "zero"]),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, f64]),
)
def test_ill_cases_are_finite(
    episodes: int, steps: int, size: float, returns: str, seed: int, dtype: torch.dtype
) -> None:
    """One episode, no gradient, equal or huge returns, a dead layer, one episode that outweighs the others."""
    generator = torch.Generator().manual_seed(seed)
    s = torch.randn(episodes, steps, 3, generator=generator, dtype=f64)
    s[..., 0] = 0  # a dead parameter
    s[0] *= size
    s = s.to(dtype)
    r = torch.randn(episodes, steps, generator=generator, dtype=f64)
    scale = {"random": 1.0, "equal": 0.0, "huge": 1e8, "zero": 0.0}[returns]
    target = (r * scale + (7.0 if returns == "equal" else 0.0)).to(dtype)
    for name in (*ob.FITS, "previous_batch"):
        fit = ob.make_fit(name)
        for b in (
            ob.scalar(s.square().sum((1, 2)), target[:, 0], fit),
            ob.scalar(s.square(), target, ob.make_fit(name)),
            ob.joint(gram(s), target, ob.make_fit(name)),
            ob.joint(gram_h(s), target, ob.make_fit(name)),
        ):
            assert b.isfinite().all()
        b = ob.scalar(s.square(), target, ob.make_fit(name))
        low, high = min(float(target.min()), 0.0), max(float(target.max()), 0.0)
        slack = 1e-5 * max(abs(low), abs(high))
        assert ((b >= low - slack) & (b <= high + slack)).all() and (b[..., 0] == 0).all()
        if episodes == 1 and name != "pooled":
            assert (b == 0).all()
        if returns == "equal" and name == "leave_one_out":
            others = ob.leave_one_out(s.square())[0] > 0
            torch.testing.assert_close(b[others], torch.full_like(b[others], 7.0))
        assert episode_gradient(s.sum(1), target[:, 0], ob.make_fit(name))[0].isfinite().all()


def test_leave_one_out_does_not_drown_in_one_large_episode() -> None:
    """The total less the own part would be rounding noise here."""
    square, returns = tensor([1.0, 3.0, 1e20]), tensor([2.0, 6.0, -1.0])
    assert float(ob.scalar(square, returns)[2]) == 5.0
    expected = (1e20 * -1 + 3 * 6) / (1e20 + 3)
    assert float(ob.scalar(square, returns)[0]) == pytest.approx(expected)


def test_leave_one_out_leaves_out_the_episode() -> None:
    """What an episode did itself has no part in its own baseline, in any form."""
    generator = torch.Generator().manual_seed(1)
    s, g = torch.randn(5, 3, 2, generator=generator), torch.randn(5, 3, generator=generator)
    s2, g2 = s.clone(), g.clone()
    s2[2], g2[2] = 100.0, -50.0
    for name in ("leave_one_out", "split"):
        fit = ob.FITS[name]
        for first, second in (
            (ob.scalar(s.square(), g, fit), ob.scalar(s2.square(), g2, fit)),
            (ob.joint(gram(s), g, fit), ob.joint(gram(s2), g2, fit)),
        ):
            torch.testing.assert_close(first[2], second[2])
            assert not torch.allclose(first[1], second[1])


def test_joint_is_the_least_norm_solution() -> None:
    """Against numpy's least squares where episodes are fewer than steps, and where no episode reaches a step."""
    generator = torch.Generator().manual_seed(2)
    s = torch.randn(2, 4, 5, generator=generator, dtype=f64)
    s[:, 3] = 0
    g = torch.randn(2, 4, generator=generator, dtype=f64)
    stacked = s.transpose(1, 2).reshape(-1, 4).numpy()  # rows: (episode, parameter)
    target = (s * g[..., None]).sum(1).reshape(-1).numpy()
    expected = np.linalg.lstsq(stacked, target, rcond=None)[0]
    assert ob.joint(gram(s), g, ob.pooled)[0].tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    one = ob.joint(gram(s[:1]), g[:1], ob.pooled)[0]
    assert one[3] == 0
    for scale in (1e-20, 1e20):
        scaled = ob.joint(gram(s * scale), g, ob.pooled)[0]
        torch.testing.assert_close(scaled, ob.joint(gram(s), g, ob.pooled)[0], rtol=1e-6, atol=1e-8)


def test_previous_batch_keeps_its_state() -> None:
    fit = ob.PreviousBatch()
    first = ob.scalar(torch.ones(2, 3), torch.arange(6.0).view(2, 3), fit)
    assert (first == 0).all() and first.shape == (1, 3)
    other = ob.PreviousBatch()
    other.load_state_dict(fit.state_dict())
    for f in (fit, other):
        b = ob.scalar(torch.ones(4, 5), torch.zeros(4, 5), f)  # longer episodes than before
        assert b.tolist() == [[1.5, 2.5, 3.5, 0.0, 0.0]]
        assert ob.scalar(torch.ones(1, 2), torch.zeros(1, 2), f).tolist() == [[0.0, 0.0]]  # shorter ones


def test_unknown_fit() -> None:
    with pytest.raises(ValueError, match="leave_one_out, split, pooled, previous_batch, got 'loo'"):
        ob.make_fit("loo")
