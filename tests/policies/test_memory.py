"""Policies with memory: a window is its steps one by one, forwards and backwards; what a row's columns mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pgtrain.learning.natural_gradient import critic_names, shared_layers
from pgtrain.policies.actor_critic import ActorCritic
from tests.memory_support import make_recurrent, random_inputs

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}
OBS, STEPS, SIDE = 3, 11, 4
KINDS = [(kind, share) for kind in ("gru", "lstm") for share in (True, False)]


def network_of(policy: ActorCritic) -> Any:
    return policy.network


def step_by_step(policy: ActorCritic, x: Tensor) -> tuple[Tensor, Tensor]:
    """params [T, n, P] and values [T, n] from single steps that hand their state on."""
    params, values, state = [], [], x[0, :, OBS + 1 :]
    for t in range(len(x)):
        row = torch.cat([x[t, :, : OBS + 1], state], -1)
        head, state = network_of(policy).advance(row)
        params.append(policy.params(head))
        values.append(policy.value(row))
    return torch.stack(params), torch.stack(values)


@pytest.mark.parametrize(("kind", "share"), KINDS)
def test_a_window_is_its_steps_and_so_is_its_gradient(kind: str, share: bool) -> None:
    policy = make_recurrent(kind=kind, share=share).double()
    x = random_inputs(policy, STEPS, SIDE)
    results = []
    for run in (policy, lambda x: step_by_step(policy, x)):
        policy.zero_grad()
        params, value = run(x)
        assert value is not None
        weight = torch.arange(params.numel(), dtype=params.dtype).view_as(params).cos()
        ((params * weight).sum() + value.square().sum()).backward()
        grads = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
        assert len(grads) == len(list(policy.parameters()))
        results.append((params, value, grads))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, **EXACT)


@pytest.mark.parametrize(("kind", "share"), KINDS)
def test_only_the_first_state_of_a_window_is_used_and_none_where_an_episode_starts(
    kind: str, share: bool
) -> None:
    policy = make_recurrent(kind=kind, share=share).double()
    x = random_inputs(policy, STEPS, SIDE)
    x[0, :, OBS] = torch.tensor([1.0, 0.0, 1.0, 0.0])
    params, value = policy(x)
    other = x.clone()
    other[1:, :, OBS + 1 :] = torch.nan  # later states are made anew
    other[0, ::2, OBS + 1 :] = torch.nan  # an episode starts in columns 0 and 2
    for got, expected in zip(policy(other), (params, value), strict=True):
        torch.testing.assert_close(got, expected, **EXACT)
    other = x.clone()
    other[0, :, OBS + 1 :] += 1.0
    moved = (policy(other)[0] != params).any(-1)
    assert moved[0].tolist() == [False, True, False, True]
    # and what is carried on matters for as long as the episode lasts, but not beyond it
    for n in (1, 3):
        end = int(x[1:, n, OBS].nonzero()[0]) + 1
        assert moved[:end, n].all() and not moved[end:, n].any()


def test_act_value_and_evaluations_agree_with_forward_for_rows_and_windows() -> None:
    for share in (True, False):
        policy = make_recurrent(share=share).double()
        x = random_inputs(policy, STEPS, SIDE)
        action = torch.zeros(STEPS, SIDE, dtype=torch.int64)
        for rows, chosen in ((x, action), (x.flatten(0, 1), action.flatten()), (x[2, 1], action[2, 1])):
            params, value = policy(rows)
            assert params.shape == (*chosen.shape, 3) and value is not None and value.shape == chosen.shape
            torch.testing.assert_close(policy.value(rows), value, **EXACT)
            torch.testing.assert_close(policy.params(policy.network.act(rows)), params, **EXACT)
            both = policy.evaluate(rows, chosen)
            torch.testing.assert_close(both.log_prob, policy.evaluate_actor(rows, chosen).log_prob, **EXACT)
            torch.testing.assert_close(both.log_prob, params.log_softmax(-1)[..., 0], **EXACT)
        rows, _ = policy(x.flatten(0, 1))
        assert not torch.allclose(rows.view(STEPS, SIDE, -1)[1:], policy(x)[0][1:])  # two different things


def test_mask_columns_follow_the_actors_outputs_and_do_not_reach_the_core() -> None:
    policy = make_recurrent(mask_dim=2).double()
    x = random_inputs(make_recurrent(), STEPS, SIDE).double()
    mask = torch.rand(STEPS, SIDE, 2, dtype=torch.float64)
    head, value = network_of(policy)(torch.cat([x[..., :OBS], mask, x[..., OBS:]], -1))
    plain, plain_value = network_of(make_recurrent().double())(x)
    torch.testing.assert_close(head, torch.cat([plain, mask], -1), **EXACT)
    torch.testing.assert_close(value, plain_value, **EXACT)
    row = torch.cat([x[0, :, :OBS], mask[0], x[0, :, OBS:]], -1)
    torch.testing.assert_close(network_of(policy).advance(row)[0], head[0], **EXACT)


@pytest.mark.parametrize("share", [True, False])
def test_the_actors_parameters_come_first(share: bool) -> None:
    policy = make_recurrent(share=share)
    names = [name for name, _ in policy.named_parameters()]
    critics = critic_names(names)
    assert names[-len(critics) :] == critics
    assert shared_layers(names) == (["core"] if share else [])
    rows = random_inputs(policy, STEPS, SIDE)
    policy.evaluate_actor(rows, torch.zeros(STEPS, SIDE, dtype=torch.int64)).log_prob.sum().backward()
    assert [name for name, p in policy.named_parameters() if p.grad is None] == critics


def test_a_policy_without_critic_has_one_core() -> None:
    policy = make_recurrent(critic=False)
    assert policy.memory_dim == 6 and not policy.has_critic
    assert policy(random_inputs(policy, STEPS, SIDE))[1] is None
