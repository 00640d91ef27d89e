"""Optimal baselines for a rollout of whole episodes: as a baseline of its steps, or inside a gradient source.

`OptimalBaseline` gives b_t [T, N], whose advantages go through the ordinary loss; a baseline for each parameter fits in
no loss: `ParameterBaseline` gives the gradient itself. Both take the policy as it is: one update a rollout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from pgtrain.learning import optimal_baselines as ob
from pgtrain.learning.baselines import episode_index
from pgtrain.learning.parameter_baselines import episode_gradient, stepwise_gradient
from pgtrain.learning.scores import Scores
from pgtrain.rollout import Rollout

SCOPES = ("scalar", "step", "step_joint")
FORMS = ("reward_to_go", "total", "gpomdp")


class Episodes(NamedTuple):
    """Where the steps of whole episodes lie in a window: L is the length of the longest of E episodes."""

    episode: Tensor  # [T·N] 0 … E−1, −1 for rows that belong to none
    step: Tensor  # [T·N]
    count: int  # E
    longest: int  # L

    @classmethod
    def of(cls, rollout: Rollout) -> Episodes:
        """Raises: ValueError unless the rollout holds whole episodes: a cut one has no return to weigh."""
        if not rollout.whole_episodes:
            raise ValueError(
                "an optimal baseline needs whole episodes (collect.unit=episodes), got a fixed window"
            )
        episode, step = (x.flatten() for x in episode_index(rollout.done, rollout.weight))
        return cls(episode, step, int(episode.max()) + 1, int(step.max()) + 1)

    def pad(self, x: Tensor) -> Tensor:
        """[T, N] → [E, L], 0 past an episode's end."""
        used = self.episode >= 0
        out = x.new_zeros(self.count, self.longest)
        out[self.episode[used], self.step[used]] = x.flatten()[used]
        return out

    def unpad(self, x: Tensor, like: Tensor) -> Tensor:
        """[E or 1, L or 1] → the shape of `like`, 0 in rows of no episode."""
        full = x.expand(self.count, self.longest)
        values = full[self.episode.clamp(min=0), self.step]
        return torch.where(self.episode >= 0, values, 0.0).view_as(like).to(like.dtype)


@dataclass
class OptimalBaseline:
    """b_t for each row, from the scores of the rollout's own episodes (or of the batch before, by `fit`).

    scope: scalar (one b), step (b_t, steps taken as unrelated), step_joint (the optimum over all b_t).
    form: how the return weighs the score. total: Z_t = s_t and the whole return; reward_to_go: Z_t = γᵗ s_t if
    `discount_states`, otherwise s_t; gpomdp: cumulative scores and rewards, with the discount from the episode's start
    (so it goes with no further γᵗ).
    """

    gamma: float
    scope: str = "scalar"
    form: str = "reward_to_go"
    fit: ob.Fit = ob.leave_one_out
    discount_states: bool = False
    prior: float | None = None  # step_joint: see `joint`; None: as many episodes as steps

    def __post_init__(self) -> None:
        if self.scope not in SCOPES or self.form not in FORMS:
            raise ValueError(
                f"scope must be one of {', '.join(SCOPES)} and form one of {', '.join(FORMS)}, "
                f"got {self.scope!r} and {self.form!r}"
            )

    def __call__(self, scores: Scores, rollout: Rollout, returns: Tensor) -> Tensor:
        """The baseline [T, N] of `returns` [T, N]: rewards to go or total, as they are or less a critic's value."""
        if self.form == "gpomdp":
            raise ValueError("form gpomdp has no baseline of returns: use `advantage`")
        episodes = Episodes.of(rollout)
        target = ob.double(episodes.pad(returns))
        weight = self._step_weight(rollout)
        b = self._fit(scores, rollout, episodes, target, weight)
        return episodes.unpad(b, returns)

    def advantage(self, scores: Scores, rollout: Rollout) -> Tensor:
        """G(PO)MDP's step weights A_t = Σ_{l≥t} (γˡ r_l − b_l), [T, N]: multiply by no further γᵗ."""
        episodes = Episodes.of(rollout)
        rewards = ob.double(episodes.pad(rollout.reward * rollout.weight))
        rewards = rewards * self.gamma ** torch.arange(
            episodes.longest, dtype=rewards.dtype, device=rewards.device
        )
        gram = ob.cumulative(ob.double(self._grams(scores, rollout, episodes, None)))
        if self.scope == "step_joint":
            b = ob.joint(gram, rewards, self.fit, prior=self._prior(episodes))
        elif self.scope == "step":
            b = ob.scalar(gram.diagonal(dim1=1, dim2=2), rewards, self.fit)
        else:
            top = (gram.sum(1) * rewards).sum(1)
            b = ob.ratio(top, gram.sum((1, 2)), self.fit)[:, None]
        a = ob.gpomdp_advantage(rewards, b.expand(-1, episodes.longest))
        return episodes.unpad(a, rollout.reward)

    def _fit(
        self, scores: Scores, rollout: Rollout, e: Episodes, target: Tensor, weight: Tensor | None
    ) -> Tensor:
        rows = rollout.inputs.flatten(0, 1), rollout.action.flatten(0, 1)
        if self.scope == "step_joint":
            gram = self._grams(scores, rollout, e, weight)
            return ob.joint(ob.double(gram), target, self.fit, prior=self._prior(e))
        if self.scope == "step":
            norms = scores.squared_norms(*rows, weight=weight)
            return ob.scalar(e.pad(ob.double(norms)), target, self.fit)
        if self.form == "total":
            norms = scores.squared_norms(*rows, episode=e.episode, weight=weight)
            return ob.scalar(ob.double(norms), target[:, 0], self.fit)[:, None]
        ones = torch.ones_like(e.step, dtype=rollout.inputs.dtype) if weight is None else weight
        flat = e.unpad(target.to(ones.dtype), ones)
        both = torch.stack([ones, ones * flat])
        products = ob.double(scores.products(*rows, e.episode, both))
        return ob.ratio(products[:, 0, 1], products[:, 0, 0], self.fit)[:, None]

    def _grams(self, scores: Scores, rollout: Rollout, e: Episodes, weight: Tensor | None) -> Tensor:
        return scores.grams(rollout.inputs.flatten(0, 1), rollout.action.flatten(0, 1), e.episode, weight)

    def _prior(self, e: Episodes) -> float:
        return float(e.longest) if self.prior is None else self.prior

    def _step_weight(self, rollout: Rollout) -> Tensor | None:
        if self.form == "total" or not self.discount_states:
            return None
        return self.gamma ** rollout.episode_step.flatten().to(rollout.inputs.dtype)


@dataclass
class ParameterBaseline:
    """The gradient of J with a baseline of its own for each parameter: what a gradient source for it is made of."""

    gamma: float
    form: str = "reward_to_go"
    fit: ob.Fit = field(default=ob.leave_one_out)
    discount_states: bool = False

    def __call__(self, scores: Scores, rollout: Rollout, returns: Tensor) -> Tensor:
        """∇J [P], the mean over episodes, to be maximised; returns [T, N] as for `OptimalBaseline`.

        total, reward_to_go: b_h for whole episodes, Z and Y [E, P] are held. gpomdp: b_{l,h}, `returns` are not used.
        """
        e = Episodes.of(rollout)
        inputs, action = rollout.inputs.flatten(0, 1), rollout.action.flatten(0, 1)
        if self.form == "gpomdp":
            rewards = e.pad(rollout.reward * rollout.weight)
            rewards = rewards * self.gamma ** torch.arange(
                e.longest, dtype=rewards.dtype, device=rewards.device
            )
            return stepwise_gradient(
                self._steps(scores, e, inputs, action), rewards, self.fit, cumulative=True
            )
        weight = torch.ones_like(e.step, dtype=inputs.dtype)
        if self.form == "reward_to_go" and self.discount_states:
            weight = self.gamma ** rollout.episode_step.flatten().to(weight.dtype)
        plain, weighted = (
            scores.gradients(inputs, action, e.episode, w) for w in (weight, weight * returns.flatten())
        )
        return episode_gradient(plain, weighted, self.fit)[0]

    def _steps(self, scores: Scores, e: Episodes, inputs: Tensor, action: Tensor) -> Iterator[Tensor]:
        for t in range(e.longest):
            rows = ((e.step == t) & (e.episode >= 0)).nonzero().squeeze(-1)
            found = scores.gradients(inputs[rows], action[rows])
            out = found.new_zeros(e.count, found.shape[1])
            out[e.episode[rows]] = found
            yield out
