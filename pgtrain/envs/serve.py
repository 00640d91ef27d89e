"""The worker's side of the process backend: memory shared with the parent, and the loop that obeys it."""

from __future__ import annotations

import contextlib
import signal
import traceback
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from pgtrain.envs.sync import SyncEnv
from pgtrain.faults import FAULTS, told
from pgtrain.types import TrainingError, UserError


class Shared(NamedTuple):
    """Shared memory of one array."""

    memory: Any
    dtype: str
    shape: tuple[int, ...]

    def array(self) -> np.ndarray:
        return np.frombuffer(self.memory, self.dtype, int(np.prod(self.shape))).reshape(self.shape)


def serve(
    pipe: Any,
    payload: bytes,
    shared: dict[str, Shared],
    number: int,
    rows: slice,
    before: int,
    action_mask: str,
) -> None:
    """A worker: makes the envs of these rows, then answers each command with None or an error.

    before: envs of the run that come before the one of row 0.
    """
    # Ctrl-C is for the parent, who ends us. (Where there is a signal mask, it has kept us safe until here.)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arrays = {name: s.array() for name, s in shared.items()}
    mine = {name: array[rows] for name, array in arrays.items() if name not in ("now", "masked")}
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        try:
            env = SyncEnv(
                cloudpickle.loads(payload),
                rows.stop - rows.start,
                before=before + rows.start,
                now=arrays["now"][number],
                action_mask=action_mask,
                look_for_masks=False,
            )
            pipe.send(None)
            while True:
                command, data = pipe.recv()
                if command == "close":
                    env.close()
                    return
                _obey(env, command, data, mine, arrays["masked"])
                pipe.send(None)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except FAULTS as error:
            kind = UserError if isinstance(error, UserError) else TrainingError
            text = str(error) if isinstance(error, (UserError, TrainingError)) else told(error)
            pipe.send((kind, text, traceback.format_exc()))


def _obey(env: SyncEnv, command: str, data: Any, mine: dict[str, np.ndarray], masked: np.ndarray) -> None:
    if command == "reset":
        mine["obs"][:, : env.obs_dim] = env.reset_each(data)
    elif command == "first reset":  # one worker looks for action masks …
        if data:
            masked[...] = env.info_has_masks()
    elif command == "masks":  # … and all hear of it
        env.masks_in_info(data)
    elif command == "idle":
        env.set_idle(data)
    else:
        step = env.step(mine["action"])
        mine["obs"][:, : env.obs_dim] = step.obs
        mine["reward"][...] = step.reward
        mine["terminated"][...] = step.terminated
        mine["truncated"][...] = step.truncated
        if step.goes_on is not None:
            mine["goes_on"][...] = step.goes_on
        if step.final_obs is not None:
            mine["final_obs"][step.terminated | step.truncated, : env.obs_dim] = step.final_obs
