"""`pgtrain eval RUN`: play a trained policy and say how well it does.

RUN is taken from the arguments before anything else, because a path may hold `=` and `,`. Nothing that only
the run names is imported (`loading.load` sees to it): an env of the form `module:Id` has to be repeated by the user.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgtrain.types import UserError

HELP = """\
pgtrain eval RUN [setting=value …]   play the policy of a run and report its return

RUN          a run folder, for example outputs/2026-11-30/12-00-00_reinforce_CartPole-v1_s0,
             or `latest`: the newest run under outputs/

settings
  episodes=100       episodes in all; every env plays the same number (1 with watch or video)
  watch=true         play in a window, at the env's own speed
  video=true         write each episode to RUN/videos as an mp4 file
  greedy=true        true: the most likely action; false: actions sampled as in training
  seed=1000          seed of the envs and of sampled actions
  num_envs=…         envs side by side (default: the largest number up to 20 that divides episodes)
  device=cpu         auto (the CPU), cpu, cuda, cuda:N or mps
  env=module:Id      only for a run whose env comes from a module: repeat the env's id to allow the
                     import
  policy=module:Name the same for a network of your own

Returns are those of the environment itself, without any scaling. The result is printed and, where
nothing is shown, written to evaluation.json in the run folder.

examples
  pgtrain eval latest
  pgtrain eval outputs/2026-11-30/12-00-00_reinforce_CartPole-v1_s0 episodes=500 greedy=false
  pgtrain eval latest video=true episodes=3
  pgtrain eval my_run env=my_pkg:MyEnv-v0 seed=7
"""


EPISODES = 100


@dataclass(frozen=True)
class Settings:
    """The settings of one evaluation."""

    episodes: int | None = None
    greedy: bool = True
    seed: int = 1000
    num_envs: int | None = None
    device: str = "cpu"
    env: str | None = None
    policy: str | None = None
    watch: bool = False
    video: bool = False

    @property
    def shown(self) -> bool:
        return self.watch or self.video


# ---------------------------------------------------------------------------------------------- arguments
def _integer(least: int) -> Callable[[str, str], int]:
    def parse(key: str, text: str) -> int:
        try:
            number = float(text.replace("_", ""))
            value = int(number) if number.is_integer() else None
        except (ValueError, OverflowError):
            value = None
        if value is None or value < least:
            raise UserError(f"{key}={text}: expected an integer of at least {least}")
        return value

    return parse


def _boolean(key: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UserError(f"{key}={text}: expected true or false")
    return text.lower() == "true"


def _device(key: str, text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", text):
        raise UserError(f"{key}={text}: expected auto, cpu, cuda, cuda:N or mps")
    return "cpu" if text == "auto" else text  # single steps of few envs: a CPU is never the slower one


SETTINGS: dict[str, Callable[[str, str], Any]] = {
    "episodes": _integer(1),
    "greedy": _boolean,
    "seed": _integer(0),
    "num_envs": _integer(1),
    "device": _device,
    "env": lambda key, text: text,
    "policy": lambda key, text: text,
    "watch": _boolean,
    "video": _boolean,
}


def parse(argv: list[str]) -> tuple[str, Settings]:
    """RUN and the settings; a word that exists as a path is RUN, even when it looks like `episodes=5`."""
    runs: list[str] = []
    given: dict[str, Any] = {}
    for word in argv:
        key, equals, text = word.partition("=")
        if os.path.exists(word) or not (equals or word.startswith("-")):
            runs.append(word)
        elif key in given:
            raise UserError(f"{key}= is given twice")
        elif key in SETTINGS:
            given[key] = SETTINGS[key](key, text)
        else:
            near = difflib.get_close_matches(key, SETTINGS, n=1)
            hint = f"; did you mean {near[0]}=?" if near else ""
            known = ", ".join(SETTINGS)
            raise UserError(f"{word}: neither a run nor a setting of eval{hint} (settings: {known})")
    if len(runs) != 1:
        what = "no run is given" if not runs else f"more than one run is given ({', '.join(runs)})"
        raise UserError(
            f"{what}; expected: pgtrain eval RUN [setting=value …], for example pgtrain eval latest"
        )
    settings = Settings(**given)
    if settings.watch and settings.video:
        raise UserError("watch=true video=true: one of them at a time")
    if settings.shown and settings.num_envs not in (None, 1):
        raise UserError(
            f"num_envs={settings.num_envs}: {'watch' if settings.watch else 'video'}=true shows one env; leave it out"
        )
    return runs[0], settings


def find_run(run: str) -> Path:
    """The run folder that RUN names: a folder with config.yaml, or `latest`."""
    if run == "latest" and not Path(run).exists():
        found = [
            path for path in Path("outputs").glob("**/config.yaml") if not path.parent.name.startswith(".")
        ]
        if not found:
            raise UserError(
                "latest: there is no run under outputs/ here; train one first: pgtrain algo=reinforce"
            )
        return max(found, key=lambda path: path.stat().st_mtime).parent
    folder = Path(run)
    if not folder.exists():
        raise UserError(f"{run}: no such run folder")
    if folder.is_file():
        raise UserError(f"{run}: is a file; expected the run folder: {folder.parent}")
    if not (folder / "config.yaml").is_file():
        inside = sorted(path.parent for path in folder.glob("*/config.yaml"))
        hint = (
            f"; runs in it: {', '.join(map(str, inside[:3]))}{', …' if len(inside) > 3 else ''}"
            if inside
            else ""
        )
        raise UserError(f"{run}: is no run folder (it has no config.yaml){hint}")
    return folder


# ---------------------------------------------------------------------------------------------- evaluation
def evaluate_run(folder: Path, settings: Settings) -> tuple[dict[str, Any], list[Path]]:
    """Play the run's policy; the numbers that evaluation.json holds, and the videos that were made."""
    from pgtrain import device, loading
    from pgtrain.envs.show import Show
    from pgtrain.evaluation import envs_for, evaluate

    asked = settings.episodes or (1 if settings.shown else EPISODES)
    num_envs = settings.num_envs or (1 if settings.shown else envs_for(asked))
    episodes = math.ceil(asked / num_envs) * num_envs  # every env plays the same number
    show = None
    if settings.shown:
        show = Show(folder / "videos" if settings.video else None, f"seed{settings.seed}", episodes)
    device.resolve(settings.device, parameters=0)  # a device that is not there is told in one line
    loaded = loading.load(folder, device=settings.device, env_id=settings.env, policy=settings.policy)
    env_id = loaded.cfg.env.id
    for key, given, was in (
        ("env", settings.env, env_id),
        ("policy", settings.policy, loaded.cfg.policy.name),
    ):
        if given not in (None, was):
            raise UserError(f"{key}={given}: the run was trained on {was}; {key}= can only repeat that")
    if loaded.warning:
        print(f"pgtrain: warning: {loaded.warning}", file=sys.stderr)
    with loaded.make_env(num_envs, show=show) as env:
        result = evaluate(loaded.policy, env, episodes=episodes, seed=settings.seed, greedy=settings.greedy)
    returns, lengths = [float(r) for r in result.returns], [int(n) for n in result.lengths]
    report = {
        "env": env_id,
        "episodes": len(returns),
        "greedy": settings.greedy,
        "seed": settings.seed,
        "num_envs": num_envs,
        "device": settings.device,
        "return_mean": float(result.mean),
        "return_std": float(result.std),
        "return_ci95": [float(result.ci95[0]), float(result.ci95[1])],
        "return_min": min(returns),
        "return_max": max(returns),
        "length_mean": sum(lengths) / len(lengths),
        "returns": returns,
        "lengths": lengths,
    }
    return report, show.files if show else []


def write(folder: Path, report: dict[str, Any]) -> Path:
    """evaluation.json in the run folder, whole or not at all; NaN is null."""
    from pgtrain.monitor.record import atomic_write, json_ready

    path = folder / "evaluation.json"
    try:
        atomic_write(path, json.dumps(json_ready(report), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def show(folder: Path, report: dict[str, Any], asked: int | None) -> None:
    """Print the report as a table."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    low, high = report["return_ci95"]
    actions = "greedy" if report["greedy"] else "sampled"
    envs = report["num_envs"]
    each = f", {report['episodes'] // envs} in each of {envs} envs" if envs > 1 else ""
    rounded = f" (asked for {asked})" if asked not in (None, report["episodes"]) else ""
    rows = {
        "return, mean ± std": f"{report['return_mean']:.2f} ± {report['return_std']:.2f}",
        "95 % interval of the mean": f"{low:.2f} … {high:.2f}",
        "return, min … max": f"{report['return_min']:.2f} … {report['return_max']:.2f}",
        "episode length, mean": f"{report['length_mean']:.1f}",
        "episodes": f"{report['episodes']}{rounded}{each}",
        "actions": actions,
        "env, seed": f"{report['env']}, {report['seed']}",
    }
    table = Table(
        title=escape(f"evaluation of {folder.resolve().name}"), title_justify="left", show_header=False
    )
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)


def main(argv: list[str]) -> int:
    """`pgtrain eval …` without the word eval; the exit code.

    Raises: UserError for a mistake in `argv` or a run that cannot be played, TrainingError for an env that failed.
    """
    if {"-h", "--help"} & set(argv):
        print(HELP, end="")
        return 0
    run, settings = parse(argv)
    folder = find_run(run)
    report, videos = evaluate_run(folder, settings)
    show(folder, report, settings.episodes)
    for path in videos if settings.shown else [write(folder, report)]:
        print(f"written to {path}")
    return 0
