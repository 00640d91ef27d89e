"""Episode means and leave-one-out means: definitions as loops, identities, and unbiasedness by enumeration."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pgtrain.learning.baselines import episode_index, leave_one_out, mean
from pgtrain.learning.returns import reward_to_go

f64 = torch.float64
few = settings(deadline=None, max_examples=40)
SCOPES = ("scalar", "step")
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


def batch(seed: int, steps: int, envs: int, ends: float) -> Batch:
    """Returns, weight, episode_id, episode_step of a random window; junk in rows of weight 0."""
    rng = torch.Generator().manual_seed(seed)
    done = torch.rand(steps, envs, generator=rng) < ends
    weight = (torch.rand(steps, envs, generator=rng) < 0.8).to(f64)
    episode_id, episode_step = episode_index(done, weight)
    returns = torch.randn(steps, envs, generator=rng, dtype=f64)
    return torch.where(episode_id < 0, torch.nan, returns), weight, episode_id, episode_step


batches = st.builds(
    batch, st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 4), st.sampled_from([0.1, 0.3, 0.6])
)


def by_definition(data: Batch, scope: str, without_own: bool) -> Tensor:
    returns, _, ids, episode_step = data
    rows = [(t, n) for t, n in itertools.product(*map(range, returns.shape)) if ids[t, n] >= 0]
    baseline = torch.zeros_like(returns)
    for t, n in rows:
        others = [
            float(returns[row])
            for row in rows
            if (scope == "scalar" or episode_step[row] == episode_step[t, n])
            and not (without_own and ids[row] == ids[t, n])
        ]
        baseline[t, n] = sum(others) / len(others) if others else 0.0
    return baseline


@few
@given(batches, st.sampled_from(SCOPES))
def test_mean_is_its_definition(data: Batch, scope: str) -> None:
    returns, _, ids, step = data
    torch.testing.assert_close(mean(returns, ids, step, scope), by_definition(data, scope, without_own=False))


@few
@given(batches, st.sampled_from(SCOPES))
def test_leave_one_out_is_its_definition(data: Batch, scope: str) -> None:
    returns, _, ids, step = data
    torch.testing.assert_close(
        leave_one_out(returns, ids, step, scope), by_definition(data, scope, without_own=True)
    )


def test_by_hand() -> None:
    """Env 0 plays episodes of length 2 and 1, env 1 one of length 3."""
    returns = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 30.0]])
    ids, step = episode_index(torch.tensor([[0, 0], [1, 0], [1, 1]]))
    assert ids.tolist() == [[0, 2], [0, 2], [1, 2]] and step.tolist() == [[0, 0], [1, 1], [0, 2]]
    torch.testing.assert_close(mean(returns, ids, step), torch.full((3, 2), 67 / 6))
    torch.testing.assert_close(mean(returns, ids, step, "step"), torch.tensor([[5.0, 5], [11, 11], [5, 30]]))
    expected = torch.tensor([[64 / 4, 7 / 3], [64 / 4, 7 / 3], [63 / 5, 7 / 3]])
    torch.testing.assert_close(leave_one_out(returns, ids, step), expected)
    expected = torch.tensor([[7.0, 2.5], [20, 2], [5.5, 0]])  # only one episode reaches step 2: no baseline
    torch.testing.assert_close(leave_one_out(returns, ids, step, "step"), expected)


@pytest.mark.parametrize("scope", SCOPES)
def test_episodes_may_lie_anywhere(scope: str) -> None:
    """Two episodes in one column, or one in each of two columns, are the same batch."""
    after = torch.tensor([[3.0], [5.0], [7.0], [9.0]])
    after_index = episode_index(torch.tensor([[0], [1], [0], [1]]))
    beside = torch.tensor([[3.0, 7.0], [5.0, 9.0]])
    beside_index = episode_index(torch.tensor([[0, 0], [1, 1]]))
    for function in (mean, leave_one_out):
        one, two = function(after, *after_index, scope), function(beside, *beside_index, scope)
        torch.testing.assert_close(one.view(2, 2).T, two)


@pytest.mark.parametrize("scope", SCOPES)
def test_leave_one_out_is_the_pooled_mean_without_its_shrink(scope: str) -> None:
    """G_i − mean_{−i} = N/(N−1) (G_i − mean) for N equally long episodes."""
    returns = torch.randn(4, 5, dtype=f64, generator=torch.Generator().manual_seed(0))
    if scope == "scalar":
        returns = returns[:1].expand(4, 5)  # one number an episode: its whole return
    done = torch.arange(4)[:, None].expand(4, 5) == 3
    index = episode_index(done)
    pooled = returns - mean(returns, *index, scope)
    torch.testing.assert_close(returns - leave_one_out(returns, *index, scope), 5 / 4 * pooled)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_lone_episode_has_no_others(scope: str) -> None:
    returns, done = torch.tensor([[3.0], [4.0]]), torch.tensor([[0], [1]])
    assert leave_one_out(returns, *episode_index(done), scope).tolist() == [[0.0], [0.0]]
    # Weights that add up differently in another order must not turn a rounding difference into a baseline.
    index = episode_index(torch.arange(5000)[:, None] == 4999)
    for seed in range(10):
        weight = torch.rand(5000, 1, dtype=f64, generator=torch.Generator().manual_seed(seed))
        assert (leave_one_out(weight, *index, scope, weight) == 0).all()
    unfinished = episode_index(torch.zeros(5000, 1))
    for function in (mean, leave_one_out):
        assert (function(torch.ones(5000, 1), *unfinished, scope) == 0).all()


def test_weights() -> None:
    """b_{−i} = (Σ_j w_j R_j − w_i R_i) / (Σ_j w_j − w_i) for one-step episodes."""
    returns, weight = torch.tensor([[1.0, 2.0, 6.0]]), torch.tensor([[1.0, 3.0, 0.0]])
    index = episode_index(torch.ones(1, 3))
    for scope in SCOPES:
        torch.testing.assert_close(mean(returns, *index, scope, weight), torch.full((1, 3), 7 / 4))
        expected = torch.tensor([[2.0, 1.0, 7 / 4]])
        torch.testing.assert_close(leave_one_out(returns, *index, scope, weight), expected)


def test_float32_survives_a_large_offset() -> None:
    returns = 1e6 + torch.randn(500, 8, generator=torch.Generator().manual_seed(1))
    index = episode_index(torch.arange(500)[:, None].expand(500, 8) % 25 == 24)
    for function, scope in itertools.product((mean, leave_one_out), SCOPES):
        exact = function(returns.double(), *index, scope)
        baseline = function(returns, *index, scope)
        assert (
            baseline.dtype == torch.float32 and (baseline - exact).abs().max() <= 0.0625
        )  # one float32 step


def test_gradients_and_shapes() -> None:
    returns, _, ids, step = batch(4, 6, 2, 0.5)
    returns = returns.nan_to_num().requires_grad_()
    for function, scope in itertools.product((mean, leave_one_out), SCOPES):
        assert torch.autograd.gradcheck(lambda x, f=function, s=scope: f(x, ids, step, s), [returns])
        assert function(returns[:1, :1], ids[:1, :1], step[:1, :1], scope).shape == (1, 1)
        with pytest.raises(ValueError, match="shapes differ"):
            function(returns, ids[:, :1], step, scope)
    with pytest.raises(ValueError, match="scalar, step, got 'episode'"):
        mean(returns, ids, step, "episode")


def test_never_waits_for_a_device() -> None:
    """A meta tensor has no data: reading a number from it, or branching on one, raises."""
    returns, weight, done = torch.empty(3, 5, 2, device="meta")
    ids, step = episode_index(done, weight, starts_fresh=done[0])
    for function, scope in itertools.product((mean, leave_one_out), SCOPES):
        assert function(returns, ids, step, scope, weight).shape == (5, 2)


# ---- episode_index --------------------------------------------------------------------------------------------------
def test_index_names_whole_episodes_only() -> None:
    done = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0]])
    ids, step = episode_index(done)
    assert ids.T.tolist() == [[0, 0, 1, 1, -1], [2, 3, 3, 3, -1], [-1] * 5]
    assert step.T.tolist() == [[0, 1, 0, 1, 0], [0, 0, 1, 2, 0], [0] * 5]


def test_index_skips_unused_rows() -> None:
    done = torch.tensor([[0], [1], [0], [0], [1], [0], [0]])
    weight = torch.tensor([[1.0], [1], [0], [1], [1], [0], [0]])  # row 2: reset row; rows 5, 6: idle
    ids, step = episode_index(done, weight)
    assert ids[:, 0].tolist() == [0, 0, -1, 1, 1, -1, -1]
    assert step[:, 0].tolist() == [0, 1, 0, 0, 1, 0, 0]


def test_index_leaves_out_an_episode_from_an_earlier_window() -> None:
    done = torch.tensor([[0, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]])
    ids, step = episode_index(done, starts_fresh=torch.tensor([True, False, True]))
    assert ids.T.tolist() == [[0, 0, 1, 1], [-1, -1, 2, 2], [3, 3, 3, 3]]
    assert step.T.tolist() == [[0, 1, 0, 1], [0, 0, 0, 1], [0, 1, 2, 3]]


@few
@given(batches)
def test_index_ids_are_consecutive_and_steps_count_up(data: Batch) -> None:
    _, _, ids, step = data
    named = ids[ids >= 0]
    assert sorted(set(named.tolist())) == list(range(len(set(named.tolist()))))
    for one in set(named.tolist()):
        assert step[ids == one].tolist() == list(range(int((ids == one).sum())))


# ---- what they do to the gradient, by enumerating every batch -------------------------------------------------------
def test_bias_on_a_two_armed_bandit() -> None:
    """Over all 2³ batches of N = 3 pulls: leave-one-out gives ∇J, the pooled mean exactly (1 − 1/N) ∇J."""
    theta, reward, pulls = torch.tensor([0.4, -0.3], dtype=f64), torch.tensor([1.0, -2.0], dtype=f64), 3
    p = theta.softmax(0)
    exact = p * (reward - p @ reward)
    score = torch.eye(2, dtype=f64) - p  # ∇log p(a), one row an arm
    arms = torch.tensor(list(itertools.product(range(2), repeat=pulls)))  # [8, 3]
    chance = p[arms].prod(dim=1)

    def expected_gradient(function) -> Tensor:
        total = torch.zeros(2, dtype=f64)
        for batch_arms, weight in zip(arms, chance, strict=True):
            returns = reward[batch_arms][None]
            advantage = returns - function(returns, *episode_index(torch.ones_like(returns)))
            total = total + weight * (advantage[0] @ score[batch_arms]) / pulls
        return total

    torch.testing.assert_close(expected_gradient(leave_one_out), exact, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(expected_gradient(mean), (1 - 1 / pulls) * exact, rtol=1e-12, atol=1e-12)


def trajectories(horizon: int) -> tuple[list[tuple], Tensor, Tensor]:
    """All trajectories of the golden MDP with `horizon` steps: [(states, actions, rewards)], chances, policy."""
    data = json.loads((Path(__file__).parents[1] / "golden" / "tabular_mdp.json").read_text(encoding="utf-8"))
    mdp = data["inputs"]
    policy = torch.tensor(mdp["theta"], dtype=f64).softmax(dim=1)
    paths, finished = [([], [], [], state, chance) for state, chance in enumerate(mdp["d0"])], []
    for step in range(horizon):
        grown = []
        for states, actions, rewards, state, chance in paths:
            for action, following in itertools.product(range(2), range(3)):
                probability = chance * float(policy[state, action]) * mdp["P"][state][action][following]
                reward = mdp["R"][state][action]
                path = ([*states, state], [*actions, action], [*rewards, reward], following, probability)
                if probability > 0:
                    (finished if following == 2 or step == horizon - 1 else grown).append(path)
        paths = grown
    # The state after the last step does not matter here: join paths that differ in it alone.
    chances: dict[tuple, float] = {}
    for states, actions, rewards, _, chance in finished:
        key = (tuple(states), tuple(actions), tuple(rewards))
        chances[key] = chances.get(key, 0.0) + chance
    return list(chances), torch.tensor(list(chances.values()), dtype=f64), policy


@pytest.mark.parametrize("scope", SCOPES)
def test_leave_one_out_is_unbiased_with_episodes_of_different_length(scope: str) -> None:
    """Over all pairs of episodes of a two-step MDP that may end after one: exact ∇J; the mean is off."""
    paths, chance, policy = trajectories(horizon=2)
    gamma, count = 0.9, len(paths)
    reward, alive = torch.zeros(2, count, dtype=f64), torch.zeros(2, count, dtype=f64)
    score = torch.zeros(2, count, 4, dtype=f64)  # γᵗ ∇log π
    for i, (states, actions, rewards) in enumerate(paths):
        for t, (state, action) in enumerate(zip(states, actions, strict=True)):
            reward[t, i], alive[t, i] = rewards[t], 1.0
            own = torch.zeros(2, 2, dtype=f64)
            own[state] = torch.eye(2, dtype=f64)[action] - policy[state]
            score[t, i] = gamma**t * own.flatten()
    done = torch.cat([(alive[1:] == 0), torch.ones(1, count).bool()]) & (alive > 0)
    returns = reward_to_go(reward, gamma, done)
    assert abs(float(chance.sum()) - 1) < 1e-12
    exact = torch.einsum("i,ti,tik->k", chance, returns, score)

    def expected_gradient(function) -> Tensor:
        total = torch.zeros(4, dtype=f64)
        for pair in itertools.combinations_with_replacement(range(count), 2):
            both = list(pair)
            own = returns[:, both] - function(
                returns[:, both], *episode_index(done[:, both], alive[:, both]), scope
            )
            times = 1 if pair[0] == pair[1] else 2
            total = total + times * chance[both].prod() * torch.einsum("ti,tik->k", own, score[:, both]) / 2
        return total

    torch.testing.assert_close(expected_gradient(leave_one_out), exact, rtol=1e-10, atol=1e-10)
    assert (expected_gradient(mean) - exact).norm() > 0.1 * exact.norm()
