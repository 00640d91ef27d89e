"""Batched envs of our own, found by id: of the Gymnasium env that they equal step by step, or of a task in torch."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Native(NamedTuple):
    """Where the class lies, whose dynamics it repeats, and the kwargs that it knows."""

    module: str
    name: str
    entry_point: str  # of the Gymnasium env under its id; another one under the same id is left alone
    kwargs: tuple[str, ...] = ()
    equals: str = "Gymnasium's"  # what it repeats step by step; "" for a task of which there is no other form


_GYMNASIUM = "gymnasium.envs.classic_control"
_CARTPOLE = Native(
    "pgtrain.envs.native.cartpole", "CartPole", f"{_GYMNASIUM}.cartpole:CartPoleEnv", ("sutton_barto_reward",)
)
_CAR = "pgtrain.envs.native.mountain_car"

NATIVE: dict[str, Native] = {
    "CartPole-v0": _CARTPOLE,
    "CartPole-v1": _CARTPOLE,
    "Acrobot-v1": Native("pgtrain.envs.native.acrobot", "Acrobot", f"{_GYMNASIUM}.acrobot:AcrobotEnv"),
    "Pendulum-v1": Native(
        "pgtrain.envs.native.pendulum", "Pendulum", f"{_GYMNASIUM}.pendulum:PendulumEnv", ("g",)
    ),
    "MountainCar-v0": Native(
        _CAR, "MountainCar", f"{_GYMNASIUM}.mountain_car:MountainCarEnv", ("goal_velocity",)
    ),
    "MountainCarContinuous-v0": Native(
        _CAR,
        "MountainCarContinuous",
        f"{_GYMNASIUM}.continuous_mountain_car:Continuous_MountainCarEnv",
        ("goal_velocity",),
    ),
}

_MUJOCO = "gymnasium.envs.mujoco"
_TASKS = "pgtrain.envs.native.mujoco_tasks"
_MODEL = ("xml_file", "frame_skip", "reset_noise_scale")
_LOCOMOTION = (
    *_MODEL,
    "forward_reward_weight",
    "ctrl_cost_weight",
    "exclude_current_positions_from_observation",
)
_HEALTH = ("healthy_reward", "terminate_when_unhealthy", "healthy_z_range")
_HUMANOID = tuple(
    f"include_{name}_in_observation" for name in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
)

NATIVE |= {
    f"{name}-v5": Native(_TASKS, name, f"{_MUJOCO}.{module}_v5:{name}Env", kwargs)
    for name, module, kwargs in (
        ("HalfCheetah", "half_cheetah", _LOCOMOTION),
        ("Swimmer", "swimmer", _LOCOMOTION),
        ("Walker2d", "walker2d", (*_LOCOMOTION, *_HEALTH, "healthy_angle_range")),
        ("Hopper", "hopper", (*_LOCOMOTION, *_HEALTH, "healthy_angle_range", "healthy_state_range")),
        (
            "Ant",
            "ant",
            (
                *_LOCOMOTION,
                *_HEALTH,
                "main_body",
                "contact_cost_weight",
                "contact_force_range",
                "include_cfrc_ext_in_observation",
            ),
        ),
        (
            "Humanoid",
            "humanoid",
            (*_LOCOMOTION, *_HEALTH, *_HUMANOID, "contact_cost_weight", "contact_cost_range"),
        ),
        (
            "HumanoidStandup",
            "humanoidstandup",
            (
                *_MODEL,
                *_HUMANOID,
                "exclude_current_positions_from_observation",
                "uph_cost_weight",
                "ctrl_cost_weight",
                "impact_cost_weight",
                "impact_cost_range",
            ),
        ),
        # the rows of these three are those of their own models: no other xml_file
        ("InvertedDoublePendulum", "inverted_double_pendulum", (*_MODEL[1:], "healthy_reward")),
        ("Reacher", "reacher", ("frame_skip", "reward_dist_weight", "reward_control_weight")),
        (
            "Pusher",
            "pusher",
            ("frame_skip", "reward_near_weight", "reward_dist_weight", "reward_control_weight"),
        ),
        ("InvertedPendulum", "inverted_pendulum", _MODEL),
    )
}


def load(native: Native) -> Any:
    """The class, imported on first use."""
    return getattr(importlib.import_module(native.module), native.name)
