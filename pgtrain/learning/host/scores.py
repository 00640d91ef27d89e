"""Norms and products of scores in NumPy, for small networks on the host: `PolicyScores` without a framework's overhead.

Of each linear layer a step's score is δ xᵀ (and δ for the bias): x its input, δ the gradient of log π at its output.
Of an episode's weighted sums Z^k = Σ_t w^k_t s_t either the matrices Σ_t w^k_t δ_t x_tᵀ are formed or the products of
steps, (x_t·x_u + 1)(δ_t·δ_u). Short episodes of like length are taken together, padded with steps of weight 0.

Dimension legend: B steps, E episodes (e of them together), L steps of an episode, K weightings, i and o a layer's
inputs and outputs. Source: Goodfellow 2015; Li et al. 2022 (ghost norms), §4, as in `layer_gradients`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pgtrain.learning.host.heads import HEADS, Head
from pgtrain.learning.host.network import ACTOR, HostMLP
from pgtrain.learning.host.source import has_formulas
from pgtrain.learning.scores import PolicyScores, Scores
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters

Array = np.ndarray
TOGETHER = 512  # steps of episodes that are taken together: what the cache holds
SHORT = 32  # below this length padding costs less than a call of its own


def make_scores(policy: ActorCritic, flat: FlatParameters | None, memory_limit: int) -> Scores:
    """The quickest that serves this policy."""
    trained = all(p.requires_grad for p in policy.parameters())
    if flat is None or not trained or not has_formulas(policy, flat):
        return PolicyScores(policy, memory_limit)
    return HostScores(policy, flat, memory_limit)


class Captured(NamedTuple):
    """What the scores of some steps are made of; […] is [B], or [e, L] for episodes."""

    layers: Sequence[tuple[Array, Array]]  # x [..., i], δ [..., o]
    free: Array | None  # gradients of parameters that belong to no layer, [..., p]

    def take(self, at: Array) -> Captured:
        free = None if self.free is None else self.free[at]
        return Captured([(x[at], d[at]) for x, d in self.layers], free)


class HostScores(PolicyScores):
    """One pass for all steps; where that would take more than `memory_limit`, `PolicyScores` goes part by part."""

    def __init__(self, policy: ActorCritic, flat: FlatParameters, memory_limit: int) -> None:
        super().__init__(policy, memory_limit)
        self.network = HostMLP(policy.network, flat)
        self.head: Head = HEADS[type(policy.distribution)](policy, flat)
        self.dtype = flat.data.numpy().dtype
        layers = [*self.network.parameters.hidden[ACTOR], self.network.parameters.actor_head]
        self.bytes_a_row = 2 * sum(sum(layer.weight.shape[-2:]) for layer in layers) * self.dtype.itemsize

    def squared_norms(
        self, inputs: Tensor, action: Tensor, episode: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        if episode is not None:
            weight = inputs.new_ones(len(inputs)) if weight is None else weight
            return self.products(inputs, action, episode, weight[None])[:, 0, 0]
        if self._too_large(inputs):
            return super().squared_norms(inputs, action, None, weight)
        with np.errstate(all="ignore"):  # a score that is not finite shows in what is made of it
            norms = _norms(self._capture(inputs, action, slice(None)))
        found = torch.from_numpy(norms)
        return found if weight is None else found * weight.to(found.dtype).square()

    def products(self, inputs: Tensor, action: Tensor, episode: Tensor, weights: Tensor) -> Tensor:
        if self._too_large(inputs):
            return super().products(inputs, action, episode, weights)
        order, lengths = _by_episode(episode.numpy())
        found = np.zeros((len(lengths), len(weights), len(weights)), self.dtype)
        with np.errstate(all="ignore"):
            steps = self._capture(inputs, action, order)
            factor = weights.numpy()[:, order].astype(self.dtype, copy=False)
            for index, at, there in _blocks(lengths):
                weight = np.where(there, factor[:, at], 0).swapaxes(0, 1)  # [e, K, L]
                found[index] = _products(steps.take(at), weight)
        return torch.from_numpy(found)

    def grams(self, inputs: Tensor, action: Tensor, episode: Tensor, weight: Tensor | None = None) -> Tensor:
        if self._too_large(inputs):
            return super().grams(inputs, action, episode, weight)
        order, lengths = _by_episode(episode.numpy())
        longest = int(lengths.max(initial=0))
        found = np.zeros((len(lengths), longest, longest), self.dtype)
        factor = np.ones(len(order), self.dtype) if weight is None else weight.numpy()[order]
        with np.errstate(all="ignore"):
            steps = self._capture(inputs, action, order)
            for index, at, there in _blocks(lengths):
                scale = np.where(there, factor[at], 0)  # [e, L]
                size = at.shape[1]
                found[index, :size, :size] = _gram(steps.take(at)) * (scale[:, :, None] * scale[:, None, :])
        return torch.from_numpy(found)

    def _too_large(self, inputs: Tensor) -> bool:
        return len(inputs) * self.bytes_a_row > self.memory_limit

    def _capture(self, inputs: Tensor, action: Tensor, order: Array | slice) -> Captured:
        x = inputs.detach().numpy()[order].astype(self.dtype, copy=False)
        output, _ = self.network.forward(x, ACTOR)
        assert output is not None
        self.head.evaluate(output, action.numpy()[order])
        d_output, free = self.head.score()
        return Captured(self.network.deltas(d_output), free)


def _by_episode(episode: Array) -> tuple[Array, Array]:
    """Rows in the order of their episodes, those of −1 left out, and the length of each episode [E]."""
    order = np.argsort(episode, kind="stable")[np.count_nonzero(episode < 0) :]
    return order, np.bincount(episode[order]) if len(order) else np.zeros(0, np.int64)


def _blocks(lengths: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Episodes to be taken together: their indices [e], where their steps are [e, L], and which of those exist."""
    starts = lengths.cumsum() - lengths
    by_length = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    known, first = lengths[by_length].tolist(), 0
    while first < len(known):
        longest, stop = known[first], first + 1
        shortest = 0 if longest <= SHORT else longest / 1.5
        most = min(len(known), first + max(1, TOGETHER // longest))
        while stop < most and known[stop] >= shortest:
            stop += 1
        index = by_length[first:stop]
        step = np.arange(longest)
        there = step < lengths[index, None]
        yield index, np.where(there, starts[index, None] + step, 0), there
        first = stop


def _norms(steps: Captured) -> Array:
    """|s|² = Σ over layers of (|x|² + 1)|δ|², [B]."""
    total = 0.0 if steps.free is None else _square(steps.free)
    for x, d in steps.layers:
        total = total + (_square(x) + 1) * _square(d)
    return np.asarray(total)


def _square(x: Array) -> Array:
    return np.einsum("bi,bi->b", x, x)


def _gram(steps: Captured) -> Array:
    """s_t·s_u = Σ over layers of (x_t·x_u + 1)(δ_t·δ_u), [e, L, L]."""
    found = None if steps.free is None else steps.free @ steps.free.swapaxes(1, 2)
    for x, d in steps.layers:
        product = x @ x.swapaxes(1, 2)
        product += 1
        product *= d @ d.swapaxes(1, 2)
        found = product if found is None else np.add(found, product, out=found)
    assert found is not None
    return found


def _products(steps: Captured, weight: Array) -> Array:
    """Z^k·Z^l [e, K, K] for weight [e, K, L]: of each layer whichever form is less work."""
    (e, k, length), by_steps, sums = weight.shape, [], []
    for x, d in steps.layers:
        i, o = x.shape[-1], d.shape[-1]
        if length * length * (i + o) <= (k * length + k * k) * i * o:
            by_steps.append((x, d))
            continue
        scaled = weight[:, :, None, :] * d.swapaxes(1, 2)[:, None]  # [e, K, o, L]
        sums += [(scaled.reshape(e, k * o, length) @ x).reshape(e, k, o * i), weight @ d]
    if steps.free is not None:
        sums.append(weight @ steps.free)
    found = np.zeros((e, k, k), weight.dtype)
    for z in sums:
        found += z @ z.swapaxes(1, 2)
    if by_steps:
        found += weight @ _gram(Captured(by_steps, None)) @ weight.swapaxes(1, 2)
    return found
