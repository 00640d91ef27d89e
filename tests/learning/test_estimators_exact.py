"""Every estimator against the exact gradient of a small MDP, with no sampling.

All 191 trajectories of the MDP in `golden/tabular_mdp.json` are enumerated, side by side as columns [3, 191], and
weighed with their probabilities. Gradients come by autograd from `policy_gradient_loss`, as in training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pgtrain.learning.objectives import policy_gradient_loss
from pgtrain.learning.returns import gae, n_step_return, reward_to_go, td_error, total_return

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tabular_mdp.json").read_text(encoding="utf-8"))
INPUTS, EXPECTED = GOLDEN["inputs"], GOLDEN["expected"]
GAMMA, HORIZON, TERMINAL = INPUTS["gamma"], INPUTS["horizon"], 2
f64 = torch.float64
THETA = torch.tensor(INPUTS["theta"], dtype=f64)


class Enumeration(NamedTuple):
    """All trajectories, [3, 191]; rows after a trajectory's end have weight 0 and reward 0."""

    state: Tensor
    action: Tensor
    reward: Tensor
    next_state: Tensor  # 2: terminal
    terminated: Tensor
    weight: Tensor
    probability: Tensor  # [191]


def enumerate_trajectories() -> Enumeration:
    policy = THETA.softmax(dim=1)
    # One entry of `growing` is a trajectory so far: its steps (state, action, reward, next state) and probability.
    growing = [([], state, chance) for state, chance in enumerate(INPUTS["d0"])]
    finished = []
    for step in range(HORIZON):
        extended = []
        for steps, state, chance in growing:
            for action in range(2):
                for following, move in enumerate(INPUTS["P"][state][action]):
                    probability = chance * float(policy[state, action]) * move
                    if probability == 0:
                        continue
                    longer = [*steps, (state, action, INPUTS["R"][state][action], following)]
                    ended = following == TERMINAL or step == HORIZON - 1
                    (finished if ended else extended).append((longer, following, probability))
        growing = extended
    rows = torch.zeros(4, HORIZON, len(finished), dtype=f64)
    weight = torch.zeros(HORIZON, len(finished), dtype=f64)
    terminated = torch.zeros(HORIZON, len(finished), dtype=torch.bool)
    for i, (steps, _, _) in enumerate(finished):
        rows[:, : len(steps), i] = torch.tensor(steps, dtype=f64).T
        weight[: len(steps), i] = 1.0
        terminated[len(steps) - 1, i] = True  # the horizon is a true end
    probability = torch.tensor([chance for _, _, chance in finished], dtype=f64)
    state, action, reward, next_state = rows
    return Enumeration(
        state.long(), action.long(), reward, next_state.long(), terminated, weight, probability
    )


ALL = enumerate_trajectories()
NOT_TRUNCATED = torch.zeros_like(ALL.terminated)


def critic(kind: str) -> tuple[Tensor, Tensor]:
    """V(s_t) and V(s_{t+1}) [3, 191]: the exact V_t(s), or the wrong, time-independent one. Junk after the end."""
    per_step = torch.tensor(EXPECTED["V"] if kind == "exact" else [INPUTS["wrong_V"]] * HORIZON, dtype=f64)
    following = torch.cat([per_step[1:], torch.full((1, 2), torch.nan, dtype=f64)])
    following = torch.cat(
        [following, torch.full((HORIZON, 1), torch.nan, dtype=f64)], dim=1
    )  # the terminal state
    t = torch.arange(HORIZON)[:, None]
    next_value = torch.where(ALL.weight > 0, following[t, ALL.next_state], 0.0)
    return per_step[t, ALL.state], next_value


def mean_and_variance(advantage: Tensor, discount_states: bool = True) -> tuple[Tensor, float]:
    """Exact mean [4] and variance trace of the one-episode estimator Σ_t γᵗ A_t ∇log π(a_t|s_t).

    Each trajectory has a copy of θ of its own, so that one backward pass gives 191 gradients.
    """
    theta = THETA.expand(len(ALL.probability), 2, 2).clone().requires_grad_()
    column = torch.arange(len(ALL.probability)).expand_as(ALL.state)
    log_prob = theta.log_softmax(dim=2)[column, ALL.state, ALL.action]
    if discount_states:
        advantage = advantage * GAMMA ** torch.arange(HORIZON, dtype=f64)[:, None]
    policy_gradient_loss(log_prob, advantage, ALL.weight, denominator=1.0).backward()
    assert theta.grad is not None
    gradients = -theta.grad.flatten(1)
    mean = ALL.probability @ gradients
    variance = ALL.probability @ (gradients - mean).square().sum(dim=1)

    # The same mean as training would get it: one θ, weights of probability, denominator 1.
    shared = THETA.clone().requires_grad_()
    log_prob = shared.log_softmax(dim=1)[ALL.state, ALL.action]
    policy_gradient_loss(log_prob, advantage, ALL.weight * ALL.probability, denominator=1.0).backward()
    assert shared.grad is not None
    torch.testing.assert_close(-shared.grad.flatten(), mean, rtol=1e-12, atol=1e-12)
    return mean, float(variance)


def advantage_gae(kind: str, lam: float) -> Tensor:
    value, next_value = critic(kind)
    return gae(ALL.reward, value, next_value, ALL.terminated, NOT_TRUNCATED, GAMMA, lam)


def exact_values() -> Tensor:
    return critic("exact")[0]


def rtg() -> Tensor:
    return reward_to_go(ALL.reward, GAMMA, ALL.terminated)


def test_enumeration() -> None:
    assert len(ALL.probability) == EXPECTED["n_trajectories"] == 191
    assert float(ALL.probability.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(ALL.probability @ rtg()[0]) == pytest.approx(EXPECTED["J"], abs=1e-12)


def check(name: str, advantage: Tensor, printed_variance: float, discount_states: bool = True) -> Tensor:
    """Mean, and variance as stored and as printed in the literature; returns the bias."""
    mean, variance = mean_and_variance(advantage, discount_states)
    expected = EXPECTED["estimators"][name]
    torch.testing.assert_close(mean, torch.tensor(expected["mean"], dtype=f64), rtol=1e-8, atol=1e-8)
    assert variance == pytest.approx(expected["var_trace"], abs=1e-8)
    assert variance == pytest.approx(printed_variance, abs=6e-4)
    return mean - torch.tensor(EXPECTED["grad"], dtype=f64)


UNBIASED = {
    "reinforce_full_return": (lambda: total_return(ALL.reward, GAMMA, ALL.terminated), 5.703, False),
    "reinforce_b_value_J": (
        lambda: total_return(ALL.reward, GAMMA, ALL.terminated) - EXPECTED["J"],
        1.753,
        False,
    ),
    "rtg": (rtg, 2.965, True),
    "rtg_b_state_value": (lambda: rtg() - exact_values(), 0.959, True),
    "gae_exact_V_lambda_1": (lambda: advantage_gae("exact", 1.0), 0.959, True),
    "gae_exact_V_lambda_0.95": (lambda: advantage_gae("exact", 0.95), 0.905, True),
    "gae_exact_V_lambda_0.5": (lambda: advantage_gae("exact", 0.5), 0.609, True),
    "gae_exact_V_lambda_0": (lambda: advantage_gae("exact", 0.0), 0.530, True),
    "gae_wrong_V_lambda_1": (lambda: advantage_gae("wrong", 1.0), 1.190, True),
}


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_estimators(name: str) -> None:
    """Mean = ∇J to 1e-8. The total return carries the discount from t = 0, so it takes no γᵗ of its own."""
    advantage, variance, discount_states = UNBIASED[name]
    assert check(name, advantage(), variance, discount_states).abs().max() < 1e-8


@pytest.mark.parametrize(("lam", "bias_norm"), [(0.0, 6.6e-3), (0.5, 5.4e-3), (0.95, 8.0e-4)])
def test_a_wrong_critic_biases_gae_less_at_higher_lambda(lam: float, bias_norm: float) -> None:
    printed = {0.0: 0.606, 0.5: 0.772, 0.95: 1.131}[lam]
    bias = check(f"gae_wrong_V_lambda_{lam:g}", advantage_gae("wrong", lam), printed)
    assert float(bias.norm()) == pytest.approx(bias_norm, rel=0.02)


def test_states_without_their_discount_bias_the_gradient() -> None:
    bias = check("rtg_without_gamma_t", rtg(), 3.266, discount_states=False)
    assert float(bias.norm()) == pytest.approx(0.0722, abs=5e-5)


def test_td_and_n_step() -> None:
    """One-step TD is GAE(0), also in its bias; with the exact critic every n is unbiased."""
    exact = torch.tensor(EXPECTED["grad"], dtype=f64)
    for kind in ("exact", "wrong"):
        value, next_value = critic(kind)
        td = td_error(ALL.reward, value, next_value, ALL.terminated, GAMMA)
        torch.testing.assert_close(td * ALL.weight, advantage_gae(kind, 0.0) * ALL.weight)
        biases = []
        for n in (1, 2, 3):
            target = n_step_return(ALL.reward, next_value, ALL.terminated, NOT_TRUNCATED, GAMMA, n)
            biases.append(float((mean_and_variance(target - value)[0] - exact).norm()))
        assert biases[2] < 1e-8  # n = horizon: no critic in it but the baseline
        assert max(biases) < 1e-8 if kind == "exact" else biases[0] == pytest.approx(6.6e-3, rel=0.02)


def test_mean_over_steps_is_biased_where_lengths_depend_on_the_policy() -> None:
    """Why a mean over episodes is offered: each one-episode gradient over its own length is no estimate of ∇J."""
    advantage = (rtg() - exact_values()) / ALL.weight.sum(dim=0)
    mean, _ = mean_and_variance(advantage)
    exact = torch.tensor(EXPECTED["grad"], dtype=f64)
    best_multiple = (mean @ exact) / (exact @ exact) * exact
    assert (mean - best_multiple).norm() > 0.01 * mean.norm()  # not even its direction
