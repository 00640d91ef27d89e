"""Gradient health: against gradients made episode by episode, and in a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import pgtrain
from pgtrain.learning import gradient_statistics
from pgtrain.monitor.gradient_health import GradientHealth, NoHealth
from pgtrain.policies.parameters import FlatParameters
from tests.support import make_policy, make_rollout

TAGS = {
    "gradient/variance", "gradient/snr", "gradient/noise_scale", "gradient/update_cosine", "gradient/share_first",
    "gradient/share_hidden", "gradient/share_last", "gradient/share_spread",
}  # fmt: skip


def setup(**settings: Any) -> tuple[Any, Any, Any, GradientHealth]:
    torch.manual_seed(0)
    policy = make_policy(3)
    ends = [[0, 0], [0, 1], [1, 0], [0, 0], [0, 0]]  # four pieces in a window that cuts two of them
    rollout = make_rollout(torch.zeros(5, 2), terminated=ends, inputs=torch.randn(5, 2, 3),
                           action=torch.randint(3, (5, 2)), policy=policy)  # fmt: skip
    advantage = torch.randn(5, 2)
    rollout = rollout.replace(advantage=advantage, value_target=advantage)
    flat = FlatParameters(policy)
    return policy, rollout, flat, GradientHealth(policy, flat, **settings)


PIECES = [[(0, 0), (1, 0), (2, 0)], [(3, 0), (4, 0)], [(0, 1), (1, 1)], [(2, 1), (3, 1), (4, 1)]]


@pytest.mark.parametrize("gamma", [None, 0.8])
def test_numbers_are_those_of_the_pieces_of_episodes(gamma: float | None) -> None:
    policy, rollout, flat, health = setup(every=1, gamma=gamma)
    rows = []
    for piece in PIECES:
        total = torch.zeros(())
        for k, (t, n) in enumerate(piece):
            lp = policy.evaluate_actor(rollout.inputs[t, n][None], rollout.action[t, n][None]).log_prob.sum()
            total = total + lp * rollout.advantage[t, n] * (gamma or 1.0) ** k
        grads = torch.autograd.grad(
            total, list(policy.parameters()), allow_unused=True, materialize_grads=True
        )
        rows.append(torch.cat([g.flatten() for g in grads]))
    g = torch.stack(rows)
    true = gradient_statistics.noise(g)
    health.before(rollout)
    found = health.metrics()
    assert set(found) == TAGS
    assert found["gradient/variance"] == pytest.approx(float(true.trace), rel=1e-4)
    assert found["gradient/snr"] == pytest.approx(float(true.snr), rel=1e-3, abs=1e-4)
    scale = float(true.noise_scale)
    assert found["gradient/noise_scale"] == pytest.approx(scale, rel=1e-3) or math.isnan(scale)
    shares = gradient_statistics.layer_shares(g.mean(0), flat.slices)
    actor = [float(x) for name, x in shares.items() if "critic" not in name]
    assert found["gradient/share_first"] == pytest.approx(actor[0], rel=1e-4)
    assert found["gradient/share_last"] == pytest.approx(actor[-1], rel=1e-4)
    assert sum(found[tag] for tag in TAGS if "share" in tag) == pytest.approx(1.0)
    assert not health.metrics()  # told once


def test_cosine_of_successive_updates_and_every_third_iteration() -> None:
    _, rollout, flat, health = setup(every=3)
    steps = [torch.randn(len(flat)) for _ in range(6)]
    told = []
    for step in steps:
        health.before(rollout)
        flat.data += step
        health.after()
        told.append(dict(health.metrics()))
    measured = [i for i, found in enumerate(told) if "gradient/variance" in found]
    assert measured == [0, 3]
    for i in (1, 4):
        expected = float(torch.cosine_similarity(steps[i - 1], steps[i], 0))
        assert told[i] == {"gradient/update_cosine": pytest.approx(expected, abs=1e-5)}
    assert not told[2] and not told[5]


def test_without_a_number_of_iterations_it_keeps_to_its_share_of_the_time() -> None:
    _, rollout, _, health = setup()
    health.before(rollout)
    assert health.metrics()
    for _ in range(5):  # at once again: not due
        health.before(rollout)
        assert not health.metrics()
    health._next = -math.inf
    health.before(rollout)
    assert health.metrics()


def test_a_single_piece_and_zero_advantages_are_told_as_nan_or_zero() -> None:
    _, rollout, _, health = setup(every=1)
    health.before(rollout.replace(advantage=torch.zeros(5, 2)))
    found = health.metrics()
    assert found["gradient/variance"] == 0 and math.isnan(found["gradient/snr"])
    assert NoHealth().metrics() == {} and NoHealth().state_dict() == {}


@pytest.mark.parametrize("more", [["algo=reinforce"], ["algo=ppo", "horizon=16", "env=Pendulum-v1"]])
def test_in_a_run(tmp_path: Path, more: list[str]) -> None:
    settings = [
        "monitor.gradient=full",
        "monitor.gradient_every=2",
        "monitor.log_every=1",
        "monitor.terminal=none",
    ]
    few = [
        "num_envs=4",
        "total_steps=300",
        "eval.episodes=0",
        "policy.hidden=[8]",
        "monitor.tensorboard=false",
    ]
    pgtrain.train(*more, *settings, *few, run_dir=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0].keys() >= TAGS
    seen = {tag: [row[tag] for row in rows if row.get(tag) is not None] for tag in TAGS}
    assert len(seen["gradient/variance"]) == math.ceil(len(rows) / 2)
    assert all(v > 0 for v in seen["gradient/variance"]) and seen["gradient/update_cosine"]
    spread = seen["gradient/share_spread"]
    assert all(x > 0 for x in spread) if "env=Pendulum-v1" in more else all(x == 0 for x in spread)
