"""`policy=module:Name`: composed, trained, saved, loaded only by whoever repeats the name; refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import pgtrain
from pgtrain import loading, training
from pgtrain.config.compose import compose
from pgtrain.config.errors import ConfigError
from pgtrain.policies.registry import UserNetwork, register_policy
from pgtrain.types import UserError
from tests.nets_for_tests import Wide
from tests.spaces_for_tests import OBSERVATIONS  # registers Test/AnySpace-v0
from tests.support import configure, critic_only

DOCS = Path(__file__).parents[2] / "docs" / "spaces.md"
NET = "tests.nets_for_tests:Wide"
QUIET = [
    "monitor.terminal=none",
    "monitor.tensorboard=false",
    "eval.episodes=0",
    "num_envs=2",
    "total_steps=64",
]


def test_from_the_command_line_to_a_loaded_run(tmp_path: Path) -> None:
    overrides = [
        "algo=ppo",
        f"policy={NET}",
        "policy.kwargs.width=12",
        "horizon=16",
        "update.minibatch_size=16",
        *QUIET,
    ]
    config = compose(overrides).config
    assert config.policy.name == NET and config.policy.kwargs == {"width": 12}
    assert config.policy.normalize_value is None and config.policy.last_layer_gain is None
    result = training.train(config, tmp_path, overrides)
    network = result.policy.network
    assert isinstance(network, UserNetwork) and isinstance(network.body, Wide)
    assert network.body.body[0].weight.shape == (12, 4)
    with pytest.raises(UserError, match=f"repeat policy={NET}"):
        loading.load(tmp_path)
    loaded = loading.load(tmp_path, policy=NET).policy
    for a, b in zip(loaded.parameters(), result.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    x = torch.randn(3, 2, 4)
    head, value = loaded.network(x)
    assert head.shape == (3, 2, 2) and value is not None and value.shape == (3, 2)
    torch.testing.assert_close(loaded.network.value(x)[1], network.body(x[1])[1])  # pyright: ignore


def test_it_gets_every_kind_of_observation(tmp_path: Path) -> None:
    name = "Dict of picture, vector, Dict of Discrete and Text"
    assert name in OBSERVATIONS
    env: dict[str, Any] = {"id": "tests.spaces_for_tests:Test/AnySpace-v0", "kwargs": {"observation": name}}
    cfg = configure(env, policy={"name": NET}, num_envs=2, total_steps=32, **critic_only(horizon=16))
    assert training.train(cfg, tmp_path, []).summary["status"] == "finished"


def test_the_example_of_the_docs_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(# my_nets\.py.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "my_nets.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    policy = {"name": "my_nets:MyNetwork", "kwargs": {"width": 7}}
    cfg = configure(policy=policy, num_envs=2, total_steps=32, **critic_only(horizon=16))
    (tmp_path / "run").mkdir()
    network = training.train(cfg, tmp_path / "run", []).policy.network
    assert network.body.actor.weight.shape == (2, 7)  # pyright: ignore


@pytest.mark.parametrize("algo", ["a2c", "ppo", "reinforce"])
def test_a_run_with_a_network_of_ones_own_is_resumed_bit_for_bit(tmp_path: Path, algo: str) -> None:
    given = [
        f"algo={algo}",
        f"policy={NET}",
        "env=CartPole-v1",
        "num_envs=2",
        "monitor=quiet",
        "eval.episodes=0",
    ]
    whole = pgtrain.train(*given, "total_steps=1024", "optim/lr=constant", run_dir=tmp_path / "whole")
    pgtrain.train(*given, "total_steps=512", "optim/lr=constant", run_dir=tmp_path / "part")
    resumed = pgtrain.resume(tmp_path / "part", f"policy={NET}", total_steps=1024)
    assert resumed.summary["steps"] == whole.summary["steps"]
    for name, tensor in whole.policy.state_dict().items():
        assert torch.equal(tensor, resumed.policy.state_dict()[name]), name


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"name": NET, "hidden": [7]}, r"policy\.hidden=\[7\].*policy=tests.nets_for_tests:Wide"),
        ({"name": NET, "encoder": {"cnn": "small"}}, r"policy\.encoder="),
        ({"name": NET, "distribution": {"name": "gsde"}}, r"policy/distribution=gsde"),
        ({"kwargs": {"a": 1}}, r"policy\.kwargs=.*policy=mlp"),
        ({"name": "cnn"}, r"policy\.name=.?cnn.?: must be one of mlp, <module>:<name>"),
    ],
)
def test_settings_that_do_not_go_together(policy: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configure(policy=policy, **critic_only())


def test_an_actor_that_cannot_be_told_from_its_critic() -> None:
    with pytest.raises(ConfigError, match="which layers are the actor's"):
        configure(policy={"name": NET}, update={"name": "trust_region"}, **critic_only())


@pytest.mark.parametrize(
    ("name", "kwargs", "told"),
    [
        ("tests.nets_for_tests:Deep", {}, r"registers no policy 'Deep' \(registered: .*Wide"),
        ("no_such_module:Wide", {}, "cannot import 'no_such_module'"),
        (NET, {"depth": 3}, "unexpected keyword argument 'depth'"),
        (
            "tests.nets_for_tests:WrongShape",
            {},
            re.escape("outputs of shape (3, 3) for 3 rows, expected (3, 2)"),
        ),
        (
            "tests.nets_for_tests:torch",
            {},
            "registers no policy 'torch'",
        ),  # a name of the module, but not registered
    ],
)
def test_a_network_that_cannot_be_had_is_told_in_one_line(
    tmp_path: Path, name: str, kwargs: dict[str, Any], told: str
) -> None:
    cfg = configure(policy={"name": name, "kwargs": kwargs}, **critic_only())
    with pytest.raises(UserError, match=told) as error:
        training.train(cfg, tmp_path, [])
    assert "\n" not in str(error.value)


def test_a_name_stands_for_one_class() -> None:
    with pytest.raises(ValueError, match="Wide has this name"):
        register_policy("Wide")(torch.nn.Linear)
    assert register_policy("Wide")(Wide) is Wide  # a module that is imported again
