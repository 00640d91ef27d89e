"""What the log says of an update: by NumPy and by torch the same, and what the definitions give in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from pgtrain.learning.batch import Batch, flatten
from pgtrain.monitor.diagnostics import HostPolicyMetrics, make_policy_metrics, policy_metrics
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters
from tests.support import make_policy, make_rollout

SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "bounded": spaces.Box(np.array([-1, 0], np.float32), np.array([1, 4], np.float32)),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
}


def batch_of(policy: ActorCritic, rows: int = 700) -> Batch:
    """Rows of one env, their actions drawn from the policy; more than go through a network at once."""
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(rows, 1, 3, generator=draw)
    with torch.no_grad():
        action = policy.distribution.sample(policy(inputs)[0], draw)
    r = make_rollout(np.ones((rows, 1)), inputs=inputs, action=action, policy=policy)
    return flatten(r.replace(advantage=r.reward, value_target=r.reward), None)


def distribution(params: torch.Tensor) -> Any:
    """Of a Gaussian in units of the half box: the same KL and ratios as in the box's own."""
    if params.shape[-1] == 3:
        return Categorical(logits=params.double())
    mean, log_std = params.double().split(2, -1)
    return Independent(Normal(mean, log_std.exp()), 1)


@pytest.mark.parametrize("share", [0, 1])
@pytest.mark.parametrize("space", SPACES)
def test_how_far_the_policy_moved(space: str, share: int) -> None:
    policy = make_policy(3, SPACES[space], share=share)
    flat = FlatParameters(policy)
    measure = make_policy_metrics(policy, flat)
    assert isinstance(measure, HostPolicyMetrics)
    batch = batch_of(policy)
    flat.data += 0.1 * torch.randn(len(flat), generator=torch.Generator().manual_seed(1))  # seen in place
    with torch.no_grad():
        old, new = distribution(batch.params), distribution(policy(batch.inputs)[0])
    ratio = new.log_prob(batch.action) - old.log_prob(batch.action)
    expected = {
        "policy/kl": float(kl_divergence(old, new).mean()),
        "policy/approx_kl": float((ratio.exp() - 1 - ratio).mean()),
    }
    if space != "discrete":
        expected["policy/std"] = 1.0
        outside = (batch.action.abs() > 1).double().mean()  # u spans the box from −1 to 1, or −∞ to ∞
        expected["policy/clipped_actions"] = float(outside) if space == "bounded" else 0.0
    assert expected["policy/kl"] > 1e-3
    for got in (measure(batch), policy_metrics(policy, batch)):
        assert {name: float(x) for name, x in got.items()} == pytest.approx(expected, rel=1e-4)


def test_what_has_no_formula_goes_by_torch() -> None:
    for policy in (make_policy(3, activation="gelu"), make_policy(3).double()):
        measure = make_policy_metrics(policy, FlatParameters(policy))
        assert not isinstance(measure, HostPolicyMetrics)
    policy = make_policy(3, activation="gelu")
    got = make_policy_metrics(policy, FlatParameters(policy))(batch_of(policy))
    assert {name: float(x) for name, x in got.items()} == pytest.approx(
        {"policy/kl": 0.0, "policy/approx_kl": 0.0}, abs=1e-6
    )


def test_a_number_that_is_not_finite_is_shown_as_it_is() -> None:
    policy = make_policy(3)
    flat = FlatParameters(policy)
    measure, batch = make_policy_metrics(policy, flat), batch_of(policy, 5)
    flat.data.fill_(torch.nan)
    assert all(np.isnan(float(x)) for x in measure(batch).values())
