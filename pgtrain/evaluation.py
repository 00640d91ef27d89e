"""Evaluation: whole episodes with a frozen policy, raw returns, the same number of episodes in every env."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import make_actor
from pgtrain.types import HostEnv, Step, TrainingError

MAX_EPISODE_STEPS = 30_000  # for an env without a time limit of its own (Atari's is 27,000)


@dataclass(frozen=True)
class EvalResult:
    """Returns (raw, undiscounted) and lengths in env steps of the episodes played, [E], env by env."""

    returns: np.ndarray
    lengths: np.ndarray
    greedy: bool

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Sample standard deviation (ddof 1) over episodes; 0 for a single one."""
        return float(self.returns.std(ddof=1)) if self.episodes > 1 else 0.0

    @property
    def ci95(self) -> tuple[float, float]:
        """Normal 95 % interval of the mean: mean ± 1.96 · std/√E."""
        half = 1.96 * self.std / math.sqrt(self.episodes)
        return self.mean - half, self.mean + half


def envs_for(episodes: int, most: int = 20) -> int:
    """The largest number of envs, at most `most`, that divides `episodes`."""
    return max(n for n in range(1, min(most, episodes) + 1) if episodes % n == 0)


def over(step: Step) -> np.ndarray:
    """[N] bool: the game ended at this step, not only what the learner takes for an episode."""
    done = step.terminated | step.truncated
    return done if step.goes_on is None else done & ~step.goes_on


def evaluate(policy: ActorCritic, env: HostEnv, episodes: int, seed: int, greedy: bool = True) -> EvalResult:
    """Plays `episodes` whole episodes, episodes / num_envs in each env.

    Every env plays the same number whatever their lengths: the first `episodes` to finish would be the short ones. The
    normaliser's statistics do not move.

    Raises: ValueError if num_envs does not divide episodes; TrainingError if an episode does not end.
    """
    n = env.num_envs
    if episodes % n:
        raise ValueError(f"{episodes} episodes cannot be shared evenly among {n} envs")
    limit = env.max_episode_steps or MAX_EPISODE_STEPS
    actor = make_actor(policy, n, seed)
    obs = env.reset(seed)
    env.set_idle(np.zeros(n, bool))
    total, length = np.zeros(n), np.zeros(n, np.int64)
    left = np.full(n, episodes // n)
    returns: list[list[float]] = [[] for _ in range(n)]
    lengths: list[list[int]] = [[] for _ in range(n)]
    while True:
        step = env.step(actor.act(obs, greedy)[0])
        actor.follow(step)
        obs = step.obs
        total += step.reward
        length += 1 if step.valid is None else step.valid
        if step.final_obs is not None:
            done = np.flatnonzero(over(step))
            for i in done:
                returns[i].append(float(total[i]))
                lengths[i].append(int(length[i]))
            total[done], length[done] = 0.0, 0
            left[done] -= 1
            if (left <= 0).all():
                break
            env.set_idle(left <= 0)
        if length.max() > limit:
            raise TrainingError(
                f"an evaluation episode of {env.env_id} did not end within {limit:,} steps; set env.max_episode_steps"
            )
    return EvalResult(np.concatenate(returns), np.concatenate(lengths), greedy)
