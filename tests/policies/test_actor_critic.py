"""The policy and its two actors, which must be one and the same policy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from pgtrain.learning.optimizers import Adam
from pgtrain.policies.actors import NUMPY_ROWS, NumpyActor, TorchActor, make_actor, make_value
from pgtrain.policies.masks import MaskedNetwork
from pgtrain.policies.networks import BLOCK_ROWS
from pgtrain.policies.normalizer import RunningMoments
from pgtrain.policies.parameters import FlatParameters
from tests.envs_for_tests import AsymBox, HalfBoundedBox
from tests.support import box, make_policy

SPACES: dict[str, Any] = {
    "discrete": spaces.Discrete(4),
    "asymmetric": AsymBox.box,
    "half bounded": HalfBoundedBox.box,
}


def data(rows: int = 40, offset: float = 1e4) -> np.ndarray:
    """Observations far from 0, which float32 arithmetic would spoil."""
    rng = np.random.default_rng(0)
    return (offset + rng.standard_normal((rows, 3)) * [1.0, 0.01, 5.0]).astype(np.float64)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("normalizer", [False, True])
@pytest.mark.parametrize("mean", ["tanh", "identity"])
def test_both_actors_and_the_update_agree(name: str, normalizer: bool, mean: str) -> None:
    policy = make_policy(3, SPACES[name], normalizer=normalizer, mean=mean, gain=0.5)
    obs = data(offset=1e4 if normalizer else 0.0)
    policy.observe(torch.from_numpy(obs))
    by_numpy, by_torch = make_actor(policy, 40, 0), TorchActor(policy, 0)
    assert isinstance(by_numpy, NumpyActor)
    env_a, action_a, params_a, inputs_a = by_numpy.act(obs, greedy=True)
    env_b, action_b, params_b, inputs_b = by_torch.act(obs, greedy=True)
    assert inputs_a.dtype == np.float32 and inputs_b.dtype == torch.float32
    np.testing.assert_allclose(inputs_a, inputs_b.numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(params_a, params_b.numpy(), rtol=2e-6, atol=2e-6)
    if name == "discrete":
        assert np.array_equal(action_a, action_b.numpy()) and np.array_equal(env_a, action_a)
        assert np.array_equal(action_a, params_a.argmax(-1)) and env_a.dtype == np.int64
    else:
        np.testing.assert_allclose(action_a, action_b.numpy(), rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(env_a, env_b, rtol=2e-6, atol=5e-6)
    # what the update computes anew from the stored inputs: ratio 1
    for _, action, params, inputs in (by_numpy.act(obs), by_torch.act(obs)):
        action, params, inputs = (torch.as_tensor(x) for x in (action, params, inputs))
        new = policy.evaluate(inputs, action)
        old = policy.distribution.log_prob(params, action)
        assert (new.log_prob - old).abs().max() < 1e-5
        assert policy.distribution.kl(params, new.params).abs().max() < 1e-6
        assert torch.equal(new.value, policy.value(inputs))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", SPACES)
def test_acting_draws_from_the_stored_distribution(kind: str, name: str) -> None:
    """Mean log-probability of the drawn actions = minus the entropy of the stored parameters."""
    policy = make_policy(3, SPACES[name], gain=0.5, log_std_init=-0.3)
    rows = 20_000
    obs = np.random.default_rng(1).standard_normal((rows, 3)).astype(np.float32)
    actor = TorchActor(policy, 3) if kind == "torch" else NumpyActor(policy, policy.network.actor_numpy(), 3)
    _, action, params, _ = actor.act(obs)
    action, params = torch.as_tensor(action), torch.as_tensor(params)
    surprise = -policy.distribution.log_prob(params, action) - policy.distribution.entropy(params)
    assert abs(float(surprise.mean())) < 4.5 * float(surprise.std()) / math.sqrt(rows)


def test_the_actor_is_chosen_by_batch_and_network() -> None:
    assert isinstance(make_actor(make_policy(), NUMPY_ROWS, 0), NumpyActor)
    assert isinstance(make_actor(make_policy(), NUMPY_ROWS + 1, 0), TorchActor)
    assert isinstance(make_actor(make_policy(activation="gelu"), 4, 0), TorchActor)


def test_tanh_only_where_the_box_has_two_bounds() -> None:
    policy = make_policy(3, box([0, -1], [np.inf, 1]), log_std_init=0.5)
    head = torch.tensor([[3.0, 3.0]])
    expected = [3.0, math.tanh(3.0), 0.5, 0.5]
    assert policy.params(head)[0].tolist() == pytest.approx(expected, abs=1e-6)
    free = make_policy(3, box([0, -1], [np.inf, 1]), mean="identity")
    assert free.params(head)[0].tolist() == pytest.approx([3.0, 3.0, 0.0, 0.0])
    discrete = make_policy(3, spaces.Discrete(2))
    assert torch.equal(discrete.params(head), head)


@pytest.mark.parametrize(("start", "held"), [(-80.0, -5.0), (80.0, 2.0), (-1.0, -1.0)])
def test_log_std_is_held_within_its_limits(start: float, held: float) -> None:
    policy = make_policy(3, AsymBox.box, log_std_init=start)
    actor = make_actor(policy, 4, 0)
    for drifted in (False, True):
        if drifted:  # an edited checkpoint, or a drift in training
            with torch.no_grad():
                policy.log_std.fill_(start)
            actor.refresh()
        action, own, params, inputs = actor.act(np.zeros((4, 3), np.float32))
        assert np.allclose(params[:, 3:], held)
        assert np.isfinite(own).all() and np.isfinite(action).all()
        new = policy.evaluate(torch.from_numpy(inputs), torch.from_numpy(own))
        assert torch.allclose(new.params[:, 3:], torch.tensor(held))
        for x in new:
            assert torch.isfinite(x).all()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("normalizer", [False, True])
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.filterwarnings("error")
def test_a_nan_observation_never_makes_an_invalid_env_action(
    kind: str, greedy: bool, normalizer: bool, name: str
) -> None:
    space = SPACES[name]
    policy = make_policy(3, space, normalizer=normalizer)
    policy.observe(torch.from_numpy(data(offset=0.0)))
    actor = TorchActor(policy, 0) if kind == "torch" else make_actor(policy, 4, 0)
    obs = np.zeros((4, 3), np.float32)
    obs[0], obs[1, 1], obs[2, 0] = np.nan, np.nan, np.inf
    action = actor.act(obs, greedy)[0]
    for row in action:
        assert space.contains(np.asarray(row).astype(space.dtype))


def test_numpy_actor_follows_the_parameters_and_refresh_takes_statistics() -> None:
    policy = make_policy(3, AsymBox.box, normalizer=True)
    flat = FlatParameters(policy)
    actor = make_actor(policy, 8, 0)
    obs = data(8, offset=2.0)

    def params() -> tuple[np.ndarray, np.ndarray]:
        _, _, by_actor, inputs = actor.act(obs)
        with torch.no_grad():
            return by_actor, policy(torch.from_numpy(inputs))[0].numpy()

    Adam(flat.data).step(torch.ones(len(flat)), torch.tensor(True), 0.1)
    actor.refresh()
    np.testing.assert_allclose(*params(), rtol=2e-6, atol=2e-6)
    before = actor.act(obs)[3]
    policy.observe(torch.from_numpy(obs))
    assert np.array_equal(actor.act(obs)[3], before)  # frozen within an iteration
    actor.refresh()
    inputs = actor.act(obs)[3]
    np.testing.assert_allclose(inputs, (obs - obs.mean(0)) / np.sqrt(obs.var(0) + 1e-8), rtol=1e-5, atol=1e-6)


def test_observe_counts_weighted_rows_of_a_window() -> None:
    policy = make_policy(3, normalizer=True)
    obs = torch.from_numpy(data(12, offset=3.0)).reshape(4, 3, 3)
    weight = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 1, 1]])
    policy.observe(obs, weight)
    used = obs[weight > 0]
    assert float(policy.normalizer.count) == 8
    torch.testing.assert_close(policy.normalizer.mean, used.mean(0))
    torch.testing.assert_close(policy.normalizer.var, used.var(0, correction=0))


def test_statistics_travel_with_the_state_dict() -> None:
    policy, other = make_policy(3, normalizer=True), make_policy(3, normalizer=True, seed=1)
    policy.observe(torch.from_numpy(data()))
    other.load_state_dict(policy.state_dict())
    obs = torch.from_numpy(data(5))
    assert torch.equal(other.prepare(obs), policy.prepare(obs))
    assert torch.equal(other(other.prepare(obs))[0], policy(policy.prepare(obs))[0])


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_an_actors_stream_is_its_seed_and_can_be_restored(kind: str) -> None:
    policy = make_policy(3, AsymBox.box)

    def actor(seed: int) -> Any:
        return TorchActor(policy, seed) if kind == "torch" else make_actor(policy, 4, seed)

    obs = np.zeros((4, 3), np.float32)
    one, same, other = actor(1), actor(1), actor(2)
    first = torch.as_tensor(one.act(obs)[1])
    assert torch.equal(first, torch.as_tensor(same.act(obs)[1]))
    assert not torch.equal(first, torch.as_tensor(other.act(obs)[1]))
    state = one.state_dict()
    second = torch.as_tensor(one.act(obs)[1])
    assert not torch.equal(second, first)
    other.load_state_dict(state)
    assert torch.equal(torch.as_tensor(other.act(obs)[1]), second)


def test_a_policy_without_critic() -> None:
    policy = make_policy(critic=False)
    assert not policy.has_critic and make_policy().has_critic
    assert policy.evaluate(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)).value is None


# ------------------------------------------------------------------------------- standardised value targets


def pop_art(**settings: Any) -> Any:
    return make_policy(3, value_moments=RunningMoments(1, clip=math.inf, eps=1e-4), **settings)


def test_new_target_statistics_leave_the_values_as_they_are() -> None:
    """Far targets come in twice; what the critic says of any input stays, and so does the actor."""
    policy = pop_art(share=1)
    inputs = torch.randn(20, 3)
    with torch.no_grad():
        head, value = policy(inputs)
        for target in (500 + 30 * torch.randn(4, 5), -200 + 300 * torch.randn(4, 5)):
            policy.observe_targets(target)
            after_head, after = policy(inputs)
            torch.testing.assert_close(after, value, rtol=1e-4, atol=2e-3)
            torch.testing.assert_close(policy.value(inputs), after)
            assert torch.equal(after_head, head)
    assert float(policy.value_moments.count) == 40


def test_the_critics_output_is_standardised_by_the_targets() -> None:
    policy = pop_art()
    target = 7 + 3 * torch.randn(6, 5, dtype=torch.float64)
    weight = torch.ones(6, 5)
    weight[2:, 1] = 0
    policy.observe_targets(target, weight)
    used = target[weight > 0]
    std = math.sqrt(float(used.var(correction=0)) + 1e-4)
    inputs = torch.randn(9, 3)
    with torch.no_grad():
        expected = policy.network.value(inputs) * std + float(used.mean())
        torch.testing.assert_close(policy.value(inputs), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(policy(inputs)[1], expected, rtol=1e-5, atol=1e-5)
    assert float(policy.value_loss_weight()) == pytest.approx(1 / std**2, rel=1e-5)
    assert make_policy().value_loss_weight() == 1.0


def test_target_statistics_do_not_cut_the_flat_views_and_travel_with_the_state_dict() -> None:
    policy, other = pop_art(), pop_art(seed=1)
    flat = FlatParameters(policy)
    policy.observe_targets(100 * torch.randn(50))
    assert torch.equal(torch.cat([p.detach().flatten() for p in policy.parameters()]), flat.data)
    other.load_state_dict(policy.state_dict())
    inputs = torch.randn(4, 3)
    assert torch.equal(other.value(inputs), policy.value(inputs))


def test_targets_that_are_not_finite_change_nothing() -> None:
    policy = pop_art()
    before = {name: x.clone() for name, x in policy.state_dict().items()}
    policy.observe_targets(torch.full((4, 2), math.nan))
    assert all(torch.equal(x, before[name]) for name, x in policy.state_dict().items())
    policy.observe_targets(torch.tensor([1.0, math.nan, 3.0, math.inf]))
    assert float(policy.value_moments.mean) == 2.0 and float(policy.value_moments.count) == 2


@pytest.mark.parametrize("activation", ["tanh", "gelu"])  # by NumPy, and by torch
@pytest.mark.parametrize("masked", [False, True])
def test_values_without_a_graph_are_the_policys(masked: bool, activation: str) -> None:
    policy = make_policy(3, activation=activation)
    policy.value_moments = RunningMoments(1)
    policy.value_moments.update(5 + 3 * torch.randn(20, 1))
    if masked:
        policy.network = MaskedNetwork(policy.network, 3)  # pyright: ignore
    inputs = torch.randn(4, 2, 6 if masked else 3)
    value = make_value(policy)
    for given in (inputs, inputs.numpy()):
        torch.testing.assert_close(torch.as_tensor(value(given)), policy.value(inputs).detach())
    with torch.no_grad():
        policy.network.critic[-1].bias.add_(1.0)  # pyright: ignore
    found = torch.as_tensor(value(inputs))
    torch.testing.assert_close(found, policy.value(inputs).detach())  # it sees the parameters of today


def test_values_of_many_rows_go_through_numpy_in_blocks() -> None:
    policy = make_policy(3, spaces.Discrete(2))
    rows = torch.randn(2 * BLOCK_ROWS + 276, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(torch.as_tensor(make_value(policy)(rows)), policy.value(rows), atol=1e-6)
