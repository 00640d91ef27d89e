"""How trustworthy the policy's gradient is while training goes on: variance, SNR, noise scale, direction, layers.

Measured at the policy that played, from the advantages that the update gets. The sample is the episode (in a fixed
window: the piece of an episode that one env has in it), as steps of one episode are not independent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pgtrain.learning import per_sample
from pgtrain.learning.baselines import episode_index
from pgtrain.learning.gradient_statistics import RunningNoiseScale, cosine, layer_shares, noise_from_norms
from pgtrain.learning.host.scores import make_scores
from pgtrain.learning.statistics import normalize
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters
from pgtrain.rollout import Rollout

SHARE = 1 / 32  # of the time, at most, where no number of iterations is given
PLACES = ("first", "hidden", "last", "spread")


class NoHealth:
    """Nothing is measured."""

    def before(self, rollout: Rollout) -> None: ...

    def after(self) -> None: ...

    def metrics(self) -> Mapping[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class GradientHealth(NoHealth):
    """Every `every`-th iteration (None: as often as takes 3 % of the time), and in the first.

    gamma: the update weighs steps by γᵗ. normalize: it normalises advantages.
    """

    def __init__(
        self,
        policy: ActorCritic,
        flat: FlatParameters,
        every: int | None = None,
        gamma: float | None = None,
        normalize: bool = False,
    ) -> None:
        self.policy, self.flat, self.every = policy, flat, every
        self.scores = make_scores(policy, flat, per_sample.MEMORY_LIMIT)
        self.gamma, self.normalize = gamma, normalize
        self.scale = RunningNoiseScale()
        self.iteration = 0
        self._next = -math.inf  # the clock's time of the next measurement, for every=None
        self._found: dict[str, float] = {}
        self._start: Tensor | None = None  # parameters before the update, if its direction is wanted
        self._last: Tensor | None = None  # the direction of the update before

    def before(self, rollout: Rollout) -> None:
        """Called with the advantages, before the update."""
        due = time.perf_counter() >= self._next if self.every is None else self.iteration % self.every == 0
        self.iteration += 1
        if due:
            began = time.perf_counter()
            self._found = self._measure(rollout) | {"gradient/update_cosine": math.nan}
            now = time.perf_counter()
            self._next = now + (now - began) / SHARE
            self._last = None
        if due or self._last is not None:
            self._start = self.flat.snapshot()

    def after(self) -> None:
        """Called after the update: the directions of the measured one and of the next are compared."""
        if self._start is None:
            return
        step = self.flat.data - self._start
        self._start = None
        if self._last is None:
            self._last = step
        else:
            self._found["gradient/update_cosine"] = float(cosine(self._last, step))
            self._last = None

    def metrics(self) -> Mapping[str, float]:
        """What was measured since the last call."""
        found, self._found = self._found, {}
        return found

    def _measure(self, rollout: Rollout) -> dict[str, float]:
        last = torch.ones_like(rollout.done[-1:])
        episode, _ = episode_index(torch.cat([rollout.done[:-1], last]), rollout.weight)
        rows = rollout.inputs.flatten(0, 1), rollout.action.flatten(0, 1)
        weight = self._weight(rollout)
        n = int(episode.max()) + 1
        norms = self.scores.squared_norms(*rows, episode=episode.flatten(), weight=weight)
        mean, slices = self._mean_gradient(rows, weight / n)
        found = noise_from_norms(norms.mean(), mean.square().sum(), n)
        trace, squared = float(found.trace), float(found.squared_norm)
        self.scale.update(trace, squared)
        return {
            "gradient/variance": trace,
            "gradient/snr": float(found.snr),
            "gradient/noise_scale": self.scale.value,
        } | self._shares(mean, slices)

    def _weight(self, rollout: Rollout) -> Tensor:
        """What the update weighs each log-probability with, [T·N]."""
        assert rollout.advantage is not None
        advantage = rollout.advantage
        if self.normalize:
            advantage = normalize(advantage, rollout.weight)
        if self.gamma is not None:
            advantage = advantage * self.gamma**rollout.episode_step
        return (advantage * rollout.weight).flatten()

    def _mean_gradient(self, rows: tuple[Tensor, Tensor], weight: Tensor) -> tuple[Tensor, dict[str, slice]]:
        """The gradient of Σ w log π with respect to what log π depends on, and where each parameter lies in it."""
        named = dict(self.policy.named_parameters())
        loss = (weight * self.policy.evaluate_actor(*rows).log_prob).sum()
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        parts, slices, start = [], {}, 0
        for name, g in zip(named, found, strict=True):
            if g is not None:
                parts.append(g.flatten())
                slices[name] = slice(start, start + g.numel())
                start += g.numel()
        return torch.cat(parts), slices

    def _shares(self, gradient: Tensor, slices: dict[str, slice]) -> dict[str, float]:
        """By place, as networks differ: first layer, those between, last layer, and the free spread of a Gaussian."""
        shares = {name: float(x) for name, x in layer_shares(gradient, slices).items()}
        found = dict.fromkeys(PLACES, 0.0) | {"spread": shares.pop("log_std", 0.0)}
        layers = list(shares.values())
        if layers:
            found["last"] = layers[-1]
            found["first"] = layers[0] if len(layers) > 1 else 0.0
            found["hidden"] = math.fsum(layers[1:-1])
        return {f"gradient/share_{place}": x for place, x in found.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "scale": self.scale.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iteration = state["iteration"]
        self.scale.load_state_dict(state["scale"])
