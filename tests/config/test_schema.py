"""Types, ranges and combinations of settings, without Hydra."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from pgtrain.config.checks import check, refuse_unused, settle
from pgtrain.config.convert import convert, from_dict, to_dict, type_hints
from pgtrain.config.errors import ConfigError, all_keys, closest_key, nearest, one_line, shown
from pgtrain.config.fields import Limits
from pgtrain.config.paths import conf_dir
from pgtrain.config.schema import OPTIONS, ClippedConfig, Config, MonitorConfig, has_critic

# the settings of a run that passes every check, to change one at a time
STEPS: dict[str, Any] = {"horizon": 16, "advantage": {"name": "gae"}}
EPISODES: dict[str, Any] = {"collect": {"unit": "episodes"}, "advantage": {"name": "monte_carlo"}}


def settled(base: dict[str, Any], **changes: Any) -> Config:
    """`settle` of `base` with dotted keys changed (`__` stands for the dot)."""
    tree = OmegaConf.create(base)
    for key, value in changes.items():
        OmegaConf.update(tree, key.replace("__", "."), value, merge=True, force_add=True)
    data = OmegaConf.to_container(tree)
    assert isinstance(data, dict)
    return settle(from_dict({str(key): value for key, value in data.items()}))


# ------------------------------------------------------------------------------------ numbers (case CFG-07)
@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1e-3", float, 0.001),
        ("1e5", int, 100_000),
        (1e5, int, 100_000),
        ("1_000_000", int, 1_000_000),
        (3, float, 3.0),
        (0, int, 0),
    ],
)
def test_numbers_that_are_taken(text: Any, kind: type, value: float) -> None:
    result = convert("key", text, kind, Limits())
    assert result == value
    assert type(result) is kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1e5.5", int),
        (2.5, int),
        ("2.5", int),
        (True, float),
        (True, int),
        ("true", float),
        (math.nan, float),
        ("nan", float),
        (math.inf, float),
        ("inf", int),
        (10**400, float),
        (None, float),
        ([1], int),
        ("", float),
        (1, bool),
        ("true", bool),
        (3, str),
        (True, str),
    ],
)
def test_what_is_no_such_value(text: Any, kind: type) -> None:
    with pytest.raises(ConfigError, match=r"^some\.key=.*: must be"):
        convert("some.key", text, kind, Limits())


def test_bounds_are_inclusive_where_they_say_so() -> None:
    assert convert("k", 0, float, Limits(low=0, high=1)) == 0
    assert convert("k", 1, float, Limits(low=0, high=1)) == 1
    with pytest.raises(ConfigError, match=r"k=0: must be a number above 0\."):
        convert("k", 0, float, Limits(above=0))
    with pytest.raises(ConfigError, match=r"k=1.01: must be a number from 0 to 1\."):
        convert("k", 1.01, float, Limits(low=0, high=1))


def test_each_element_of_a_list_is_checked() -> None:
    assert convert("k", ["64", 1e2], list[int], Limits(low=1)) == [64, 100]
    with pytest.raises(ConfigError, match=r"k\[1\]=0"):
        convert("k", [64, 0], list[int], Limits(low=1))
    with pytest.raises(ConfigError, match=r"k=64: must be a list, e\.g\. \[64,64\]"):
        convert("k", 64, list[int], Limits(low=1))


def test_a_yaml_truth_value_for_a_text_says_why() -> None:
    with pytest.raises(ConfigError, match=r"YAML reads off"):
        from_dict({"monitor": {"terminal": False}})


# ------------------------------------------------------------------------------------ ranges (case CFG-08)
REFUSED = [
    ("gamma", 1.5, "from 0 to 1"),
    ("gamma", -0.1, "from 0 to 1"),
    ("advantage__lam", -0.5, "from 0 to 1"),
    ("advantage__lam", 1.01, "from 0 to 1"),
    ("optim", {"name": "adam", "lr": {"name": "constant", "value": -0.001}}, "above 0"),
    ("optim", {"name": "adam", "lr": {"name": "constant", "value": "nan"}}, "above 0"),
    ("horizon", 0, "at least 1"),
    ("update", {"name": "policy_gradient", "minibatch_size": 0}, "at least 1"),
    ("update", {"name": "policy_gradient", "epochs": 0}, "at least 1"),
    ("num_envs", 0, "at least 1"),
    ("total_steps", -1, "at least 1"),
    ("entropy", {"name": "constant", "coef": "nan"}, "at least 0"),
    ("optim", {"name": "adam", "max_grad_norm": -1}, "above 0"),
    ("seed", -1, "from 0 to 4294967295"),
    ("update", {"name": "clipped", "clip": {"name": "constant", "value": -0.2}}, "above 0"),
    ("update", {"name": "clipped", "clip": {"name": "linear", "value": 0}}, "above 0"),
    ("update", {"name": "clipped", "dual_clip": 1}, "above 1 or null"),
    ("update", {"name": "clipped", "minibatch_size": "all"}, "at least 1 or auto or null"),
    ("update", {"name": "clipped", "kl_guard": {"name": "stop", "limit": -0.01}}, "above 0 or null"),
    ("update", {"name": "clipped", "kl_guard": {"name": "skip", "limit": 0}}, "above 0 or null"),
    ("update", {"name": "clipped", "value_loss": {"name": "clip_max", "clip": 0}}, "above 0"),
    ("update", {"name": "kl_penalty", "target": -0.01}, "above 0 or null"),
    ("update", {"name": "trust_region", "step": {"name": "line_search", "max_kl": 0}}, "above 0"),
    ("update", {"name": "natural", "step": {"name": "line_search", "shrink": 1}}, "above 0 and below 1"),
    ("update", {"name": "natural", "damping": -1e-3}, "at least 0"),
    ("update", {"name": "natural", "critic_epochs": 0}, "at least 1"),
    ("optim", {"name": "sgd", "momentum": 1}, "of at least 0 and below 1"),
    ("entropy", {"name": "target", "rate": 1.5}, "above 0 and at most 1"),
    ("policy__share", "some", "all"),
    ("policy__hidden", [0], "at least 1"),
    ("policy__activation", "tahn", "Did you mean tanh"),
    ("device__name", "cuda:x", "cuda:<number>"),
    ("eval__episodes", -1, "at least 0"),
]


@pytest.mark.parametrize(("key", "value", "allowed"), REFUSED)
def test_out_of_range_names_key_value_and_what_is_allowed(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settled(STEPS, **{key: value})
    text = str(caught.value)
    assert allowed in text
    assert "\n" not in text
    leaf, given = (key.replace("__", "."), value)
    while isinstance(given, dict):
        name, given = list(given.items())[-1]
        leaf += f".{name}"
    assert text.startswith(leaf)
    assert shown(given).strip("[]") in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gamma", 1.0),
        ("gamma", 0.0),
        ("advantage__lam", 0.0),
        ("advantage__lam", 1.0),
        ("entropy", {"name": "constant", "coef": 0.0}),
        ("optim", {"name": "adam", "max_grad_norm": None}),
        ("update", {"name": "clipped", "kl_guard": {"name": "stop", "limit": None}}),
        ("update", {"name": "trust_region", "step": {"name": "line_search", "trials": 0}}),
        ("num_envs", 1),
        ("policy__hidden", []),
        ("policy__share", "all"),
        ("device__name", "cuda:1"),
        ("policy__log_std_init", -80),
    ],
)
def test_the_ends_of_a_range_are_taken(key: str, value: Any) -> None:
    config = settled(STEPS, **{key: value})
    head, _, tail = key.partition("__")
    got = getattr(getattr(config, head), tail) if tail else getattr(config, head)
    if isinstance(value, dict):
        assert_holds(dataclasses.asdict(got), value)
    else:
        assert got == value


def assert_holds(got: dict[str, Any], value: dict[str, Any]) -> None:
    for name, item in value.items():
        if isinstance(item, dict):
            assert_holds(got[name], item)
        else:
            assert got[name] == item


# ------------------------------------------------------------------------------------ combinations
CLIPPED: dict[str, Any] = STEPS | {"update": {"name": "clipped"}}
NATURAL: dict[str, Any] = STEPS | {"update": {"name": "natural"}}
GUARD = {"name": "learning_rate"}
WINDOW: dict[str, Any] = {"horizon": 16, "advantage": {"name": "td_lambda"}, "update": {"name": "pathwise"}}
BLIND: dict[str, Any] = WINDOW | {"advantage": {"name": "none"}}
MIXED: dict[str, Any] = WINDOW | {"update": {"name": "alpha_order", "groups": 4}}
IMPOSSIBLE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (EPISODES, {"horizon": 64}, r"horizon=64 has no effect with collect\.unit=episodes: use horizon=null"),
    (STEPS, {"collect__episodes": 2}, r"collect\.episodes=2 has no effect with collect\.unit=steps"),
    (STEPS, {"update__mean_over": "episodes"}, r"update\.mean_over=episodes needs whole episodes"),
    (EPISODES, {"collect__unit": "steps"}, r"truncation_bootstrap=none would count the end of a rollout"),
    (
        EPISODES,
        {"collect__unit": "steps", "advantage__returns": "total"},
        r"advantage\.returns=total needs whole episodes",
    ),
    (EPISODES, {"advantage__returns": "total", "advantage__discount_states": True}, "discount twice"),
    (EPISODES, {"advantage__truncation_bootstrap": "value"}, r"needs a critic: use advantage/baseline=value"),
    (EPISODES, {"update__value_coef": 0.5}, r"update\.value_coef=0\.5 has no effect without a critic"),
    (EPISODES, {"policy__share": 1}, r"policy\.share=1 has no effect without a critic"),
    (EPISODES, {"policy__share": "all"}, r"policy\.share=all has no effect without a critic"),
    (STEPS, {"policy__share": 3}, r"policy\.share=3: must be a whole number from 0 to 2"),
    (STEPS, {"policy__log_std_min": 2.0}, r"log_std_min=2 must be below policy\.log_std_max=2"),
    (
        STEPS,
        {"env__workers": 2, "env__backend": "sync"},
        r"env\.workers=2 has no effect with env\.backend=sync",
    ),
    (STEPS, {"env__workers": 9, "env__backend": "process"}, r"env\.workers=9: must be at most num_envs=8"),
    (
        STEPS,
        {"env__threads": 2, "env__backend": "process"},
        r"env\.threads=2 has no effect with env\.backend=process",
    ),
    (STEPS, {"env__threads": 9}, r"env\.threads=9: must be at most num_envs=8"),
    (STEPS, {"reward__clip": 5}, r"reward\.clip=5 has no effect with reward\.scaling=none"),
    (STEPS, {"eval__episodes": 0, "eval__greedy": False}, r"eval\.greedy=false has no effect"),
    (STEPS, {"checkpoint__keep": 2}, r"checkpoint\.keep=2 has no effect with checkpoint\.every_steps=null"),
    (
        CLIPPED,
        {"update__kl_guard": GUARD, "optim__lr__name": "linear"},
        r"kl_guard=learning_rate and optim/lr=linear would both set the learning rate",
    ),
    (
        CLIPPED,
        {"update__kl_guard": GUARD, "optim__lr__value": 0.1},
        r"optim\.lr\.value=0\.1: must be from update\.kl_guard\.smallest=1e-05 to",
    ),
    (
        CLIPPED,
        {"update__epochs": 1, "update__kl_guard": {"name": "stop"}},
        r"update/kl_guard=stop has no effect with update\.epochs=1",
    ),
    (
        CLIPPED,
        {"update__epochs": 1, "update__recompute_advantages": True},
        r"update\.recompute_advantages=true has no effect with update\.epochs=1",
    ),
    (
        EPISODES | {"update": {"name": "clipped"}},
        {"update__recompute_advantages": True},
        r"update\.recompute_advantages=true has no effect without a critic",
    ),
    (
        EPISODES | {"update": {"name": "clipped"}},
        {"update__value_loss": {"name": "huber"}},
        r"update/value_loss=huber has no effect without a critic",
    ),
    (
        EPISODES | {"update": {"name": "natural"}},
        {"update__critic_epochs": 3},
        r"update\.critic_epochs=3 has no effect without a critic",
    ),
    (NATURAL, {"policy__share": 1}, r"policy\.share=1: with update=natural .* use policy\.share=0"),
    (NATURAL, {"policy__share": "all"}, r"policy\.share=all: with update=natural"),
    (
        NATURAL,
        {"update__critic_minibatch_size": 129},
        r"update\.critic_minibatch_size=129: must be at most the batch of 128",
    ),
    (
        STEPS,
        {"policy__ortho_init": False, "policy__last_layer_gain": 0.1},
        r"policy\.last_layer_gain=0\.1 has no effect with policy\.ortho_init=false",
    ),
    (
        STEPS,
        {"policy__distribution": {"name": "gsde", "sample_freq": 0}},
        r"policy\.distribution\.sample_freq=0: must be a whole number of at least 1, or -1",
    ),
    (
        STEPS,
        {"policy__distribution": {"name": "tanh_gaussian"}, "policy__mean": "tanh"},
        r"policy\.mean=tanh with policy/distribution=tanh_gaussian would squash twice",
    ),
    (STEPS, {"entropy": {"name": "linear", "coef": 0}}, r"entropy=linear has no effect with entropy\.coef"),
    (
        STEPS,
        {"entropy": {"name": "target", "coef": 0.1, "largest": 0.05}},
        r"entropy\.coef=0\.1: must be from entropy\.smallest=1e-06 to entropy\.largest=0\.05",
    ),
    (
        STEPS,
        {"advantage": {"name": "td_lambda"}},
        r"advantage=td_lambda belongs to update=pathwise or alpha_order, not to update=policy_gradient",
    ),
    (
        STEPS | {"update": {"name": "pathwise"}},
        {},
        r"advantage=gae: update=pathwise takes the gradient of the rewards themselves; use advantage=td_lambda",
    ),
    (WINDOW, {"advantage__normalize": True}, r"advantage\.normalize=true has no effect with update=pathwise"),
    (WINDOW, {"advantage__discount_states": True}, r"advantage\.discount_states=true has no effect"),
    (
        WINDOW,
        {"entropy": {"name": "constant", "coef": 0.1}},
        r"entropy\.coef=0\.1 has no effect with update=",
    ),
    (WINDOW, {"entropy": {"name": "linear"}}, r"entropy=linear has no effect with update=pathwise"),
    (
        WINDOW,
        {"policy__memory": {"name": "gru"}},
        r"update=pathwise works on single steps .* use policy/memory=none",
    ),
    (
        WINDOW,
        {"policy__name": "my_module:Net"},
        r"policy=my_module:Net: update=pathwise copies the critic of policy=mlp",
    ),
    (WINDOW, {"env__frame_stack": 2}, r"env\.frame_stack=2 has no effect with update=pathwise"),
    (WINDOW, {"monitor__gradient": "full"}, r"monitor\.gradient=full has no effect with update=pathwise"),
    (WINDOW, {"reward__scaling": "running_std"}, r"reward\.scaling=running_std has no effect"),
    (
        WINDOW,
        {"policy__normalize_value": "running"},
        r"policy\.normalize_value=running: the target critic .* use policy\.normalize_value=none",
    ),
    (WINDOW, {"policy__share": 1}, r"policy\.share=1: with update=pathwise .* use policy\.share=0"),
    (
        WINDOW,
        {"policy__distribution": {"name": "beta"}},
        "policy/distribution=beta: update=pathwise needs noise",
    ),
    (
        WINDOW,
        {"policy__distribution": {"name": "gsde"}},
        r"policy/distribution=gsde: update=pathwise needs noise",
    ),
    (
        WINDOW,
        {"policy__distribution": {"name": "tanh_gaussian"}, "policy__mean": "tanh"},
        r"policy\.mean=tanh with policy/distribution=tanh_gaussian would squash twice",
    ),
    (
        WINDOW,
        {"env__backend": "sync"},
        r"env\.backend=sync has no effect with update=pathwise, whose envs are one",
    ),
    (WINDOW, {"env__workers": 2}, r"env\.workers=2 has no effect with update=pathwise"),
    (WINDOW, {"env__threads": 2}, r"env\.threads=2 has no effect with update=pathwise"),
    (
        WINDOW,
        {"update__critic_minibatch_size": 129},
        r"critic_minibatch_size=129: must be at most the batch of 128",
    ),
    (
        WINDOW | {"horizon": None, "collect": {"unit": "episodes"}},
        {"update__mean_over": "episodes"},
        r"update\.mean_over=episodes has no effect with update=pathwise",
    ),
    (
        WINDOW | {"horizon": None, "collect": {"unit": "episodes"}},
        {"collect__episodes": 2},
        r"collect\.episodes=2: update=pathwise goes through one episode of each env",
    ),
    (
        BLIND,
        {"update__target_alpha": 0.5},
        r"update\.target_alpha=0\.5 has no effect without a critic: use advan",
    ),
    (BLIND, {"update__critic_lr_ratio": 0.5}, r"update\.critic_lr_ratio=0\.5 has no effect without a critic"),
    (
        BLIND,
        {"update__critic_epochs": 2},
        r"critic_epochs=2 has no effect without a critic: use advantage=td_lambda",
    ),
    (
        BLIND,
        {"policy__normalize_value": "none"},
        r"policy\.normalize_value=none has no effect without a critic",
    ),
    (
        MIXED,
        {"num_envs": 7},
        r"num_envs=7: update=alpha_order needs two envs for each of its update\.groups=4",
    ),
    (MIXED, {"update__delta": 0.1}, r"update\.delta=0\.1 has no effect without update\.tolerance"),
    (STEPS, {"update__minibatch_size": 129}, r"minibatch_size=129: must be at most the batch of 128 steps"),
    (STEPS, {"advantage": {"name": "n_step", "n": 17}}, r"advantage\.n=17: must be at most horizon=16"),
]


@pytest.mark.parametrize(("base", "changes", "text"), IMPOSSIBLE)
def test_what_does_not_fit_together_is_refused(
    base: dict[str, Any], changes: dict[str, Any], text: str
) -> None:
    if "advantage" in changes:
        base = {key: value for key, value in base.items() if key != "advantage"}
    if any(key.startswith("update__") for key in changes):
        base = {"update": {"name": "policy_gradient"}} | base
    if any(key.startswith("optim__") for key in changes):
        base = base | {"optim": {"name": "adam", "lr": {"name": "constant"}}}
    with pytest.raises(ConfigError, match=text):
        settled(base, **changes)


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (EPISODES, {"collect__episodes": 2, "update": {"name": "policy_gradient", "mean_over": "episodes"}}),
        (EPISODES, {"advantage__baseline": {"name": "value"}, "policy__share": 2}),
        (
            EPISODES,
            {"collect__unit": "steps", "advantage__truncation_bootstrap": "mean_return"},
        ),
        (STEPS, {"update": {"name": "policy_gradient", "minibatch_size": 128}}),
        (CLIPPED, {"update__epochs": 1, "update__kl_guard": {"name": "skip"}}),
        (CLIPPED, {"update__kl_guard": GUARD}),
        (EPISODES, {"update": {"name": "trust_region"}, "advantage__baseline": {"name": "value"}}),
        (STEPS, {"entropy": {"name": "linear", "coef": 0.0, "end": 0.1}}),
        (STEPS, {"policy__ortho_init": False}),
        (STEPS, {"advantage": {"name": "n_step", "n": 16}}),
        (STEPS, {"env__workers": 8, "env__backend": "process"}),
        (STEPS, {"env__threads": 8}),
        (STEPS, {"reward__clip": 5, "reward__scaling": "running_std"}),
        (STEPS, {"checkpoint__every_steps": 100, "checkpoint__keep": 2}),
        (STEPS, {"collect__unit": "episodes", "horizon": None}),
    ],
)
def test_what_fits_is_taken(base: dict[str, Any], changes: dict[str, Any]) -> None:
    if "advantage" in changes:
        base = {key: value for key, value in base.items() if key != "advantage"}
    assert isinstance(settled(base, **changes), Config)


def test_settle_fills_in_what_applies_and_nothing_else() -> None:
    steps = settled(
        {"advantage": {"name": "gae"}}, reward__scaling="running_std", checkpoint__every_steps=100
    )
    assert (steps.horizon, steps.collect.episodes, steps.update.value_coef) == (128, None, 0.5)
    assert (steps.reward.clip, steps.checkpoint.keep) == (10.0, 3)
    episodes = settled(EPISODES)
    assert (episodes.horizon, episodes.collect.episodes, episodes.update.value_coef) == (None, 1, None)
    assert (episodes.reward.clip, episodes.checkpoint.keep) == (None, None)


def test_settle_of_updates() -> None:
    clipped = settled(STEPS | {"update": {"name": "clipped"}}).update
    assert isinstance(clipped, ClippedConfig)
    assert (clipped.minibatch_size, clipped.value_coef) == (128, 0.5)  # all of the 8 x 16 steps
    large: Any = settled({"advantage": {"name": "gae"}, "update": {"name": "clipped"}}, horizon=500).update
    assert large.minibatch_size == 256
    whole: Any = settled(EPISODES | {"update": {"name": "clipped"}}).update
    assert (whole.minibatch_size, whole.value_coef) == (256, None)
    natural: Any = settled(NATURAL, num_envs=2).update
    assert (natural.critic_epochs, natural.critic_minibatch_size) == (10, 32)
    alone: Any = settled(EPISODES | {"update": {"name": "natural"}}).update
    assert (alone.critic_epochs, alone.critic_minibatch_size) == (None, None)
    window: Any = settled(WINDOW)
    u = window.update
    assert (u.critic_epochs, u.critic_minibatch_size, u.critic_lr_ratio, u.target_alpha) == (8, 32, 0.4, 0.2)
    assert window.policy.normalize_value == "none"
    blind: Any = settled(BLIND)
    u = blind.update
    assert (u.critic_epochs, u.critic_minibatch_size, u.critic_lr_ratio, u.target_alpha) == (None,) * 4
    assert blind.policy.normalize_value is None
    mixed: Any = settled(MIXED, update__tolerance=0.1, update__target_alpha=0.0).update
    assert (mixed.delta, mixed.target_alpha) == (0.05, 0.0)
    assert settled(STEPS).policy.last_layer_gain == 0.01
    assert settled(STEPS, policy__ortho_init=False).policy.last_layer_gain is None


def test_settling_again_changes_nothing_and_leaves_its_argument_alone() -> None:
    raw = from_dict(
        {
            "advantage": {"name": "gae"},
            "reward": {"scaling": "running_std"},
            "update": {"name": "clipped"},
        }
    )
    before = to_dict(raw)
    once = settle(raw)
    assert to_dict(raw) == before
    assert settle(once) == once
    assert settle(from_dict(to_dict(once))) == once


def test_who_has_a_critic() -> None:
    for name, critic in [
        ("td", True),
        ("n_step", True),
        ("gae", True),
        ("monte_carlo", False),
        ("td_lambda", True),
        ("none", False),
    ]:
        assert has_critic(from_dict({"advantage": {"name": name}})) is critic
    value = {"name": "monte_carlo", "baseline": {"name": "value"}}
    assert has_critic(from_dict({"advantage": value}))


# ------------------------------------------------------------------------------------ keys
@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"gama": 0.9}, r"gama=0\.9: there is no setting 'gama'\. Did you mean gamma\?"),
        ({"lr": 1e-3}, r"Did you mean optim\.lr\.value\?"),
        ({"n_envs": 4}, r"Did you mean num_envs\?"),
        ({"lam": 0.9}, r"Did you mean advantage\.lam\?"),
        ({"policy": {"hiden": [3]}}, r"policy\.hiden=\[3\]: .* Did you mean policy\.hidden\?"),
        ({"optimizer": {"lr": 1}}, r"^optimizer: there is no setting 'optimizer'\. Did you mean optim\?"),
        ({"coef": 0.1}, r"Did you mean entropy\.coef\?"),
        (
            {"advantage": {"name": "td", "lam": 0.9}},
            r"advantage=td has no setting 'lam' .* advantage=gae\|bootstrapped_return\|td_lambda has it",
        ),
        ({"advantage": {"name": "gea"}}, r"advantage\.name=gea: must be one of .* Did you mean gae\?"),
        ({"advantage": {}}, r"advantage\.name=null: must be one of"),
        ({"entropy": 0.01}, r"entropy is a group .* Did you mean entropy\.coef=0\.01\?"),
        (
            {"optim": {"name": "adam", "lr": 1e-3}},
            r"optim\.lr is a group .* Did you mean optim\.lr\.value=0\.001\?",
        ),
        ({"env": "CartPole-v1"}, r"env is a group of settings"),
        ({"policy": 32}, r"policy is a group of settings"),
        ({"policy": None}, r"policy is a group of settings"),
        ({"seed": {"x": 1}}, r"seed=\{x: 1\}: must be a whole number"),
    ],
)
def test_wrong_keys_name_the_right_one(data: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        from_dict(data)
    assert "\n" not in str(caught.value)


def test_the_recipe_chosen_gives_the_name() -> None:
    assert from_dict({"algo": "a2c"}, algo="mine").algo == "mine"
    assert from_dict({"algo": "a2c"}).algo == "a2c"


def test_nearest_ignores_case_and_needs_likeness() -> None:
    assert nearest("CARTPOLE-V1", ["CartPole-v1", "Acrobot-v1"]) == ["CartPole-v1"]
    assert nearest("zzz", ["gamma"]) == []
    assert closest_key("optim.lr.vale", ["name", "value"]) == ["optim.lr.value"]


def test_one_line_and_shown() -> None:
    assert one_line("a\n  b\tc") == "a b c"
    assert [shown(v) for v in (None, True, [1, "a"], {"k": None}, 0.5)] == [
        "null",
        "true",
        "[1,a]",
        "{k: null}",
        "0.5",
    ]


def test_refuse_unused_names_the_override_of_the_user() -> None:
    refuse_unused(["seed=1", "policy.mean_x=1"], ["policy.mean"], "here")
    with pytest.raises(ConfigError, match=r"policy\.mean=identity has no effect with discrete actions"):
        refuse_unused(["seed=1", "policy.mean=identity"], ["policy.mean"], "with discrete actions")
    with pytest.raises(ConfigError, match=r"\+env\.kwargs\.a=1 has no effect"):
        refuse_unused(["+env.kwargs.a=1"], ["env.kwargs."], "here")


# ------------------------------------------------------------------------------------ conf/ agrees with the schema
def option_files() -> list[tuple[str, Path]]:
    """(group, file) of every option that isn't a recipe or an env."""
    conf = conf_dir()
    files = sorted(conf.rglob("*.yaml"))
    groups = [(path.parent.relative_to(conf).as_posix(), path) for path in files]
    return [
        (group, path)
        for group, path in groups
        if group.split("/")[0] not in (".", "algo", "env", "experiment")
    ]


def class_of_option(group: str, name: str) -> type:
    cls: type = Config
    for part in group.split("/"):
        owners = [cls, *OPTIONS.get(cls, {}).values()]
        cls = next(type_hints(owner)[part] for owner in owners if part in type_hints(owner))
    return OPTIONS.get(cls, {}).get(name, cls)


@pytest.mark.parametrize(("group", "path"), option_files(), ids=lambda value: getattr(value, "stem", value))
def test_an_option_lists_every_setting_with_its_default(group: str, path: Path) -> None:
    data = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(data, dict)
    defaults = data.pop("defaults", [])
    cls = class_of_option(group, path.stem)
    nested = {key for item in defaults if isinstance(item, dict) for key in item}
    expected = {f.name for f in dataclasses.fields(cls)} - nested
    assert set(data) == expected
    if group not in ("device", "monitor"):
        made = dataclasses.asdict(cls())
        assert data == {key: value for key, value in made.items() if key in data}
        assert data["name"] == path.stem
    for item in defaults:  # the nested default is the dataclass's own
        if isinstance(item, dict):
            ((key, option),) = item.items()
            assert type(getattr(cls(), key)) is OPTIONS[type_hints(cls)[key]][option]


def test_config_yaml_has_the_defaults_of_the_schema() -> None:
    text = (conf_dir() / "config.yaml").read_text()
    data = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(data, dict)
    data.pop("hydra")
    groups = {key for item in data.pop("defaults") if isinstance(item, dict) for key in item}
    expected = dataclasses.asdict(Config())
    assert data == {key: value for key, value in expected.items() if key not in groups}


def test_every_option_of_the_schema_has_a_file() -> None:
    groups = (
        "advantage",
        "advantage/baseline",
        "entropy",
        "optim",
        "optim/lr",
        "policy/distribution",
        "policy/memory",
        "update",
    )
    inner = ("update/clip", "update/value_loss", "update/kl_guard", "update/step")
    for group in (*groups, *inner):
        cls = class_of_option(group, "?")
        assert {path.stem for path in (conf_dir() / group).glob("*.yaml")} == set(OPTIONS[cls])


def test_every_setting_of_an_option_is_explained_in_its_file() -> None:
    """A comment beside it, or for the whole file where it only has a name."""
    for _, path in option_files():
        for line in path.read_text().splitlines():
            key = line.partition(":")[0]
            if line and not line.startswith(("#", " ", "-", "name", "defaults", "log_std_m")):
                assert "#" in line or path.stem in ("quiet", "constant"), f"{path}: {key} has no comment"
        assert path.read_text().startswith("#"), path
        yaml.safe_load(path.read_text())


def test_every_setting_has_a_meaning() -> None:
    for cls in {Config, *(c for options in OPTIONS.values() for c in options.values())}:
        for item in dataclasses.fields(cls):
            assert item.metadata["doc"], f"{cls.__name__}.{item.name}"
    keys = all_keys()
    assert {"gamma", "optim.lr.value", "advantage.baseline.scope", "advantage.lam", "env.kwargs"} <= set(keys)
    assert len(keys) == len(set(keys))


def test_quiet_only_differs_in_the_terminal() -> None:
    data = yaml.safe_load((conf_dir() / "monitor/quiet.yaml").read_text())
    assert data == dataclasses.asdict(MonitorConfig(terminal="none"))


def test_check_alone_leaves_gaps_open() -> None:
    config = from_dict({"advantage": {"name": "gae"}})
    check(config)
    assert config.horizon is None
