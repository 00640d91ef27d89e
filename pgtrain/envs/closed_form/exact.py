"""The expected return of a policy in the problems that have a closed form, as a number with its graph.

`torch.autograd.grad(exact_return(…), policy.parameters())` is the exact gradient ∇J, whatever the policy's network.
Time limits count as ends: J = E[Σ_{t<H} γᵗ r_t].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pgtrain.envs.closed_form.bandits import GaussianBandit, SoftmaxBandit
from pgtrain.envs.closed_form.tabular import TabularMDP

f64 = torch.float64


def exact_return(
    env_id: str, kwargs: Mapping[str, Any], policy: Any, gamma: float, horizon: int | None = None
) -> Tensor | None:
    """J, 0-d with graph; None where it has no closed form. `horizon`: a time limit in place of the env's own."""
    function = EXACT.get(env_id)
    if function is None or policy.distribution.name not in ("categorical", "gaussian"):
        return None
    return function(kwargs, policy, gamma, horizon)


def exact_gradient(
    env_id: str, kwargs: Mapping[str, Any], policy: Any, gamma: float, horizon: int | None = None
) -> Tensor | None:
    """∇J [P] in the order of `policy.parameters()`, 0 for parameters that J does not depend on; None as above."""
    with torch.enable_grad():
        J = exact_return(env_id, kwargs, policy, gamma, horizon)
    if J is None:
        return None
    found = torch.autograd.grad(J, list(policy.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in found])


def gaussian_bandit(kwargs: Mapping[str, Any], policy: Any, gamma: float, horizon: int | None) -> Tensor:
    """J = r0 − k ((μ − m)² + σ²)."""
    env = GaussianBandit(**kwargs)
    mean, log_std = _gaussian(policy, torch.ones(1, 1))
    return env.r0 - env.k * ((mean[0, 0] - env.m).square() + (2 * log_std[0, 0]).exp())


def softmax_bandit(kwargs: Mapping[str, Any], policy: Any, gamma: float, horizon: int | None) -> Tensor:
    """J = Σ_i p_i r_i."""
    env = SoftmaxBandit(**kwargs)
    return _probabilities(policy, 1, len(env.rewards))[0] @ torch.tensor(env.rewards, dtype=f64)


def tabular_mdp(kwargs: Mapping[str, Any], policy: Any, gamma: float, horizon: int | None) -> Tensor:
    """J = Σ_t γᵗ Σ_s d_t(s) Σ_a π(a|s) R(s, a),   d_{t+1}(s') = Σ_{s,a} d_t(s) π(a|s) P(s, a, s')."""
    env = TabularMDP(**kwargs)
    P, R, d = (torch.as_tensor(x) for x in (env.P, env.R, env.d0))
    pi = _probabilities(policy, *R.shape)
    J = torch.zeros((), dtype=f64)
    for t in range(min(env.horizon, horizon or env.horizon)):
        J = J + gamma**t * (d @ (pi * R).sum(1))
        d = torch.einsum("s,sa,sau->u", d, pi, P)[:-1]
    return J


def lqr(kwargs: Mapping[str, Any], policy: Any, gamma: float, horizon: int | None) -> Tensor | None:
    """u = W x + b + σ ε, σ [A]: second moments of z = (x, 1), step by step; None unless the policy's mean is affine.

    J = −Σ_t γᵗ (tr(Q Σ_t) + tr(R (K S_t K' + diag σ²))),   S_t = E[z z'],   K = (W, b)
    """
    from pgtrain.envs.differentiable.lqr import LQR

    env = LQR(1, dtype=f64, **kwargs)
    states = len(env.A)
    points = torch.cat([torch.zeros(1, states), torch.eye(states), 2 * torch.randn(8, states)])
    mean, log_std = _gaussian(policy, points)
    b = mean[0]
    W = (mean[1 : states + 1] - b).T
    rest = points[states + 1 :].to(f64)
    if not torch.allclose(mean[states + 1 :], rest @ W.T + b, rtol=1e-4, atol=1e-5):
        return None
    K, spread = torch.cat([W, b[:, None]], 1), (2 * log_std[0]).exp().diag()
    step = torch.cat([env.A, env.A.new_zeros(states, 1)], 1) + env.B @ K  # [S, S + 1]: x' of z
    noise = env.B @ spread @ env.B.T + (0.0 if env.W is None else env.W)
    x, S = env.x0_mean, env.x0_cov + torch.outer(env.x0_mean, env.x0_mean)
    J = torch.zeros((), dtype=f64)
    for t in range(horizon or env.max_episode_steps or 100):
        one = x.new_ones(1)
        S_z = torch.cat([torch.cat([S, x[:, None]], 1), torch.cat([x, one])[None]])
        J = J - gamma**t * ((env.Q @ S).trace() + (env.R @ (K @ S_z @ K.T + spread)).trace())
        x, S = step @ torch.cat([x, one]), step @ S_z @ step.T + noise
    return J


EXACT: dict[str, Callable[[Mapping[str, Any], Any, float, int | None], Tensor | None]] = {
    "pgtrain/GaussianBandit-v0": gaussian_bandit,
    "pgtrain/SoftmaxBandit-v0": softmax_bandit,
    "pgtrain/TabularMDP-v0": tabular_mdp,
    "pgtrain/LQR-v0": lqr,
}


def _gaussian(policy: Any, obs: Tensor) -> tuple[Tensor, Tensor]:
    """μ and log σ [B, A] of a Gaussian policy, float64 on the CPU with their graph."""
    device = next(policy.parameters()).device
    inputs = policy.prepare(obs.to(device)).to(next(policy.parameters()).dtype)
    width = policy.distribution.dim
    action = torch.zeros(len(obs), width, device=device, dtype=inputs.dtype)
    params = policy.evaluate_actor(inputs, action).params.to("cpu", f64)
    return params[:, :width], params[:, width : 2 * width]


def _probabilities(policy: Any, states: int, actions: int) -> Tensor:
    """π(a|s) [S, A] of observations Discrete(S), float64 on the CPU with its graph."""
    weight = next(policy.parameters())
    inputs = torch.eye(states, device=weight.device, dtype=weight.dtype).repeat_interleave(actions, 0)
    action = torch.arange(actions, device=weight.device).repeat(states)
    return policy.evaluate_actor(inputs, action).log_prob.to("cpu", f64).exp().view(states, actions)
