"""Optimal baselines of a rollout against the formulas on scores that are made one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pgtrain.learning import optimal_baselines as ob
from pgtrain.learning.optimal_estimator import Episodes, OptimalBaseline, ParameterBaseline
from pgtrain.learning.returns import reward_to_go, total_return
from pgtrain.learning.scores import PolicyScores
from tests.support import make_policy, make_rollout

GAMMA = 0.9


def played() -> tuple[Any, Any, list[list[tuple[int, int]]]]:
    """A policy, a rollout of five episodes in three envs (one idles), and the rows (t, n) of each episode."""
    torch.manual_seed(0)
    policy = make_policy(3, critic=False).double()
    ends = [[0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]
    weight = [[1, 1, 1]] * 4 + [[1, 0, 1], [0, 0, 1], [0, 0, 0]]
    inputs, action = torch.randn(7, 3, 3).double(), torch.randint(3, (7, 3))
    reward = torch.randn(7, 3) * torch.tensor(weight)
    rollout = make_rollout(
        reward,
        terminated=ends,
        weight=weight,
        inputs=inputs,
        action=action,
        policy=policy,
        whole_episodes=True,
    )
    members = [
        [(0, 0), (1, 0)], [(2, 0), (3, 0), (4, 0)], [(0, 1), (1, 1), (2, 1), (3, 1)],
        [(0, 2), (1, 2), (2, 2)], [(3, 2), (4, 2), (5, 2)],
    ]  # fmt: skip
    return policy, rollout, members


def scores_of(policy: Any, rollout: Any, members: Any) -> Tensor:
    """[E, L, P] by autograd, one step at a time."""
    out = torch.zeros(len(members), 4, sum(p.numel() for p in policy.parameters()), dtype=torch.float64)
    for e, rows in enumerate(members):
        for step, (t, n) in enumerate(rows):
            lp = policy.evaluate_actor(rollout.inputs[t, n][None], rollout.action[t, n][None]).log_prob.sum()
            out[e, step] = torch.cat(
                [g.flatten() for g in torch.autograd.grad(lp, list(policy.parameters()))]
            )
    return out


def padded(x: Tensor, members: Any) -> Tensor:
    out = torch.zeros(len(members), 4, dtype=torch.float64)
    for e, rows in enumerate(members):
        for step, (t, n) in enumerate(rows):
            out[e, step] = x[t, n]
    return out


@pytest.mark.parametrize("discount", [False, True])
@pytest.mark.parametrize("form", ["reward_to_go", "total", "gpomdp"])
@pytest.mark.parametrize("scope", ["scalar", "step", "step_joint"])
def test_against_the_formulas(scope: str, form: str, discount: bool) -> None:
    policy, rollout, members = played()
    s = scores_of(policy, rollout, members)
    returns = (
        total_return(rollout.reward, GAMMA, rollout.done, weight=rollout.weight)
        if form == "total"
        else reward_to_go(rollout.reward, GAMMA, rollout.done)
    ).double()
    steps = GAMMA ** torch.arange(4, dtype=torch.float64)
    target = padded(returns, members)
    z = s * steps[:, None] if discount and form == "reward_to_go" else s
    if form == "gpomdp":
        z, target = s.cumsum(1), padded(rollout.reward, members) * steps
    if scope == "step_joint":
        b = ob.joint(z @ z.mT, target)
    elif scope == "step":
        b = ob.scalar(z.square().sum(-1), target)
    elif form == "total":
        b = ob.scalar(z.sum(1).square().sum(1), target[:, 0])[:, None]
    else:
        whole, y = z.sum(1), (z * target[..., None]).sum(1)
        b = ob.ratio((whole * y).sum(1), whole.square().sum(1))[:, None]
    optimal = OptimalBaseline(GAMMA, scope, form, discount_states=discount, prior=0.0)
    small = PolicyScores(policy, memory_limit=1)
    if form == "gpomdp":
        found = optimal.advantage(small, rollout)
        expected = (z * (target - b)[..., None]).sum(1).mean(0)
        torch.testing.assert_close(
            (s * padded(found, members)[..., None]).sum(1).mean(0), expected, rtol=1e-4, atol=1e-5
        )
        with pytest.raises(ValueError, match="advantage"):
            optimal(small, rollout, returns)
        return
    found = optimal(small, rollout, returns)
    living = padded(torch.ones(7, 3), members)
    torch.testing.assert_close(padded(found, members), b.expand(5, 4) * living, rtol=1e-5, atol=1e-6)
    assert (found[rollout.weight == 0] == 0).all() and found[6].eq(0).all()


@pytest.mark.parametrize("form", ["reward_to_go", "total", "gpomdp"])
def test_parameter_baseline(form: str) -> None:
    policy, rollout, members = played()
    s = scores_of(policy, rollout, members)
    steps = GAMMA ** torch.arange(4, dtype=torch.float64)
    returns = reward_to_go(rollout.reward, GAMMA, rollout.done).double()
    if form == "total":
        returns = total_return(rollout.reward, GAMMA, rollout.done, weight=rollout.weight).double()
    target = padded(returns, members)
    if form == "gpomdp":
        c, target = s.cumsum(1), padded(rollout.reward, members) * steps
        expected = (c * (target[..., None] - ob.scalar(c.square(), target))).sum(1).mean(0)
    else:
        z = s * steps[:, None] if form == "reward_to_go" else s
        whole, y = z.sum(1), (z * target[..., None]).sum(1)
        expected = (y - ob.ratio(whole * y, whole.square()) * whole).mean(0)
    found = ParameterBaseline(GAMMA, form, discount_states=True)(PolicyScores(policy), rollout, returns)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_windows_that_cut_episodes_are_refused() -> None:
    _, rollout, _ = played()
    with pytest.raises(ValueError, match="whole episodes"):
        Episodes.of(rollout.replace(whole_episodes=False))
    with pytest.raises(ValueError, match="scope must be one of scalar, step, step_joint"):
        OptimalBaseline(GAMMA, scope="parameter")


def test_residual_of_a_critic_and_ill_cases() -> None:
    """Equal residuals are all taken away; one episode has baseline 0; 1e8 returns stay finite."""
    policy, rollout, members = played()
    scores = PolicyScores(policy)
    flat = torch.full((7, 3), 3.0, dtype=torch.float64)
    for scope in ("scalar", "step"):
        b = OptimalBaseline(GAMMA, scope, "total")(scores, rollout, flat)
        reached_by_others = padded(torch.ones(7, 3), members)[:, : 4 if scope == "scalar" else 3]
        torch.testing.assert_close(
            padded(b, members)[:, : reached_by_others.shape[1]], 3.0 * reached_by_others
        )
    huge = OptimalBaseline(GAMMA, "step_joint")(scores, rollout, 1e8 * torch.randn(7, 3).double())
    assert huge.isfinite().all()
    alone = make_rollout([[1.0], [2.0]], terminated=[[0], [1]], inputs=torch.randn(2, 1, 3).double(),
                         policy=policy, whole_episodes=True)  # fmt: skip
    assert (OptimalBaseline(GAMMA)(scores, alone, torch.ones(2, 1).double()) == 0).all()
