"""Scores in NumPy against one backward pass a step (float64) and against `PolicyScores`, for random small policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pgtrain.learning.host import scores as host
from pgtrain.learning.host.scores import HostScores, make_scores
from pgtrain.learning.scores import PolicyScores
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters
from tests.support import box, make_policy

LIMIT = 2**28
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}


def policy_of(gaussian: bool, seed: int = 0, **how: Any) -> ActorCritic:
    space = box([-1.0, -9.0, -np.inf], [1.0, 9.0, np.inf]) if gaussian else None
    policy = make_policy(3, space, seed=seed, **how)
    if policy.log_std is not None:
        policy.log_std.data = torch.tensor([-0.5, 2.5, 0.3])  # the second beyond its limit
    return policy


def steps_of(policy: ActorCritic, batch: int, dtype: torch.dtype, episodes: int = 4) -> Any:
    """Rows, whose they are (some no one's), and two weights a row."""
    inputs = torch.randn(batch, 3, dtype=dtype)
    action = torch.randint(3, (batch,)) if policy.log_std is None else torch.randn(batch, 3, dtype=dtype)
    episode = torch.randint(-1, episodes, (batch,))
    episode[: min(batch, episodes)] = torch.arange(min(batch, episodes))
    return inputs, action, episode, torch.randn(2, batch, dtype=dtype)


def one_by_one(policy: ActorCritic, inputs: Tensor, action: Tensor) -> Tensor:
    """[B, P], a backward pass a step."""
    parameters, rows = list(policy.parameters()), []
    for i in range(len(inputs)):
        log_prob = policy.evaluate_actor(inputs[i : i + 1], action[i : i + 1]).log_prob.sum()
        found = torch.autograd.grad(log_prob, parameters, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(rows)


def near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert (found - expected).abs().max() <= tolerance * float(expected.abs().max()) + 1e-30


def all_agree(mine: Any, other: Any, steps: Any, tolerance: float) -> None:
    inputs, action, episode, weights = steps
    w = weights[0]
    for call in (
        lambda s: s.squared_norms(inputs, action),
        lambda s: s.squared_norms(inputs, action, weight=w),
        lambda s: s.squared_norms(inputs, action, episode=episode),
        lambda s: s.squared_norms(inputs, action, episode=episode, weight=w),
        lambda s: s.products(inputs, action, episode, weights),
        lambda s: s.grams(inputs, action, episode),
        lambda s: s.grams(inputs, action, episode, w),
    ):
        near(call(mine), call(other), tolerance)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    gaussian=st.booleans(),
    activation=st.sampled_from(["tanh", "relu", "leaky_relu", "elu", "silu"]),
    hidden=st.lists(st.integers(1, 12), max_size=3),
    share=st.integers(0, 3),
    critic=st.booleans(),
    batch=st.integers(1, 90),
    wide=st.booleans(),
)
def test_random_policies(
    seed: int,
    gaussian: bool,
    activation: str,
    hidden: list[int],
    share: int,
    critic: bool,
    batch: int,
    wide: bool,
) -> None:
    torch.manual_seed(seed)
    hidden = [*hidden, 40] if wide else hidden or [5]
    for dtype, tolerance in TOLERANCE.items():
        how = {"hidden": tuple(hidden), "share": min(share, len(hidden)), "critic": critic}
        policy = policy_of(gaussian, seed, activation=activation, **how).to(dtype)
        flat = FlatParameters(policy)
        mine = make_scores(policy, flat, LIMIT)
        assert type(mine) is HostScores
        all_agree(mine, PolicyScores(policy, LIMIT), steps_of(policy, batch, dtype), tolerance)


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("episodes", [2, 40])
def test_against_a_backward_pass_for_each_step(gaussian: bool, episodes: int) -> None:
    """Long episodes, whose matrices are less work, and many short ones; the flat gradient stays as it is."""
    torch.manual_seed(episodes)
    policy = policy_of(gaussian, hidden=(7, 6), share=1).double()
    flat = FlatParameters(policy)
    flat.grad.fill_(3.0)
    inputs, action, episode, weights = steps_of(policy, 170, torch.float64, episodes)
    s, mine = one_by_one(policy, inputs, action), make_scores(policy, flat, LIMIT)
    near(mine.squared_norms(inputs, action), s.square().sum(1), 1e-10)
    members = [(episode == e).nonzero().flatten() for e in range(episodes)]
    z = torch.stack([torch.stack([w[m] @ s[m] for w in weights]) for m in members])  # [E, K, P]
    near(mine.products(inputs, action, episode, weights), z @ z.mT, 1e-10)
    gram = mine.grams(inputs, action, episode, weights[0])
    for e, m in enumerate(members):
        rows = weights[0][m, None] * s[m]
        near(gram[e, : len(m), : len(m)], rows @ rows.T, 1e-10)
        assert gram[e, len(m) :].eq(0).all() and gram[e, :, len(m) :].eq(0).all()
    assert (flat.grad == 3.0).all()


def test_no_episode_and_one_without_steps() -> None:
    policy = policy_of(False)
    mine = make_scores(policy, FlatParameters(policy), LIMIT)
    inputs, action = torch.randn(3, 3), torch.randint(3, (3,))
    nobody = torch.full((3,), -1)
    assert mine.products(inputs, action, nobody, torch.ones(2, 3)).shape == (0, 2, 2)
    assert mine.grams(inputs, action, nobody).shape == (0, 0, 0)
    second = mine.products(inputs, action, torch.tensor([-1, 1, 1]), torch.ones(1, 3))
    assert second[0] == 0 and second[1] > 0


def test_a_change_of_the_parameters_is_seen_and_a_memory_limit_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(True)
    flat = FlatParameters(policy)
    mine = make_scores(policy, flat, LIMIT)
    steps = steps_of(policy, 30, torch.float32)
    mine.squared_norms(*steps[:2])
    flat.data += 0.1 * torch.randn(len(flat))
    all_agree(mine, PolicyScores(policy), steps, 1e-6)
    small = make_scores(policy, flat, 1)  # part by part, as `PolicyScores` does
    monkeypatch.setattr(HostScores, "_capture", lambda *a: pytest.fail("a pass for all steps is too large"))
    all_agree(small, PolicyScores(policy), steps, 1e-6)


def test_what_has_no_formula_keeps_the_other_way() -> None:
    gelu = policy_of(False, activation="gelu")
    assert type(make_scores(gelu, FlatParameters(gelu), 5)) is PolicyScores
    frozen = policy_of(False)
    next(frozen.parameters()).requires_grad_(False)
    assert type(make_scores(frozen, FlatParameters(frozen), 5)) is PolicyScores
    assert type(make_scores(policy_of(False), None, 5)) is PolicyScores


def test_episodes_are_taken_together_by_length() -> None:
    """Each once, with all its steps; a long one is not padded to half of it."""
    lengths = np.array([3, 0, 400, 20, 5, 390, 100, 1, 150, 30])
    seen: dict[int, list[int]] = {}
    for index, at, there in host._blocks(lengths):
        for i, rows, mask in zip(index, at, there, strict=True):
            seen[int(i)] = rows[mask].tolist()
        assert len(index) == 1 or (len(index) * at.shape[1] <= host.TOGETHER)
        assert at.shape[1] <= host.SHORT or at.shape[1] <= 1.5 * lengths[index].min()
    starts = lengths.cumsum() - lengths
    assert seen == {
        i: list(range(s, s + n)) for i, (s, n) in enumerate(zip(starts, lengths, strict=True)) if n
    }
