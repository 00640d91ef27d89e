"""Gymnasium's MuJoCo pendulums and arms (v5), N at once; their rows are those of the tasks' own models.

Rewards are per step; u is the action, and each w a weight of the task's kwargs. Source: gymnasium/envs/mujoco/*_v5.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pgtrain.envs.native.mujoco_batch import MujocoBatch


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
