"""Every kind of space trains for two iterations, and the table in docs/spaces.md is what these runs show."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from pgtrain import build
from pgtrain.build_distribution import make_distribution
from pgtrain.config.schema import BetaConfig, StateDependentConfig, TanhGaussianConfig
from pgtrain.envs.actions import leaves
from pgtrain.types import UserError
from tests import spaces_for_tests
from tests.spaces_for_tests import ACTIONS, FACTORED, OBSERVATIONS, REFUSED, REFUSED_ACTIONS
from tests.support import configure, critic_only, make_runner

DOCS = Path(__file__).parents[2] / "docs" / "spaces.md"
ID = "tests.spaces_for_tests:Test/AnySpace-v0"


def settings(**kwargs: Any) -> Any:
    env = {"id": ID, "kwargs": kwargs}
    update = {"name": "clipped", "epochs": 1, "minibatch_size": 16}
    return configure(
        env, num_envs=2, total_steps=64, policy={"hidden": [16]}, update=update, **critic_only(horizon=16)
    )


def two_iterations(tmp_path: Path, **kwargs: Any) -> tuple[Any, Any]:
    cfg = settings(**kwargs)
    with build.make_env(cfg, 2) as env:
        runner, recorder = make_runner(cfg, tmp_path, env)
        before = runner.update.flat.snapshot()
        runner.run()
    assert runner.progress.iterations == 2 and runner.progress.skipped_updates == 0
    assert len(recorder.rows) == 2 and not torch.equal(before, runner.update.flat.data)
    return runner.policy, env


def seen(policy: Any, env: Any) -> set[str]:
    """What a policy does with its observations, in the words of the table."""
    words = {leaf.kind for leaf in env.layout} | (
        {"standardised"} if policy.normalizer is not None else set()
    )
    convolutions = [m for m in policy.network.modules() if isinstance(m, torch.nn.Conv2d)]
    if convolutions:
        words.add("Nature CNN" if convolutions[0].kernel_size == (8, 8) else "small CNN")
    return words


IN_WORDS = {
    "standardised": "standardised",
    "small CNN": "small CNN",
    "Nature CNN": "Nature CNN",
    "onehot": "one-hot",
    "index": "learned embedding",
    "binary": "0 or 1",
}


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations(tmp_path: Path, name: str) -> None:
    words = seen(*two_iterations(tmp_path, observation=name))
    told = OBSERVATIONS[name][1]
    if "joined" not in told:
        assert {told_as for word, told_as in IN_WORDS.items() if word in words} == {
            told_as for told_as in IN_WORDS.values() if told_as in told
        }


DRAWN = {
    "categorical": "categorical",
    "multi_categorical": "one categorical for each part",
    "bernoulli": "one Bernoulli for each bit",
    "gaussian": "Gaussian",
}


@pytest.mark.parametrize("name", ACTIONS)
def test_actions(tmp_path: Path, name: str) -> None:
    """The env raises for an action that is no member of its space."""
    policy, env = two_iterations(tmp_path, action=name)
    whole, told = policy.distribution, ACTIONS[name][1]
    parts = getattr(whole, "parts", [whole])
    words = [DRAWN[part.name] for part in parts]
    boxes = [space for _, space in leaves(env.action_space) if isinstance(space, spaces.Box)]
    words += ["rounded"] * any(np.issubdtype(space.dtype, np.integer) for space in boxes)
    of_boxes = np.concatenate([np.full(part.head_dim, part.name == "gaussian") for part in parts])
    with_tanh = policy.squashed.numpy()[of_boxes]
    if not with_tanh.all():
        words.append("mean without tanh" + " in that dimension" * bool(with_tanh.any()))
    assert told == ", ".join(words) + FACTORED * (len(parts) > 1)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_starts(name: str) -> None:
    with pytest.raises(UserError) as told:
        build.make_env(settings(observation=name), 2)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", REFUSED_ACTIONS)
def test_actions_are_refused_before_anything_starts(name: str) -> None:
    with pytest.raises(UserError) as told:
        build.make_env(settings(action=name), 2)
    assert "\n" not in str(told.value) and "its action space" in str(told.value)


def table(rows: dict[str, str], head: str) -> str:
    return f"| {head} | supported how |\n|---|---|\n" + "".join(f"| `{k}` | {v} |\n" for k, v in rows.items())


def generated() -> dict[str, str]:
    """Name of a block in docs/spaces.md → its text."""
    blocks = {
        "observations": table({k: v for k, (_, v) in OBSERVATIONS.items()}, "observation space"),
        "actions": table(
            {k: f"{v} | {other_distributions(k)}" for k, (_, v) in ACTIONS.items()}, "action space"
        )
        .replace("supported how |", "supported how | `policy/distribution` may also be |")
        .replace("|---|---|", "|---|---|---|"),
    }
    for block, kind, names in (
        ("refused", "observation", REFUSED),
        ("refused_actions", "action", REFUSED_ACTIONS),
    ):
        refused = {}
        for name in names:
            try:
                build.make_env(settings(**{kind: name}), 1)
            except UserError as error:
                refused[name] = str(error).partition(": ")[2]
        text = table(refused, f"{kind} space")
        blocks[block] = text.replace("supported how", "refused before training")
    return blocks


def other_distributions(action: str) -> str:
    """Those that a policy for this action space can be made with, besides the default."""
    found = []
    for kind in (TanhGaussianConfig(), BetaConfig(), StateDependentConfig()):
        cfg = settings(action=action)
        cfg = dataclasses.replace(cfg, policy=dataclasses.replace(cfg.policy, distribution=kind))
        with build.make_env(cfg, 1) as env, contextlib.suppress(UserError):
            make_distribution(cfg, env)
            found.append(f"`{kind.name}`")
    return ", ".join(found) or "–"


def write() -> None:
    """Writes the blocks anew: python -m tests.integration.test_spaces_table"""
    text = DOCS.read_text(encoding="utf-8")
    for name, block in generated().items():
        start, end = f"<!-- {name}:start -->\n", f"<!-- {name}:end -->"
        head, _, rest = text.partition(start)
        text = head + start + block + end + rest.partition(end)[2]
    DOCS.write_text(text, encoding="utf-8")


def test_the_table_is_current() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name, block in generated().items():
        assert f"<!-- {name}:start -->\n{block}<!-- {name}:end -->" in text, (
            "run: python -m tests.integration.test_spaces_table"
        )
    assert spaces_for_tests.OBSERVATIONS is OBSERVATIONS


if __name__ == "__main__":
    write()
