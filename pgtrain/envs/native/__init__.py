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
    threaded: bool = False  # its simulations run outside Python's lock, so that threads can share them


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


def _mujoco(module: str, name: str, source: str, *kwargs: str) -> Native:
    entry_point = f"gymnasium.envs.mujoco.{source}_v5:{name}Env"
    return Native(f"pgtrain.envs.native.{module}", name, entry_point, kwargs, threaded=True)


_BODIES, _ARMS = "mujoco_bodies", "mujoco_arms"
_MODEL = ("xml_file", "frame_skip", "reset_noise_scale")
_SHOWN = "exclude_current_positions_from_observation"
_RUN = (*_MODEL, _SHOWN, "forward_reward_weight", "ctrl_cost_weight")
_FALL = (*_RUN, "healthy_reward", "terminate_when_unhealthy", "healthy_z_range")
_SEEN = tuple(f"include_{name}_in_observation" for name in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext"))
_UP = ("uph_cost_weight", "ctrl_cost_weight", "impact_cost_weight", "impact_cost_range")

NATIVE |= {
    "HalfCheetah-v5": _mujoco(_BODIES, "HalfCheetah", "half_cheetah", *_RUN),
    "Swimmer-v5": _mujoco(_BODIES, "Swimmer", "swimmer", *_RUN),
    "Walker2d-v5": _mujoco(_BODIES, "Walker2d", "walker2d", *_FALL, "healthy_angle_range"),
    "Hopper-v5": _mujoco(_BODIES, "Hopper", "hopper", *_FALL, "healthy_angle_range", "healthy_state_range"),
    "Ant-v5": _mujoco(
        _BODIES, "Ant", "ant", *_FALL, "main_body", "contact_cost_weight", "contact_force_range", _SEEN[-1]
    ),
    "Humanoid-v5": _mujoco(
        _BODIES, "Humanoid", "humanoid", *_FALL, *_SEEN, "contact_cost_weight", "contact_cost_range"
    ),
    "HumanoidStandup-v5": _mujoco(
        _BODIES, "HumanoidStandup", "humanoidstandup", *_MODEL, _SHOWN, *_SEEN, *_UP
    ),
    "InvertedPendulum-v5": _mujoco(_ARMS, "InvertedPendulum", "inverted_pendulum", *_MODEL),
    # the rows of these three are those of their own models: no other xml_file
    "InvertedDoublePendulum-v5": _mujoco(
        _ARMS, "InvertedDoublePendulum", "inverted_double_pendulum", *_MODEL[1:], "healthy_reward"
    ),
    "Reacher-v5": _mujoco(
        _ARMS, "Reacher", "reacher", "frame_skip", "reward_dist_weight", "reward_control_weight"
    ),
    "Pusher-v5": _mujoco(
        _ARMS,
        "Pusher",
        "pusher",
        "frame_skip",
        "reward_near_weight",
        "reward_dist_weight",
        "reward_control_weight",
    ),
}


def load(native: Native) -> Any:
    """The class, imported on first use."""
    return getattr(importlib.import_module(native.module), native.name)
