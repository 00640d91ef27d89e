"""Problems with closed forms: as Gymnasium envs, and their exact gradients against formulas and enumerations."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import pgtrain.envs.closed_form as closed_form
from pgtrain import build
from pgtrain.config.compose import compose
from pgtrain.envs.closed_form.exact import exact_gradient, exact_return
from pgtrain.evaluation import evaluate
from tests.learning.exact import gaussian_policy, golden, softmax_policy, tensor

f64 = torch.float64


@pytest.mark.parametrize("env_id", closed_form.IDS)
def test_each_is_a_proper_gymnasium_env(env_id: str) -> None:
    check_env(gym.make(env_id).unwrapped, skip_render_check=True)


def test_gaussian_bandit() -> None:
    """∇J = (−2kσ², −2k(μ − m)) in the order log σ, μ; J = 0.125 (by hand)."""
    policy = gaussian_policy(0.7, 0.5)
    J = exact_return("pgtrain/GaussianBandit-v0", {}, policy, 0.9)
    assert J is not None and float(J) == pytest.approx(0.125)
    found = exact_gradient("pgtrain/GaussianBandit-v0", {}, policy, 0.9)
    torch.testing.assert_close(found, tensor([-0.75, -3.0]))
    found = exact_gradient("pgtrain/GaussianBandit-v0", {"k": 2.0, "m": 0.2}, policy, 0.9)
    torch.testing.assert_close(found, tensor([-2 * 2 * 0.25, -2 * 2 * 0.5]))


def test_softmax_bandit() -> None:
    """∂J/∂θ_i = p_i (r_i − J)."""
    theta, r = tensor([[0.2, -0.4, 0.9]]), tensor([1.0, 3.0, -0.5])
    p = theta[0].softmax(0)
    found = exact_gradient("pgtrain/SoftmaxBandit-v0", {}, softmax_policy(theta), 0.9)
    torch.testing.assert_close(found, p * (r - p @ r))
    with pytest.raises(ValueError, match="two arms"):
        gym.make("pgtrain/SoftmaxBandit-v0", rewards=[1.0])


def test_tabular_mdp_against_the_enumeration() -> None:
    inputs, expected = golden("tabular_mdp")
    policy = softmax_policy(tensor(inputs["theta"]))
    J = exact_return("pgtrain/TabularMDP-v0", {}, policy, inputs["gamma"])
    assert J is not None and float(J) == pytest.approx(expected["J"], abs=1e-12)
    found = exact_gradient("pgtrain/TabularMDP-v0", {}, policy, inputs["gamma"])
    torch.testing.assert_close(found, tensor(expected["grad"]))
    shorter = exact_return("pgtrain/TabularMDP-v0", {}, policy, 0.9, horizon=1)
    pi = tensor(inputs["theta"]).softmax(1)
    assert shorter is not None
    torch.testing.assert_close(shorter, (tensor(inputs["d0"])[:, None] * pi * tensor(inputs["R"])).sum())
    with pytest.raises(ValueError, match="must have the shapes"):
        gym.make("pgtrain/TabularMDP-v0", d0=[1.0])
    with pytest.raises(ValueError, match="sum to 1"):
        gym.make("pgtrain/TabularMDP-v0", d0=[1.0, 1.0])


def test_lqr_against_its_closed_form() -> None:
    """The Riccati sums of the env's own module, for a linear policy; none for a curved one."""
    from pgtrain.envs.differentiable.lqr import LQR, exact

    settings = ["env=pgtrain/LQR-v0", "env.max_episode_steps=7", "policy.normalize_obs=none", "gamma=0.9"]
    cfg = compose([*settings, "policy.hidden=[]", "policy.log_std_init=-0.5"]).config
    with build.make_env(cfg, 1) as env:
        policy = build.make_policy(cfg, env)
    layer: Any = policy.network.actor[0]
    torch.nn.init.normal_(layer.weight, std=0.3)
    found = exact_gradient("pgtrain/LQR-v0", {}, policy, 0.9, 7)
    assert found is not None
    sigma = math.exp(-0.5)
    true = exact(LQR(1, dtype=f64), -layer.weight.detach().double(), sigma, 7, 0.9)
    J = exact_return("pgtrain/LQR-v0", {}, policy, 0.9, 7)
    assert J is not None and float(J) == pytest.approx(float(true.J), rel=1e-5)
    named = {n: p.numel() for n, p in policy.named_parameters()}
    parts = dict(zip(named, found.split(list(named.values())), strict=True))
    torch.testing.assert_close(
        parts["network.actor.0.weight"].double(), -true.grad_K.flatten(), rtol=1e-4, atol=1e-4
    )
    assert float(parts["log_std"].sum()) == pytest.approx(float(true.grad_log_sigma), rel=1e-4)
    assert float(parts["network.actor.0.bias"].abs().max()) < 1e-3  # x₀ has mean 0, so b = 0 is optimal
    curved = compose([*settings, "policy.hidden=[8]"]).config
    with build.make_env(curved, 1) as env:
        policy = build.make_policy(curved, env)
    with torch.no_grad():
        for p in policy.network.actor.parameters():
            p.mul_(30)
    assert exact_gradient("pgtrain/LQR-v0", {}, policy, 0.9) is None
    assert exact_gradient("CartPole-v1", {}, policy, 0.9) is None


@pytest.mark.parametrize("env_id", closed_form.IDS)
def test_played_returns_have_the_exact_mean(env_id: str) -> None:
    """z < 4.5 over 800 sampled episodes: env and formula speak of the same task."""
    cfg = compose([f"env={env_id}", "policy.hidden=[]", "policy.last_layer_gain=1"]).config
    with build.make_env(cfg, 20) as env:
        policy = build.make_policy(cfg, env)
        result = evaluate(policy, env, 800, seed=3, greedy=False)
    J = exact_return(env_id, {}, policy, 1.0)
    assert J is not None
    error = float(np.std(result.returns, ddof=1)) / math.sqrt(800)
    assert abs(result.mean - float(J)) < 4.5 * error
