"""The tasks: gradients against central differences, the pendulum against Gymnasium's, LQR against closed forms."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from torch import Tensor

from pgtrain.envs.differentiable import registration
from pgtrain.envs.differentiable.balance import CartPole
from pgtrain.envs.differentiable.base import AHEAD
from pgtrain.envs.differentiable.check import check
from pgtrain.envs.differentiable.lqr import LQR, exact, riccati
from pgtrain.envs.differentiable.pendulum import Pendulum
from pgtrain.envs.differentiable.registration import TASKS, make
from pgtrain.envs.vector import make_vector_env
from pgtrain.types import UserError
from tests.envs.differentiable.faulty import Good

LQR_GOLDEN = json.loads(
    (Path(__file__).parents[2] / "golden" / "lqr_pathwise.json").read_text(encoding="utf-8")
)
TERMINATING = "pgtrain/Quadrotor-v0"
SMOOTH = [name for name, task in TASKS.items() if not task.choices]


def actions(env: Any, steps: int, seed: int = 0) -> Tensor:
    """[T, N, A] inside the box (or within ±1), float64; or choices [T, N]."""
    g = torch.Generator().manual_seed(seed)
    if env.choices is not None:
        return torch.randint(env.choices, (steps, env.num_envs), generator=g)
    low = torch.tensor(env.action_low, dtype=torch.float64).clamp(min=-1)
    high = torch.tensor(env.action_high, dtype=torch.float64).clamp(max=1)
    unit = torch.rand((steps, env.num_envs, len(low)), generator=g, dtype=torch.float64)
    return low + (high - low) * unit


def total_reward(env: Any, start: dict[str, Any], acts: Tensor) -> Tensor:
    env.load_state_dict(start)
    env.detach()
    return torch.stack([env.advance(a).reward for a in acts]).sum()


# ---- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", SMOOTH)
def test_the_gradient_of_a_return_equals_central_differences(env_id: str) -> None:
    env = make(env_id, 3, dtype=torch.float64)
    env.reset(1)
    start, acts = env.state_dict(), actions(env, 12).requires_grad_()
    (grad,) = torch.autograd.grad(total_reward(env, start, acts), acts)
    h = 1e-6
    for t, n, a in [(0, 0, 0), (0, 2, -1), (5, 1, 0), (11, 0, -1)]:
        moved = torch.zeros_like(acts)
        moved[t, n, a] = h
        with torch.no_grad():
            numeric = (total_reward(env, start, acts + moved) - total_reward(env, start, acts - moved)) / (
                2 * h
            )
        assert float(grad[t, n, a]) == pytest.approx(float(numeric), rel=1e-6, abs=1e-7)
        assert grad[t, n, a] != 0


@pytest.mark.parametrize("env_id", SMOOTH)
def test_states_get_a_gradient_too(env_id: str) -> None:
    env = make(env_id, 2, dtype=torch.float64)
    env.reset(0)
    acts = actions(env, 1)[0]
    state = env.state.clone().requires_grad_()
    (grad,) = torch.autograd.grad(env.reward(state, acts, env.dynamics(state, acts)).sum(), state)
    for j in range(state.shape[1]):
        h = torch.zeros_like(state)
        h[:, j] = 1e-6
        with torch.no_grad():
            high, low = (env.reward(s, acts, env.dynamics(s, acts)) for s in (state + h, state - h))
        assert grad[:, j].tolist() == pytest.approx(((high - low) / 2e-6).tolist(), rel=1e-6, abs=1e-7)


# ---- cart-pole with two choices -------------------------------------------------------------------------------------


def test_cartpole_equals_gymnasium_step_by_step() -> None:
    """From the same states, over whole episodes; ends by each of the four limits among them."""
    theirs: Any = gym.make("CartPole-v1").unwrapped
    theirs.reset(seed=0)
    ours = CartPole(1, dtype=torch.float64)
    rng, ends = np.random.default_rng(0), set()
    for episode in range(40):
        start = rng.uniform(-1, 1, 4) * [1.5, 0.5, 0.1, 0.3]
        if episode % 4 == 3:  # on its way out
            start[:2] = np.sign(start[0]) * 2.35, np.sign(start[0])
        ours.reset(0)
        ours.state = torch.from_numpy(start)[None]
        theirs.state, theirs.steps_beyond_terminated = tuple(start), None
        side = episode % 3  # always left, always right, at random
        for _ in range(500):
            choice = int(rng.integers(2)) if side == 2 else side
            obs, reward, terminated, _, _ = theirs.step(choice)
            step = ours.advance(torch.tensor([choice]))
            np.testing.assert_allclose(step.next_obs[0].numpy(), theirs.state, rtol=0, atol=1e-12)
            assert float(step.reward) == reward and bool(step.terminated) == terminated
            assert step.next_obs[0].numpy() == pytest.approx(obs, abs=1e-6)
            if terminated:
                ends |= {(i, obs[i] > 0) for i, most in ((0, 2.4), (2, 0.2095)) if abs(obs[i]) > most}
                break
    assert len(ends) == 4


def test_choices_have_no_gradient_to_check() -> None:
    with pytest.raises(UserError, match=r"pgtrain/CartPole-v0: its actions are 2 choices.*CartPoleSwingUp"):
        check(make("pgtrain/CartPole-v0", 1))


# ---- pendulum -------------------------------------------------------------------------------------------------------


def test_pendulum_equals_gymnasium_step_by_step() -> None:
    theirs = gym.make("Pendulum-v1")
    theirs.reset(seed=3)
    single: Any = theirs.unwrapped
    ours = make("pgtrain/Pendulum-v0", 1, dtype=torch.float64)
    ours.reset(0)
    single.state = np.array([3.0, 0.5])
    ours.state = torch.tensor([[3.0, 0.5]], dtype=torch.float64)
    rng = np.random.default_rng(0)
    clipped_speed = clipped_torque = 0
    for t in range(200):
        pushing = np.sign(single.state[1]) * 3.0 if t < 60 else rng.uniform(-3, 3)  # beyond the torque, too
        obs, reward, terminated, truncated, _ = theirs.step(np.array([pushing]))
        step = ours.advance(torch.tensor([[pushing]], dtype=torch.float64))
        clipped_torque += abs(pushing) > 2
        clipped_speed += abs(single.state[1]) == 8.0
        assert float(step.reward) == pytest.approx(float(reward), abs=1e-9)
        assert step.next_obs[0].tolist() == pytest.approx(obs.tolist(), abs=1e-6)
        if not truncated:
            assert ours.state[0].tolist() == pytest.approx(single.state.tolist(), abs=1e-9)
        assert (bool(step.terminated), bool(step.truncated)) == (terminated, truncated)
    assert truncated
    assert clipped_torque > 20 and clipped_speed > 0


def test_pendulum_takes_gymnasiums_gravity() -> None:
    theirs: Any = gym.make("Pendulum-v1", g=9.81).unwrapped
    theirs.reset(seed=0)
    theirs.state = np.array([1.0, 0.0])
    theirs.step(np.zeros(1))
    ours = Pendulum(1, g=9.81, dtype=torch.float64)
    moved = ours.dynamics(torch.tensor([[1.0, 0.0]]).double(), torch.zeros(1, 1).double())
    assert moved[0].tolist() == pytest.approx(theirs.state.tolist(), abs=1e-12)


def test_pendulum_starts_where_gymnasium_does() -> None:
    states = Pendulum(4000)
    states.reset(0)
    angle, speed = states.state.unbind(-1)
    assert float(angle.abs().max()) <= math.pi and float(speed.abs().max()) <= 1
    assert float(angle.std()) == pytest.approx(2 * math.pi / math.sqrt(12), rel=0.05)


# ---- LQR ------------------------------------------------------------------------------------------------------------


def golden_lqr(num_envs: int = 1, **changes: Any) -> LQR:
    given = {k: LQR_GOLDEN["inputs"][k] for k in ("A", "B", "Q", "R", "W", "x0_mean", "x0_cov")}
    return LQR(num_envs, dtype=torch.float64, **(given | changes))


def golden(name: str) -> Any:
    return torch.tensor(LQR_GOLDEN["inputs"][name], dtype=torch.float64)


def test_lqr_closed_forms_equal_the_golden_numbers() -> None:
    i, want = LQR_GOLDEN["inputs"], LQR_GOLDEN["expected"]
    got = exact(golden_lqr(), golden("K"), i["sigma"], i["horizon"], i["gamma"])
    assert float(got.J) == pytest.approx(want["J"], rel=1e-10)
    assert got.grad_K.tolist()[0] == pytest.approx(want["grad_K"][0], rel=1e-8)
    assert float(got.grad_log_sigma) == pytest.approx(want["grad_log_sigma"], rel=1e-8)
    assert got.P[0].flatten().tolist() == pytest.approx(np.ravel(want["P0"]).tolist(), rel=1e-10)
    assert float(got.c[0]) == pytest.approx(want["c0"], rel=1e-10)


def test_lqr_window_with_a_terminal_value_equals_the_golden_numbers() -> None:
    i, want = LQR_GOLDEN["inputs"], LQR_GOLDEN["expected"]["short_horizon"]
    P = torch.tensor(want["value_P"], dtype=torch.float64)
    got = exact(golden_lqr(), golden("K"), i["sigma"], i["short_horizon"], i["gamma"], P, want["value_c"])
    assert float(got.J) == pytest.approx(want["J"], rel=1e-10)
    assert got.grad_K.tolist()[0] == pytest.approx(want["grad_K"][0], rel=1e-7, abs=1e-9)
    assert float(got.grad_log_sigma) == pytest.approx(want["grad_log_sigma"], rel=1e-7)


def test_riccati_gives_the_golden_optimum() -> None:
    K, P = riccati(golden("A"), golden("B"), golden("Q"), golden("R"), LQR_GOLDEN["inputs"]["gamma"])
    want = LQR_GOLDEN["expected"]["optimal_infinite_horizon"]
    assert K.flatten().tolist() == pytest.approx(np.ravel(want["K"]).tolist(), rel=1e-8)
    assert P.flatten().tolist() == pytest.approx(np.ravel(want["P"]).tolist(), rel=1e-8)


def test_riccati_refuses_what_cannot_be_steered() -> None:
    two, one = torch.eye(1) * 2, torch.eye(1)
    with pytest.raises(ValueError, match="can B steer"):
        riccati(two, torch.zeros(1, 1), one, one)


@pytest.mark.parametrize("masses", [1, 2, 5])
def test_lqr_of_any_size_has_its_optimum_where_the_gradient_vanishes(masses: int) -> None:
    env = LQR(1, masses=masses, dtype=torch.float64)
    assert env.obs_dim == 2 * masses and env.action_space.shape == (masses,)
    K, P = riccati(env.A, env.B, env.Q, env.R, 0.95)
    at_optimum = exact(env, K, 0.0, 50, 0.95, terminal_P=P).grad_K
    elsewhere = exact(env, 1.1 * K, 0.0, 50, 0.95, terminal_P=P).grad_K
    assert float(at_optimum.abs().max()) < 1e-8 < 1e-2 < float(elsewhere.abs().max())


def test_lqr_noise_and_start_have_the_given_moments() -> None:
    env = golden_lqr(20_000, x0_cov=[[0.5, 0.2], [0.2, 0.3]])
    env.reset(0)
    assert torch.cov(env.state.T).flatten().tolist() == pytest.approx([0.5, 0.2, 0.2, 0.3], abs=0.02)
    assert env.state.mean(0).tolist() == pytest.approx([1.0, -0.5], abs=0.02)
    still = env.dynamics(torch.zeros_like(env.state), torch.zeros(20_000, 1).double())
    assert torch.cov(still.T).flatten().tolist() == pytest.approx([0.0025, 0, 0, 0.0025], abs=2e-4)


# ---- the base class -------------------------------------------------------------------------------------------------


def test_reset_gives_each_env_its_own_start_and_the_same_again() -> None:
    env = make("pgtrain/Pendulum-v0", 8)
    first = env.reset(7)
    assert len({tuple(row) for row in first.tolist()}) == 8
    env.advance(torch.zeros(8, 1))
    assert torch.equal(env.reset(7), first)
    assert not torch.equal(env.reset(8), first)


def test_a_time_limit_cuts_and_a_fresh_episode_begins() -> None:
    env = Good(3, max_episode_steps=4)
    env.reset(0)
    for t in range(1, 9):
        before = env.state
        step = env.advance(torch.zeros(3, 1))
        true_next = env.dynamics(before, torch.zeros(3, 1))
        assert torch.equal(step.next_obs, true_next)
        assert step.truncated.tolist() == [t % 4 == 0] * 3 and not step.terminated.any()
        assert torch.equal(step.obs, env.state)
        assert torch.equal(step.obs, true_next) == (t % 4 != 0)


class Fragile(Good):
    """Ends where x > 0; starts below."""

    def start(self, count: int) -> Tensor:
        return self.uniform(count, [-0.3, 0.2], [-0.1, 1.0])

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 0] > 0


def test_step_has_compact_rows_of_the_last_observations() -> None:
    env, twin = Fragile(6, max_episode_steps=9), Fragile(6, max_episode_steps=9)
    env.reset(2)
    twin.reset(2)
    ended = 0
    for _ in range(20):
        dense, step = twin.advance(torch.ones(6, 1)), env.step(torch.ones(6, 1))
        done = dense.terminated | dense.truncated
        ended += int(done.sum())
        if done.any():
            assert torch.equal(step.final_obs, dense.next_obs[done])
            assert (step.obs[done] != step.final_obs).any(-1).all()
        else:
            assert step.final_obs is None
        assert torch.equal(step.obs, dense.obs) and torch.equal(step.terminated, dense.terminated)
    assert ended > 6


def test_detach_cuts_the_graph_and_keeps_the_numbers() -> None:
    env = Good(2)
    env.reset(0)
    env.advance(torch.zeros(2, 1, requires_grad=True))
    assert env.state.requires_grad
    before = env.state.tolist()
    obs = env.detach()
    assert not env.state.requires_grad and not obs.requires_grad
    assert env.state.tolist() == before == obs.tolist()


@pytest.mark.parametrize("limit", [None, 1, 3, 7])
def test_the_short_way_where_no_episode_can_end_is_the_same(limit: int | None) -> None:
    """After `detach` on a CPU the reset is left out for the steps that are sure to have none."""
    quick, full = Good(3, max_episode_steps=limit), Good(3, max_episode_steps=limit)
    if limit is None:
        quick.max_episode_steps = full.max_episode_steps = None
    for env in (quick, full):
        env.reset(1)
        env.advance(torch.ones(3, 1))
        env.episode_step = torch.tensor([0, 1, 0]) % (limit or 9)
    for t in range(20):
        if t % 4 == 0:
            quick.detach()
        a, b = quick.advance(torch.ones(3, 1)), full.advance(torch.ones(3, 1))
        assert torch.equal(a.truncated, b.truncated) and torch.equal(quick.episode_step, full.episode_step)
        if limit is None:
            assert torch.equal(a.obs, b.obs) and not a.truncated.any()
    assert limit is None or quick.episode_step.max() < limit


def test_no_gradient_crosses_a_reset() -> None:
    env = Good(2, max_episode_steps=2)
    env.reset(0)
    acts = torch.zeros(3, 2, 1, requires_grad=True)
    rewards = torch.stack([env.advance(a).reward for a in acts])
    (grad,) = torch.autograd.grad(rewards[2].sum(), acts)
    assert (grad[:2] == 0).all() and (grad[2] != 0).all()


@pytest.mark.parametrize("env_id", [*TASKS])
def test_resume_is_bit_exact(env_id: str) -> None:
    def play(env: Any, steps: int, seed: int) -> list[list[float]]:
        taken = [env.advance(a.float()) for a in actions(env, steps, seed)]
        return [[*t.reward.tolist(), *t.obs.flatten().tolist(), *t.truncated.tolist()] for t in taken]

    env = make(env_id, 3, max_episode_steps=7)
    env.reset(5)
    play(env, AHEAD + 3, 0)
    state = torch.load(_saved(env.state_dict()), weights_only=True)
    onward = play(env, AHEAD + 3, 1)
    other = make(env_id, 3, max_episode_steps=7)
    other.load_state_dict(state)
    assert play(other, AHEAD + 3, 1) == onward
    with pytest.raises(ValueError, match="3 envs"):
        make(env_id, 4).load_state_dict(state)


def _saved(state: Any) -> Any:
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("env_id", list(TASKS))
def test_float_type_is_kept_throughout(env_id: str) -> None:
    env = make(env_id, 2, dtype=torch.float64, max_episode_steps=2)
    assert env.reset(0).dtype == torch.float64
    for a in actions(env, 3):
        step = env.advance(a)
        assert {step.obs.dtype, step.reward.dtype, step.next_obs.dtype, env.state.dtype} == {torch.float64}


# ---- ordinary Gymnasium envs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", list(TASKS))
def test_each_task_is_a_gymnasium_env(env_id: str) -> None:
    env = gym.make(env_id, disable_env_checker=True)
    check_env(env.unwrapped, skip_render_check=True)
    obs, _ = env.reset(seed=1)
    again, _ = env.reset(seed=1)
    assert np.array_equal(obs, again) and obs.dtype == np.float32
    limit = make(env_id, 1).max_episode_steps
    assert env.spec is not None and env.spec.max_episode_steps == limit == TASKS[env_id].max_episode_steps


@pytest.mark.parametrize("backend", ["auto", "native", "sync"])
@pytest.mark.parametrize("env_id", list(TASKS))
def test_each_task_is_found_by_its_id_on_every_backend(env_id: str, backend: str) -> None:
    with make_vector_env(env_id, 2, backend=backend) as env:
        assert env.backend == ("sync" if backend == "sync" else "native")
        obs = env.reset(0)
        assert (
            obs.shape == (2, env.obs_dim) and obs.dtype == np.float32 and not np.array_equal(obs[0], obs[1])
        )
        step = env.step(np.zeros((2, *env.action_space.shape)))
        assert step.reward.dtype == np.float64 and step.final_obs is None


def test_host_env_equals_the_tensor_env() -> None:
    host, ours = (
        make_vector_env(TERMINATING, 5, max_episode_steps=30),
        make(TERMINATING, 5, max_episode_steps=30),
    )
    first = host.reset(3)
    ours.load_state_dict(host.state_dict())
    assert np.array_equal(first, ours.detach().numpy())
    ended = cut = 0
    for a in actions(ours, 70, 2):
        a = (2.5 * a).clamp(-1, 1)
        step, want = host.step(a.numpy()), ours.advance(a.float())
        done = (want.terminated | want.truncated).numpy()
        ended, cut = ended + int(want.terminated.sum()), cut + int(want.truncated.sum())
        assert np.array_equal(step.obs, want.obs.numpy()) and step.valid is None
        assert np.allclose(step.reward, want.reward.numpy(), atol=1e-6)
        assert np.array_equal(step.terminated | step.truncated, done)
        assert (step.final_obs is None) == (not done.any())
        if done.any():
            assert np.array_equal(step.final_obs, want.next_obs.numpy()[done])
    assert ended > 0 and cut > 0


def test_idle_envs_stand_still() -> None:
    host = make_vector_env("pgtrain/Pendulum-v0", 3, max_episode_steps=4)
    obs = host.reset(0)
    push = np.ones((3, 1))
    host.set_idle(np.array([False, True, False]))
    for t in range(1, 7):
        step = host.step(push)
        assert step.valid is not None and step.valid.tolist() == [True, False, True]
        assert np.array_equal(step.obs[1], obs[1]) and step.reward[1] == 0
        assert step.truncated.tolist() == [t == 4, False, t == 4]
    host.set_idle(np.zeros(3, bool))
    truncated = [host.step(push).truncated.tolist() for _ in range(4)]
    assert truncated == [[False] * 3, [True, False, True], [False] * 3, [False, True, False]]


def test_arrays_of_the_host_env_are_the_callers() -> None:
    host = make_vector_env("pgtrain/LQR-v0", 2)
    first = host.reset(0)
    kept = first.copy()
    step = host.step(np.ones((2, 2)))
    obs = step.obs.copy()
    host.step(np.ones((2, 2)))
    assert np.array_equal(first, kept) and np.array_equal(step.obs, obs)


def test_host_env_resumes_bit_exactly() -> None:
    host = make_vector_env(TERMINATING, 2, max_episode_steps=5)
    host.reset(0)
    push = np.full((2, 2), 0.3)
    for _ in range(7):
        host.step(push)
    state = torch.load(_saved(host.state_dict()), weights_only=True)
    onward = [host.step(push).obs.tolist() for _ in range(12)]
    other = make_vector_env(TERMINATING, 2, max_episode_steps=5)
    other.load_state_dict(state)
    assert [other.step(push).obs.tolist() for _ in range(12)] == onward


# ---- ids ------------------------------------------------------------------------------------------------------------


def test_an_env_of_ones_own_gets_an_id_for_everything() -> None:
    registration.register("OwnSpring-v0", Good)
    registration.register("OwnSpring-v0", Good)  # a module may be imported twice
    assert isinstance(make("OwnSpring-v0", 2), Good)
    with make_vector_env("OwnSpring-v0", 2) as env:
        assert env.backend == "native" and env.max_episode_steps == 5
    assert gym.make("OwnSpring-v0").reset(seed=0)[0].shape == (2,)
    with pytest.raises(UserError, match=r"OwnSpring-v0 is taken by Good"):
        registration.register("OwnSpring-v0", Fragile)
    with pytest.raises(UserError, match="taken by another Gymnasium env"):
        registration.register("CartPole-v1", Good)


def test_a_module_in_front_of_the_id_is_imported() -> None:
    env = make("tests.envs.differentiable.registered:Registered-v0", 2)
    assert env.reset(0).shape == (2, 2)
    with make_vector_env("tests.envs.differentiable.registered:Registered-v0", 2) as host:
        assert host.backend == "native"
        assert host.env_id == "tests.envs.differentiable.registered:Registered-v0"


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_an_env_that_has_no_gradient_is_refused_in_one_line(env_id: str) -> None:
    with pytest.raises(UserError, match="is not differentiable") as error:
        make(env_id, 2)
    assert "\n" not in str(error.value) and "pgtrain/Pendulum-v0" in str(error.value)


def test_arguments_are_checked() -> None:
    assert make("pgtrain/Pendulum-v0", 1, g=1.0).g == 1.0  # pyright: ignore
    with pytest.raises(UserError, match=r"env\.kwargs\.gravity: .* it takes: .*g"):
        make("pgtrain/Pendulum-v0", 1, gravity=1.0)
    with pytest.raises(UserError, match=r"env\.kwargs\.gravity"):
        make_vector_env("pgtrain/Pendulum-v0", 1, kwargs={"gravity": 1.0})
    with make_vector_env("pgtrain/LQR-v0", 1, kwargs={"masses": 3}) as env:
        assert env.obs_dim == 6


@pytest.mark.parametrize("env_id", list(TASKS))
def test_the_table_of_tasks_is_true(env_id: str) -> None:
    cls = registration.load(env_id)
    assert registration.own_kwargs(cls) == TASKS[env_id].kwargs
    assert cls.__name__ == TASKS[env_id].name
