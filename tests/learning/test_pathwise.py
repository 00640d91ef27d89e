"""Pathwise losses: golden numbers, closed forms of the LQR, and windows unrolled by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pgtrain.envs.differentiable.base import DifferentiableEnv
from pgtrain.envs.differentiable.lqr import LQR, exact, riccati
from pgtrain.learning import pathwise
from pgtrain.learning.pathwise import pathwise_loss, segment_return, td_lambda_target

FOLDER = Path(__file__).parents[1] / "golden"
SHAC = json.loads((FOLDER / "shac.json").read_text(encoding="utf-8"))
GOLDEN_LQR = json.loads((FOLDER / "lqr_pathwise.json").read_text(encoding="utf-8"))
GAMMA = 0.9


def double(x: Any) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


# ---- golden ---------------------------------------------------------------------------------------------------------


def test_actor_loss_equals_the_golden_number() -> None:
    i, want = SHAC["inputs"], SHAC["expected"]
    done = torch.tensor(i["dones"]).bool()
    none = torch.zeros_like(done)
    for terminated, truncated in [(none, done), (done & (double(i["next_values"]) == 0), done)]:
        returns = segment_return(
            double(i["rewards"]), double(i["next_values"]), terminated, truncated, i["gamma"]
        )
        assert float(pathwise_loss(returns, done)) == pytest.approx(want["actor_loss"], rel=1e-9)


def test_critic_targets_equal_the_golden_numbers() -> None:
    i, want = SHAC["inputs"], SHAC["expected"]
    done = torch.tensor(i["dones"]).bool()
    none = torch.zeros_like(done)
    got = td_lambda_target(double(i["rewards"]), double(i["next_values"]), none, done, i["gamma"], i["lam"])
    assert got.flatten().tolist() == pytest.approx(np.ravel(want["td_lambda_targets"]).tolist(), rel=1e-9)


# ---- definitions as loops -------------------------------------------------------------------------------------------


def random_window(steps: int = 9, n: int = 6, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    terminated = torch.rand(steps, n, generator=g) < 0.15
    truncated = torch.rand(steps, n, generator=g) < 0.15
    value = torch.randn(steps, n, generator=g, dtype=torch.float64)
    value[terminated] = torch.nan  # must not be read
    return {
        "reward": torch.randn(steps, n, generator=g, dtype=torch.float64),
        "next_value": value,
        "terminated": terminated,
        "truncated": truncated,
    }


def alive(w: dict[str, Tensor], t: int, n: int) -> float:
    return 0.0 if w["terminated"][t, n] else float(w["next_value"][t, n])


def loss_by_loops(w: dict[str, Tensor], gamma: float) -> float:
    """SPEC-like: reward by reward, segment by segment."""
    steps, n = w["reward"].shape
    total = 0.0
    for j in range(n):
        discount = 1.0
        for t in range(steps):
            total += discount * float(w["reward"][t, j])
            discount *= gamma
            if w["terminated"][t, j] or w["truncated"][t, j] or t == steps - 1:
                total += discount * alive(w, t, j)
                discount = 1.0
    return -total / (steps * n)


def targets_by_loops(w: dict[str, Tensor], gamma: float, lam: float) -> Tensor:
    steps, n = w["reward"].shape
    out = torch.zeros(steps, n, dtype=torch.float64)
    for j in range(n):
        for t in reversed(range(steps)):
            cut = bool(w["terminated"][t, j] or w["truncated"][t, j] or t == steps - 1)
            after = alive(w, t, j) if cut else (1 - lam) * alive(w, t, j) + lam * float(out[t + 1, j])
            out[t, j] = w["reward"][t, j] + gamma * after
    return out


@pytest.mark.parametrize("seed", range(5))
def test_loss_equals_its_definition(seed: int) -> None:
    w = random_window(seed=seed)
    returns = segment_return(**w, gamma=GAMMA)
    assert float(pathwise_loss(returns, w["terminated"] | w["truncated"])) == pytest.approx(
        loss_by_loops(w, GAMMA)
    )


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_targets_equal_their_definition(lam: float) -> None:
    w = random_window(seed=3)
    assert torch.allclose(td_lambda_target(**w, gamma=GAMMA, lam=lam), targets_by_loops(w, GAMMA, lam))


def test_targets_at_lam_1_are_the_segment_returns() -> None:
    w = random_window(seed=1)
    assert torch.allclose(td_lambda_target(**w, gamma=GAMMA, lam=1.0), segment_return(**w, gamma=GAMMA))


def test_targets_are_part_of_no_graph() -> None:
    w = random_window()
    w["reward"].requires_grad_()
    assert not td_lambda_target(**w, gamma=GAMMA, lam=0.9).requires_grad


def test_without_values_a_window_is_blind_beyond_its_end() -> None:
    w = random_window(seed=2)
    blind = segment_return(w["reward"], None, w["terminated"], w["truncated"], GAMMA)
    zero = segment_return(w["reward"], torch.zeros_like(w["reward"]), w["terminated"], w["truncated"], GAMMA)
    assert torch.equal(blind, zero)


def test_segment_steps_count_from_each_cut() -> None:
    done = torch.tensor([[0, 1], [0, 0], [1, 0], [0, 1], [0, 0]]).bool()
    assert pathwise.segment_step(done).T.tolist() == [[0, 1, 2, 0, 1], [0, 0, 1, 2, 0]]


def test_rows_of_weight_0_do_not_count() -> None:
    reward = double([[1.0, 1.0], [2.0, 2.0], [0.0, 4.0]])
    done = torch.tensor([[0, 0], [1, 0], [1, 1]]).bool()
    weight = double([[1, 1], [1, 1], [0, 1]])
    returns = segment_return(reward, None, done, torch.zeros_like(done), 0.5)
    assert float(pathwise_loss(returns, done, weight)) == pytest.approx(-(2.0 + 3.0) / 5)
    assert float(pathwise_loss(returns, done, weight, denominator=2)) == pytest.approx(-2.5)


def test_shapes_must_match() -> None:
    w = random_window()
    with pytest.raises(ValueError, match="shapes differ"):
        segment_return(w["reward"], w["next_value"][:, :1], w["terminated"], w["truncated"], GAMMA)


# ---- gradients against a window unrolled by hand --------------------------------------------------------------------


class Scripted(DifferentiableEnv):
    """x' = x·0.9 + a·(1 + x²)/4; ends above 1.2; cut after 4 steps."""

    action_low, action_high = (-5.0,), (5.0,)
    max_episode_steps = 4

    def start(self, count: int) -> Tensor:
        return self.uniform(count, [0.0], [1.0])

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        return 0.9 * state + 0.25 * action * (1 + state.square())

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return (next_state * action - 0.3 * state.square())[:, 0]

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 0] > 1.2


def value(x: Tensor) -> Tensor:
    return (2 * x).sin() + x.square()


def test_a_window_with_ends_cuts_and_resets_equals_one_unrolled_by_hand() -> None:
    """Envs, rows and episodes one by one, with Python ifs; no shared code but the env's three formulas."""
    steps, n = 11, 7
    env = Scripted(n, dtype=torch.float64)
    env.reset(0)
    theta = double([1.2, 0.3]).requires_grad_()
    noise = torch.randn(steps, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    x = env.detach()
    rows, starts = [], [x[:, 0].clone()]
    for t in range(steps):
        transition = env.advance((theta[0] - theta[1] * x[:, 0] + noise[t]).unsqueeze(-1))
        rows.append(transition)
        x = transition.obs
        starts.append(x[:, 0].detach().clone())
    _, reward, terminated, truncated, next_obs = (torch.stack(r) for r in zip(*rows, strict=True))
    returns = segment_return(reward, value(next_obs[..., 0]), terminated, truncated, GAMMA)
    loss = pathwise_loss(returns, terminated | truncated)
    (grad,) = torch.autograd.grad(loss, theta)
    assert terminated.any() and (truncated & ~terminated).any()

    total = torch.zeros((), dtype=torch.float64)
    for j in range(n):
        x, discount, age = starts[0][j], 1.0, 0
        for t in range(steps):
            a = theta[0] - theta[1] * x + noise[t, j]
            y = 0.9 * x + 0.25 * a * (1 + x * x)
            total = total + discount * (y * a - 0.3 * x * x)
            age, discount = age + 1, discount * GAMMA
            if float(y.detach()) > 1.2:
                x, discount, age = starts[t + 1][j], 1.0, 0
            elif age == 4:
                total = total + discount * value(y)
                x, discount, age = starts[t + 1][j], 1.0, 0
            elif t == steps - 1:
                total = total + discount * value(y)
            else:
                x = y
    by_hand = -total / (steps * n)
    (want,) = torch.autograd.grad(by_hand, theta)
    assert float(loss.detach()) == pytest.approx(float(by_hand.detach()), rel=1e-12)
    assert grad.tolist() == pytest.approx(want.tolist(), rel=1e-12)


# ---- LQR: closed forms ----------------------------------------------------------------------------------------------


def lqr_env(num_envs: int, **changes: Any) -> LQR:
    i = GOLDEN_LQR["inputs"]
    given: dict[str, Any] = {k: i[k] for k in ("A", "B", "Q", "R", "x0_mean")} | {"x0_cov": np.zeros((2, 2))}
    return LQR(num_envs, dtype=torch.float64, max_episode_steps=1000, **(given | changes))


def rollout(env: LQR, K: Tensor, log_sigma: Tensor, horizon: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rewards [T, N] and successors [T, N, S] of u = −K x + σ ε with their graph."""
    env.reset(seed)
    g = torch.Generator().manual_seed(seed)
    x, rows = env.detach(), []
    for _ in range(horizon):
        noise = torch.randn(env.num_envs, K.shape[0], generator=g, dtype=torch.float64)
        rows.append(env.advance(-x @ K.T + log_sigma.exp() * noise))
        x = rows[-1].obs
    return torch.stack([r.reward for r in rows]), torch.stack([r.next_obs for r in rows])


def test_bptt_equals_the_closed_form_in_one_rollout() -> None:
    i = GOLDEN_LQR["inputs"]
    want = GOLDEN_LQR["expected"]["deterministic"]
    K = double(i["K"]).requires_grad_()
    reward, _ = rollout(lqr_env(1), K, double(-1e9), i["horizon"])
    none = torch.zeros_like(reward, dtype=torch.bool)
    loss = pathwise_loss(segment_return(reward, None, none, none, i["gamma"]), none, denominator=1)
    loss.backward()
    closed = exact(lqr_env(1), K.detach(), 0.0, i["horizon"], i["gamma"])
    assert K.grad is not None
    assert float((-K.grad - closed.grad_K).abs().max()) < 1e-10
    assert (-K.grad).flatten().tolist() == pytest.approx(want["grad_K"][0], rel=1e-9)
    assert -float(loss.detach()) == pytest.approx(want["J"], rel=1e-12)


def test_shac_with_the_exact_terminal_value_equals_the_closed_sums() -> None:
    i = GOLDEN_LQR["inputs"]
    want = GOLDEN_LQR["expected"]["short_horizon"]
    P = double(want["deterministic_value_P"])
    K = double(i["K"]).requires_grad_()
    reward, successor = rollout(lqr_env(1), K, double(-1e9), i["short_horizon"])
    none = torch.zeros_like(reward, dtype=torch.bool)
    values = -(successor @ P * successor).sum(-1)
    loss = pathwise_loss(segment_return(reward, values, none, none, i["gamma"]), none, denominator=1)
    loss.backward()
    closed = exact(lqr_env(1), K.detach(), 0.0, i["short_horizon"], i["gamma"], terminal_P=P)
    assert K.grad is not None
    assert float((-K.grad - closed.grad_K).abs().max()) < 1e-10
    assert (-K.grad).flatten().tolist() == pytest.approx(want["deterministic_grad_K"][0], rel=1e-7, abs=1e-9)


def test_bptt_reaches_the_optimal_gain() -> None:
    """Gradient steps from K = 0 through 30 steps of one cart: within 1 % of the Riccati equation's K."""
    env = LQR(4, masses=1, dtype=torch.float64, max_episode_steps=30)
    best, _ = riccati(env.A, env.B, env.Q, env.R, 0.8)
    K = torch.zeros_like(best, requires_grad=True)
    optimizer = torch.optim.Adam([K], lr=0.3, betas=(0.9, 0.9))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-2, 140)
    none = torch.zeros(30, 4, dtype=torch.bool)
    for seed in range(140):
        reward, _ = rollout(env, K, double(-1e9), 30, seed)
        optimizer.zero_grad()
        pathwise_loss(segment_return(reward, None, none, none, 0.8), none).backward()
        optimizer.step()
        schedule.step()
    error = torch.linalg.matrix_norm(K.detach() - best) / torch.linalg.matrix_norm(best)
    assert float(error) < 0.01 < float(best.abs().max())


def test_shac_with_noise_is_an_unbiased_estimate_of_the_closed_sums() -> None:
    """Noise in actions, dynamics and starts; 20,000 envs: within 4.5 standard errors, parameter by parameter."""
    i = GOLDEN_LQR["inputs"]
    want = GOLDEN_LQR["expected"]["short_horizon"]
    n, gamma = 20_000, i["gamma"]
    env = lqr_env(n, W=i["W"], x0_cov=i["x0_cov"])
    K = (
        double(i["K"]).expand(n, 1, 2).clone().requires_grad_()
    )  # its own copy for each env: per-sample gradients
    log_sigma = torch.full((n, 1), float(np.log(i["sigma"])), dtype=torch.float64, requires_grad=True)
    env.reset(1)
    g = torch.Generator().manual_seed(2)
    x, rows = env.detach(), []
    for _ in range(i["short_horizon"]):
        noise = torch.randn(n, 1, generator=g, dtype=torch.float64)
        rows.append(env.advance(-(K @ x.unsqueeze(-1)).squeeze(-1) + log_sigma.exp() * noise))
        x = rows[-1].obs
    reward, successor = (torch.stack([getattr(r, k) for r in rows]) for k in ("reward", "next_obs"))
    none = torch.zeros_like(reward, dtype=torch.bool)
    P = double(want["value_P"])
    values = -(successor @ P * successor).sum(-1) - want["value_c"]
    loss = pathwise_loss(segment_return(reward, values, none, none, gamma), none, denominator=1)
    samples = -torch.cat([x.reshape(n, -1) for x in torch.autograd.grad(loss, [K, log_sigma])], 1)
    error = samples.std(0) / n**0.5
    z = (samples.mean(0) - double([*want["grad_K"][0], want["grad_log_sigma"]])) / error
    assert float(z.abs().max()) < 4.5
    assert float(error.max()) < 0.01


# ---- norms ----------------------------------------------------------------------------------------------------------


def test_norm_does_not_overflow() -> None:
    grad = torch.tensor([3e24, -4e24, 0.0])
    assert torch.isinf(grad.square().sum())
    limited, norm = pathwise.limit_norm(grad, 1.0)
    assert float(norm) == pytest.approx(5e24)
    assert limited.tolist() == pytest.approx([0.6, -0.8, 0.0])
    assert float(pathwise.safe_norm(torch.zeros(3))) == 0
    small = torch.tensor([3e-30, 4e-30])
    assert float(pathwise.safe_norm(small)) == pytest.approx(5e-30)
    assert not torch.isfinite(pathwise.safe_norm(torch.tensor([1.0, torch.nan])))
    assert not torch.isfinite(pathwise.safe_norm(torch.tensor([1.0, torch.inf])))


def test_a_small_gradient_is_left_alone() -> None:
    grad = torch.tensor([0.3, 0.4])
    assert torch.equal(pathwise.limit_norm(grad, 1.0)[0], grad)
    assert torch.equal(pathwise.limit_norm(grad * 100, None)[0], grad * 100)


def test_norms_through_time_tell_where_a_gradient_explodes() -> None:
    states, x = [], torch.ones(2, requires_grad=True)
    for _ in range(5):
        x = 3.0 * x
        x.retain_grad()
        states.append(x)
    aside = torch.ones(2, requires_grad=True)
    states[-1].sum().backward()
    norms = pathwise.norms_through_time([*states, aside])
    assert norms.tolist() == pytest.approx([2**0.5 * 3.0**k for k in (4, 3, 2, 1, 0)] + [0.0])


def test_target_parameters_follow() -> None:
    target, source = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])
    pathwise.follow(target, source, 0.25)
    assert target.tolist() == [2.5, 5.0]
    pathwise.follow(target, source, 0.0)
    assert torch.equal(target, source)


# ---- GRAD-06 --------------------------------------------------------------------------------------------------------


def test_an_exploded_gradient_is_finite_and_limited() -> None:
    """x' = x + a, r = −x'², a = θx, 64 steps from 1: the gradient is about −5.26e24, its square no float32."""
    theta = torch.tensor([0.5], requires_grad=True)
    x, rewards = torch.ones(1), []
    for _ in range(64):
        x = x + theta * x
        rewards.append(-x.square())
    reward = torch.stack(rewards)
    none = torch.zeros_like(reward, dtype=torch.bool)
    loss = pathwise_loss(segment_return(reward, None, none, none, 1.0), none, denominator=1)
    (grad,) = torch.autograd.grad(-loss, theta)
    assert float(grad) == pytest.approx(-5.26e24, rel=1e-3)
    limited, norm = pathwise.limit_norm(grad, 1.0)
    assert float(norm) == pytest.approx(5.26e24, rel=1e-3)
    assert float(limited) == pytest.approx(-1.0)
