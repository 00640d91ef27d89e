"""The linear-quadratic regulator: the task whose every gradient, and whose optimum, is known in closed form.

Dimension legend: S states, A actions, H steps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv


class LQR(DifferentiableEnv):
    """x' = A x + B u + w, w ~ N(0, W), r = −(x'Qx + u'Ru), x before the step; x₀ ~ N(x0_mean, x0_cov); unbounded u.

    Of any size: give A, B, Q, R (and W, x0_mean, x0_cov), or only `masses`: that many carts on a line, pushed one
    by one, to be brought to rest at 0 (S = 2·masses, A = masses).
    """

    max_episode_steps = 100

    def __init__(
        self,
        num_envs: int,
        *,
        masses: int = 2,
        A: Any = None,
        B: Any = None,
        Q: Any = None,
        R: Any = None,
        W: Any = None,
        x0_mean: Any = None,
        x0_cov: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__(num_envs, **settings)
        one, zero = torch.eye(masses), torch.zeros(masses, masses)
        line = torch.cat([torch.cat([one, 0.1 * one], 1), torch.cat([zero, one], 1)])
        self.A = self.tensor(line if A is None else A)
        self.B = self.tensor(torch.cat([zero, 0.1 * one]) if B is None else B)
        states, actions = self.B.shape
        self.Q = self.tensor(torch.eye(states) if Q is None else Q)
        self.R = self.tensor(0.1 * torch.eye(actions) if R is None else R)
        self.W = None if W is None else self.tensor(W)
        self.x0_mean = self.tensor(torch.zeros(states) if x0_mean is None else x0_mean)
        self.x0_cov = self.tensor(torch.eye(states) if x0_cov is None else x0_cov)
        self.action_low, self.action_high = [-math.inf] * actions, [math.inf] * actions  # pyright: ignore
        self._x0_root = _root(self.x0_cov)
        self._w_root = None if self.W is None else _root(self.W)
        self._At, self._Bt = self.A.T.contiguous(), self.B.T.contiguous()

    def start(self, count: int) -> Tensor:
        return self.x0_mean + self.normal(count, len(self.x0_mean)) @ self._x0_root.T

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        moved = state @ self._At + action @ self._Bt
        if self._w_root is None:
            return moved
        return moved + self.normal(len(state), state.shape[-1]) @ self._w_root.T

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -((state @ self.Q * state).sum(-1) + (action @ self.R * action).sum(-1))


def _root(covariance: Tensor) -> Tensor:
    """M with M M' = covariance, which may be singular."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp(min=0).sqrt()


class Exact(NamedTuple):
    """The expected return of u = −K x + σ ε and its gradient, from closed forms."""

    J: Tensor  # []
    grad_K: Tensor  # [A, S]
    grad_log_sigma: Tensor  # []
    P: list[Tensor]  # H + 1 of [S, S]: the cost to go at step t is x'P_t x + c_t
    c: list[Tensor]  # H + 1 of []


def riccati(A: Tensor, B: Tensor, Q: Tensor, R: Tensor, gamma: float = 1.0) -> tuple[Tensor, Tensor]:
    """The optimal K [A, S] of the endless discounted task, and P [S, S] of its cost to go x'Px.

    P = Q + γ A'PA − γ² A'PB (R + γ B'PB)⁻¹ B'PA,   K = γ (R + γ B'PB)⁻¹ B'PA
    By fixed-point iteration in float64; raises ValueError if it does not settle (the pair is not stabilisable).
    Source: Bertsekas 2012, Dynamic Programming and Optimal Control, vol. 2, §4.2.
    """
    A, B, Q, R = (x.to(torch.float64) for x in (A, B, Q, R))
    P = Q
    for _ in range(100_000):
        K = gamma * torch.linalg.solve(R + gamma * B.T @ P @ B, B.T @ P @ A)
        new = Q + gamma * A.T @ P @ (A - B @ K)
        if torch.allclose(new, P, rtol=1e-14, atol=1e-14):
            return K, new
        if not torch.isfinite(new).all():
            break
        P = new
    raise ValueError("the Riccati iteration does not settle: can B steer every unstable state of A?")


def exact(
    env: LQR,
    K: Tensor,
    sigma: float,
    horizon: int,
    gamma: float,
    terminal_P: Tensor | None = None,
    terminal_c: float = 0.0,
) -> Exact:
    """J and its gradient for `horizon` steps of u = −K x + σ ε, then −γᴴ (x'P x + c) with P, c held fixed (None: 0).

    P_t = Q + K'RK + γ M'P_{t+1}M,   M = A − BK;   Σ_{t+1} = M Σ_t M' + σ² BB' + W,   Σ_0 = E[x₀x₀'];
    E_t = (R + γ B'P_{t+1}B) K − γ B'P_{t+1}A;
    dJ/dK = −2 Σ_t γᵗ E_t Σ_t,   dJ/d log σ = −2σ² Σ_t γᵗ tr(R + γ B'P_{t+1}B)
    With a terminal value this is what SHAC's window estimates, were its critic exact.
    """
    A, B, Q, R = env.A, env.B, env.Q, env.R
    W = torch.zeros_like(Q) if env.W is None else env.W
    noise = sigma**2 * B @ B.T + W
    M = A - B @ K
    P = [torch.zeros_like(Q) if terminal_P is None else terminal_P]
    c = [Q.new_tensor(terminal_c)]
    for _ in range(horizon):
        c.append(sigma**2 * R.trace() + gamma * ((P[-1] @ noise).trace() + c[-1]))
        P.append(Q + K.T @ R @ K + gamma * M.T @ P[-1] @ M)
    P.reverse()
    c.reverse()
    second = env.x0_cov + torch.outer(env.x0_mean, env.x0_mean)
    J = -((P[0] @ second).trace() + c[0])
    grad_K, grad_log_sigma = torch.zeros_like(K), Q.new_zeros(())
    for t in range(horizon):
        inner = R + gamma * B.T @ P[t + 1] @ B
        grad_K = grad_K - 2 * gamma**t * (inner @ K - gamma * B.T @ P[t + 1] @ A) @ second
        grad_log_sigma = grad_log_sigma - 2 * sigma**2 * gamma**t * inner.trace()
        second = M @ second @ M.T + noise
    return Exact(J, grad_K, grad_log_sigma, P, c)
