"""Generalised state-dependent exploration: the distribution, the network's features, and the noise of both actors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pgtrain.collector import Collector
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import NumpyActor, TorchActor, make_actor
from pgtrain.policies.gsde import StateDependentGaussian
from pgtrain.policies.networks import MLP
from tests.support import ScriptedEnv, box

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "gsde.json").read_text(encoding="utf-8"))
INPUTS, EXPECTED = GOLDEN["inputs"], GOLDEN["expected"]
f64 = torch.float64
WIDE = box([-np.inf, -np.inf], [np.inf, np.inf])


def tensor(x: Any) -> Tensor:
    return torch.tensor(x, dtype=f64)


def make_gsde(
    *,
    hidden: tuple[int, ...] = (8, 6),
    sample_freq: int = -1,
    features: str = "detached",
    share: int = 0,
    log_std_init: float = -0.5,
    mean: str = "tanh",
) -> ActorCritic:
    space = box([-1, 0], [1, 5])
    latent = hidden[-1] if hidden else 3
    distribution = StateDependentGaussian(space.low, space.high, latent, sample_freq=sample_freq)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = MLP(
            3,
            distribution.head_dim,
            hidden=hidden,
            activation="tanh",
            share=share,
            critic=True,
            last_gain=0.5,
            features=features,
        )
    return ActorCritic(network, distribution, None, log_std_init=log_std_init, mean=mean)


def observations(rows: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)


# ---------------------------------------------------------------------------------------------- distribution


def test_golden() -> None:
    d = StateDependentGaussian(WIDE.low, WIDE.high, 3)
    z, mean, log_std = (tensor(INPUTS[k]) for k in ("latent", "mean", "log_std"))
    params = d.join(mean, log_std, z)
    variance = (2 * params[:, 2:]).exp() - INPUTS["eps"]
    torch.testing.assert_close(variance, tensor(EXPECTED["variance"]), rtol=1e-6, atol=1e-8)
    action = mean + z @ tensor(INPUTS["exploration_matrix"])
    torch.testing.assert_close(action, tensor(EXPECTED["action"]), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(d.log_prob(params, action), tensor(EXPECTED["log_prob"]), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(d.entropy(params), tensor(EXPECTED["entropy"]), rtol=1e-6, atol=1e-8)
    expln = StateDependentGaussian(WIDE.low, WIDE.high, 3, expln=True)
    torch.testing.assert_close(expln.std(log_std), tensor(EXPECTED["std_expln"]), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(d.std(log_std), log_std.exp())


def test_params_by_numpy_are_those_by_torch() -> None:
    z, mean = np.random.default_rng(1).standard_normal((2, 5, 2)).astype(np.float32)
    log_std = np.array([[-3.0, 1.5], [0.0, -0.2]], np.float32)
    for expln in (False, True):
        d = StateDependentGaussian(WIDE.low, WIDE.high, 2, expln=expln)
        ours = d.join_numpy(mean, d.spread_numpy(log_std), z)
        theirs = d.join(*(torch.from_numpy(x) for x in (mean, log_std, z)))
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6, atol=1e-6)
        assert ours.dtype == np.float32


def test_no_features_no_noise_but_finite_numbers() -> None:
    d = StateDependentGaussian(WIDE.low, WIDE.high, 3)
    params = d.join(torch.zeros(1, 2), torch.full((3, 2), -80.0), torch.zeros(1, 3))
    assert params[0, 2:].exp().tolist() == pytest.approx([1e-3, 1e-3])
    assert torch.isfinite(d.log_prob(params, torch.ones(1, 2))).all()


# --------------------------------------------------------------------------------------------- policy, network


def test_head_is_followed_by_the_last_hidden_layer() -> None:
    for hidden, share in (((8, 6), 0), ((8, 6), 1), ((8, 6), 2), ((), 0)):
        policy = make_gsde(hidden=hidden, share=share)
        x = torch.from_numpy(observations(5))
        head, value = policy.network(x)
        features = policy.network.actor[:-1](policy.network.trunk(x))
        assert head.shape == (5, 2 + features.shape[-1]) and value.shape == (5,)
        assert torch.equal(head[:, 2:], features)
        assert policy.log_std is not None and policy.log_std.shape == (features.shape[-1], 2)


@pytest.mark.parametrize("features", ["detached", "learned"])
def test_only_learned_features_get_a_gradient_from_the_noise(features: str) -> None:
    policy = make_gsde(features=features)
    params, _ = policy(torch.from_numpy(observations(5)))
    params[:, 2:].sum().backward()  # log σ alone
    weight = policy.network.actor[0].weight
    assert (weight.grad is not None and bool(weight.grad.any())) == (features == "learned")
    assert policy.log_std is not None and policy.log_std.grad is not None and bool(policy.log_std.grad.any())


@pytest.mark.parametrize("init", [-80.0, 80.0])
def test_log_std_is_held_within_its_limits(init: float) -> None:
    policy = make_gsde(log_std_init=init)
    assert float(policy.noise_std().min()) == pytest.approx(math.exp(-5.0 if init < 0 else 2.0))
    params, _ = policy(torch.from_numpy(observations(5)))
    assert torch.isfinite(params).all()


def test_torch_initialisation_on_demand() -> None:
    torch.manual_seed(3)
    net = MLP(3, 2, hidden=(8,), activation="tanh", share=0, critic=True, last_gain=0.01, ortho_init=False)
    torch.manual_seed(3)
    first, last = torch.nn.Linear(3, 8), torch.nn.Linear(8, 2)
    assert torch.equal(net.actor[0].weight, first.weight) and torch.equal(net.actor[-1].weight, last.weight)
    assert torch.equal(net.actor[0].bias, first.bias) and net.actor[0].bias.abs().min() > 0


# ------------------------------------------------------------------------------------------------------ actors

ACTORS: dict[str, Any] = {
    "numpy": lambda policy, n, seed: make_actor(policy, n, seed),
    "torch": lambda p, n, seed: TorchActor(p, seed),
}


def acts(actor: Any, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Own action, params, noise = action − mean."""
    _, action, params, _ = actor.act(obs)
    action, params = np.asarray(action), np.asarray(params)
    return action, params, action - params[:, :2]


@pytest.mark.parametrize("mean", ["tanh", "identity"])
def test_both_actors_and_the_update_agree(mean: str) -> None:
    policy = make_gsde(mean=mean)
    obs = observations(7)
    by_numpy = make_actor(policy, 7, 0)
    assert isinstance(by_numpy, NumpyActor)
    for actor in (by_numpy, TorchActor(policy, 0)):
        for greedy in (False, True):
            env_action, action, params, inputs = actor.act(obs, greedy=greedy)
            action, params, inputs = (torch.as_tensor(x) for x in (action, params, inputs))
            new = policy.evaluate(inputs, action)
            torch.testing.assert_close(new.params, params, rtol=1e-5, atol=1e-6)
            old = policy.distribution.log_prob(params, action)
            assert (new.log_prob - old).abs().max() < 1e-4
            assert policy.distribution.kl(params, new.params).abs().max() < 1e-6
            assert (env_action >= [-1, 0]).all() and (env_action <= [1, 5]).all()
            assert not greedy or torch.equal(action, params[:, :2])


@pytest.mark.parametrize("kind", ACTORS)
def test_noise_is_a_function_of_the_state_between_draws(kind: str) -> None:
    """The same observation gets the same noise until E is drawn anew; each env has an E of its own."""
    for freq, drawn in ((-1, [0]), (3, [0, 3, 6]), (1, list(range(8)))):
        actor = ACTORS[kind](make_gsde(sample_freq=freq), 4, 0)
        obs = np.repeat(observations(1), 4, 0)
        actor.refresh()
        noise = [acts(actor, obs)[2] for _ in range(8)]
        changed = [t for t in range(8) if t == 0 or not np.array_equal(noise[t], noise[t - 1])]
        assert changed == drawn
        assert len(np.unique(noise[0], axis=0)) == 4
        actor.refresh()  # a new rollout
        assert not np.array_equal(acts(actor, obs)[2], noise[-1])


@pytest.mark.parametrize("kind", ACTORS)
def test_noise_is_linear_in_the_features(kind: str) -> None:
    policy = make_gsde(hidden=(), mean="identity")  # the features are the observation itself
    actor = ACTORS[kind](policy, 2, 0)
    obs = observations(2)
    one, two = acts(actor, obs)[2], acts(actor, 2 * obs)[2]
    np.testing.assert_allclose(two, 2 * one, rtol=1e-3, atol=1e-5)
    assert np.abs(one).min() > 1e-3


@pytest.mark.parametrize("kind", ACTORS)
def test_draws_are_distributed_as_the_marginal_says(kind: str) -> None:
    """Over draws of E: mean μ, variance Σ z² s² (z-scores), and a Gaussian's fourth moment."""
    policy = make_gsde(sample_freq=1, log_std_init=-0.3)
    rows = 100
    actor = ACTORS[kind](policy, rows, 1)
    obs = np.repeat(observations(1), rows, 0)
    noise = np.concatenate([acts(actor, obs)[2] for _ in range(300)])
    sigma = np.exp(acts(actor, obs)[1][0, 2:])
    n = len(noise)
    assert (np.abs(noise.mean(0)) < 4.5 * sigma / math.sqrt(n)).all()
    assert (np.abs(noise.var(0) / sigma**2 - 1) < 4.5 * math.sqrt(2 / n)).all()
    assert (np.abs((noise**4).mean(0) / sigma**4 - 3) < 4.5 * math.sqrt(96 / n)).all()


def test_rollouts_hold_what_an_exact_ratio_needs() -> None:
    policy = make_gsde(sample_freq=4)
    env = ScriptedEnv([[5], [30]], space=box([-1, 0], [1, 5]))
    rollout, _ = Collector(env, policy, make_actor(policy, 2, 0), 0).collect_steps(12)
    new = policy.evaluate(rollout.inputs, rollout.action)
    assert (new.log_prob - rollout.log_prob).abs().max() < 1e-5
    assert policy.distribution.kl(rollout.params, new.params).abs().max() < 1e-6
    assert len(rollout.params[..., 2:].flatten(0, 1).unique(dim=0)) > 10  # σ depends on the state


def test_the_next_rollout_does_not_depend_on_how_the_last_one_ended() -> None:
    """Nothing but the generator's state goes from one rollout to the next: a resumed run repeats it."""
    policy = make_gsde(sample_freq=5)
    one, two = make_actor(policy, 3, 0), make_actor(policy, 3, 9)
    obs = observations(3)
    for _ in range(7):
        one.act(obs)
    two.load_state_dict(one.state_dict())
    for actor in (one, two):
        actor.refresh()
    for _ in range(7):
        assert np.array_equal(one.act(obs)[1], two.act(obs)[1])
