"""Collecting, batching, evaluating and resuming with a policy that has memory, against a log of what happened."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from pgtrain.collector import Collector
from pgtrain.envs.vector import make_vector_env
from pgtrain.evaluation import evaluate
from pgtrain.learning.advantages import GAE
from pgtrain.learning.batch import Batch, flatten, sequences
from pgtrain.learning.kl_guard import measure_kl
from pgtrain.learning.updates import Update
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import RecurrentActor, make_actor
from pgtrain.rollout import Rollout, revalue
from pgtrain.types import Step
from tests.memory_support import make_recurrent
from tests.support import ScriptedEnv, Transition, box
from tests.test_rollout import ENDS, LENGTHS, MODES, valid_rows

TIGHT: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
FINITE = [[3, 1, 4], [5, 2], [1], [9]]


def collector(env: Any, policy: ActorCritic, seed: int = 0) -> Collector:
    actor = make_actor(policy, env.num_envs, seed)
    assert isinstance(actor, RecurrentActor)
    return Collector(env, policy, actor, seed=0, rows=4)


@torch.no_grad()
def remembered(policy: ActorCritic, episode: list[Transition]) -> tuple[Tensor, Tensor, Tensor]:
    """params, value and value of the true successor of each step of one episode, played from an empty memory."""
    network: Any = policy.network
    state, start = torch.zeros(1, policy.memory_dim - 1), torch.ones(1, 1)
    params, values, after = [], [], []
    for x in episode:
        row = torch.cat([policy.prepare(torch.from_numpy(x.obs)[None]), start, state], -1)
        head, state = network.advance(row)
        start = torch.zeros(1, 1)
        params.append(policy.params(head))
        values.append(policy.value(row))
        following = policy.prepare(torch.from_numpy(x.next_obs)[None])
        after.append(policy.value(torch.cat([following, start, state], -1)))
    return torch.cat(params), torch.cat(values), torch.cat(after)


def check_memory(
    rollout: Rollout, policy: ActorCritic, log: list[list[Transition]], before: list[int]
) -> None:
    for n, transitions in enumerate(log):
        expected: list[Any] = []
        for episode in sorted({x.episode for x in transitions}):
            steps = [x for x in transitions if x.episode == episode]
            expected += list(zip(*remembered(policy, steps), strict=True))
        rows = valid_rows(rollout, n)
        assert len(rows) == len(expected) - before[n]
        assert rollout.value is not None and rollout.next_value is not None
        for t, x, (params, value, after) in zip(
            rows, transitions[before[n] :], expected[before[n] :], strict=True
        ):
            assert rollout.obs[t, n].tolist() == x.obs.tolist()
            torch.testing.assert_close(rollout.params[t, n], params, **TIGHT)
            torch.testing.assert_close(rollout.value[t, n], value, **TIGHT)
            torch.testing.assert_close(rollout.next_value[t, n], after, **TIGHT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "share"), [("gru", True), ("lstm", False)])
def test_memory_starts_with_each_episode_and_is_kept_across_windows(
    mode: str, kind: str, share: bool
) -> None:
    env = ScriptedEnv(LENGTHS, ENDS, mode)
    policy = make_recurrent(kind=kind, share=share, normalizer=True)
    policy.observe(torch.randn(50, 3) * 2 + 1)
    c = collector(env, policy)
    for steps in (7, 1, 2, 9):
        before = [len(x) for x in env.log]
        rollout, _ = c.collect_steps(steps)
        check_memory(rollout, policy, env.log, before)
        again = revalue(policy, rollout)
        torch.testing.assert_close(again.next_value, rollout.next_value)


@pytest.mark.parametrize("mode", MODES)
def test_memory_in_whole_episodes_with_idle_envs(mode: str) -> None:
    env = ScriptedEnv(FINITE, ENDS, mode)
    policy = make_recurrent()
    c = collector(env, policy)
    for collect, count in (("episodes", 2), ("episodes", 1), ("steps", 3), ("episodes", 1)):
        before = [len(x) for x in env.log]
        rollout, _ = getattr(c, f"collect_{collect}")(count)
        if collect == "episodes":
            assert (rollout.weight == 0).any()
        check_memory(rollout, policy, env.log, before)


def estimated(c: Collector, steps: int = 12) -> Rollout:
    return GAE(0.9, 0.8)(c.collect_steps(steps)[0])


@pytest.mark.parametrize("space", ["discrete", "box"])
@pytest.mark.parametrize("length", [None, 5, 1])
@pytest.mark.parametrize("mode", MODES)
def test_the_update_sees_the_policy_that_acted(mode: str, length: int | None, space: str) -> None:
    """Unchanged parameters: every ratio is 1 and the KL 0, in whole windows and in pieces of them."""
    action_space = gym.spaces.Discrete(3) if space == "discrete" else box([-1, 0], [1, 5])
    env, policy = ScriptedEnv(LENGTHS, ENDS, mode, action_space), make_recurrent(space=action_space)
    c = collector(env, policy)
    for _ in range(2):
        batch = sequences(estimated(c), None, length)
        new, real = policy.evaluate(batch.inputs, batch.action), batch.weight > 0
        torch.testing.assert_close(new.log_prob[real], batch.log_prob[real], **TIGHT)
        torch.testing.assert_close(new.params[real], batch.params[real], **TIGHT)
        assert new.value is not None
        torch.testing.assert_close(new.value[real], batch.value[real], **TIGHT)
        assert float(measure_kl(policy, batch)) < 1e-9
        shuffled = batch.replace(inputs=batch.inputs.flip(1))
        assert float(measure_kl(policy, shuffled)) > 1e-4  # such a mistake would show


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("length", [None, 5, 1, 100])
def test_sequences_hold_every_transition_once(mode: str, whole: bool, length: int | None) -> None:
    c = collector(ScriptedEnv(FINITE, ENDS, mode), make_recurrent())
    if whole:
        collected = c.collect_episodes(2)
        assert collected is not None
        rollout = GAE(0.9, 0.8)(collected[0])
    else:
        rollout = estimated(c)
    flat, batch = flatten(rollout, 0.9), sequences(rollout, 0.9, length)
    real = batch.weight > 0
    assert real.any(0).all()  # no column of nothing
    assert batch.parts == batch.weight.shape[1]
    assert len(batch.weight) == min(length or 10**6, len(rollout.weight))
    order, expected = torch.argsort(batch.advantage[real]), torch.argsort(flat.advantage)
    for name in Batch.COLUMNS:
        got, given = getattr(batch, name)[real][order], getattr(flat, name)[expected]
        torch.testing.assert_close(got, given, rtol=0, atol=0)
    assert batch.episodes == flat.episodes


def test_pieces_start_from_the_state_that_they_were_collected_with() -> None:
    c = collector(ScriptedEnv([[40], [3]]), make_recurrent())
    rollout = estimated(c)
    batch = sequences(rollout, None, 5)
    assert batch.inputs.shape[:2] == (5, 6)  # 12 steps: pieces of 5, 5 and 2 in each of two envs
    for piece, first in enumerate((0, 5, 10)):
        columns = batch.inputs[:, 2 * piece : 2 * piece + 2]
        steps = min(5, 12 - first)
        assert torch.equal(columns[:steps], rollout.inputs[first : first + steps])
        used = batch.weight[:, 2 * piece : 2 * piece + 2]
        assert used.sum(0).tolist() == [steps, steps] and used[:steps].all()
    state = batch.inputs[0, 2, 4:]
    assert state.abs().max() > 0 and batch.inputs[0, 2, 3] == 0  # env 0 at t = 5: in the midst of its episode


def test_a_nan_in_a_row_that_is_no_transition_reaches_no_gradient() -> None:
    policy = make_recurrent()
    rollout = estimated(collector(ScriptedEnv(LENGTHS, ENDS, "next_step"), policy))
    bad = rollout.weight == 0
    assert bad.any()
    rollout.inputs[bad] = torch.nan
    batch = sequences(rollout, None)
    new = policy.evaluate(batch.inputs, batch.action)
    (torch.where(batch.weight > 0, new.log_prob, 0.0)).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in policy.parameters())


@pytest.mark.parametrize(("size", "columns"), [(12, 1), (24, 2), (30, 2), (5, 1), (200, 4), (None, 4)])
def test_minibatches_are_whole_sequences(size: int | None, columns: int) -> None:
    """12 steps in 4 envs; size in steps. Each column once an epoch, in a new order each time."""
    batch = sequences(estimated(collector(ScriptedEnv(FINITE), make_recurrent())), None)
    batch = batch.replace(value=torch.arange(48.0).view(12, 4), episodes=8.0)
    nothing: Any = None
    update = Update(
        nothing, nothing, nothing, torch.Generator().manual_seed(0), minibatch_size=size, guards=()
    )
    orders = set()
    for _ in range(6):
        index = update._parts(batch)
        parts = [batch] if index is None else [batch.rows(part) for part in index]
        assert all(part.value.shape[0] == 12 and part.parts <= columns for part in parts)
        assert all(part.inputs.shape == (12, part.parts, batch.inputs.shape[-1]) for part in parts)
        assert sum(part.episodes for part in parts) == pytest.approx(8.0)
        joined = torch.cat([part.value for part in parts], 1)
        assert joined.flatten().sort().values.tolist() == list(range(48))
        orders.add(tuple(joined[0].tolist()))
    assert len(orders) > 1 or columns == 4


# ------------------------------------------------------------------------------------ evaluation and checkpoints


def test_evaluation_remembers_on_its_own() -> None:
    """Returns are those of the policy played by hand from an empty memory; the collector's memory is left alone."""
    policy = make_recurrent(seed=3)
    c = collector(ScriptedEnv(LENGTHS, ENDS), policy)
    c.collect_steps(5)
    actor: Any = c.actor
    state, start = actor.state.clone(), actor.start.copy()
    env: Any = ScriptedEnv([[4, 3], [2, 6]], ENDS[:2])
    result = evaluate(policy, env, 4, seed=0)
    assert torch.equal(actor.state, state) and (actor.start == start).all()
    expected, actions = [], []
    for transitions in env.log:
        for episode in (0, 1):
            steps = [x for x in transitions if x.episode == episode]
            greedy = remembered(policy, steps)[0].argmax(-1).tolist()
            actions += greedy
            expected.append(
                sum(x.reward - float(x.action) / 16 + a / 16 for x, a in zip(steps, greedy, strict=True))
            )
    assert result.returns.tolist() == pytest.approx(expected)
    assert len(set(actions)) > 1


def test_memory_is_saved_and_taken_up_again(tmp_path: Path) -> None:
    """The same env, saved and loaded beside the collector: what follows is the same, bit for bit."""
    policy = make_recurrent()
    env: Any = ScriptedEnv(LENGTHS, ENDS, "next_step")
    one = collector(env, policy)
    one.collect_steps(6)
    torch.save(one.state_dict(), tmp_path / "state.pt")
    other_env = copy.deepcopy(env)
    two = collector(copy.deepcopy(env), policy, seed=5)
    two.env, two.obs = other_env, one.obs.copy()
    two.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    first, second = one.collect_steps(8)[0], two.collect_steps(8)[0]
    assert torch.equal(first.inputs, second.inputs) and torch.equal(first.action, second.action)
    assert first.inputs[0, :, 4:].abs().max() > 0  # there was something to remember


def test_a_row_that_is_no_transition_does_not_use_up_the_start_of_an_episode() -> None:
    actor: Any = make_actor(make_recurrent(), 2, 0)
    no = np.zeros(2, bool)

    def follow(done: list[bool], valid: list[bool] | None) -> list[bool]:
        actor.follow(Step(None, None, np.array(done), no, None, None if valid is None else np.array(valid)))
        return actor.start.tolist()

    assert actor.start.tolist() == [True, True]
    assert follow([False, False], None) == [False, False]
    assert follow([True, False], None) == [True, False]
    assert follow([False, False], [False, True]) == [True, False]  # the reset row
    assert follow([False, True], None) == [False, True]


def test_sync_and_process_remember_alike() -> None:
    policy = make_recurrent(obs_dim=2, space=gym.spaces.Discrete(2))
    envs = [
        make_vector_env("tests.envs_for_tests:Test/SeedNoise-v0", 3, backend=backend, workers=workers)
        for backend, workers in (("sync", None), ("process", 2))
    ]
    with envs[0], envs[1]:
        first, second = (collector(env, policy).collect_steps(40)[0] for env in envs)
    assert int(first.done.sum()) > 3 and torch.equal(first.inputs, second.inputs)
