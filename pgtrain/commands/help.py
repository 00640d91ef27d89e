"""`pgtrain --help`: the choices in conf/, the settings most used, examples. Imports neither Hydra nor torch."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from pathlib import Path

from pgtrain.config import paths
from pgtrain.config.convert import type_hints
from pgtrain.config.errors import shown
from pgtrain.config.schema import OPTIONS, Config

GROUPS = (
    "algo",
    "env",
    "policy",
    "policy/distribution",
    "policy/memory",
    "advantage",
    "advantage/baseline",
    "update",
    "update/clip",
    "update/value_loss",
    "update/kl_guard",
    "update/step",
    "entropy",
    "optim",
    "optim/lr",
    "device",
    "monitor",
)
COMMON = """
seed total_steps num_envs horizon gamma collect.unit collect.episodes env.backend env.max_episode_steps
policy.hidden policy.activation policy.share advantage.normalize optim.lr.value optim.max_grad_norm entropy.coef
update.epochs update.minibatch_size update.value_coef update.clip.value update.kl_guard.limit
update.step.max_kl device.threads eval.episodes monitor.terminal
""".split()
MORE = {"env": "<any Gymnasium id> | <module>:<Id>", "device": "cuda:<number>"}
WIDTH = 100

TEXT = """\
pgtrain trains policy-gradient agents on Gymnasium environments.

usage
  pgtrain SETTING=VALUE …                train, e.g. pgtrain algo=reinforce env=CartPole-v1
  pgtrain -m SETTING=VALUE,VALUE …       train with each combination of the values
{commands}
choices: pgtrain GROUP=NAME …   (* without a word from you; a recipe algo=… may choose otherwise)
{groups}

common settings: pgtrain KEY=VALUE …   (with their defaults; pgtrain --cfg job shows all)
{settings}

examples
  pgtrain algo=reinforce env=CartPole-v1
  pgtrain algo=ppo env=LunarLander-v3 num_envs=16 total_steps=5e5 seed=1
  pgtrain algo=reinforce advantage/baseline=value env=Acrobot-v1 optim.lr.value=3e-4
  pgtrain -m algo=reinforce,a2c seed=0,1,2
  pgtrain +experiment=ppo/Pendulum-v1 seed=1
  pgtrain algo=shac env=pgtrain/Pendulum-v0
  pgtrain resume latest
  pgtrain eval latest episodes=100
  pgtrain gradients env=CartPole-v1

more
  +experiment=ALGO/ENV    a tuned preset: recipe, env and the numbers for both
                          (+experiment=ppo names those of ppo)
  --cfg job               show the settings that a command line gives, and don't train
  --config-dir FOLDER     a folder with options of your own, e.g. FOLDER/env/my_env.yaml
  hydra.run.dir=FOLDER    the run folder (else outputs/<date>/<time>_<algo>_<env>_s<seed>)
  --info, --hydra-help    about Hydra, which reads the command line
  --version
  tab completion          eval "$(pgtrain -sc install=bash)"
"""


def help_text(commands: Mapping[str, str]) -> str:
    """The whole help. `commands`: name → what it does."""
    conf = paths.conf_dir()
    return TEXT.format(
        commands="".join(f"  pgtrain {name + ' …':<31}{about}\n" for name, about in commands.items()),
        groups="\n".join(_group_line(conf, group) for group in GROUPS if (conf / group).is_dir()),
        settings="\n".join(_setting_line(key) for key in COMMON),
    )


def _group_line(conf: Path, group: str) -> str:
    """`  advantage=   gae | monte_carlo* | …`; for a group that only some parents have, these behind it."""
    names = sorted(path.stem for path in (conf / group).glob("*.yaml"))
    parent = group.rpartition("/")[0]
    chosen = parents(conf, group)
    everywhere = not parent or len(chosen) == len(list((conf / parent).glob("*.yaml")))
    if len(set(chosen.values())) == 1:
        default = next(iter(chosen.values()))
        names = [name + "*" * (name == default) for name in names]
        if default not in (name.rstrip("*") for name in names):
            names.insert(0, default + "*")
    if group in MORE:
        names.append(MORE[group])
    text = " | ".join(names)
    return _entry(f"{group}=", text if everywhere else f"{text}   (with {parent}={'|'.join(chosen)})")


def parents(conf: Path, group: str) -> dict[str, str]:
    """The options of the parent group that have `group`, each with its default for it; `{"": …}` at the top."""
    import yaml

    parent, _, name = group.rpartition("/")
    files = sorted((conf / parent).glob("*.yaml")) if parent else [conf / "config.yaml"]
    found: dict[str, str] = {}
    for file in files:
        for item in yaml.safe_load(file.read_text(encoding="utf-8")).get("defaults", []):
            if isinstance(item, dict) and name in item:
                found[file.stem if parent else ""] = str(item[name])
    return found


def _setting_line(key: str) -> str:
    base, value, doc = Config, Config(), ""
    for name in key.split("."):
        if not hasattr(value, name):  # the default option has no such setting: the first one that has
            value = next(cls() for cls in OPTIONS[base].values() if name in type_hints(cls))
        cls = type(value)
        found = {item.name: item for item in dataclasses.fields(cls)}[name]
        doc, value, base = found.metadata["doc"], getattr(value, name), type_hints(cls)[name]
    return _entry(f"{key}={shown(value)}", doc)


def _entry(left: str, right: str) -> str:
    lines = textwrap.wrap(right, WIDTH - 31, break_on_hyphens=False)
    return "\n".join(
        f"  {head:<29}{line}" for head, line in zip([left] + [""] * len(lines), lines, strict=False)
    )
