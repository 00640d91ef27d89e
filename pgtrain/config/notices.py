"""Settings that are allowed and do less than they say: what is told when a run starts."""

from __future__ import annotations

from pgtrain.config.schema import Config, LeaveOneOutBaselineConfig, MonteCarloConfig, OptimalBaselineConfig


def lonely_episode(config: Config) -> list[str]:
    """A baseline made of the other episodes, and an iteration that has no other."""
    a = config.advantage
    if config.collect.unit != "episodes" or config.num_envs * (config.collect.episodes or 1) > 1:
        return []
    if not isinstance(a, MonteCarloConfig):
        return []
    b = a.baseline
    others = isinstance(b, LeaveOneOutBaselineConfig) or (
        isinstance(b, OptimalBaselineConfig) and b.fit in ("leave_one_out", "split")
    )
    if not others:
        return []
    return [
        f"advantage/baseline={b.name} subtracts nothing: it is made of an iteration's other episodes, and there is "
        "only one (num_envs=1, collect.episodes=1); use more, or advantage/baseline=value"
    ]
