"""`pgtrain resume RUN` and `pgtrain.resume(run_dir)`: go on with a run from its checkpoint, in its own folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgtrain.commands.evaluate import find_run
from pgtrain.config.changes import apply, as_of
from pgtrain.config.compose import from_yaml
from pgtrain.config.convert import to_dict
from pgtrain.config.schema import Config
from pgtrain.types import UserError
from pgtrain.version import __version__

if TYPE_CHECKING:
    from pgtrain.checkpoint import Found
    from pgtrain.training import Result

HELP = """\
pgtrain resume RUN [setting=value …]   go on with a run that was ended early, or train one longer

RUN          a run folder, or `latest`: the newest run under outputs/; a checkpoint in a run folder
             (RUN/checkpoint.1.pt, …) goes back to that one

settings that may change; everything else stays as it was
  total_steps=2e6    how far the run goes; a finished one needs it. Schedules that follow the
                     progress are stretched, as it is steps / total_steps
  monitor.*, checkpoint.*, eval.*, env.backend=…, env.workers=…, env.threads=…,
  device=…, device.threads=…
  env=module:Id      only for a run whose env comes from a module: repeat the env's id to allow the
                     import
  policy=module:Name the same for a network of your own

The files of the run go on. What it wrote after the checkpoint's step is set aside, as those steps
are made anew.

examples
  pgtrain resume latest
  pgtrain resume outputs/2026-11-30/12-00-00_ppo_CartPole-v1_s0 total_steps=1e6
  pgtrain resume my_run/checkpoint.1.pt env=my_pkg:MyEnv-v0
"""


def main(argv: list[str]) -> int:
    """`pgtrain resume …` without the word resume; the exit code.

    Raises: UserError for what cannot go on, TrainingError for a run that had to end again.
    """
    if {"-h", "--help"} & set(argv):
        print(HELP, end="")
        return 0
    runs = [word for word in argv if os.path.exists(word) or "=" not in word]
    if len(runs) != 1:
        what = "no run is given" if not runs else f"more than one run is given ({', '.join(runs)})"
        raise UserError(
            f"{what}; expected: pgtrain resume RUN [setting=value …], for example pgtrain resume latest"
        )
    result = _resume(runs[0], [word for word in argv if word != runs[0]])
    from pgtrain.monitor.record import final_report

    print("\n" + final_report(result.summary, result.run_dir))
    return result.exit_code


def resume(run_dir: str | Path, *overrides: str, **settings: Any) -> Result:
    """Go on with a run: `resume(result.run_dir, total_steps=1_000_000)`.

    `run_dir`: a run folder or a checkpoint in one; `overrides` and `settings` as those of `train`, as far as they may
    change in a run (`pgtrain resume --help` lists them).

    Raises: UserError for what cannot go on, TrainingError for a run that had to end again.
    """
    from pgtrain.commands.train import as_override

    lines = [*overrides, *(f"{key}={as_override(value)}" for key, value in settings.items())]
    return _resume(str(run_dir), lines)


def _resume(run: str, changes: list[str]) -> Result:
    folder, age = _place(run)
    from pgtrain import checkpoint, launch, loading, training
    from pgtrain.monitor import record
    from pgtrain.origin import Resumed

    if launch.torchrun_rank() is not None:
        raise UserError("pgtrain resume goes on in one process, not under torchrun")
    with record.busy(folder):
        found = checkpoint.find(folder, wanted=age)
    state, config = _read(folder, found)
    before = as_of(to_dict(from_yaml(folder / "config.yaml")), config)
    changed = apply(before, changes)
    cfg, summary, steps = changed.config, record.read_summary(folder), state["progress"]["steps"]
    loading.refuse_modules(cfg, changed.repeated.get("env"), changed.repeated.get("policy"))
    same = summary.get("steps") == steps
    _check_budget(folder, cfg, before, steps, finished=same and summary.get("status") == "finished")
    seconds = state["seconds"]
    if same:  # it also knows what came after the checkpoint: the evaluation, the workers' processor time
        seconds = [
            max(kept, float(summary.get(key) or 0))
            for kept, key in zip(seconds, ("wall_seconds", "cpu_seconds"), strict=True)
        ]
    notices = [found.warning] if found.warning else []
    notices += _stretched(cfg, before, steps)
    origin = Resumed(state, found.age, (seconds[0], seconds[1]), changed.made, notices)
    return training.train(cfg, folder.resolve(), [*_kept(folder, changed.made), *changed.made], origin)


def _place(run: str) -> tuple[Path, int | None]:
    """The run folder, and the age of the checkpoint where RUN is one."""
    from pgtrain.checkpoint import age_of

    path = Path(run)
    if path.is_file() and age_of(path.name) is not None:
        return find_run(str(path.parent)), age_of(path.name)
    return find_run(run), None


def _read(folder: Path, found: Found) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state of the runner and the config in a checkpoint of this version."""
    version = found.state.get("pgtrain")
    if version != __version__:
        writer = f"pgtrain {version}" if version else "an older pgtrain"
        raise UserError(
            f"{folder}: the checkpoint was written by {writer}, this is pgtrain {__version__}: resume it with that "
            "version, or start a new run"
        )
    try:
        state, config = found.state["runner"], found.state["config"]
        complete = int(state["progress"]["steps"]) >= 0 < len(config) and len(state["seconds"]) == 2
        assert complete
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise UserError(f"{folder}: the checkpoint lacks what a run needs to go on ({error})") from error
    return state, config


def _check_budget(folder: Path, cfg: Config, before: dict[str, Any], steps: int, finished: bool) -> None:
    """A run whose steps are done goes on only with more of them, or to its evaluation if that was cut off."""
    extended = cfg.total_steps != before["total_steps"]
    if steps < cfg.total_steps and (not finished or extended):
        return
    if extended:
        raise UserError(f"total_steps={cfg.total_steps}: the run has made {steps:,} steps already; give more")
    if finished:
        raise UserError(
            f"{folder}: the run is finished ({steps:,} steps); to train it longer give total_steps=N, N > {steps}"
        )


def _stretched(cfg: Config, before: dict[str, Any], steps: int) -> list[str]:
    """What another total_steps does to schedules."""
    was = before["total_steps"]
    if cfg.total_steps == was:
        return []
    nodes = {
        "optim.lr": cfg.optim.lr,
        "entropy": cfg.entropy,
        "update.clip": getattr(cfg.update, "clip", None),
    }
    moving = [
        f"{key} ({name})"
        for key, node in nodes.items()
        if (name := getattr(node, "name", "constant")) in ("linear", "cosine", "return_gated")
    ]
    text = f"total_steps={cfg.total_steps:,} in place of {was:,}"
    if moving:
        text += (
            f": {', '.join(moving)} follows the share of it that is done, which is now {steps / cfg.total_steps:.0%} "
            f"instead of {steps / was:.0%}"
        )
    return [text]


def _kept(folder: Path, made: Sequence[str]) -> list[str]:
    """What was typed for the run before, less what is typed anew."""
    import yaml

    try:
        lines = yaml.safe_load((folder / "overrides.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        lines = None
    new = {line.partition("=")[0] for line in made}
    return [line for line in lines or [] if isinstance(line, str) and line.partition("=")[0] not in new]
