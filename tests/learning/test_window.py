"""Windows of a differentiable env: what they hold, what carries the graph, episodes across windows, resume."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pgtrain.envs.differentiable.registration import make
from pgtrain.learning.pathwise import pathwise_loss, segment_return
from pgtrain.learning.window import TimeProbe, WindowCollector, successor_values
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import DiagonalGaussian
from pgtrain.policies.gsde import StateDependentGaussian
from pgtrain.policies.networks import MLP
from pgtrain.policies.reparameterized import Reparameterized
from pgtrain.policies.squashed import TanhGaussian
from pgtrain.types import UserError
from tests.envs.differentiable.faulty import Good
from tests.support import make_policy


class Fragile(Good):
    """Starts left of 0 and ends right of 0.2; the limit is 6."""

    max_episode_steps = 6

    def start(self, count: int) -> Tensor:
        return self.uniform(count, [-0.3, 0.5], [-0.1, 3.0])

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 0] > 0.2


def policy_for(env: Any, seed: int = 0, critic: bool = True, normalizer: bool = True) -> ActorCritic:
    return make_policy(
        env.obs_dim, env.action_space, critic=critic, normalizer=normalizer, seed=seed, mean="tanh"
    )


def collector(env: Any, **settings: Any) -> WindowCollector:
    policy = policy_for(env)
    policy.observe(torch.randn(50, env.obs_dim, generator=torch.Generator().manual_seed(9)) * 2 + 1)
    settings = {"stagger": False} | settings
    return WindowCollector(env, policy, (3, 4), **settings)


# ---- what a window holds --------------------------------------------------------------------------------------------


def test_rows_are_what_the_policy_saw_and_did() -> None:
    env = Good(4)
    c = collector(env)
    policy = c.policy
    c.next_value_of = policy.value
    rollout, _ = c.collect_steps(7)
    assert rollout.obs.shape == (7, 4, 2) and rollout.action.shape == (7, 4, 1)
    assert torch.allclose(rollout.inputs, policy.prepare(rollout.obs), atol=1e-5)
    with torch.no_grad():
        new = policy.evaluate(rollout.inputs, rollout.action)
    assert torch.allclose(rollout.params, new.params, atol=1e-6)
    assert torch.allclose(rollout.log_prob, new.log_prob, atol=1e-5)
    assert rollout.value is not None and new.value is not None
    assert torch.allclose(rollout.value, new.value, atol=1e-6)
    assert rollout.num_steps == 28 and (rollout.weight == 1).all()


def test_the_env_gets_the_action_of_the_distribution() -> None:
    env = Good(4, max_episode_steps=100)
    c = collector(env)
    rollout, _ = c.collect_steps(5)
    for t in range(4):
        action = torch.from_numpy(c.policy.distribution.to_env(rollout.action[t].numpy())).float()
        assert torch.allclose(env.dynamics(rollout.obs[t], action), rollout.obs[t + 1], atol=1e-6)


def test_only_rewards_and_next_values_carry_a_graph() -> None:
    env = Good(3)
    c = collector(env, next_value_of=lambda x: x.square().sum(-1))
    rollout, _ = c.collect_steps(4)
    with_graph = {k for k, v in rollout.as_dict().items() if isinstance(v, Tensor) and v.requires_grad}
    assert with_graph == {"reward", "next_value"}


def test_a_window_begins_without_a_past() -> None:
    env = Good(3, max_episode_steps=100)
    c = collector(env)
    first, _ = c.collect_steps(4)
    second, _ = c.collect_steps(4)
    first.reward.sum().backward()  # would fail if the second window's graph reached into the first
    second.reward.sum().backward()
    assert torch.equal(second.obs[0], first.last_inputs) is False  # raw against standardised
    assert torch.allclose(c.actor.inputs(second.obs[0]), first.last_inputs)


def test_finals_are_the_last_observations_before_resets() -> None:
    env = Fragile(6)
    c = collector(env, next_value_of=lambda x: x.sum(-1))
    rollout, _ = c.collect_steps(20)
    assert rollout.terminated.any() and rollout.truncated.any()
    index = rollout.done.nonzero(as_tuple=True)
    assert all(torch.equal(a, b) for a, b in zip(rollout.final_index, index, strict=True))
    assert rollout.next_value is not None
    assert torch.allclose(rollout.next_value[index], rollout.final_inputs.sum(-1), atol=1e-5)
    inside = ~rollout.done[:-1]
    assert torch.allclose(rollout.next_value[:-1][inside], rollout.inputs[1:].sum(-1)[inside], atol=1e-5)
    assert torch.allclose(
        rollout.next_value[-1][~rollout.done[-1]], rollout.last_inputs.sum(-1)[~rollout.done[-1]]
    )


def test_values_are_those_of_the_observations_acted_on() -> None:
    """Also in the first row and after a reset, where the observation is no step's successor."""
    c = collector(Fragile(5), next_value_of=lambda x: x.square().sum(-1))
    rollout, _ = c.collect_steps(20)
    assert rollout.terminated[:-1].any() and rollout.truncated[:-1].any() and rollout.value is not None
    assert torch.allclose(rollout.value, rollout.inputs.square().sum(-1), atol=1e-5)


def test_episodes_are_counted_across_windows() -> None:
    env = Fragile(5)
    c = collector(env)
    windows = [c.collect_steps(4) for _ in range(6)]
    reward = torch.cat([r.raw_reward for r, _ in windows]).numpy()
    done = torch.cat([r.done for r, _ in windows]).numpy()
    step = torch.cat([r.episode_step for r, _ in windows]).numpy()
    start = torch.cat([r.episode_start for r, _ in windows]).numpy()
    returns, lengths = [], []
    for w in range(6):
        for t in range(4 * w, 4 * w + 4):
            for n in range(5):
                if done[t, n]:
                    first = max((s + 1 for s in range(t) if done[s, n]), default=0)
                    returns.append(reward[first : t + 1, n].sum())
                    lengths.append(t + 1 - first)
    assert np.concatenate([e.returns for _, e in windows]) == pytest.approx(returns)
    assert np.concatenate([e.lengths for _, e in windows]).tolist() == lengths
    assert len(lengths) > 10 and len(set(lengths)) > 2
    age = np.zeros(5, int)
    for t in range(24):
        assert step[t].tolist() == age.tolist() and start[t].tolist() == (age == 0).tolist()
        age = np.where(done[t], 0, age + 1)


@pytest.mark.parametrize("seed", range(3))
def test_values_carry_the_graph_where_the_loss_reads_them(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    obs = torch.randn(6, 4, 3, generator=g, requires_grad=True)
    done = torch.rand(6, 4, generator=g) < 0.2
    none = torch.zeros_like(done)
    reward = torch.zeros(6, 4)
    grads = []
    expected = (2 * obs).sin().sum(-1)
    for values in (
        successor_values(lambda x: x.sin().sum(-1), lambda x: 2 * x, obs.unbind(), done),
        expected,
    ):
        loss = pathwise_loss(segment_return(reward, values, none, done, 0.9), done)
        grads.append(torch.autograd.grad(loss, obs, retain_graph=True)[0])
        assert torch.allclose(values, expected)
    assert torch.allclose(*grads) and (grads[0] != 0).any()


def test_staggered_clocks_cut_at_different_steps_and_spoil_no_return() -> None:
    env = Good(6, max_episode_steps=10)
    c = collector(env, stagger=True)
    first, episodes = c.collect_steps(10)
    cuts = first.truncated.nonzero()
    assert len(cuts) == 6 and len(set(cuts[:, 0].tolist())) > 2
    assert len(episodes.returns) == 0  # each was shorter than an episode is
    second, episodes = c.collect_steps(10)
    assert episodes.lengths.tolist() == [10] * 6
    reward = torch.cat([first.raw_reward, second.raw_reward])
    order = sorted(((int(t), int(n)) for t, n in cuts))
    assert episodes.returns.tolist() == pytest.approx(
        [float(reward[t + 1 : t + 11, n].sum()) for t, n in order]
    )


# ---- whole episodes -------------------------------------------------------------------------------------------------


def test_whole_episodes_are_one_of_each_env() -> None:
    env = Fragile(8)
    c = collector(env)
    c.collect_steps(3)
    collected = c.collect_episodes(1)
    assert collected is not None
    rollout, episodes = collected
    assert rollout.whole_episodes and len(episodes.returns) == 8
    assert rollout.episode_start[0].all()
    assert rollout.weight.sum(0).tolist() == [float(rollout.done[:, n].nonzero()[0, 0] + 1) for n in range(8)]
    assert rollout.num_steps == int(episodes.lengths.sum()) < rollout.weight.numel()
    assert (rollout.reward[rollout.weight == 0] == 0).all()
    returns = segment_return(rollout.reward, None, rollout.terminated, rollout.truncated, 1.0)
    loss = pathwise_loss(returns, rollout.done, rollout.weight, denominator=8)
    assert -float(loss.detach()) == pytest.approx(episodes.returns.mean(), rel=1e-5)


def test_whole_episodes_need_a_limit_and_a_budget() -> None:
    env = Fragile(2)
    c = collector(env)
    assert c.collect_episodes(1, max_steps=11) is None
    assert c.collect_episodes(1, max_steps=12) is not None
    env.max_episode_steps = None
    with pytest.raises(UserError, match=r"env\.max_episode_steps"):
        c.collect_episodes(1)


# ---- the policy as a smooth map -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [TanhGaussian, DiagonalGaussian])
@pytest.mark.parametrize(
    ("low", "high"), [([-1.0], [1.0]), ([-2.0, 0.0], [2.0, 3.0]), ([-np.inf, -1.0], [np.inf, 5.0])]
)
def test_actions_in_torch_equal_those_in_numpy(kind: type, low: list[float], high: list[float]) -> None:
    d = kind(np.array(low), np.array(high))
    network = MLP(3, d.head_dim, hidden=[4], activation="tanh", share=0, critic=False, last_gain=1.0)
    actor = Reparameterized(ActorCritic(network, d, None, mean="identity"))
    u = 2 * torch.randn(50, len(low), generator=torch.Generator().manual_seed(0))
    assert np.allclose(actor.to_env(u).numpy(), d.to_env(u.numpy()), atol=1e-6)


def test_the_gradient_through_noise_is_that_of_mean_and_spread() -> None:
    env = Good(2)
    policy = policy_for(env, normalizer=False)
    actor = Reparameterized(policy)
    actor.begin()
    noise = torch.tensor([[0.7], [-0.4]])
    u, mean = actor(torch.zeros(2, 2), noise)
    assert policy.log_std is not None
    (grad,) = torch.autograd.grad(u.sum(), policy.log_std)
    std = float(policy.log_std.detach().exp())
    assert float(grad) == pytest.approx(0.3 * std, rel=1e-5)
    assert torch.allclose(u - mean, std * noise)


def test_a_policy_without_reparameterisation_is_refused() -> None:
    with pytest.raises(UserError, match="not categorical"):
        Reparameterized(make_policy())
    d = StateDependentGaussian(np.array([-1.0]), np.array([1.0]), 8)
    network = MLP(
        3, 1, hidden=[8], activation="tanh", share=0, critic=False, last_gain=1.0, features="learned"
    )
    with pytest.raises(UserError, match="not gsde"):
        Reparameterized(ActorCritic(network, d, None))


def test_unbounded_actions_pass_as_they_are() -> None:
    env = make("pgtrain/LQR-v0", 2)
    policy = make_policy(4, env.action_space)
    u = torch.tensor([[50.0, -3.0]])
    assert torch.equal(Reparameterized(policy).to_env(u), u)


def test_double_precision_is_kept_by_the_env() -> None:
    env = Good(2, dtype=torch.float64)
    rollout, _ = collector(env).collect_steps(3)
    assert rollout.obs.dtype == rollout.reward.dtype == torch.float64
    assert rollout.inputs.dtype == rollout.log_prob.dtype == torch.float32
    rollout.reward.sum().backward()


# ---- probe, resume --------------------------------------------------------------------------------------------------


def test_probe_tells_the_norm_of_each_state() -> None:
    env = Good(3, max_episode_steps=100)
    probe = TimeProbe()
    c = collector(env, probe=probe)
    rollout, _ = c.collect_steps(6)
    probe.begin()
    last = probe.states[-1]
    rollout.reward[-1].sum().backward()
    norms = probe.norms()
    assert norms.shape == (5,) and (norms > 0).all()
    assert last.grad is not None and torch.allclose(norms[-1], torch.linalg.vector_norm(last.grad))
    assert probe.states == []


def test_resume_is_bit_exact() -> None:
    def fresh() -> WindowCollector:
        return collector(Fragile(3), stagger=True)

    c = fresh()
    for _ in range(3):
        c.collect_steps(5)
    file = io.BytesIO()
    torch.save(c.state_dict(), file)
    file.seek(0)
    other = fresh()
    other.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(9):
        (a, ea), (b, eb) = c.collect_steps(5), other.collect_steps(5)
        assert (
            torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward) and torch.equal(a.action, b.action)
        )
        assert ea.returns.tolist() == eb.returns.tolist() and ea.lengths.tolist() == eb.lengths.tolist()
        assert torch.equal(a.episode_step, b.episode_step)


def test_nothing_in_a_window_reads_a_tensor_on_the_host() -> None:
    """The loop itself, as it would run on a GPU: no number, branch, NumPy or transfer."""
    from torch.overrides import TorchFunctionMode

    asked: list[str] = []

    class Listen(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.__name__ in (
                "item",
                "tolist",
                "__bool__",
                "__float__",
                "__int__",
                "numpy",
                "cpu",
                "nonzero",
            ):
                asked.append(func.__name__)
            return func(*args, **(kwargs or {}))

    for env_id in ("pgtrain/Pendulum-v0", "pgtrain/Quadrotor-v0", "pgtrain/LQR-v0"):
        env = make(env_id, 2, max_episode_steps=5)
        env.reset(0)
        actor = Reparameterized(make_policy(env.obs_dim, env.action_space))
        actor.begin()
        obs = env.detach()
        env._quiet = 0  # what a CPU knows beforehand a GPU does not
        with Listen():
            for _ in range(40):
                u, _ = actor(actor.inputs(obs), torch.zeros(()))
                obs = env.advance(actor.to_env(u)).obs
    assert asked == []
