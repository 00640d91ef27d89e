"""Loading what a run left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from pgtrain import build, checkpoint
from pgtrain.config import convert, schema
from pgtrain.envs.vector import VectorEnv
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.types import UserError


@dataclass
class Loaded:
    """A finished or interrupted run, ready to be played."""

    policy: ActorCritic
    cfg: schema.Config
    make_env: Callable[..., VectorEnv]  # number of envs → the run's env; show=: see `envs.show`
    warning: str | None = None


def refuse_modules(cfg: schema.Config, env_id: str | None, policy: str | None) -> None:
    """No module is imported that only a run's files name: the user has to repeat the name.

    Raises: UserError.
    """
    for what, name, repeated in (("env", cfg.env.id, env_id), ("policy", cfg.policy.name, policy)):
        if ":" in name and repeated != name:
            raise UserError(
                f"the run's {what} is {name}: loading it imports the module {name.rpartition(':')[0]}; "
                f"repeat {what}={name} if you trust it"
            )


def load(
    run_dir: Path | str,
    device: str | torch.device = "cpu",
    env_id: str | None = None,
    policy: str | None = None,
) -> Loaded:
    """The policy of a run and what is needed to play it.

    A run whose env or network comes from a module (`my_pkg:MyEnv-v0`, `my_pkg:MyNetwork`) is loaded only if `env_id`
    or `policy` repeats that name: a run folder from somebody else must not be able to name code to import.
    """
    run_dir = Path(run_dir)
    state, warning = checkpoint.load(run_dir, device)
    try:
        cfg, parameters = convert.from_dict(state["config"]), state["runner"]["policy"]
    except KeyError as error:
        raise UserError(f"{run_dir}: the checkpoint lacks {error}: it was not written by pgtrain") from error
    refuse_modules(cfg, env_id, policy)
    with build.make_env(cfg, 1) as env:
        trained = build.make_policy(cfg, env)
    try:
        trained.load_state_dict(parameters)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise UserError(
            f"{run_dir}: the checkpoint does not fit env={cfg.env.id} as it is now (have its spaces changed?): {first}"
        ) from error
    return Loaded(trained.to(device), cfg, partial(build.make_env, cfg), warning)
