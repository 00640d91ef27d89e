"""The standard preprocessing of Atari games, in one process or many, or in ale-py's own vector env.

Each step of the agent is `frame_skip` frames of the game with one action; what it sees is the larger of the last two
frames (sprites flicker), in grey and `screen_size` pixels wide and high, with the last `frame_stack` such pictures. An
episode starts with up to `noop_max` frames of doing nothing. Rewards are the game's own score.

Source: Machado et al. 2018, "Revisiting the Arcade Learning Environment", table 5 (which advises against ends at a lost
life); Mnih et al. 2015, "Human-level control", methods.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from pgtrain.envs.adapters import GuestEnv
from pgtrain.envs.base import env_seeds
from pgtrain.envs.preprocessing import Atari, frame_skip_of
from pgtrain.envs.registry import quiet, told_in_one_line
from pgtrain.types import Step

# What ale-py's vector env takes besides what `Atari` sets; another argument of the env needs single envs.
KWARGS = ("repeat_action_probability", "full_action_space", "max_num_frames_per_episode", "game", "frameskip")


class AtariEnvs(GuestEnv):
    """ale-py's vector env: N games in so many threads, with the preprocessing that single envs get."""

    def __init__(
        self,
        env_id: str,
        spec: EnvSpec,
        num_envs: int,
        kwargs: dict[str, Any],
        atari: Atari,
        frame_stack: int,
        max_episode_steps: int | None,
        threads: int,
    ) -> None:
        skip = frame_skip_of(kwargs, atari)
        own = {**spec.kwargs, **kwargs, "frameskip": skip}
        if max_episode_steps is not None:
            own["max_num_frames_per_episode"] = max_episode_steps * skip
        with quiet(), told_in_one_line(env_id, kwargs):
            vec = gym.make_vec(
                spec,
                num_envs,
                num_threads=threads,
                vectorization_mode="vector_entry_point",
                autoreset_mode=AutoresetMode.SAME_STEP,
                img_height=atari.screen_size,
                img_width=atari.screen_size,
                grayscale=atari.grayscale,
                stack_num=frame_stack,
                noop_max=atari.noop_max,
                life_loss_info=atari.terminal_on_life_loss,
                reward_clipping=False,
                use_fire_reset=False,
                **own,
            )
        super().__init__(vec, env_id, action_mask="none")
        self.max_episode_steps = own["max_num_frames_per_episode"] // skip
        self._lives: np.ndarray | None = np.zeros(num_envs) if atari.terminal_on_life_loss else None
        self.notices.append(
            "env.backend=native: ale-py's own vector env; a game that has to wait for others runs on unseen"
        )

    def reset(self, seed: int) -> np.ndarray:
        # one seed per game, of 31 bits, which is what ale-py takes
        obs, info = self._vec.reset(seed=np.array(env_seeds(seed, self.num_envs, self.before)) % 2**31)  # pyright: ignore
        if self._lives is not None:
            self._lives = np.array(info["lives"])
        return self._started(obs, info)

    def step(self, action: np.ndarray) -> Step:
        step = super().step(action)
        if self._lives is None:
            return step
        before, self._lives = self._lives, np.array(self.info["lives"])
        goes_on = step.terminated & (self._lives < before) & (self._lives > 0)  # a new game has all its lives
        if not goes_on.any():
            return step
        # ale-py's final_obs is right at the end of a game only; at a lost life the game's next picture is the last one
        ended = step.terminated | step.truncated
        assert step.final_obs is not None
        final_obs = np.where(goes_on[ended][:, None], step.obs[ended], step.final_obs)
        return step._replace(final_obs=final_obs, goes_on=goes_on)
