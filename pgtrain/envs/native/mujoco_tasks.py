"""Gymnasium's MuJoCo tasks (v5): what reward, end and observation are made of, for N envs at once.

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


class InvertedPendulum(MujocoBatch):
    """InvertedPendulum-v5: reward 1 until the pole leans by more than 0.2 rad, or the state is not finite."""

    def _judge(
        self, before: np.ndarray, after: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        terminated = ~np.isfinite(after).all(-1) | (np.abs(after[:, 1]) > 0.2)
        return (~terminated).astype(np.float64), terminated

    def _obs_of(self, rows: np.ndarray) -> np.ndarray:
        return rows.copy()


class InvertedDoublePendulum(MujocoBatch):
    """InvertedDoublePendulum-v5: healthy_reward − 0.01·x² − (y − 2)² − 0.001·v₁² − 0.005·v₂², the tip at (x, y).

    It has fallen, and gets no healthy_reward, at y ≤ 1.
    Row: positions 3, velocities 3, constraint forces 3, the tip's x, its depth, y.
    """

    def _parts(self, data: Any) -> list[np.ndarray]:
        return [data.qpos, data.qvel, data.qfrc_constraint, data.site_xpos[0]]

    def _judge(
        self, before: np.ndarray, after: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        x, y, v1, v2 = after[:, 9], after[:, 11], after[:, 4], after[:, 5]
        terminated = y <= 1
        alive = self.settings["healthy_reward"] * ~terminated
        distance = 0.01 * x**2 + (y - 2) ** 2
        return alive - distance - (1e-3 * v1**2 + 5e-3 * v2**2), terminated

    def _obs_of(self, rows: np.ndarray) -> np.ndarray:
        angles, rest = rows[:, 1:3], np.clip(rows[:, 3:7], -10, 10)
        return np.concatenate([rows[:, :1], np.sin(angles), np.cos(angles), rest], 1)


class Reacher(MujocoBatch):
    """Reacher-v5: −w_dist·‖fingertip − target‖ − w_control·‖u‖².

    Row: positions 4 (two angles, the target), velocities 4, fingertip 3, target 3.
    """

    def _parts(self, data: Any) -> list[np.ndarray]:
        return [data.qpos, data.qvel, data.body("fingertip").xpos, data.body("target").xpos]

    def _judge(
        self, before: np.ndarray, after: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        away = np.linalg.norm(after[:, 8:11] - after[:, 11:14], axis=-1)
        near = -away * self.settings["reward_dist_weight"]
        return near - np.square(action).sum(-1) * self.settings["reward_control_weight"], self._false.copy()

    def _obs_of(self, rows: np.ndarray) -> np.ndarray:
        angles = rows[:, :2]
        away = rows[:, 8:10] - rows[:, 11:13]
        return np.concatenate([np.cos(angles), np.sin(angles), rows[:, 2:6], away], 1)


class Pusher(MujocoBatch):
    """Pusher-v5: −w_dist·‖object − goal‖ − w_control·‖u‖² − w_near·‖object − arm's tip‖.

    Row: positions and velocities of the arm 7 + 7, tip 3, object 3, goal 3: the observation.
    """

    def _parts(self, data: Any) -> list[np.ndarray]:
        return [data.qpos[:7], data.qvel[:7], *(data.body(b).xpos for b in ("tips_arm", "object", "goal"))]

    def _judge(
        self, before: np.ndarray, after: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        s, tip, thing, goal = self.settings, after[:, 14:17], after[:, 17:20], after[:, 20:23]
        near = -np.linalg.norm(thing - tip, axis=-1) * s["reward_near_weight"]
        placed = -np.linalg.norm(thing - goal, axis=-1) * s["reward_dist_weight"]
        control = -np.square(action).sum(-1) * s["reward_control_weight"]
        return placed + control + near, self._false.copy()

    def _obs_of(self, rows: np.ndarray) -> np.ndarray:
        return rows.copy()


def _within(x: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """low < x < high."""
    return (bounds[0] < x) & (x < bounds[1])
