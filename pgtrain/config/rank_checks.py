"""Settings that do not go with several ranks. Called by `checks.check`."""

from __future__ import annotations

from pgtrain.config.errors import ConfigError
from pgtrain.config.schema import (
    Config,
    GradientUpdateConfig,
    MonteCarloConfig,
    OptimalBaselineConfig,
    RecurrentConfig,
)


def check_ranks(config: Config) -> None:
    """What would not be the same as in one process is refused, not done wrongly.

    Raises: ConfigError naming the keys, the values and a way out.
    """
    ranks = config.device.ranks
    if ranks == 1:
        return
    if config.num_envs % ranks:
        raise ConfigError(
            f"num_envs={config.num_envs}: must be a multiple of device.ranks={ranks}, as each rank takes as many",
            "num_envs",
        )
    for name, count in (("workers", config.env.workers), ("threads", config.env.threads)):
        if count is not None and count > config.num_envs // ranks:
            raise ConfigError(
                f"env.{name}={count}: every one of device.ranks={ranks} has so many, so it must be at most its "
                f"{config.num_envs // ranks} envs (num_envs={config.num_envs})",
                f"env.{name}",
            )
    for key, value in _alone(config):
        raise ConfigError(f"{key}={value} cannot be shared by device.ranks={ranks}: use device.ranks=1", key)


def _alone(config: Config) -> list[tuple[str, object]]:
    """What works in one process alone: keys and values."""
    found: list[tuple[str, object]] = []
    if not isinstance(config.update, GradientUpdateConfig):
        found.append(("update", config.update.name))
    advantage = config.advantage
    if isinstance(advantage, MonteCarloConfig) and isinstance(advantage.baseline, OptimalBaselineConfig):
        found.append(("advantage/baseline", advantage.baseline.name))
    if isinstance(config.policy.memory, RecurrentConfig):
        found.append(("policy/memory", config.policy.memory.name))
    if config.monitor.gradient == "full":
        found.append(("monitor.gradient", "full"))
    if config.device.name not in ("auto", "cpu"):
        found.append(("device", config.device.name))
    return found
