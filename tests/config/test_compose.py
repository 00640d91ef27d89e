"""From overrides to a checked config, and every mistake in one line."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pgtrain.config import paths, sources
from pgtrain.config.checks import settle
from pgtrain.config.compose import compose, compose_tree, from_yaml, open_hydra, to_yaml
from pgtrain.config.convert import from_dict, to_dict
from pgtrain.config.errors import OTHER_NAMES, ConfigError, all_keys
from pgtrain.config.schema import GaeConfig, LeaveOneOutBaselineConfig, MonteCarloConfig, ValueBaselineConfig

RECIPES = sorted(path.stem for path in (paths.conf_dir() / "algo").glob("*.yaml"))


def refused(*overrides: str, config_dirs: tuple[Path, ...] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(overrides, config_dirs)
    text = str(caught.value)
    assert "\n" not in text
    return text


# what only fits where the gradient flows through the env
THROUGH_TIME: dict[str, set[str]] = defaultdict(
    set,
    algo={"shac", "bptt", "alpha_order"},
    advantage={"td_lambda", "none"},
    update={"pathwise", "alpha_order"},
)


# ------------------------------------------------------------------------------------ what comes out
def test_the_default_run() -> None:
    composed = compose()
    config = composed.config
    assert (config.algo, config.env.id, config.seed, config.num_envs) == ("reinforce", "CartPole-v1", 0, 8)
    assert isinstance(config.advantage, MonteCarloConfig)
    assert isinstance(config.advantage.baseline, LeaveOneOutBaselineConfig)
    assert composed.choices["algo"] == "reinforce"
    assert composed.choices["advantage/baseline"] == "loo"
    assert not any(group.startswith("hydra") for group in composed.choices)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_composes_and_survives_its_own_yaml(recipe: str, tmp_path: Path) -> None:
    composed = compose([f"algo={recipe}"])
    assert composed.config.algo == recipe
    file = tmp_path / "config.yaml"
    file.write_text(composed.yaml)
    assert from_yaml(file) == composed.config
    assert to_yaml(composed.config) == composed.yaml


def test_from_yaml_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match="cannot be read"):
        from_yaml(file)
    file.write_text("[1, 2]")
    with pytest.raises(ConfigError, match="is not the config of a run"):
        from_yaml(file)
    file.write_text("gamma: 2")
    with pytest.raises(ConfigError, match="gamma=2: must be"):
        from_yaml(file)


@pytest.mark.parametrize(
    "group",
    [
        "advantage",
        "advantage/baseline",
        "update",
        "entropy",
        "optim",
        "optim/lr",
        "policy/distribution",
        "policy/memory",
        "device",
    ],
)
def test_every_option_composes_with_its_recipe(group: str) -> None:
    for path in (paths.conf_dir() / group).glob("*.yaml"):
        algo = "a2c" if group == "advantage" and path.stem != "monte_carlo" else "reinforce"
        algo = "shac" if path.stem in THROUGH_TIME[group] else algo
        more = ["num_envs=16"] if path.stem == "alpha_order" else []  # two for each group; shac has 8
        assert compose([f"algo={algo}", f"{group}={path.stem}", *more]).choices[group] == path.stem


@pytest.mark.parametrize(
    ("group", "updates"),
    [
        ("clip", ["clipped"]),
        ("value_loss", ["policy_gradient", "clipped", "kl_penalty", "natural", "trust_region"]),
        ("kl_guard", ["policy_gradient", "clipped", "kl_penalty"]),
        ("step", ["natural", "trust_region"]),
    ],
)
def test_every_inner_option_of_an_update_composes(group: str, updates: list[str]) -> None:
    for path in (paths.conf_dir() / "update" / group).glob("*.yaml"):
        for update in updates:
            more = ["update.epochs=3", "optim/lr=constant"] if group == "kl_guard" else []
            chosen = compose(["algo=a2c", f"update={update}", f"update/{group}={path.stem}", *more]).choices
            assert chosen[f"update/{group}"] == path.stem


def test_any_update_may_take_the_place_of_a_recipes() -> None:
    """Of the same kind: those that go through a differentiable env among themselves, and the others."""
    for recipe in RECIPES:
        for path in (paths.conf_dir() / "update").glob("*.yaml"):
            if (recipe in THROUGH_TIME["algo"]) != (path.stem in THROUGH_TIME["update"]):
                with pytest.raises(ConfigError, match=r"^advantage="):
                    compose([f"algo={recipe}", f"update={path.stem}"])
                continue
            more = ["num_envs=16"] if path.stem == "alpha_order" else []
            assert compose([f"algo={recipe}", f"update={path.stem}", *more]).config.update.name == path.stem


def test_the_command_line_wins_over_a_recipe() -> None:
    config = compose(
        ["algo=a2c", "horizon=5", "advantage=gae", "advantage.lam=0.5", "optim.lr.value=3e-4"]
    ).config
    assert isinstance(config.advantage, GaeConfig)
    assert (config.horizon, config.advantage.lam, config.optim.lr.value) == (5, 0.5, 3e-4)
    assert compose(["algo=reinforce", "advantage=gae"]).config.advantage.name == "gae"
    baseline = compose(["advantage/baseline=value"]).config.advantage.baseline  # type: ignore[attr-defined]
    assert isinstance(baseline, ValueBaselineConfig)
    assert compose(["optim/lr=linear"]).config.optim.lr.name == "linear"


@pytest.mark.parametrize(
    ("override", "steps"), [("1e5", 100_000), ("1_000_000", 1_000_000), ("5e5", 500_000), ("300000", 300_000)]
)
def test_whole_numbers_on_the_command_line(override: str, steps: int) -> None:
    value = compose([f"total_steps={override}"]).config.total_steps
    assert value == steps
    assert type(value) is int


@pytest.mark.parametrize("text", ["policy.hidden=[64, 32]", "policy.hidden=[64,32]"])
def test_lists_with_and_without_spaces(text: str) -> None:
    assert compose([text]).config.policy.hidden == [64, 32]


def test_numbers_in_a_file_are_read_as_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo/mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - a2c\n\ntotal_steps: 1e5\noptim:\n  lr:\n    value: 1e-3\n"
    )
    config = compose(["algo=mine"], [tmp_path]).config
    assert (config.algo, config.total_steps, config.optim.lr.value) == ("mine", 100_000, 0.001)


def test_env_arguments_are_open() -> None:
    assert compose(["env.kwargs.gravity=5"]).config.env.kwargs == {"gravity": 5}
    assert compose(["+env.kwargs.gravity=5"]).config.env.kwargs == {"gravity": 5}
    assert compose(["env.kwargs={a: 1, b: x}"]).config.env.kwargs == {"a": 1, "b": "x"}
    assert compose(["env=Acrobot-v1", "env.kwargs.a.b=1"]).config.env.kwargs == {"a": {"b": 1}}


def test_a_plus_plus_and_an_interpolation() -> None:
    assert compose(["++gamma=0.5", "optim.max_grad_norm=${gamma}"]).config.optim.max_grad_norm == 0.5


def test_null_is_none() -> None:
    assert compose(["optim.max_grad_norm=null"]).config.optim.max_grad_norm is None


# ------------------------------------------------------------------------------------ one line for each mistake
@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ("gama=0.9", r"gama=0\.9: there is no setting 'gama'\. Did you mean gamma\?"),
        ("+gama=0.9", r"gama=0\.9: there is no setting 'gama'\. Did you mean gamma\?"),
        ("++optim.lrr=1", r"optim\.lrr=1: .* Did you mean optim\.lr\?"),
        ("+advantage.gama=0.9", r"there is no setting 'advantage\.gama'\. Did you mean gamma\?"),
        ("optim.lr.vale=1", r"Did you mean optim\.lr\.value\?"),
        ("env.kwarg.x=1", r"Did you mean env\.kwargs\?"),
        ("learning_rate=1e-3", r"Did you mean optim\.lr\.value\?"),
        ("run_dir=here", r"Did you mean hydra\.run\.dir\?"),
        ("net_arch=[64]", r"Did you mean policy\.hidden\?"),
        (
            "algo=a2c advantage=td advantage.lam=0.9",
            r"advantage=td has no setting 'lam'.* advantage=gae\|bootstrapped_return\|td_lambda has it",
        ),
        (
            "advantage.baseline.scope=step advantage/baseline=value",
            r"advantage/baseline=value has no setting 'scope'",
        ),
        ("seed.x=1", "seed is one value, not a group"),
        ("entropy=0.01", r"entropy is a group .* Did you mean entropy\.coef=0\.01\?"),
        ("optim.lr=1e-3", r"optim\.lr is a group .* Did you mean optim\.lr\.value=0\.001\?"),
        ("optim=0.001", r"optim is a group of settings"),
        ("optim/lr=0.01", r"Did you mean optim\.lr\.value=0\.01\?"),
        ("entropy={coef:0.1}", r"Set them one by one, e\.g\. entropy\.coef"),
        ("algo=a2d", r"algo=a2d: must be one of .* Did you mean a2c\?"),
        ("advantage=gea", r"advantage=gea: must be one of .* Did you mean gae\?"),
        ("advantage=null", r"advantage=null: must be one of"),
        ("advantage.name=gae", "write advantage=gae to choose another advantage"),
        ("optim.lr.name=linear", "write optim/lr=linear"),
        ("device=gpu", r"device=gpu: must be one of auto, cpu, cuda, mps, cuda:1"),
        ("algo=a2c update/clip=linear", "update=policy_gradient has no clip; update=clipped has one"),
        ("update/step=fixed", r"update=policy_gradient has no step; update=natural\|trust_region has one"),
        ("algo=ppo update.clip=0.1", r"Did you mean update\.clip\.value=0\.1\?"),
        ("clip_range=0.1", r"Did you mean update\.clip\.value\?"),
        (
            "algo=ppo update.kl_guard.limit=0.1",
            r"update/kl_guard=none has no setting 'limit'.*stop\|skip has it",
        ),
        ("policy.distribution.expln=true", r"policy/distribution=gsde has it"),
        ("algo=ppo update/kl_guard=learning_rate", "would both set the learning rate"),
        ("algo=trpo policy.share=1", r"use policy\.share=0"),
        ("optim/lrr=linear", r"there is no group 'optim/lrr'\. Did you mean optim/lr\?"),
        ("optimizer=adam", r"Did you mean optim\?"),
        (
            "algo=a2c advantage/baseline=mean",
            "advantage=bootstrapped_return has no baseline; advantage=monte_carlo has one",
        ),
        ("gamma=1.5", r"gamma=1\.5: must be a number from 0 to 1"),
        ("gamma=true", r"gamma=true: must be a number"),
        ("total_steps=1e5.5", r"total_steps=1e5\.5: must be a whole number"),
        ("seed=2.5", r"seed=2\.5: must be a whole number"),
        ("policy.activation=swish", r"must be one of tanh, relu"),
        ("env.kwargs=3", r"env\.kwargs=3: must be a group of settings"),
        ("seed=1 seed=2", "seed is set twice: seed=1 and seed=2"),
        ("env=CartPole-v1 env=Acrobot-v1", "env is set twice"),
        ("+gamma=0.9", "gamma is there already, leave out the +"),
        ("+algo=a2c", "algo is there already, leave out the +"),
        ("+algo/foo=a2c", r"there is no group 'algo/foo'"),
        ("~gamma", "a setting cannot be removed"),
        ("~optim", "a setting cannot be removed"),
        ("env@foo=CartPole-v1", "write env=CartPole-v1"),
        (
            "seed=1,2",
            r"several values are a sweep, which needs -m: pgtrain -m seed=1,2 \(a list is written seed=\[1,2\]\)",
        ),
        ("algo=a2c,reinforce", r"pgtrain -m algo=a2c,reinforce"),
        ("seed=range(3)", r"pgtrain -m seed=range\(3\)$"),
        ("seed=???", "seed: Missing mandatory value"),
        ("seed=${nosuch}", "Interpolation key 'nosuch' not found"),
        ("policy.hidden=[64,", r"cannot be read .* lists are written key=\[64,64\]"),
        ("=3", "settings are written key=value"),
        (
            "algo=a2c CartPole-v1",
            r"CartPole-v1: settings are written key=value.* Did you mean env=CartPole-v1\?",
        ),
        ("hydra.run.dirr=x", r"Hydra has no setting 'hydra\.run\.dirr'\. Did you mean hydra\.run\.dir\?"),
        ("+hydra.foo=1", "Hydra has no setting 'hydra.foo'"),
        ("++hydra.run.foo=1", r"Hydra has no setting 'hydra\.run\.foo'"),
        ("hydra.launcher.n=1", r"Hydra has no setting 'hydra\.launcher\.n'"),
        ("hydra/launcher=joblub", r"must be one of basic.* pip install hydra-joblub-launcher"),
        ("hydra/lancher=basic", "Hydra has no group"),
        ("hydra.job.chdir=maybe", r"hydra\.job\.chdir=maybe"),
        ("hydra.searchpath=[file:///no/such/folder]", "there is no folder /no/such/folder"),
        ("env=CartPol-v1", r"env=CartPol-v1: .*CartPole-v1"),
        ("env=LunarLander-v2", r"LunarLander-v3"),
        ("env=CartPole", r"CartPole-v1"),
        ("env=nosuch", r"^env=nosuch: "),
        ("env=Ant-v3", r"env=Ant-v3: Gymnasium no longer has this version; use Ant-v5"),
        ("env=no_such_module:Env-v0", r"env=no_such_module:Env-v0: cannot import 'no_such_module'"),
        ("env.id=CartPol-v1", r"CartPole-v1"),
        ("env=5", r"env=5: "),
        ("algo=reinforce horizon=64", r"horizon=64 has no effect with collect\.unit=episodes"),
        ("algo=a2c advantage=monte_carlo", "truncation_bootstrap=none would count the end of a rollout"),
    ],
)
def test_a_mistake_is_one_line(overrides: str, text: str) -> None:
    said = refused(*overrides.split(" "))
    assert re.search(text, said), said


def test_a_missing_config_dir() -> None:
    assert refused(config_dirs=(Path("no/such"),)) == "--config-dir no/such: there is no such folder"


@pytest.mark.parametrize(
    ("yaml", "text"),
    [
        ("# @package _global_\nsead: 7\n", r"sead=7: there is no setting 'sead'\. Did you mean seed\?"),
        ("# @package _global_\nseed: [\n", r"broken\.yaml|mine\.yaml"),
        ("# @package _global_\ndefaults:\n  - nosuch\n", r"Could not load 'algo/nosuch'\.$"),
        ("# @package _global_\noptim:\n  lr: 1\n", r"optim\.lr is a group of settings"),
        ("# @package _global_\nmonitor:\n  terminal: off\n", r"monitor\.terminal=false: .*quote"),
        ("seed: 7\n", r"algo=mine: .* its first line must be: # @package _global_"),
    ],
)
def test_a_mistake_in_a_file_of_the_user_is_one_line(yaml: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo/mine.yaml").write_text(yaml)
    said = refused("algo=mine", config_dirs=(tmp_path,))
    assert re.search(text, said), said


# ------------------------------------------------------------------------------------ envs and devices without a file
@pytest.mark.parametrize("env_id", ["Acrobot-v1", "Pendulum-v1", "CartPole-v0"])
def test_any_registered_id_is_an_env(env_id: str) -> None:
    composed = compose([f"env={env_id}", "env.max_episode_steps=7"])
    assert (composed.config.env.id, composed.config.env.max_episode_steps) == (env_id, 7)
    assert composed.choices["env"] == env_id


def test_an_id_of_a_module_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pkg_of_compose_test.py").write_text(
        "import gymnasium\ngymnasium.register('Mine-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    paths.add_working_dir()
    assert compose(["env=pkg_of_compose_test:Mine-v0"]).config.env.id == "pkg_of_compose_test:Mine-v0"
    assert "Mine-v0" in refused("env=pkg_of_compose_test:Mine-v1")


def test_a_module_that_breaks_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_of_compose_test.py").write_text("raise ValueError('so\\nbroken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert refused("env=broken_of_compose_test:Mine-v0").endswith(
        f"ValueError: so broken ({tmp_path}/broken_of_compose_test.py:1)"
    )


def test_a_missing_extra_says_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    assert refused("env=LunarLander-v3").endswith("pip install 'pgtrain[box2d]'")
    assert refused("env=Hopper-v5").endswith("pip install 'pgtrain[mujoco]'")
    assert compose(["env=CartPole-v1"]).config.env.id == "CartPole-v1"


def test_a_namespace_is_part_of_an_id() -> None:
    pytest.importorskip("ale_py")
    assert compose(["env=ALE/Pong-v5"]).config.env.id == "ALE/Pong-v5"


def test_a_cuda_device_needs_no_file() -> None:
    composed = compose(["device=cuda:1", "device.threads=2"])
    assert (composed.config.device.name, composed.config.device.threads) == ("cuda:1", 2)
    assert composed.choices["device"] == "cuda:1"


@pytest.mark.parametrize("way", ["--config-dir", "hydra.searchpath"])
def test_a_file_of_the_users_wins_over_the_id(way: str, tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env/CartPole-v1.yaml").write_text("id: Acrobot-v1\n")
    (tmp_path / "env/short.yaml").write_text("id: CartPole-v1\nmax_episode_steps: 9\nkwargs: {a: 1}\n")
    searched = [f"hydra.searchpath=[file://{tmp_path}]"] if way == "hydra.searchpath" else []
    folders = [tmp_path] if way == "--config-dir" else []
    assert compose(["env=CartPole-v1", *searched], folders).config.env.id == "Acrobot-v1"
    short = compose(["env=short", "env.backend=sync", "env.kwargs.b=2", *searched], folders).config.env
    assert (short.max_episode_steps, short.backend, short.kwargs) == (9, "sync", {"a": 1, "b": 2})


def test_a_config_dir_wins_over_conf_but_not_with_its_config_yaml(tmp_path: Path) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo/a2c.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /advantage: gae\n\nhorizon: 3\n"
    )
    (tmp_path / "config.yaml").write_text("gama: 3\n")
    assert compose(["algo=a2c"], [tmp_path]).config.horizon == 3


def test_the_source_lists_ids_and_namespaces() -> None:
    import gymnasium

    source = sources.PgtrainSource("pgtrain", "pgtrain://")
    flat = source.list("env", sources.ObjectType.CONFIG)
    assert {"CartPole-v1", "Acrobot-v1"} <= set(flat)
    assert not any("/" in name for name in flat)
    assert "phys2d" in source.list("env", sources.ObjectType.GROUP)
    assert "CartPole-v1" in source.list("env/phys2d", sources.ObjectType.CONFIG)
    assert len(source.list("env", None)) == len({key.partition("/")[0] for key in gymnasium.registry})
    assert source.is_group("env")
    assert source.is_group("env/phys2d")
    assert not source.is_group("env/nosuch")
    assert not source.is_config("env")
    assert not source.is_config("algo/a2c")
    assert source.list("algo", None) == []


# ------------------------------------------------------------------------------------ beside other users of Hydra
def test_inside_another_hydra_app_and_its_options() -> None:
    """The other app's ConfigStore has names of ours; its Hydra is as before when ours is done."""
    import hydra
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra

    store = ConfigStore.instance()
    repo = dict(store.repo)
    version = {"version_base": "1.1"} if hydra.__version__ < "1.4" else {}
    try:
        store.store(name="config", node={"mine": 1})
        store.store(group="algo", name="a2c", node={"mine": 2})
        store.store(name="base_config", node={"mine": 3})
        with (
            pytest.warns() if version else _nothing(),
            initialize_config_dir(str(Path(__file__).parent), **version),
        ):
            app = GlobalHydra.instance().hydra
            assert compose(["algo=a2c", "seed=4"]).config.seed == 4
            refused("gama=1")
            assert GlobalHydra.instance().hydra is app
            assert hydra_compose("config").mine == 1
            if version:
                assert str(hydra.version.getbase()) == "1.1"
        assert store.repo["base_config.yaml"].node.mine == 3
    finally:
        store.repo = repo


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_compose_again_and_again_gives_the_same() -> None:
    assert compose(["algo=a2c"]) == compose(["algo=a2c"])


# ------------------------------------------------------------------------------------ names of folders
@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("a2c", "ALE/Pong-v5", "s0"), "a2c_ALE-Pong-v5_s0"),
        (("a2c", "my_pkg:MyEnv-v0"), "a2c_my_pkg-MyEnv-v0"),
        (("algo=a2c,seed=1",), "algo-a2c_seed-1"),
        (("../../x",), "x"),
        (("",), "run"),
        (("é ü",), "é-ü"),
    ],
)
def test_slug(parts: tuple[str, ...], name: str) -> None:
    assert paths.slug(*parts) == name


def test_slug_is_short_and_flat() -> None:
    name = paths.slug("x" * 500)
    assert len(name) == paths.SLUG_LENGTH
    assert not set("/=,: ") & set(paths.slug("a/b=c,d: e"))


@pytest.mark.parametrize(
    ("overrides", "pattern"),
    [
        ([], r"outputs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d_reinforce_CartPole-v1_s0"),
        (["algo=a2c", "seed=7", "env=Acrobot-v1"], r"outputs/[\d-]+/[\d-]+_a2c_Acrobot-v1_s7"),
        (["hydra.run.dir=/some/where"], "/some/where"),
    ],
)
def test_the_name_of_the_run_folder(overrides: list[str], pattern: str) -> None:
    with open_hydra() as app:
        tree = compose_tree(app, overrides)
        assert re.fullmatch(pattern, OmegaConf.select(tree, "hydra.run.dir"))


def test_a_namespaced_env_makes_no_nested_folder() -> None:
    pytest.importorskip("ale_py")
    with open_hydra() as app:
        tree = compose_tree(app, ["env=ALE/Pong-v5"])
        assert OmegaConf.select(tree, "hydra.run.dir").endswith("_reinforce_ALE-Pong-v5_s0")


def test_what_other_tools_call_a_setting_leads_to_one_that_there_is() -> None:
    known = {*all_keys(), "hydra.run.dir"}
    assert set(OTHER_NAMES.values()) <= known
    assert not set(OTHER_NAMES) & set(all_keys())


# a part of each kind whose settings are settled by others
PARTS = (
    [], ["policy=tests.nets_for_tests:Wide"], ["env=ALE/Pong-v5"], ["env=pgtrain/Pendulum-v0"], ["update=kl_penalty"],
    ["advantage=gae"], ["advantage/baseline=optimal"], ["policy/memory=gru"], ["policy/distribution=tanh_gaussian"],
    ["policy/distribution=beta"], ["policy.normalize_obs=calibrated"], ["reward.scaling=running_std"],
    ["checkpoint.every_steps=100"], ["collect.unit=steps"], ["collect.unit=episodes"], ["policy.ortho_init=false"],
)  # fmt: skip


@pytest.mark.parametrize("algo", RECIPES)
def test_what_a_run_records_is_accepted_when_it_is_resumed(algo: str) -> None:
    """Settled settings settle to themselves, whatever they were made of."""
    taken = 0
    for part in PARTS:
        try:
            before = to_dict(compose([f"algo={algo}", *part]).config)
        except ConfigError:  # the two do not go together
            continue
        taken += 1
        assert to_dict(settle(from_dict(before))) == before, part
    assert taken >= 4
