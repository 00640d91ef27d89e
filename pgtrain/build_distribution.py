"""Config and action space → the policy's distribution, and what does not go together."""

from __future__ import annotations

from gymnasium import spaces

from pgtrain.build_observations import last_width
from pgtrain.config import checks, schema
from pgtrain.envs.actions import Path, at, has_box, has_discrete
from pgtrain.envs.base import VectorEnv
from pgtrain.policies.beta import Beta
from pgtrain.policies.distributions import DiagonalGaussian, Distribution
from pgtrain.policies.from_space import distribution_of
from pgtrain.policies.gsde import StateDependentGaussian
from pgtrain.policies.squashed import TanhGaussian
from pgtrain.types import UserError


def make_distribution(cfg: schema.Config, env: VectorEnv) -> Distribution:
    """Raises: UserError where the chosen distribution or temperature cannot serve the env's actions."""
    space, d = env.action_space, cfg.policy.distribution
    if not has_box(space) and not isinstance(d, schema.GaussianConfig):
        raise UserError(
            f"policy/distribution={d.name} needs continuous actions, and those of {cfg.env.id} are discrete: "
            "use policy/distribution=gaussian, which then has no say"
        )
    if cfg.policy.temperature != 1.0 and not has_discrete(space):
        raise UserError(
            f"policy.temperature={cfg.policy.temperature:g} needs discrete actions, and those of {cfg.env.id} are "
            "continuous: use policy.temperature=1"
        )
    return distribution_of(space, lambda box, path: _of_box(cfg, env, box, path), cfg.policy.temperature)


def _of_box(cfg: schema.Config, env: VectorEnv, box: spaces.Box, path: Path) -> Distribution:
    d, low, high = cfg.policy.distribution, box.low, box.high
    plain = DiagonalGaussian(low, high)
    given = f"the actions {box}{at(path)} of {cfg.env.id}"
    if isinstance(d, schema.StateDependentConfig):
        if path:
            raise UserError(
                f"policy/distribution=gsde cannot serve {given}, a part of a {type(env.action_space).__name__} "
                "space: use policy/distribution=gaussian, tanh_gaussian or beta"
            )
        features = last_width(cfg, env.layout)
        return StateDependentGaussian(low, high, features, sample_freq=d.sample_freq, expln=d.expln)
    if isinstance(d, schema.TanhGaussianConfig):
        if not plain.bounded.any() and plain.dim:
            raise UserError(
                f"policy/distribution=tanh_gaussian has nothing to squash in {given}, which have no bounds: "
                "use policy/distribution=gaussian"
            )
        return TanhGaussian(low, high)
    if isinstance(d, schema.BetaConfig):
        if not plain.bounded.all():
            free = [i for i, bounded in enumerate(plain.bounded) if not bounded]
            raise UserError(
                f"policy/distribution=beta needs two bounds in every dimension, and {given} lack one in dimension "
                f"{', '.join(map(str, free))}: use policy/distribution=gaussian or tanh_gaussian"
            )
        return Beta(low, high)
    return plain


def features_of(d: schema.DistributionConfig) -> str | None:
    """Whether the actor gives its features, and whether a gradient flows back through them."""
    if isinstance(d, schema.StateDependentConfig):
        return "learned" if d.learn_features else "detached"
    return None


def refuse_unused_actions(cfg: schema.Config, overrides: list[str], env: VectorEnv) -> None:
    """Settings that the env's kind of actions leaves without effect."""
    gaussian = ["policy.mean", "policy.log_std_init", "policy.log_std_min", "policy.log_std_max"]
    if not has_box(env.action_space):
        keys = [*gaussian, "policy/distribution", "policy.distribution."]
        checks.refuse_unused(overrides, keys, f"with the discrete actions of {cfg.env.id}")
    elif isinstance(cfg.policy.distribution, schema.BetaConfig):
        checks.refuse_unused(overrides, gaussian, "with policy/distribution=beta")
    if not has_discrete(env.action_space):
        checks.refuse_unused(
            overrides, ["policy.temperature"], f"with the continuous actions of {cfg.env.id}"
        )
