"""`pgtrain gradients`: variance, bias, direction and cost of every gradient estimator on the same episodes."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pgtrain.commands.evaluate import _device, _integer, find_run
from pgtrain.types import UserError

HELP = """\
pgtrain gradients [RUN] [setting=value …]   measure every gradient estimator on one set of episodes

RUN          a run folder or `latest`: its policy as it is now. Without it a fresh policy, with any
             setting of a training run that says what is played: env=…, gamma=…, policy.hidden=…,
             algo=…

settings
  episodes=256       episodes that all estimators share
  reference=…        episodes of the large sample that stands for the true gradient (default: 16
                     times as many as `episodes`, fewer where they are long; rounded to a multiple
                     of them); not used where the true gradient is known
  batch=…            episodes in a batch, of which SNR and cosine speak (default: num_envs x
                     collect.episodes)
  figure=PATH        where the figure goes (default: gradients.png in the run's folder or here);
                     none: no figure
  rows=TEXT          only rows whose name holds TEXT, e.g. rows=optimal
  seed=0             of the episodes (and of a fresh policy)
  device=cpu         auto (the CPU), cpu, cuda, cuda:N or mps
  env=module:Id      with a RUN whose env comes from a module: repeat the env's id to allow the
                     import

columns
  variance           of one episode's gradient, summed over the parameters, and its 95 % bootstrap
                     interval
  SNR                squared length of the true gradient / variance of a batch's: below 1 noise has
                     the upper hand
  cosine             between a batch's gradient and the true one, on average: 1 the same direction
  bias               distance from the true gradient that noise does not explain, as a share of its
                     length; `<3%`: none is seen, and 3 % is what noise exceeds once in a thousand;
                     a length where the true gradient is 0 or lost in its noise
  ms                 time of estimate and backward pass for the whole batch

On pgtrain/GaussianBandit-v0, SoftmaxBandit-v0, TabularMDP-v0 and LQR-v0 (there with
policy.hidden=[]) the true gradient is exact. The numbers are written to gradients.json beside the
figure. docs/gradients.md explains every row.

examples
  pgtrain gradients env=CartPole-v1
  pgtrain gradients env=pgtrain/TabularMDP-v0 policy.hidden=[] gamma=0.9 episodes=2000
  pgtrain gradients env=pgtrain/LQR-v0 policy.hidden=[] policy.normalize_obs=none
  pgtrain gradients latest episodes=128 figure=none
"""


@dataclass(frozen=True)
class Settings:
    """The settings of one measurement."""

    episodes: int = 256
    reference: int | None = None
    batch: int | None = None
    figure: str | None = None
    rows: str = ""
    seed: int = 0
    device: str = "cpu"


OWN: dict[str, Callable[[str, str], Any]] = {
    "episodes": _integer(2),
    "reference": _integer(2),
    "batch": _integer(1),
    "figure": lambda key, text: text,
    "rows": lambda key, text: text,
    "seed": _integer(0),
    "device": _device,
}
# settings of training that say nothing about a policy, an env or their gradient
UNUSED = (
    "advantage",
    "update",
    "optim",
    "entropy",
    "total_steps",
    "horizon",
    "eval",
    "checkpoint",
    "monitor",
)


def parse(argv: list[str]) -> tuple[str | None, Settings, list[str]]:
    """RUN (or None), the command's own settings, and the overrides that are left for the training config."""
    runs: list[str] = []
    given: dict[str, Any] = {}
    rest: list[str] = []
    for word in argv:
        key, equals, text = word.partition("=")
        if os.path.exists(word) or not (equals or word.startswith("-")):
            runs.append(word)
        elif word.startswith("-"):
            raise UserError(f"{word}: gradients has no such option; its settings are {', '.join(OWN)}")
        elif key in OWN:
            if key in given:
                raise UserError(f"{key}= is given twice")
            given[key] = OWN[key](key, text)
        elif key.startswith("hydra."):
            raise UserError(f"{word}: gradients makes no run folder; figure=PATH says where its files go")
        elif key == "device.ranks" or re.split("[./]", key)[0] in UNUSED:
            raise UserError(
                f"{word}: has no effect on gradients, which measures all estimators: leave it out"
            )
        else:
            rest.append(word)
    if len(runs) > 1:
        raise UserError(f"more than one run is given ({', '.join(runs)})")
    if runs and any(not word.startswith("env=") for word in rest):
        wrong = next(word for word in rest if not word.startswith("env="))
        raise UserError(
            f"{wrong}: the settings of a run are its own; with a RUN gradients takes {', '.join(OWN)} and env"
        )
    settings = Settings(**given)
    if settings.batch is not None and settings.batch > settings.episodes:
        raise UserError(
            f"batch={settings.batch}: there are only episodes={settings.episodes}; use more, or a smaller batch"
        )
    return (runs[0] if runs else None), settings, rest


def _refuse_unwritable(settings: Settings, run: str | None) -> None:
    """Before the episodes are played: they take longer than to name another folder."""
    if settings.figure not in (None, "none"):
        folder, told = Path(settings.figure).parent, f"figure={settings.figure}"
    else:
        folder, told = (find_run(run) if run is not None else Path.cwd()), "gradients.json"
    if not folder.is_dir():
        raise UserError(f"{told}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{told}: {folder} cannot be written to; figure=PATH names another place")


def measure(run: str | None, settings: Settings, rest: list[str]) -> tuple[Any, Path]:
    """The findings, and the folder that they belong to."""
    from pgtrain import build, device, loading
    from pgtrain.commands.gradients_run import Experiment, fresh
    from pgtrain.config.compose import compose

    device.resolve(settings.device, parameters=0)
    if run is not None:
        folder = find_run(run)
        env_id = rest[0].partition("=")[2] if rest else None
        loaded = loading.load(folder, device=settings.device, env_id=env_id)
        if env_id not in (None, loaded.cfg.env.id):
            raise UserError(
                f"env={env_id}: the run was trained on {loaded.cfg.env.id}; env= can only repeat that"
            )
        cfg, policy, make_env = loaded.cfg, loaded.policy, loaded.make_env
    else:
        folder = Path.cwd()
        cfg = compose([*rest, f"seed={settings.seed}"]).config
        policy, make_env = fresh(cfg, rest, settings.device), partial(build.make_env, cfg)
    from rich.console import Console

    with Console(stderr=True).status("…") as status:
        experiment = Experiment(
            cfg, policy, make_env, run is not None, settings.episodes, settings.reference, settings.seed,
            lambda text: status.update(f"{text} …"), settings.batch, settings.rows,
        )  # fmt: skip
        return experiment.run(), folder


def write_numbers(findings: Any, path: Path) -> None:
    """The table as JSON; NaN is null."""
    from pgtrain.monitor.record import atomic_write, json_ready

    data = {
        "env": findings.env,
        "episodes": findings.episodes,
        "reference": "exact" if findings.reference.exact else f"{findings.reference.episodes} episodes",
        "gradient_norm": math.sqrt(findings.reference.squared_norm),
        "rows": [
            {"family": line.family, "baseline": line.name, "milliseconds": line.milliseconds}
            | line.report._asdict()
            for line in findings.lines
        ],
        "shares": findings.shares,
    }
    try:
        atomic_write(path, json.dumps(json_ready(data), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def main(argv: list[str]) -> int:
    """`pgtrain gradients …` without the word gradients; the exit code.

    Raises: UserError for a mistake in `argv` or an env that cannot be measured.
    """
    if {"-h", "--help"} & set(argv):
        print(HELP, end="")
        return 0
    run, settings, rest = parse(argv)
    figure = settings.figure
    if figure not in (None, "none") and not re.search(r"\.(png|pdf|svg)$", str(figure)):
        raise UserError(f"figure={figure}: expected a name that ends in .png, .pdf or .svg, or none")
    _refuse_unwritable(settings, run)
    findings, folder = measure(run, settings, rest)
    from pgtrain.commands.gradients_show import draw, show

    show(findings)
    path = folder / "gradients.png" if figure in (None, "none") else Path(str(figure))
    numbers = path.with_suffix(".json")
    write_numbers(findings, numbers)
    print(f"written to {numbers}")
    if figure != "none":
        problem = draw(findings, path)
        print(problem or f"drawn in {path}", file=sys.stderr if problem else sys.stdout)
    return 0
