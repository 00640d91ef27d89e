"""Samples or whole episodes, part by part under a memory limit, with what their gradients are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pgtrain.learning.layer_formulas import Unsupported
from pgtrain.learning.layer_gradients import Direct, Rows
from pgtrain.learning.score_capture import LogProb, PolicyScorer, Scorer
from pgtrain.policies.actor_critic import ActorCritic

FEW = 16  # episodes that are taken together even if their lengths differ
PROBE = 3  # samples on which captured gradients of an unknown module are compared with autograd's


@dataclass
class Blocks:
    """Checked arguments, and the walk over them in parts; `results` is the number of samples, or of episodes."""

    scorer: Scorer
    obs: Tensor
    action: Tensor
    episode: Tensor | None
    weight: Tensor | None
    memory_limit: int
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        policy: nn.Module,
        obs: Tensor,
        action: Tensor,
        log_prob: LogProb | None,
        episode: Tensor | None,
        weight: Tensor | None,
        prepared: bool,
        memory_limit: int,
    ) -> Blocks:
        if log_prob is not None:
            scorer = Scorer(policy, log_prob)
        elif isinstance(policy, ActorCritic):
            scorer = PolicyScorer(policy)
            dtype = next(policy.parameters()).dtype
            obs = (obs if prepared else policy.prepare(obs)).to(dtype)
        else:
            raise ValueError(
                f"per_sample: {type(policy).__name__} is no policy of pgtrain's: "
                "give log_prob=(policy, obs, action) -> [B]"
            )
        for name, x in (("action", action), ("episode", episode), ("weight", weight)):
            if x is not None and len(x) != len(obs):
                raise ValueError(
                    f"per_sample: {name} has {len(x)} rows, obs {len(obs)}; each sample needs one"
                )
        dtype = next(policy.parameters()).dtype
        return cls(scorer, obs, action, episode, weight, memory_limit, dtype)

    def __post_init__(self) -> None:
        self.held: list[Rows] = []
        if self.episode is not None:
            used = self.episode[self.episode >= 0]
            self.lengths = used.bincount() if len(used) else used.new_zeros(0)  # [E]
            order = self.episode.argsort(stable=True)
            self.order = order[len(order) - len(used) :]  # rows, episode by episode
            self.starts = self.lengths.cumsum(0) - self.lengths
        else:
            self.lengths = torch.ones(len(self.obs), dtype=torch.int64, device=self.obs.device)
        self.results = len(self.lengths)
        self.captures, width = self._choose()
        self.bytes_a_row = width * self.dtype.itemsize

    def _choose(self) -> tuple[bool, int]:
        """Whether layers can be captured, and the numbers held for each row then."""
        s = self.scorer
        if s.trusted:
            return True, 2 * sum(sum(layer.weight.shape[:2]) for layer in s.layers)  # pyright: ignore
        try:
            probe = self.obs[:PROBE], self.action[:PROBE]
            if len(self.obs) and s.layers and s.agrees(*probe):
                held = sum(r.size() for r in s.capture(*probe)) // (len(probe[0]) * self.dtype.itemsize)
                return True, 2 * held + 3 * sum(s.parameters[name].numel() for name in s.free)
        except Unsupported:
            pass
        return False, 3 * s.width

    def rows_of(self, obs: Tensor, action: Tensor) -> list[Rows]:
        if self.captures:
            try:
                return self.scorer.capture(obs, action)
            except Unsupported:  # a batch of another size than the probe's
                self.captures = False
        names = self.scorer.trainable
        return [Direct(names, self.scorer.by_vmap(names, obs, action)[:, None])] if names else []

    def blocks(self, extra: Callable[[int], int]) -> Iterator[tuple[slice | Tensor, list[Rows]]]:
        """Parts of the results: their indices, and the gradients whose samples they are.

        extra: numbers needed for each result, given its number of steps.
        """
        if self.episode is None:
            size = max(1, self.memory_limit // (self.bytes_a_row + extra(1) * self.dtype.itemsize + 1))
            for start in range(0, self.results, size):
                part = slice(start, min(start + size, self.results))
                rows = self.rows_of(self.obs[part], self.action[part])
                if self.weight is not None:
                    factor = self.weight[part, None].to(self.dtype)
                    here = torch.arange(len(factor), device=factor.device)[:, None]
                    rows = [r.take(here, factor) for r in rows]
                yield part, rows
            return
        ones = torch.ones(len(self.obs), dtype=self.dtype, device=self.obs.device)
        weight = ones if self.weight is None else self.weight.to(self.dtype)
        for index in self._episodes(extra):
            rows, local, factor = self._grouped(index, weight[None])
            yield index, [r.take(local, factor[:, 0]) for r in rows]

    def weighted(
        self, extra: Callable[[int], int], weights: Tensor
    ) -> Iterator[tuple[Tensor, list[Rows], Tensor]]:
        """Parts of the episodes: indices [e], rows whose places are the steps, factors [e, K, L] of weights [K, B]."""
        for index in self._episodes(extra):
            rows, local, factor = self._grouped(index, weights.to(self.dtype))
            ones = torch.ones_like(factor[:, 0])
            yield index, [r.take(local, ones) for r in rows], factor

    def _episodes(self, extra: Callable[[int], int]) -> Iterator[Tensor]:
        """Episodes of like lengths, as many together as the limit allows, one at least."""
        lengths, order = self.lengths.sort(descending=True)
        known = lengths[lengths > 0].tolist()  # an episode without rows keeps its zeros
        start = 0
        while start < len(known):
            longest = known[start]
            cost = longest * self.bytes_a_row + extra(longest) * self.dtype.itemsize
            stop = start + max(1, self.memory_limit // max(cost, 1))
            stop = min(stop, len(known))
            # what is padded is paid for by its square; what is parted by a pass of its own
            while stop > start + 1 and known[stop - 1] * (8 if stop - start <= FEW else 1.5) < longest:
                stop -= 1
            yield order[start:stop]
            start = stop

    def _grouped(self, index: Tensor, weights: Tensor) -> tuple[list[Rows], Tensor, Tensor]:
        """The steps of these episodes as samples; where each episode has them [e, L], and their factors [e, K, L]."""
        lengths = self.lengths[index]
        step = torch.arange(int(lengths.max()), device=index.device)
        there = step < lengths[:, None]  # [e, L]
        at = torch.where(there, self.starts[index, None] + step, 0)
        chosen = self.order[at]  # [e, L] rows of the batch
        factor = torch.where(there, weights[:, chosen], 0).transpose(0, 1)
        if (
            2 * len(self.order) * self.bytes_a_row <= self.memory_limit
        ):  # one pass through the policy serves all parts
            if not self.held:
                self.held = self.rows_of(self.obs[self.order], self.action[self.order])
            return self.held, at, factor
        local = torch.where(there, (there.flatten().cumsum(0) - 1).view_as(there), 0)
        rows = self.rows_of(self.obs[chosen[there]], self.action[chosen[there]])
        return rows, local, factor
