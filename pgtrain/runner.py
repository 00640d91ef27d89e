"""The one loop: collect → estimate → update → log → callbacks, whatever the algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from pgtrain import blas
from pgtrain.callbacks import Callback
from pgtrain.collector import Collector
from pgtrain.device_rollout import DeviceCollector
from pgtrain.distributed import Ranks
from pgtrain.entries import Entries
from pgtrain.episodes import Episodes, join
from pgtrain.interrupt import Interrupt, Interrupted
from pgtrain.learning.advantages import Estimator
from pgtrain.learning.batch import Batch, Coefficients, flatten
from pgtrain.learning.natural_gradient import NaturalUpdate
from pgtrain.learning.pathwise_update import PathwiseUpdate, TDLambda, WindowReturn
from pgtrain.learning.schedules import Measured, Schedule
from pgtrain.learning.updates import Update, UpdateResult
from pgtrain.learning.window import WindowCollector
from pgtrain.monitor.diagnostics import cause_of_skips
from pgtrain.monitor.gradient_health import NoHealth
from pgtrain.monitor.monitor import Monitor
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.normalizer import RewardScaler, RewardSign
from pgtrain.progress import Plan, Progress
from pgtrain.rollout import Rollout, revalue
from pgtrain.stopwatch import Laps, Stopwatch
from pgtrain.types import TrainingError


class Collected(NamedTuple):
    """What an iteration has to learn from."""

    rollout: Rollout  # of this rank
    episodes: Episodes  # ended in it, on all ranks
    steps: int  # real env steps, of all ranks


@dataclass
class Runner:
    """Holds the objects of a run in the order in which an iteration uses them. See `run`."""

    plan: Plan
    policy: ActorCritic
    collector: Collector | DeviceCollector | WindowCollector
    reward_scaler: RewardScaler | RewardSign | None
    estimator: Estimator | TDLambda | WindowReturn
    update: Update | NaturalUpdate | PathwiseUpdate
    learning_rate: Schedule
    entropy_coef: Schedule
    discount: float | None  # γ: weigh the steps of an episode by γᵗ, the exact discounted gradient
    entries: Entries  # of the log
    monitor: Monitor
    callbacks: Sequence[Callback]
    clip: Schedule | None = None  # None: the update has no such coefficient
    value_clip: Schedule | None = None
    health: NoHealth = field(default_factory=NoHealth)  # measures the gradient now and then
    recompute_advantages: bool = False  # values and advantages anew before each epoch but the first
    # rows, or sequences for a policy with memory
    to_batch: Callable[[Rollout, float | None], Batch] = flatten
    max_skipped_in_a_row: int = 10
    interrupt: Interrupt = field(default_factory=Interrupt)
    ranks: Ranks = field(default_factory=Ranks)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    progress: Progress = field(default_factory=Progress)

    def run(self) -> None:
        """Trains until the budget is spent. However it ends, `callbacks.at_end` is run.

        Raises: Interrupted, TrainingError, or whatever the env's code raises.
        """
        self.entries.begin(self.progress.steps)
        try:
            while self.plan.goes_on(self.progress):
                if self.interrupt.requested:
                    raise Interrupted
                self._iterate()
        finally:
            for callback in self.callbacks:
                callback.at_end(self)

    def _iterate(self) -> None:
        clock = Laps()
        collected = self._collect()
        if collected is None:
            return
        rollout, episodes, steps = collected
        clock.lap("time/collect")
        rollout = self.estimator(self._scale_rewards(rollout))
        clock.lap("time/estimate")
        batch = self.to_batch(rollout, self.discount)
        coefficients = self._coefficients()
        anew = self._reestimate(rollout) if self.recompute_advantages else None
        self.health.before(rollout)
        experience: Any = rollout if self.update.through_time else batch
        result = self.update(experience, coefficients, anew)
        made = result.ok.tolist()
        self.health.after()
        self._adapt(rollout, batch, learned=any(made))
        clock.lap("time/update")
        self.progress.count(steps, episodes, made)
        self.entries.unrecorded.append(episodes)
        self._show_schedules(episodes, result)
        notable = not all(made) or not self.plan.goes_on(self.progress)
        if self.ranks.first(self.monitor.wants(self.progress.iterations, self.progress.steps, notable)):
            self.entries.write(self, rollout, batch, result, coefficients, clock.phases)
        self._judge(rollout, made)
        for callback in self.callbacks:
            callback.after_iteration(self)

    def _collect(self) -> Collected | None:
        """The next experience of all ranks; None if one of them has none to learn from."""
        p, collector = self.progress, self.collector
        try:
            # what a resumed run can go on from exactly is brought to its end; another rank may never come back
            at_once = self.ranks.size > 1 or not collector.env.tells_state
            with self.interrupt.stepping(at_once):
                collected = self._collect_here()
                rollout, episodes = collected or (None, None)
                steps = collector.steps_now if rollout is None else rollout.num_steps
                everyone = self.ranks.gather((steps, episodes))
        except BaseException:
            p.steps += collector.steps_now  # they were played, if in vain
            raise
        steps = sum(count for count, _ in everyone)
        ended = [episodes for _, episodes in everyone if episodes is not None]
        if rollout is None or len(ended) < len(everyone):
            self._give_up(steps)
        elif all(count for count, _ in everyone):
            return Collected(rollout, join(ended), steps)
        else:  # a short window can hold nothing but reset rows; there is nothing to learn from
            p.steps += steps
        return None

    def _collect_here(self) -> tuple[Rollout, Episodes] | None:
        p, plan, collector, size = self.progress, self.plan, self.collector, self.ranks.size
        left = plan.total_steps - p.steps
        if plan.horizon is not None:
            rows = math.ceil(left / (collector.env.num_envs * size))  # the last window is shortened to fit
            return collector.collect_steps(min(plan.horizon, rows))
        assert plan.episodes is not None
        most = math.ceil((left + p.last_iteration_steps) / size)
        return collector.collect_episodes(plan.episodes, max_steps=most)

    def _give_up(self, steps: int) -> None:
        """Whole episodes that did not end: the budget is gone, and what is left of it could only teach a bias."""
        self.progress.steps += steps
        self.plan.total_steps = self.progress.steps
        self.monitor.message(
            f"the episodes of {self.collector.env.env_id} did not end within the step budget "
            f"({steps:,} steps in this iteration): they were not learned from, as the ones that did "
            "end are the short ones. Set env.max_episode_steps, or use collect.unit=steps with a critic (algo=a2c)",
            "warning",
        )

    def _scale_rewards(self, rollout: Rollout) -> Rollout:
        if self.reward_scaler is None:
            return rollout
        scaled = self.reward_scaler.scale(rollout.raw_reward, rollout.done, rollout.weight)
        return rollout.replace(reward=scaled.to(rollout.reward.dtype))

    def _adapt(self, rollout: Rollout, batch: Batch, learned: bool) -> None:
        """What moves between iterations only: acting and the update of one iteration use the same statistics."""
        policy = self.policy
        if policy.normalizer is not None:
            policy.observe(rollout.obs, rollout.weight)
        if learned:  # else not a bit of the parameters may change
            policy.constrain()
            if policy.value_moments is not None:
                policy.observe_targets(batch.value_target, batch.weight)

    def _coefficients(self) -> Coefficients:
        progress = self.progress.steps / self.plan.total_steps
        return Coefficients(**{name: schedule(progress) for name, schedule in self._schedules.items()})

    @cached_property
    def _schedules(self) -> dict[str, Schedule]:
        """By the name of the coefficient; those that the update has."""
        return {name: x for name in Coefficients._fields if (x := getattr(self, name)) is not None}

    def _reestimate(self, rollout: Rollout) -> Callable[[], Batch]:
        return lambda: self.to_batch(self.estimator(revalue(self.policy, rollout)), self.discount)

    def _show_schedules(self, episodes: Episodes, result: UpdateResult) -> None:
        adaptive = [schedule for schedule in self._schedules.values() if schedule.adapts]
        if not adaptive:
            return
        entropy = float(result.stats.get("policy/entropy", math.nan))
        measured = Measured(episodes.returns.tolist(), self.progress.mean_return, entropy)
        for schedule in adaptive:
            schedule.observe(measured)

    def _judge(self, rollout: Rollout, made: list[bool]) -> None:
        """Tells where a skipped update came from; ends the run when nothing but skips is left."""
        p = self.progress
        skipped = made.count(False)
        if not skipped:
            return
        cause = cause_of_skips(rollout, self.update.flat, self.ranks)
        text = f"iteration {p.iterations}: {skipped} update(s) skipped, parameters unchanged: {cause}"
        self.monitor.message(text, "warning")
        if p.skipped_in_a_row >= self.max_skipped_in_a_row:
            raise TrainingError(
                f"all updates of {p.skipped_in_a_row} iterations in a row were skipped for non-finite numbers "
                f"(update.max_skipped_in_a_row={self.max_skipped_in_a_row}): {cause}. "
                "Check the env's rewards and observations, or lower optim.lr.value"
            )

    def state_dict(self) -> dict[str, Any]:
        """All that moves in a run, tensors and plain numbers only."""
        return {
            "policy": self.policy.state_dict(),
            "update": self.update.state_dict(),
            "schedules": {name: schedule.state_dict() for name, schedule in self._schedules.items()},
            "estimator": getattr(self.estimator, "state_dict", dict)(),  # most hold nothing
            "health": self.health.state_dict(),
            "collector": self.collector.state_dict(),
            "reward_scaler": None if self.reward_scaler is None else self.reward_scaler.state_dict(),
            "progress": self.progress.state_dict(),
            "unrecorded": self.entries.state_dict(),
            "device": next(self.policy.parameters()).device.type,
            "blas": blas.kernels(),
            "seconds": [self.stopwatch.wall, self.stopwatch.cpu],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there; see `Collector.load_state_dict` for envs that cannot.

        Raises: KeyError, ValueError, RuntimeError for the state of a runner with other parts.
        """
        self.policy.load_state_dict(state["policy"])
        self.update.load_state_dict(state["update"])
        for name, schedule in self._schedules.items():
            schedule.load_state_dict(state["schedules"][name])
        if hasattr(self.estimator, "load_state_dict"):
            self.estimator.load_state_dict(state["estimator"])  # pyright: ignore
        if state["health"]:  # empty where monitor.gradient=full is new
            self.health.load_state_dict(state["health"])
        self.collector.load_state_dict(state["collector"])
        if self.reward_scaler is not None:
            self.reward_scaler.load_state_dict(state["reward_scaler"])
        self.progress.load_state_dict(state["progress"])
        self.entries.load_state_dict(state["unrecorded"])
        wall, cpu = state["seconds"]
        self.stopwatch.before = wall, cpu

    def restart_episodes(self, seed: int) -> None:
        """For host envs whose state is lost: what belongs to an episode under way begins anew."""
        assert not isinstance(self.collector, WindowCollector)
        self.collector.restart(seed)
        if isinstance(self.reward_scaler, RewardScaler):
            self.reward_scaler.accumulator.zero_()
