"""Batches and the gradient source, against autograd written out by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from pgtrain.learning.batch import Batch, Coefficients, flatten
from pgtrain.learning.gradients import Backprop
from pgtrain.learning.losses import PolicyGradient, SquaredError
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.normalizer import RunningMoments
from pgtrain.policies.parameters import FlatParameters
from pgtrain.rollout import Rollout
from tests.support import box, make_policy, make_rollout

SPACES = {"discrete": spaces.Discrete(3), "box": box([-1, 0], [1, 5])}


def experience(policy: ActorCritic, *, weight: Any = None, seed: int = 0) -> Rollout:
    """5 steps of 3 envs; two episodes end in env 0, one in env 1."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(5, 3, 3, generator=generator)
    with torch.no_grad():
        params, _ = policy(inputs)
        action = policy.distribution.sample(params, generator)
    terminated = np.zeros((5, 3))
    terminated[1, 0] = terminated[4, 0] = terminated[2, 1] = 1
    rollout = make_rollout(
        np.zeros((5, 3)),
        terminated=terminated,
        inputs=inputs,
        action=action,
        policy=policy,
        whole_episodes=True,
        weight=weight,
    )
    return rollout.replace(
        advantage=torch.randn(5, 3, generator=generator), value_target=torch.randn(5, 3, generator=generator)
    )


def source(policy: ActorCritic, **settings: Any) -> Backprop:
    defaults: dict[str, Any] = {
        "policy_loss": PolicyGradient(settings.pop("mean_over", "steps")),
        "value_loss": SquaredError(),
        "value_coef": 0.5,
        "normalize_advantage": False,
    }
    return Backprop(policy, FlatParameters(policy), **(defaults | settings))


# ---------------------------------------------------------------------------------------------------- batches


def test_flatten_keeps_real_transitions_in_order() -> None:
    policy = make_policy()
    weight = np.ones((5, 3))
    weight[3:, 1], weight[0, 2] = 0, 0
    r = experience(policy, weight=weight)
    batch = flatten(r, None)
    used = torch.as_tensor(weight) > 0
    assert len(batch.weight) == 12 == r.num_steps
    assert torch.equal(batch.inputs, r.inputs[used]) and torch.equal(batch.action, r.action[used])
    assert torch.equal(batch.params, r.params[used]) and torch.equal(batch.log_prob, r.log_prob[used])
    assert torch.equal(batch.advantage, r.advantage[used]) and torch.equal(
        batch.value_target, r.value_target[used]
    )
    assert (batch.weight == 1).all() and (batch.discount == 1).all()
    assert batch.episodes == 3.0


def test_discount_is_gamma_to_the_step_of_the_episode() -> None:
    r = experience(make_policy())
    carried = r.episode_step.clone()
    carried[:, 2] += 40  # an episode under way since an earlier window
    batch = flatten(r.replace(episode_step=carried), 0.9)
    expected = [[0, 0, 40], [1, 1, 41], [0, 2, 42], [1, 0, 43], [2, 1, 44]]
    torch.testing.assert_close(batch.discount, 0.9 ** torch.tensor(expected, dtype=torch.float32).flatten())


def test_rows_of_a_batch_take_their_share_of_the_episodes() -> None:
    batch = flatten(experience(make_policy()), 0.9)
    index = torch.tensor([3, 0, 14])
    part = batch.rows(index)
    assert part.episodes == pytest.approx(3 * 3 / 15)
    for name in Batch.COLUMNS:
        assert torch.equal(getattr(part, name), getattr(batch, name)[index])


def test_windows_have_no_episode_count() -> None:
    r = experience(make_policy()).replace(whole_episodes=False)
    assert flatten(r, None).episodes == 0.0


# --------------------------------------------------------------------------------------------------- gradient


def by_hand(
    policy: ActorCritic, batch: Batch, *, divisor: float, value_coef: float, entropy_coef: float
) -> Any:
    """Gradient of −Σ γᵗ A log π / divisor + value_coef · ½ mean (V − target)² − entropy_coef · mean H, with
    torch.distributions, by parameter name."""
    twin = copy.deepcopy(policy)
    head, value = twin.network(batch.inputs)
    if twin.log_std is None:
        d: Any = torch.distributions.Categorical(logits=head)
        log_prob, entropy = d.log_prob(batch.action), d.entropy()
    else:
        half = torch.tensor([1.0, 2.5])
        center = torch.tensor([0.0, 2.5])
        d = torch.distributions.Normal(center + half * torch.tanh(head), half * twin.log_std.exp())
        log_prob, entropy = d.log_prob(center + half * batch.action).sum(-1), d.entropy().sum(-1)
    loss = -(batch.discount * batch.advantage * log_prob).sum() / divisor - entropy_coef * entropy.mean()
    if value is not None:
        loss = loss + value_coef * 0.5 * (value - batch.value_target).square().mean()
    grads = torch.autograd.grad(loss, list(twin.parameters()))
    return torch.cat([g.flatten() for g in grads]), loss.detach()


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("share", [0, 1, 2])
@pytest.mark.parametrize("mean_over", ["steps", "episodes"])
@pytest.mark.parametrize("gamma", [None, 0.8])
def test_gradient_equals_autograd_by_hand(
    space: str, share: int, mean_over: str, gamma: float | None
) -> None:
    policy = make_policy(3, SPACES[space], share=share, gain=0.5)
    weight = np.ones((5, 3))
    weight[3:, 1] = 0
    batch = flatten(experience(policy, weight=weight), gamma)
    divisor = 13.0 if mean_over == "steps" else 3.0
    expected, loss = by_hand(policy, batch, divisor=divisor, value_coef=0.7, entropy_coef=0.03)
    back = source(policy, value_coef=0.7, mean_over=mean_over)
    back.flat.grad.fill_(123.0)  # left over from before
    stats = back(batch, Coefficients(0.0, 0.03))
    torch.testing.assert_close(back.flat.grad, expected, rtol=1e-4, atol=1e-6)
    assert float(stats["loss"]) == pytest.approx(float(loss), rel=1e-5, abs=1e-6)
    assert float(stats["loss"]) == pytest.approx(
        float(stats["loss/actor"] + 0.7 * stats["loss/critic"] - 0.03 * stats["policy/entropy"]), abs=1e-6
    )
    assert all(not x.requires_grad and x.shape == () for x in stats.values())


def test_without_critic() -> None:
    policy = make_policy(critic=False)
    batch = flatten(experience(policy), None)
    back = source(policy)
    stats = back(batch, Coefficients(0.0, 0.0))
    expected, _ = by_hand(policy, batch, divisor=15.0, value_coef=0, entropy_coef=0)
    torch.testing.assert_close(back.flat.grad, expected, rtol=1e-4, atol=1e-6)
    assert "loss/critic" not in stats


def test_normalised_advantages() -> None:
    policy = make_policy()
    batch = flatten(experience(policy), None)
    a = batch.advantage
    standard = (a - a.mean()) / (a.std(correction=1) + 1e-8)
    expected, _ = by_hand(
        policy, batch.replace(advantage=standard), divisor=15.0, value_coef=0.5, entropy_coef=0
    )
    back = source(policy, normalize_advantage=True)
    back(batch, Coefficients(0.0, 0.0))
    torch.testing.assert_close(back.flat.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("advantage", [[3.7], [2.0, 2.0, 2.0, 2.0]])
def test_normalising_degenerate_batches_stays_finite(advantage: list[float]) -> None:
    policy = make_policy()
    batch = flatten(experience(policy), None).rows(torch.arange(len(advantage)))
    back = source(policy, normalize_advantage=True, value_coef=0.0)
    back(batch.replace(advantage=torch.tensor(advantage)), Coefficients(0.0, 0.0))
    assert torch.isfinite(back.flat.grad).all()
    assert (back.flat.grad == 0).all() == (len(advantage) > 1)


@pytest.mark.parametrize("share", [0, 1])
def test_value_coef_scales_the_critics_part_alone(share: int) -> None:
    """With share=0 no gradient crosses over; a shared trunk gets both."""
    policy = make_policy(share=share)
    batch = flatten(experience(policy), None)
    grads = {}
    for coef in (0.0, 1.0, 3.0):
        back = source(policy, value_coef=coef)
        back(batch, Coefficients(0.0, 0.0))
        grads[coef] = {name: back.flat.grad[part].clone() for name, part in back.flat.slices.items()}
    for name in grads[0.0]:
        critic = grads[1.0][name] - grads[0.0][name]
        torch.testing.assert_close(grads[3.0][name] - grads[0.0][name], 3 * critic, rtol=1e-3, atol=1e-5)
        assert (critic.abs().max() > 1e-6) == (not name.startswith("network.actor"))
        assert (grads[0.0][name].abs().max() > 0) == (not name.startswith("network.critic"))


@pytest.mark.parametrize("space", SPACES)
def test_the_bonus_raises_the_entropy(space: str) -> None:
    policy = make_policy(3, SPACES[space], gain=1.0)
    batch = flatten(experience(policy), None)
    batch = batch.replace(advantage=torch.zeros_like(batch.advantage))
    back = source(policy, value_coef=0.0)

    def entropy() -> float:
        with torch.no_grad():
            return float(policy.evaluate(batch.inputs, batch.action).entropy.mean())

    before = entropy()
    back(batch, Coefficients(0.0, 1.0))
    back.flat.data.sub_(0.01 * back.flat.grad)
    assert entropy() > before + 1e-5


def test_good_actions_become_likelier() -> None:
    policy = make_policy(gain=0.5)
    batch = flatten(experience(policy), None)
    batch = batch.replace(advantage=torch.ones_like(batch.advantage))
    back = source(policy, value_coef=0.0)
    back(batch, Coefficients(0.0, 0.0))
    back.flat.data.sub_(0.01 * back.flat.grad)
    with torch.no_grad():
        assert policy.evaluate(batch.inputs, batch.action).log_prob.mean() > batch.log_prob.mean()


def test_shapes_that_would_broadcast_are_refused() -> None:
    policy = make_policy()
    batch = flatten(experience(policy), None)
    for wrong in ({"advantage": batch.advantage[:, None]}, {"value_target": batch.value_target[:, None]}):
        with pytest.raises(ValueError, match="shapes differ"):
            source(policy)(batch.replace(**wrong), Coefficients(0.0, 0.0))


def test_the_critics_gradient_does_not_depend_on_the_scale_of_reward() -> None:
    """With standardised targets, 1000-fold targets and values give the same step; the loss shown keeps its units."""
    steps, losses = [], []
    for scale in (1.0, 1000.0):
        policy = make_policy(value_moments=RunningMoments(1, clip=float("inf"), eps=1e-12))
        moments = torch.tensor([[-2.0], [3.0], [0.5]]) * scale
        policy.value_moments.update(moments)
        batch = flatten(experience(policy), None)
        batch = batch.replace(value_target=batch.value_target * scale)
        back = source(policy, value_coef=0.7)
        losses.append(float(back(batch, Coefficients(0.0, 0.01))["loss/critic"]))
        steps.append(back.flat.grad.clone())
        with torch.no_grad():
            error = policy.value(batch.inputs) - batch.value_target
        assert losses[-1] == pytest.approx(0.5 * float(error.square().mean()), rel=1e-5)
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-4, atol=1e-6)
    assert losses[1] == pytest.approx(1e6 * losses[0], rel=1e-4)
