"""`pgtrain -m …`: every run is composed before the first starts, and one that fails doesn't stop the others."""

from __future__ import annotations

import copy
import math
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from pgtrain.commands.study import write_report
from pgtrain.commands.sweep_report import Record, report, unescaped
from pgtrain.commands.train import as_override, claim, quoted
from pgtrain.config import diagnose, paths
from pgtrain.config.compose import checked, compose_tree
from pgtrain.config.errors import ConfigError, one_line
from pgtrain.config.overrides import check_overrides, parse
from pgtrain.types import TrainingError, UserError

INTERRUPTED = (130, 143)  # exit codes after SIGINT and SIGTERM

paths.register_resolvers()  # a launcher's child process imports this module for `job`, and resolves the folder's name


class SweepInterrupted(BaseException):
    """A run was interrupted, which ends the sweep. No Exception, as Hydra would go on to the next run."""

    def __init__(self, code: int) -> None:
        super().__init__(f"interrupted, exit code {code}")
        self.code = code


_records: list[Record] = []  # of the runs in this process
_planned: int | None = None


def sweep(app: Hydra, config_name: str, overrides: Sequence[str]) -> int:
    """All runs of a sweep; 0, or 1 if any failed, or 130 (143) after an interrupt.

    Raises: ConfigError, before anything starts, for a run that can't be composed.
    """
    global _planned
    lines = [text for text in overrides if not text.startswith("hydra.mode=")] + ["hydra.mode=MULTIRUN"]
    master = _compose_master(app, config_name, lines)
    jobs = _expand(app, master)
    for number, job in enumerate(jobs or [], 1):
        try:
            checked(compose_tree(app, job, config_name))
        except UserError as error:
            name = unescaped(text for text in job if not text.startswith("hydra"))
            which = f"run {number} of {len(jobs or [])} ({name})"
            raise ConfigError(f"{which}: {str(error).rstrip('.')}; nothing was started") from error
    folder = claim(Path(OmegaConf.select(master, "hydra.sweep.dir")))
    (folder / "overrides.yaml").unlink(missing_ok=True)
    lines = [text for text in lines if not text.startswith("hydra.sweep.dir=")]
    lines += [f"hydra.sweep.dir={quoted(folder.resolve())}", *_name_after_swept(lines)]

    _planned = len(jobs) if jobs is not None else None
    _records.clear()
    code = 0
    with _collected(basic=jobs is not None) as returned:
        try:
            app.multirun(config_name, job_of_sweep, lines)
        except KeyboardInterrupt:
            code = 130
        except SweepInterrupted as stop:
            code = stop.code
        except Exception as error:  # a sweeper that gives up at a failed run
            if not any(map(_failed, returned)) and not any(r.error for r in _records):
                raise
            print(f"pgtrain: the sweep ended early: {one_line(error)}", file=sys.stderr)
    records = _merged(_records, returned)
    report(records, _planned, interrupted=code != 0)
    preset = str(OmegaConf.select(master, "hydra.runtime.choices.experiment") or "")
    if preset.startswith("study/"):
        for line in write_report(folder, records, f"{preset}: {OmegaConf.select(master, 'env.id')}"):
            print(line)
    return code or int(any(record.error for record in records))


def job_of_sweep(settings: DictConfig) -> float:
    """One run, called by Hydra's launcher, maybe in a process of its own. Returns what a sweeper maximises."""
    hydra = HydraConfig.get()
    record = Record(list(hydra.overrides.task), Path(hydra.runtime.output_dir))
    total = f" of {_planned}" if _planned is not None else ""
    print(f"\nrun {int(hydra.job.num) + 1}{total}: {unescaped(record.overrides)}", flush=True)
    paths.add_working_dir()
    try:
        composed = checked(settings, dict(hydra.runtime.choices))
        from pgtrain import training

        result = training.train(composed.config, record.folder, record.overrides)
    except (UserError, TrainingError) as error:
        record.error = str(error)
        print(f"pgtrain: error: {error}", file=sys.stderr)
        raise
    except Exception as error:
        record.error = f"{type(error).__name__}: {one_line(error)}"
        traceback.print_exc()
        raise
    finally:
        _records.append(record)
    if result.exit_code in INTERRUPTED:
        raise SweepInterrupted(result.exit_code)
    return objective(result.summary)


def objective(summary: dict[str, Any]) -> float:
    """The mean return of the final evaluation, or of the last training episodes."""
    for key in ("eval_return_mean", "return_mean"):
        if summary.get(key) is not None:
            return float(summary[key])
    return math.nan


def _compose_master(app: Hydra, config_name: str, lines: Sequence[str]) -> DictConfig:
    """The sweep's own config: Hydra's settings and what all runs share."""
    parsed = parse(lines)
    check_overrides(app.config_loader, parsed, config_name, sweep=True)
    try:
        return app.compose_config(config_name=config_name, overrides=list(lines), run_mode=RunMode.MULTIRUN)
    except Exception as error:
        raise diagnose.explain(app, parsed, config_name, error) from error


def _expand(app: Hydra, master: DictConfig) -> list[list[str]] | None:
    """The overrides of each run; None where a sweeper that isn't Hydra's basic one picks them as it goes."""
    sweeper = master.hydra.sweeper
    if not str(sweeper.get("_target_", "")).endswith("." + BasicSweeper.__name__):
        return None
    texts = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    parser = OverridesParser.create(config_loader=app.config_loader)
    parsed = parser.parse_overrides([*texts, *master.hydra.overrides.task])
    shared = [text for text in master.hydra.overrides.hydra if not text.startswith("hydra.sweep")]
    (batch,) = BasicSweeper.split_arguments(parsed, None)
    return [[*shared, *job] for job in batch]


def _name_after_swept(lines: Sequence[str]) -> list[str]:
    """The override that leaves what all runs share out of the names of their folders."""
    if any("override_dirname" in text or text.startswith("hydra.sweep.subdir") for text in lines):
        return []
    shared = [o.key_or_group for o in parse(lines) if not (o.is_sweep_override() or o.is_hydra_override())]
    return [f"hydra.job.config.override_dirname.exclude_keys={as_override(shared)}"]


@contextmanager
def _collected(basic: bool) -> Iterator[list[JobReturn]]:
    """What the launcher returns, of all runs, whatever the sweeper does with it.

    Hydra's basic sweeper raises for the first failed run and would start no further batch: it gets to see nan.
    """
    plugins, returned = Plugins.instance(), []
    instantiate = plugins.instantiate_launcher

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        launcher = instantiate(*args, **kwargs)
        launch = launcher.launch

        def recorded(*args: Any, **kwargs: Any) -> Any:
            results = launch(*args, **kwargs)
            for result in results:
                returned.append(copy.copy(result))
                if basic and _failed(result):
                    result.status, result.return_value = JobStatus.COMPLETED, math.nan
            return results

        launcher.launch = recorded
        return launcher

    validate = BasicSweeper.validate_batch_is_legal
    BasicSweeper.validate_batch_is_legal = lambda self, batch: None  # composes every run, as was done already
    plugins.instantiate_launcher = wrapped  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield returned
    finally:
        BasicSweeper.validate_batch_is_legal = validate
        del plugins.instantiate_launcher  # the method of the class again


def _failed(result: JobReturn) -> bool:
    return result.status == JobStatus.FAILED


def _merged(records: Sequence[Record], returned: Sequence[JobReturn]) -> list[Record]:
    """The runs of this process, and those that a launcher ran in others."""
    merged = {record.folder: record for record in records}
    for result in returned:
        folder = Path(str(OmegaConf.select(result.hydra_cfg or DictConfig({}), "hydra.runtime.output_dir")))
        if folder not in merged:
            error = result._return_value if _failed(result) else None
            text = (
                str(error)
                if isinstance(error, UserError | TrainingError)
                else f"{type(error).__name__}: {one_line(error)}"
            )
            merged[folder] = Record(list(result.overrides or []), folder, text if error is not None else None)
    return list(merged.values())
