"""Gymnasium's MuJoCo bodies (v5) that run, swim, hop, walk and stand up: N at once.

Rewards are per step; v_x is the forward velocity over a step of dt seconds, u the action, and each w a weight of the
task's kwargs. Source: gymnasium/envs/mujoco/*_v5.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pgtrain.envs.native.mujoco_batch import MujocoBatch


class Locomotion(MujocoBatch):
    """reward = w_forward·v_x − w_ctrl·‖u‖² (+ healthy_reward while healthy); obs = positions, velocities.

    The first `root` positions say where the body is, and are left out of obs unless the kwargs say otherwise.
    """

    root = 1
    max_speed: float | None = None  # velocities in obs are held within ±max_speed

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._first = self.root if self.settings["exclude_current_positions_from_observation"] else 0

    def _healthy(self, rows: np.ndarray) -> np.ndarray | None:
        """[N] bool; None for a body that cannot fall."""
        return None

    def _velocity(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """v_x [N]."""
        return (after[:, 0] - before[:, 0]) / self.dt

    def _costs(self, rows: np.ndarray, action: np.ndarray) -> np.ndarray:
        """[N]."""
        return self.settings["ctrl_cost_weight"] * np.square(action).sum(-1)

    def _judge(
        self, before: np.ndarray, after: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        reward = self.settings["forward_reward_weight"] * self._velocity(before, after)
        terminated = self._false.copy()
        healthy = self._healthy(after)
        if healthy is not None:
            reward += healthy * self.settings["healthy_reward"]
            if self.settings["terminate_when_unhealthy"]:
                np.logical_not(healthy, out=terminated)
        reward -= self._costs(after, action)
        return reward, terminated

    def _obs_of(self, rows: np.ndarray) -> np.ndarray:
        obs = rows[:, self._first :].copy()
        if self.max_speed is not None:
            speeds = obs[:, -self.model.nv :]
            np.clip(speeds, -self.max_speed, self.max_speed, out=speeds)
        return obs


class HalfCheetah(Locomotion):
    """HalfCheetah-v5: run; only the time limit ends an episode."""


class Swimmer(Locomotion):
    """Swimmer-v5: swim; only the time limit ends an episode."""

    root = 2


class Walker2d(Locomotion):
    """Walker2d-v5: walk; healthy while the torso's height and angle are within their ranges."""

    max_speed = 10.0

    def _healthy(self, rows: np.ndarray) -> np.ndarray:
        height, angle = rows[:, 1], rows[:, 2]
        return _within(height, self.settings["healthy_z_range"]) & _within(
            angle, self.settings["healthy_angle_range"]
        )


class Hopper(Walker2d):
    """Hopper-v5: hop; healthy as Walker2d, and while all that follows the first two positions is within its range."""

    def _healthy(self, rows: np.ndarray) -> np.ndarray:
        return super()._healthy(rows) & _within(rows[:, 2:], self.settings["healthy_state_range"]).all(-1)


class Ant(Locomotion):
    """Ant-v5: v_x is that of `main_body`; contact forces, held within their range, cost, and are part of obs."""

    root = 2
    contact_forces = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        m = self.model
        states, forces = m.nq + m.nv, 6 * m.nbody
        self._forces = slice(states, states + forces)
        seen = np.arange(self._first, states)
        if self.settings["include_cfrc_ext_in_observation"]:
            seen = np.append(seen, np.arange(states + 6, states + forces))  # not those on the world
        self._seen = seen
        self._first_force = states - self._first

    def _parts(self, data: Any) -> list[np.ndarray]:
        return [data.qpos, data.qvel, data.cfrc_ext, data.body(self.settings["main_body"]).xpos[:1]]

    def _velocity(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        return (after[:, -1] - before[:, -1]) / self.dt

    def _healthy(self, rows: np.ndarray) -> np.ndarray:
        low, high = self.settings["healthy_z_range"]
        finite = np.isfinite(rows[:, : self._forces.start]).all(-1)
        return finite & (low <= rows[:, 2]) & (rows[:, 2] <= high)

    def _costs(self, rows: np.ndarray, action: np.ndarray) -> np.ndarray:
        forces = np.clip(rows[:, self._forces], *self.settings["contact_force_range"])
        contact = self.settings["contact_cost_weight"] * np.square(forces).sum(-1)
        return super()._costs(rows, action) + contact

    def _obs_of(self, rows: np.ndarray) -> np.ndarray:
        obs = rows.take(
            self._seen, 1
        )  # in rows, as products of matrices round by the layout; rows[:, …] is not
        forces = obs[:, self._first_force :]
        np.clip(forces, *self.settings["contact_force_range"], out=forces)
        return obs


class Humanoid(Locomotion):
    """Humanoid-v5: v_x is that of the centre of mass; obs has inertias, velocities and forces of all bodies too."""

    root = 2
    contact_forces = True
    _CHOICES = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")

    def _parts(self, data: Any) -> list[np.ndarray]:
        self._included = [name for name in self._CHOICES if self.settings[f"include_{name}_in_observation"]]
        first = {"qfrc_actuator": 6}  # those of the root's six freedoms, and of the world, are always 0
        seen = [getattr(data, name)[first.get(name, 1) :] for name in self._included]
        return [data.qpos, data.qvel, *seen, data.cfrc_ext, data.ctrl, data.xipos]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        m = self.model
        end = self._rows.shape[1]
        self._bodies = slice(end - 3 * m.nbody, end)
        self._control = slice(self._bodies.start - m.nu, self._bodies.start)
        self._forces = slice(self._control.start - 6 * m.nbody, self._control.start)
        self._mass = m.body_mass.copy()

    def _velocity(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        return (self._centre(after) - self._centre(before)) / self.dt

    def _centre(self, rows: np.ndarray) -> np.ndarray:
        """x of the centre of mass, [N]."""
        x = rows[:, self._bodies].reshape(len(rows), -1, 3)[:, :, 0]
        return x @ self._mass / self._mass.sum()

    def _healthy(self, rows: np.ndarray) -> np.ndarray | None:
        return _within(rows[:, 2], self.settings["healthy_z_range"])

    def _costs(self, rows: np.ndarray, action: np.ndarray) -> np.ndarray:
        contact = self.settings["contact_cost_weight"] * np.square(rows[:, self._forces]).sum(-1)
        return super()._costs(rows, rows[:, self._control]) + np.clip(
            contact, *self.settings["contact_cost_range"]
        )

    def _obs_of(self, rows: np.ndarray) -> np.ndarray:
        return rows[:, self._first : self._forces.start].copy()


class HumanoidStandup(Humanoid):
    """HumanoidStandup-v5: reward = z/timestep − w_ctrl·‖u‖² − w_impact·‖contact forces‖² (within its range) + 1."""

    def _judge(
        self, before: np.ndarray, after: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        s = self.settings
        height = after[:, 2] / self.model.opt.timestep
        control = s["ctrl_cost_weight"] * np.square(after[:, self._control]).sum(-1)
        impact = s["impact_cost_weight"] * np.square(after[:, self._forces]).sum(-1)
        return height - control - np.clip(impact, *s["impact_cost_range"]) + 1, self._false.copy()


def _within(x: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """low < x < high."""
    return (bounds[0] < x) & (x < bounds[1])
