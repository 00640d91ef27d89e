"""Estimators wired to rollouts, against loops written from the definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pgtrain.learning.advantages import GAE, TD, MonteCarlo, NStep
from pgtrain.rollout import Rollout
from tests.support import make_rollout

GAMMA = 0.9


def random_window(seed: int, steps: int = 12, n: int = 4) -> Rollout:
    """Ends of all kinds, also at the window's last row; next_value is unrelated to value, NaN after a termination."""
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((steps, n)) < 0.15, rng.random((steps, n)) < 0.15
    next_value = rng.standard_normal((steps, n))
    next_value[terminated] = np.nan
    return make_rollout(
        rng.standard_normal((steps, n)),
        terminated=terminated,
        truncated=truncated,
        value=rng.standard_normal((steps, n)),
        next_value=next_value,
    )


def n_step_by_hand(r: Rollout, t: int, i: int, n: int) -> float:
    """Σ_{k<m} γᵏ r_{t+k} + γᵐ nv, m = min(n, steps to a done or the window's end); nv is 0 once terminated."""
    total, factor = 0.0, 1.0
    for k in range(t, min(t + n, len(r.reward))):
        total += factor * float(r.reward[k, i])
        factor *= GAMMA
        if bool(r.terminated[k, i]):
            return total
        if bool(r.truncated[k, i]) or k == len(r.reward) - 1 or k == t + n - 1:
            return total + factor * float(r.next_value[k, i])
    raise AssertionError


def delta(r: Rollout, t: int, i: int) -> float:
    after = 0.0 if bool(r.terminated[t, i]) else float(r.next_value[t, i])
    return float(r.reward[t, i]) + GAMMA * after - float(r.value[t, i])


def gae_by_hand(r: Rollout, t: int, i: int, lam: float) -> float:
    """Σ_k (γλ)ᵏ δ_{t+k}, up to and with the first done."""
    total, factor = 0.0, 1.0
    for k in range(t, len(r.reward)):
        total += factor * delta(r, k, i)
        factor *= GAMMA * lam
        if bool(r.terminated[k, i] | r.truncated[k, i]):
            break
    return total


def each(r: Rollout, of: Any) -> torch.Tensor:
    steps, n = r.reward.shape
    return torch.tensor([[of(t, i) for i in range(n)] for t in range(steps)], dtype=torch.float32)


@pytest.mark.parametrize("seed", range(3))
def test_td_n_step_and_gae_follow_their_definitions(seed: int) -> None:
    r = random_window(seed)
    one = TD(GAMMA)(r)
    torch.testing.assert_close(one.advantage, each(r, lambda t, i: delta(r, t, i)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(one.value_target, one.advantage + r.value)
    for n in (1, 3, 50):
        many = NStep(GAMMA, n)(r)
        target = each(r, lambda t, i, n=n: n_step_by_hand(r, t, i, n))
        torch.testing.assert_close(many.value_target, target, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(many.advantage, target - r.value, rtol=1e-5, atol=1e-5)
    for lam in (0.0, 0.7, 1.0):
        gae = GAE(GAMMA, lam)(r)
        expected = each(r, lambda t, i, lam=lam: gae_by_hand(r, t, i, lam))
        torch.testing.assert_close(gae.advantage, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gae.value_target, expected + r.value, rtol=1e-5, atol=1e-5)


def column(*x: float) -> list[list[float]]:
    return [[v] for v in x]


def test_time_limit_bootstraps_with_the_state_reached() -> None:
    r = make_rollout(
        column(1, 1, 1), value=column(0.5, 2, 4), next_value=column(2, 4, 10), truncated=column(0, 0, 1)
    )
    out = GAE(0.9, 0.95)(r)
    assert out.advantage[:, 0].tolist() == pytest.approx([8.90915, 7.73, 6.0], abs=1e-5)
    assert out.value_target[:, 0].tolist() == pytest.approx([9.40915, 9.73, 10.0], abs=1e-5)


def test_termination_wins_over_a_time_limit() -> None:
    r = make_rollout(
        column(1, 1),
        value=column(1, 1),
        next_value=column(1, 50),
        truncated=column(0, 1),
        terminated=column(0, 1),
    )
    assert GAE(0.9, 0.95)(r).advantage[:, 0].tolist() == pytest.approx([0.9, 0.0], abs=1e-6)
    for estimator in (TD(0.9), NStep(0.9, 5), GAE(0.9, 1.0)):
        assert float(estimator(r).advantage[1, 0]) == pytest.approx(0.0, abs=1e-6)
    cut = MonteCarlo(0.9, truncation_bootstrap="value")(r)
    assert cut.value_target[:, 0].tolist() == pytest.approx([1.9, 1.0])


def test_the_windows_end_is_no_end_of_the_episode() -> None:
    r = make_rollout(column(1, 1), value=column(5, 5), next_value=column(5, 10))
    assert GAE(1.0, 1.0)(r).advantage[:, 0].tolist() == pytest.approx([7, 6])
    assert MonteCarlo(1.0, truncation_bootstrap="value", baseline="value")(r).advantage[:, 0].tolist() == [
        7,
        6,
    ]


def test_reset_rows_of_a_next_step_stream() -> None:
    """Rows 2 and 5 are resets: what leads to a done never looks past it, and they weigh nothing."""
    r = make_rollout(
        column(1, 1, 0, 1, 1, 0),
        value=column(1, 2, 9, 3, 4, 9),
        next_value=column(2, 9, 3, 4, 9, 3),
        terminated=column(0, 1, 0, 0, 1, 0),
        weight=column(1, 1, 0, 1, 1, 0),
    )
    advantage = GAE(0.5, 1.0)(r).advantage[r.weight > 0]
    assert advantage.tolist() == pytest.approx([0.5, -1.0, -1.5, -3.0], abs=1e-6)


def test_monte_carlo_returns() -> None:
    r = make_rollout(column(1, 2, 3, 4), terminated=column(0, 1, 0, 1))
    assert MonteCarlo(0.5)(r).advantage[:, 0].tolist() == [2, 2, 5, 4]
    assert MonteCarlo(0.5, form="total")(r).advantage[:, 0].tolist() == [2, 2, 5, 5]


@pytest.mark.parametrize("form", ["reward_to_go", "total"])
def test_reset_rows_do_not_discount_monte_carlo_returns(form: str) -> None:
    """A NEXT_STEP stream gives its real rows the returns of the same episodes without reset rows."""
    plain = make_rollout(column(1, 2, 3, 4, 5), terminated=column(0, 1, 0, 0, 1))
    stream = make_rollout(
        column(1, 2, 0, 3, 4, 5, 0),
        terminated=column(0, 1, 0, 0, 0, 1, 0),
        weight=column(1, 1, 0, 1, 1, 1, 0),
    )
    estimator = MonteCarlo(0.5, form=form)
    expected = estimator(plain).value_target[:, 0]
    assert estimator(stream).value_target[stream.weight > 0].tolist() == expected.tolist()


def whole_episodes(seed: int) -> tuple[Rollout, list[list[tuple[int, int]]]]:
    """Two whole episodes in each of 3 envs, of unequal lengths, then idle rows with junk rewards; and their (t, n)."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, (3, 2))
    steps = int(lengths.sum(1).max())
    reward = rng.standard_normal((steps, 3))
    terminated, truncated = np.zeros((2, steps, 3), bool)
    weight = np.zeros((steps, 3))
    episodes = []
    for i in range(3):
        t = 0
        for length in lengths[i]:
            episodes.append([(t + k, i) for k in range(length)])
            t += int(length)
            (terminated if rng.random() < 0.5 else truncated)[t - 1, i] = True
        weight[:t, i] = 1
    rollout = make_rollout(
        reward,
        terminated=terminated,
        truncated=truncated,
        weight=weight,
        value=rng.standard_normal((steps, 3)),
        next_value=rng.standard_normal((steps, 3)),
        whole_episodes=True,
    )
    return rollout, episodes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", ["reward_to_go", "total"])
@pytest.mark.parametrize("baseline", ["none", "mean", "loo", "value"])
@pytest.mark.parametrize("scope", ["scalar", "step"])
def test_monte_carlo_with_each_baseline(seed: int, form: str, baseline: str, scope: str) -> None:
    r, episodes = whole_episodes(seed)
    returns: dict[tuple[int, int], float] = {}
    for rows in episodes:
        for k, row in enumerate(rows):
            tail = rows if form == "total" else rows[k:]
            returns[row] = sum(GAMMA**j * float(r.reward[other]) for j, other in enumerate(tail))

    def b(e: int, k: int) -> float:
        row = episodes[e][k]
        if baseline == "none":
            return 0.0
        if baseline == "value":
            return float(r.value[row])
        others = [rows for f, rows in enumerate(episodes) if baseline == "mean" or f != e]
        rows = (
            [rows[k] for rows in others if len(rows) > k]
            if scope == "step"
            else [x for o in others for x in o]
        )
        return sum(returns[x] for x in rows) / len(rows) if rows else 0.0

    out = MonteCarlo(GAMMA, form=form, baseline=baseline, scope=scope)(r)
    for e, rows in enumerate(episodes):
        for k, row in enumerate(rows):
            assert float(out.value_target[row]) == pytest.approx(returns[row], abs=1e-5)
            assert float(out.advantage[row]) == pytest.approx(returns[row] - b(e, k), abs=1e-5)


def test_truncation_bootstraps_of_a_window() -> None:
    """Column 0 is cut at row 1 and by the window's end, column 1 terminates at row 2, with its limit."""
    r = make_rollout(
        [[1, 2], [3, 4], [5, 6], [7, 8]],
        terminated=[[0, 0], [0, 0], [0, 1], [0, 0]],
        truncated=[[0, 0], [1, 0], [0, 1], [0, 0]],
        next_value=[[50, 50], [10, 50], [50, 50], [20, 30]],
        value=np.zeros((4, 2)),
    )
    g = 0.5
    none = [[1 + g * 3, 2 + g * (4 + g * 6)], [3, 4 + g * 6], [5 + g * 7, 6], [7, 8]]
    assert MonteCarlo(g)(r).value_target.tolist() == none
    value = [
        [1 + g * (3 + g * 10), 2 + g * (4 + g * 6)],
        [3 + g * 10, 7],
        [5 + g * (7 + g * 20), 6],
        [17, 23],
    ]
    assert MonteCarlo(g, truncation_bootstrap="value")(r).value_target.tolist() == value
    m = float(np.mean(none))
    expected = [
        [1 + g * (3 + g * m), 2 + g * (4 + g * 6)],
        [3 + g * m, 7],
        [5 + g * (7 + g * m), 6],
        [7 + g * m, 8 + g * m],
    ]
    got = MonteCarlo(g, truncation_bootstrap="mean_return")(r).value_target
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("bootstrap", ["value", "mean_return"])
def test_rows_without_weight_are_neither_bootstrapped_nor_averaged(bootstrap: str) -> None:
    """The window ends in a reset row; its next_value and reward are junk."""
    full = make_rollout(
        [[1.0], [2.0], [99.0]],
        terminated=column(0, 1, 0),
        next_value=column(7, 7, 1000),
        weight=column(1, 1, 0),
    )
    got = MonteCarlo(0.5, truncation_bootstrap=bootstrap)(full).value_target
    assert got[:2, 0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("baseline", ["mean", "loo"])
def test_in_a_window_each_cut_segment_has_a_baseline(baseline: str) -> None:
    """Three envs whose episodes outlast the window: the other segments' mean, not 0."""
    r = make_rollout([[1.0, 2.0, 6.0]])
    out = MonteCarlo(1.0, truncation_bootstrap="mean_return", baseline=baseline)(r)
    target = torch.tensor([1.0, 2.0, 6.0]) + 3.0
    assert out.value_target[0].tolist() == target.tolist()
    expected = target - target.mean() if baseline == "mean" else target - (target.sum() - target) / 2
    torch.testing.assert_close(out.advantage[0], expected)


def test_who_needs_a_critic() -> None:
    assert TD(0.9).needs_critic and NStep(0.9, 2).needs_critic and GAE(0.9, 0.5).needs_critic
    assert MonteCarlo(0.9, baseline="value").needs_critic
    assert MonteCarlo(0.9, truncation_bootstrap="value").needs_critic
    assert not MonteCarlo(0.9, baseline="loo", truncation_bootstrap="mean_return").needs_critic


def test_the_rollout_itself_stays_as_it_was() -> None:
    r, _ = whole_episodes(0)
    reward = r.reward.clone()
    MonteCarlo(0.9, truncation_bootstrap="mean_return")(r)
    assert torch.equal(r.reward, reward) and r.advantage is None and r.value_target is None
