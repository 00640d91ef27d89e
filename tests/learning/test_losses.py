"""Surrogates, the KL penalty and value losses: numbers, gradients and the rows they must not see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pgtrain.learning import objectives
from pgtrain.learning.batch import Batch, Coefficients, flatten
from pgtrain.learning.losses import (
    ClippedError,
    ClippedSurrogate,
    HuberError,
    KLPenalty,
    PolicyGradient,
    SquaredError,
    Surrogate,
)
from pgtrain.policies.actor_critic import Evaluation
from pgtrain.policies.distributions import Categorical
from tests.learning.test_gradients import experience
from tests.support import make_policy

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "ppo_losses.json").read_text(encoding="utf-8"))
INPUTS, EXPECTED = GOLDEN["inputs"], GOLDEN["expected"]
f64 = torch.float64
CLIP = Coefficients(0.0, 0.0, clip=0.2, value_clip=0.2)


def array(name: str) -> Tensor:
    return torch.tensor(INPUTS[name], dtype=f64)


def number(x: Tensor) -> float:
    return float(x.detach())


def batch(old: Tensor, advantage: Tensor, weight: Tensor | None = None, **given: Any) -> Batch:
    n = len(old)
    weight = torch.ones(n, dtype=f64) if weight is None else weight
    zero = torch.zeros(n, dtype=f64)
    columns = (zero[:, None], zero.long(), zero[:, None], old, advantage, zero, zero, weight, weight)
    return Batch(**dict(zip(Batch.COLUMNS, columns, strict=True)), episodes=4.0).replace(**given)


def evaluation(log_prob: Tensor, params: Tensor | None = None) -> Evaluation:
    params = torch.zeros(len(log_prob), 2, dtype=f64) if params is None else params
    return Evaluation(log_prob, torch.zeros_like(log_prob), params, None)


def main_case() -> tuple[Tensor, Batch]:
    return array("logp_new").requires_grad_(), batch(array("logp_old"), array("advantages"))


def test_ratio() -> None:
    expected = torch.tensor(EXPECTED["ratio"], dtype=f64)
    torch.testing.assert_close(objectives.ratio(array("logp_new"), array("logp_old")), expected)


def test_clipped_surrogate_golden() -> None:
    new, rows = main_case()
    loss, stats = ClippedSurrogate()(evaluation(new), rows, CLIP)
    loss.backward()
    assert number(loss.detach()) == pytest.approx(EXPECTED["policy_loss"], abs=1e-8)
    assert number(stats["policy/clip_fraction"]) == EXPECTED["clip_fraction"]
    assert number(stats["policy/ratio_max"]) == pytest.approx(max(EXPECTED["ratio"]))
    torch.testing.assert_close(
        new.grad, torch.tensor(EXPECTED["dloss_dlogp"], dtype=f64), atol=1e-8, rtol=1e-6
    )
    ones = [rows.rows(torch.tensor([i])) for i in range(8)]
    per_sample = [
        number(ClippedSurrogate()(evaluation(new[i : i + 1]), one, CLIP)[0]) for i, one in enumerate(ones)
    ]
    assert per_sample == pytest.approx(EXPECTED["policy_loss_per_sample"], abs=1e-8)
    unreached, _ = ClippedSurrogate(dual_clip=INPUTS["dual_clip"])(evaluation(new), rows, CLIP)
    assert number(unreached) == pytest.approx(EXPECTED["dual_clip_loss"], abs=1e-8)


def test_dual_clip_golden() -> None:
    case, expected = INPUTS["dual_clip_case"], EXPECTED["dual_clip_case"]
    new = torch.tensor(case["log_ratio"], dtype=f64, requires_grad=True)
    rows = batch(torch.zeros(4, dtype=f64), torch.tensor(case["advantages"], dtype=f64))
    loss, _ = ClippedSurrogate(dual_clip=INPUTS["dual_clip"])(evaluation(new), rows, CLIP)
    loss.backward()
    assert number(loss) == pytest.approx(expected["loss"], abs=1e-8)
    torch.testing.assert_close(new.grad, torch.tensor(expected["dloss_dlogp"], dtype=f64))
    without, _ = ClippedSurrogate()(evaluation(new), rows, CLIP)
    assert number(without) == pytest.approx(expected["loss_without_dual_clip"], abs=1e-8)


def test_surrogate_golden() -> None:
    new, rows = main_case()
    loss, _ = Surrogate()(evaluation(new), rows, CLIP)
    assert number(loss) == pytest.approx(EXPECTED["unclipped_surrogate"], abs=1e-8)


@pytest.mark.parametrize(("advantage", "loss"), [([1.0, -1.0], 0.5), ([-1.0, 1.0], -0.2)])
def test_clip_bounds_are_one_plus_and_minus_epsilon(advantage: list[float], loss: float) -> None:
    """Ratios ½ and 1½: min(0.5, 0.8) and min(−1.5, −1.2); min(−0.5, −0.8) and min(1.5, 1.2). Both count as clipped."""
    new = torch.tensor([0.5, 1.5], dtype=f64).log()
    rows = batch(torch.zeros(2, dtype=f64), torch.tensor(advantage, dtype=f64))
    found, stats = ClippedSurrogate()(evaluation(new), rows, CLIP)
    assert number(found) == pytest.approx(loss) and number(stats["policy/clip_fraction"]) == 1.0


def test_the_clip_is_a_coefficient() -> None:
    new, rows = main_case()
    losses = {
        c: number(ClippedSurrogate()(evaluation(new), rows, CLIP._replace(clip=c))[0])
        for c in (0.1, 0.2, 9.0)
    }
    assert losses[9.0] == pytest.approx(EXPECTED["unclipped_surrogate"]) and len(set(losses.values())) == 3
    as_tensor = CLIP._replace(clip=torch.tensor(0.1, dtype=f64))  # pyright: ignore[reportArgumentType]
    assert number(ClippedSurrogate()(evaluation(new), rows, as_tensor)[0]) == pytest.approx(losses[0.1])


LOSSES = {
    "policy_gradient": PolicyGradient,
    "surrogate": Surrogate,
    "clipped": ClippedSurrogate,
    "kl_penalty": lambda mean_over="steps": KLPenalty(Categorical(2), mean_over=mean_over),
}


@pytest.mark.parametrize("name", LOSSES)
def test_all_agree_at_the_old_policy(name: str) -> None:
    """At r = 1 each has the policy gradient, and the mean over episodes is the sum over steps / episodes."""
    old, advantage = array("logp_old"), array("advantages")
    for mean_over, divisor in (("steps", 8), ("episodes", 4)):
        new = old.clone().requires_grad_()
        loss, _ = LOSSES[name](mean_over=mean_over)(evaluation(new), batch(old, advantage), CLIP)
        (gradient,) = torch.autograd.grad(loss, new)
        torch.testing.assert_close(gradient, -advantage / divisor)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, 1e300])
def test_left_out_rows_reach_neither_loss_nor_gradient(name: str, junk: float) -> None:
    new, rows = main_case()
    weight = torch.ones(8, dtype=f64)
    weight[2] = 0
    keep = weight > 0
    small = batch(rows.log_prob[keep], rows.advantage[keep])
    expected, _ = LOSSES[name]()(evaluation(new[keep]), small, CLIP)
    (gradient,) = torch.autograd.grad(expected, new)
    spoilt = new.detach().clone()
    spoilt[2] = junk
    spoilt.requires_grad_()
    advantage = torch.where(keep, rows.advantage, junk)
    loss, stats = LOSSES[name]()(evaluation(spoilt), rows.replace(advantage=advantage, weight=weight), CLIP)
    (found,) = torch.autograd.grad(loss, spoilt)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(found, gradient)
    assert all(torch.isfinite(x) for x in stats.values())


@pytest.mark.parametrize("log_ratio", [-1e4, -100.0, 100.0, 1e4])
@pytest.mark.parametrize("advantage", [-1e8, -1.0, 0.0, 1.0, 1e8])
def test_wild_ratios_stay_finite(log_ratio: float, advantage: float) -> None:
    for loss_of in (Surrogate(), ClippedSurrogate(), ClippedSurrogate(dual_clip=3.0)):
        new = torch.tensor([log_ratio, 0.1], requires_grad=True)
        rows = batch(torch.zeros(2), torch.tensor([advantage, 1.0]), torch.ones(2))
        loss, _ = loss_of(evaluation(new), rows, CLIP)
        loss.backward()
        assert torch.isfinite(loss) and torch.isfinite(new.grad).all() and new.grad[1] != 0  # pyright: ignore


def test_shapes_that_would_broadcast_are_refused() -> None:
    new, rows = main_case()
    for loss_of in (PolicyGradient(), Surrogate(), ClippedSurrogate()):
        with pytest.raises(ValueError, match="shapes differ"):
            loss_of(evaluation(new), rows.replace(advantage=rows.advantage[:, None]), CLIP)
    v = array("values_new")
    for value_loss in (SquaredError(), ClippedError(), HuberError()):
        with pytest.raises(ValueError, match="shapes differ"):
            value_loss(v, v, v[:, None], torch.ones(8), CLIP)


# ------------------------------------------------------------------------------------------------ KL penalty


def test_penalty_is_beta_times_the_exact_kl() -> None:
    """Case: KL((½, ½) ‖ (0.9, 0.1)) = 0.5108256; the other direction would be 0.368."""
    new_params = torch.tensor([[0.9, 0.1]], dtype=f64).log().requires_grad_()
    rows = batch(torch.zeros(1, dtype=f64), torch.zeros(1, dtype=f64), params=torch.zeros(1, 2, dtype=f64))
    loss, _ = KLPenalty(Categorical(2), beta=3.0)(
        evaluation(torch.zeros(1, dtype=f64), new_params), rows, CLIP
    )
    assert number(loss) == pytest.approx(3 * 0.5108256, abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, new_params)
    assert gradient.tolist()[0] == pytest.approx([3 * 0.4, -3 * 0.4])  # β (π_new − π_old)


def test_beta_follows_the_measured_kl() -> None:
    golden = json.loads((Path(__file__).parents[1] / "golden" / "schedules.json").read_text(encoding="utf-8"))
    given = golden["inputs"]
    penalty = KLPenalty(Categorical(2), beta=given["beta0"], target=given["target_kl"])
    found = []
    for kl in given["kl_sequence"]:
        used = number(penalty.finish(lambda kl=kl: torch.tensor(kl, dtype=f64))["schedule/kl_coef"])
        assert used == (found[-1] if found else given["beta0"])  # told is the one that the update used
        found.append(number(penalty.beta))
    assert found == pytest.approx(golden["expected"]["ppo_kl_beta"])


def test_beta_is_held_within_limits_and_keeps_its_state() -> None:
    penalty = KLPenalty(Categorical(2), beta=1.0, target=0.01, smallest=1e-3, largest=50.0)
    for kl, end in ((9.0, 50.0), (0.0, 1e-3)):
        for _ in range(40):
            penalty.finish(lambda kl=kl: torch.tensor(kl))
        assert number(penalty.beta) == pytest.approx(end)
    penalty.finish(lambda: torch.tensor(torch.nan))
    assert number(penalty.beta) == pytest.approx(1e-3)
    penalty.finish(lambda: torch.tensor(torch.inf))
    assert number(penalty.beta) == pytest.approx(2e-3)
    other = KLPenalty(Categorical(2))
    other.load_state_dict({name: x.clone() for name, x in penalty.state_dict().items()})
    assert torch.equal(other.beta, penalty.beta)
    fixed = KLPenalty(Categorical(2), beta=0.7, target=None)
    fixed.finish(lambda: pytest.fail("nobody asked for the KL"))
    assert number(fixed.beta) == pytest.approx(0.7)


# ---------------------------------------------------------------------------------------------- value losses


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (SquaredError(), "value_loss_half_mse"),
        (ClippedError("clip_max"), "value_loss_clip_max_half"),
        (ClippedError("clip_only"), "value_loss_clip_only"),
    ],
)
def test_value_losses_golden(loss: Any, expected: str) -> None:
    found = loss(array("values_new"), array("values_old"), array("returns"), torch.ones(8, dtype=f64), CLIP)
    assert number(found) == pytest.approx(EXPECTED[expected], abs=1e-8)


def test_huber_loss_equals_torchs() -> None:
    value, target = array("values_new").requires_grad_(), array("returns")
    for delta in (0.3, 1.0, 50.0):
        found = HuberError(delta)(value, target, target, torch.ones(8, dtype=f64), CLIP)
        expected = torch.nn.functional.huber_loss(value, target, delta=delta)
        torch.testing.assert_close(found, expected)
        a, b = (torch.autograd.grad(x, value)[0] for x in (found, expected))
        torch.testing.assert_close(a, b)
    assert number(HuberError(50.0)(value, target, target, torch.ones(8, dtype=f64), CLIP)) == pytest.approx(
        EXPECTED["value_loss_half_mse"]
    )


@pytest.mark.parametrize("loss", [SquaredError(), ClippedError(), ClippedError("clip_only"), HuberError()])
def test_value_losses_leave_rows_out(loss: Any) -> None:
    value, old, target = array("values_new"), array("values_old"), array("returns")
    weight = torch.ones(8, dtype=f64)
    weight[[1, 6]] = 0
    keep = weight > 0
    expected = loss(value[keep], old[keep], target[keep], weight[keep], CLIP)
    value = torch.where(keep, value, torch.nan).requires_grad_()
    found = loss(value, torch.where(keep, old, torch.nan), torch.where(keep, target, torch.nan), weight, CLIP)
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found, value)
    assert torch.isfinite(gradient).all() and (gradient[~keep] == 0).all()


@given(
    st.lists(st.tuples(*[st.floats(-50, 50)] * 3), min_size=1, max_size=12),
    st.floats(0.01, 5),
)
def test_clipped_value_losses_by_definition(rows: list[tuple[float, float, float]], clip: float) -> None:
    value, old, target = (torch.tensor(x, dtype=f64) for x in zip(*rows, strict=True))
    v, o, t = (x.numpy() for x in (value, old, target))
    clipped = (np.clip(v, o - clip, o + clip) - t) ** 2
    ones, c = torch.ones(len(rows), dtype=f64), CLIP._replace(value_clip=clip)
    assert number(ClippedError()(value, old, target, ones, c)) == pytest.approx(
        0.5 * np.maximum((v - t) ** 2, clipped).mean(), rel=1e-9, abs=1e-9
    )
    assert number(ClippedError("clip_only")(value, old, target, ones, c)) == pytest.approx(
        clipped.mean(), rel=1e-9, abs=1e-9
    )


def test_values_are_standardised_before_they_are_clipped_or_cut() -> None:
    """With standardised targets (μ 100, σ 20 below) ε and δ count in σ; the loss shown is in the reward's units."""
    from pgtrain.learning.gradients import CriticLoss
    from pgtrain.policies.normalizer import RunningMoments

    policy = make_policy(value_moments=RunningMoments(1, clip=float("inf"), eps=0.0))
    rows = flatten(experience(policy), None)
    targets = torch.tensor([80.0, 120.0] * 50)
    policy.observe_targets(targets)
    shift, std = policy.value_scale()
    assert number(shift) == pytest.approx(100.0) and number(std) == pytest.approx(20.0, rel=0.01)
    value, old, target = (torch.randn(15) * 30 + 100 for _ in range(3))
    rows = rows.replace(value=old, value_target=target)
    for loss in (SquaredError(), ClippedError(), ClippedError("clip_only"), HuberError(0.5)):
        found, shown = CriticLoss(policy, loss)(value, rows, CLIP)
        expected = loss(*((x - shift) / std for x in (value, old, target)), rows.weight, CLIP)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(shown["loss/critic"], expected * std**2)
