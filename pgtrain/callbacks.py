"""What happens between iterations beside training: checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pgtrain import checkpoint
from pgtrain.version import __version__

if TYPE_CHECKING:
    from pgtrain.runner import Runner


class Callback(Protocol):
    def after_iteration(self, runner: Runner) -> None: ...

    def at_end(self, runner: Runner) -> None:
        """However the run ends: finished, interrupted or failed."""
        ...


class Checkpointer:
    """Saves the run's state each time `every_steps` more env steps were done (None: never), and at the end."""

    def __init__(
        self, run_dir: Path, every_steps: int | None, config: dict[str, object], keep: int = 1
    ) -> None:
        self.run_dir, self.every_steps, self.config, self.keep = run_dir, every_steps, config, keep
        self.saved_at = 0

    def after_iteration(self, runner: Runner) -> None:
        if self.every_steps is not None and runner.progress.steps - self.saved_at >= self.every_steps:
            self.save(runner)

    def at_end(self, runner: Runner) -> None:
        self.save(runner)

    def save(self, runner: Runner) -> None:
        with runner.interrupt.held():  # a second signal must not leave the run without its last state
            state = {"config": self.config, "runner": runner.state_dict(), "pgtrain": __version__}
            checkpoint.save(self.run_dir, state, self.keep)
        self.saved_at = runner.progress.steps
