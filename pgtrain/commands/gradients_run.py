"""The laboratory's experiment: episodes, a critic from others, a reference, and a report of each estimator."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pgtrain import build
from pgtrain.collector import Collector
from pgtrain.config import schema
from pgtrain.envs.closed_form.exact import exact_gradient
from pgtrain.envs.registry import find_spec
from pgtrain.envs.vector import VectorEnv
from pgtrain.learning.gradient_report import Reference, Report, report
from pgtrain.learning.gradient_statistics import layer_shares
from pgtrain.learning.laboratory import Estimator, Laboratory, ended, fit_critic, with_values
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import make_actor
from pgtrain.rollout import Rollout
from pgtrain.types import UserError

ENVS = 64  # side by side at most
REFERENCE_STEPS = 300_000  # of the large sample, where no number of episodes is asked for
MEMORY = 2**31  # bytes for the gradients of all episodes
ROUNDING = 1e-6  # of float32 gradients, relative to those of the total return without a baseline
PATHWISE = 32  # samples of the pathwise gradient


class Line(NamedTuple):
    """One row of the table."""

    family: str
    name: str
    report: Report
    milliseconds: float


@dataclass
class Findings:
    """What the laboratory found; all that table, figure and file need."""

    env: str
    policy: str
    episodes: int
    steps: int
    mean_return: float
    batch: int  # episodes, of which SNR and cosine speak
    reference: Reference
    critic: str
    lines: list[Line]
    shares: dict[str, float]  # layer → part of |∇J|²
    notes: list[str]


@dataclass
class Experiment:
    """One policy in one env. `tell` is called with what is being done."""

    cfg: schema.Config
    policy: ActorCritic
    make_env: Callable[[int], VectorEnv]
    trained: bool
    episodes: int
    reference: int | None
    seed: int
    tell: Callable[[str], None]
    batch: int | None = None  # episodes in a batch; None: as in an iteration of training
    rows: str = ""  # only estimators whose name holds this

    def run(self) -> Findings:
        envs = max(n for n in range(1, min(ENVS, self.episodes) + 1) if self.episodes % n == 0)
        self.laboratory = Laboratory(self.policy, self.cfg.gamma, memory_limit=2**28)
        size = 4 * 5 * self.episodes * sum(p.numel() for p in self.policy.parameters())
        if size > MEMORY:
            most = max(2, self.episodes * MEMORY // size)
            raise UserError(
                f"episodes={self.episodes}: the gradients of that many episodes take {size / 2**30:.1f} GB; "
                f"use at most {most}, or a smaller network"
            )
        chosen = [e for e in self.laboratory.estimators() if self.rows in f"{e.family}: {e.name}"]
        pathwise = self.rows in "pathwise: through the env" and self._has_pathwise()
        if not chosen and not pathwise:
            raise UserError(f"rows={self.rows}: no estimator has that in its name")
        with self.make_env(envs) as env:
            self.tell(f"{self.episodes} episodes of {env.env_id}")
            rollout = self._collect(env, self.seed)
            value, critic = self._critic(env)
            rollout = with_values(rollout, value)
            reference = self._exact() or self._large_sample(env, rollout, value)
        known = [self.laboratory.gradients(e, rollout) for e in self.laboratory.estimators() if e.unbiased]
        reference = reference._replace(rounding=ROUNDING**2 * float(known[0].square().sum(1).mean()))
        lines = [self._line(e, rollout, reference, known) for e in chosen]
        notes: list[str] = []
        if pathwise:
            lines.append(self._pathwise(reference, notes))
        returns = (rollout.raw_reward * rollout.weight).sum() / rollout.done.sum()
        return Findings(
            env=self.cfg.env.id,
            policy=_describe(self.policy),
            episodes=self.episodes,
            steps=rollout.num_steps,
            mean_return=float(returns),
            batch=self._batch(),
            reference=reference,
            critic=critic,
            lines=lines,
            shares=self._shares(reference.gradient) if reference.squared_norm > 0 else {},
            notes=notes,
        )

    def _collect(self, env: VectorEnv, seed: int) -> Rollout:
        """Episodes of their own seed, with their time limits as ends."""
        seeds = torch.Generator().manual_seed(seed)
        of_env, of_actor = torch.randint(2**31, (2,), generator=seeds).tolist()
        collector = Collector(env, self.policy, make_actor(self.policy, env.num_envs, of_actor), of_env)
        found = collector.collect_episodes(self.episodes // env.num_envs, max_steps=30_000 * self.episodes)
        if found is None:
            raise UserError(f"the episodes of {env.env_id} do not end: set env.max_episode_steps")
        rollout = found[0]
        copied = {
            k: v.clone() for k, v in rollout.as_dict().items() if isinstance(v, Tensor)
        }  # buffers are reused
        return ended(rollout.replace(**copied))

    def _critic(self, env: VectorEnv) -> tuple[Callable[[Tensor], Tensor], str]:
        if self.trained and self.policy.has_critic:
            return self.policy.value, "the run's own"
        self.tell(f"a critic from {self.episodes} other episodes")
        rollout = self._collect(env, self.seed + 1)
        return fit_critic(rollout, self.cfg.gamma, self.seed), f"fitted to {self.episodes} other episodes"

    def _exact(self) -> Reference | None:
        e = self.cfg.env
        found = exact_gradient(e.id, e.kwargs, self.policy, self.cfg.gamma, e.max_episode_steps)
        return None if found is None else Reference(found, 0.0, True)

    def _large_sample(self, env: VectorEnv, rollout: Rollout, value: Callable[[Tensor], Tensor]) -> Reference:
        """The mean over many other episodes, with the reward to go less the value: unbiased, of little variance."""
        a_round = self.episodes
        wanted = self.reference or min(
            16 * a_round, max(a_round, REFERENCE_STEPS * a_round // rollout.num_steps)
        )
        rounds = max(1, round(wanted / a_round))
        self.tell(f"the reference: a large sample of {rounds * a_round:,} episodes")
        best = next(e for e in self.laboratory.estimators() if e[:2] == ("reward to go", "value"))
        total, square = torch.zeros(1), 0.0
        for i in range(rounds):
            more = with_values(self._collect(env, self.seed + 2 + i), value)
            found = self.laboratory.gradients(best, more)
            total, square = total.to(found.device) + found.sum(0), square + float(found.square().sum())
        n = rounds * a_round
        mean = total / n
        trace = max(square / n - float(mean.square().sum()), 0.0)
        return Reference(mean, trace / n, False, n)

    def _line(
        self, estimator: Estimator, rollout: Rollout, reference: Reference, known: list[Tensor]
    ) -> Line:
        self.tell(f"{estimator.family}: {estimator.name}")
        others = () if estimator.unbiased else known  # their own bias is measured against the reference
        gradients = self.laboratory.gradients(estimator, rollout)
        found = report(gradients, reference, batch=self._batch(), unbiased=others, seed=self.seed)
        return Line(estimator.family, estimator.name, found, self.laboratory.milliseconds(estimator, rollout))

    def _has_pathwise(self) -> bool:
        from pgtrain.envs.differentiable import registration

        known = find_spec(self.cfg.env.id).id in registration.TASKS  # env.id may be module:Id
        return known and self.policy.distribution.name == "gaussian"

    def _pathwise(self, reference: Reference, notes: list[str]) -> Line:
        from pgtrain.envs.differentiable import registration
        from pgtrain.learning.laboratory_pathwise import pathwise_gradients

        e = self.cfg.env
        samples = min(PATHWISE, self.episodes)
        size = self.episodes // samples
        self.tell("pathwise")
        device = next(self.policy.parameters()).device
        limit = {} if e.max_episode_steps is None else {"max_episode_steps": e.max_episode_steps}
        env = registration.make(e.id, size, device=device, **limit, **e.kwargs)
        start = time.perf_counter()
        found = pathwise_gradients(env, self.policy, samples, self.cfg.gamma, self.seed)
        took = 1e3 * (time.perf_counter() - start)
        notes.append(
            f"pathwise: {samples * size} episodes of its own in {samples} batches of {size}, played in its time"
        )
        found_report = report(found, reference, size, self._batch(), seed=self.seed)
        return Line("pathwise", "through the env", found_report, took)

    def _batch(self) -> int:
        return min(self.episodes, self.batch or self.cfg.num_envs * (self.cfg.collect.episodes or 1))

    def _shares(self, gradient: Tensor) -> dict[str, float]:
        slices, start = {}, 0
        for name, p in self.policy.named_parameters():
            slices[name] = slice(start, start + p.numel())
            start += p.numel()
        shares = {name: float(x) for name, x in layer_shares(gradient, slices).items()}
        return {name.removeprefix("network."): x for name, x in shares.items() if x > 0}


def _describe(policy: ActorCritic) -> str:
    count = sum(p.numel() for p in policy.parameters())
    return f"{policy.distribution.name}, {count:,} parameters"


def fresh(cfg: schema.Config, overrides: list[str], device: str) -> ActorCritic:
    """A policy as training would start from."""
    with build.make_env(cfg, 1) as env:
        build.refuse_unused(cfg, overrides, env)
        return build.make_policy(cfg, env).to(device)
