"""The losses of `learning.losses` with their derivatives written out, in NumPy.

Each policy loss gives dL/dlog π and, with a penalty, dL/dKL; each value loss dL/dV. `tests/learning/test_host.py`
holds them against automatic differentiation of the originals. Rows of weight 0 are left out before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pgtrain.learning import losses
from pgtrain.learning.batch import Coefficients
from pgtrain.learning.host.heads import Head
from pgtrain.learning.objectives import MAX_LOG_RATIO

Array = np.ndarray


class Rows:
    """A batch (see `learning.batch.Batch`) as NumPy arrays: each column is fetched when a formula first reads it."""

    inputs: Array
    action: Array
    params: Array
    log_prob: Array
    advantage: Array
    value_target: Array
    value: Array
    weight: Array
    discount: Array

    def __init__(self, fetch: Callable[[str], Array], episodes: float) -> None:
        """`fetch`: a column by its name. `episodes`: see `Batch`."""
        self.fetch, self.episodes = fetch, episodes

    def __getattr__(self, name: str) -> Array:
        if name not in Rows.__annotations__:
            raise AttributeError(f"rows have no {name}")
        column = self.__dict__[name] = self.fetch(name)
        return column

    def __getitem__(self, index: Any) -> Rows:
        """The rows of a slice or of an array of indices; `episodes` stays."""
        return Rows(lambda name: getattr(self, name)[index], self.episodes)


class PolicyTerm(NamedTuple):
    loss: float
    d_log_prob: Array  # [B]
    d_kl: Array | None  # [B]
    stats: dict[str, float]


Weighting = tuple[Array, Array]  # of each row in the actor's loss, and in a mean over rows; [B]


def policy_gradient(
    loss: Any, head: Head, log_prob: Array, advantage: Array, rows: Rows, share: Array, c: Coefficients
) -> PolicyTerm:
    d = -_actor_share(loss.mean_over, rows, share) * advantage
    return PolicyTerm(float(d @ log_prob), d, None, {})


def surrogate(
    loss: Any, head: Head, log_prob: Array, advantage: Array, rows: Rows, share: Array, c: Coefficients
) -> PolicyTerm:
    r, slope = _ratio(log_prob, rows.log_prob)
    d = -_actor_share(loss.mean_over, rows, share) * advantage
    return PolicyTerm(float(d @ r), d * slope, None, {"policy/ratio_max": float(r.max())})


def clipped_surrogate(
    loss: Any, head: Head, log_prob: Array, advantage: Array, rows: Rows, share: Array, c: Coefficients
) -> PolicyTerm:
    r, slope = _ratio(log_prob, rows.log_prob)
    gain = r * advantage
    clipped = np.minimum(np.maximum(r, 1 - c.clip), 1 + c.clip) * advantage
    d = np.where(gain <= clipped, slope * advantage, 0)
    gain = np.minimum(gain, clipped, out=clipped)
    if loss.dual_clip is not None:
        floor = loss.dual_clip * advantage
        beyond = (advantage < 0) & (gain < floor)
        gain, d = np.where(beyond, floor, gain), np.where(beyond, 0, d)
    actor_share = _actor_share(loss.mean_over, rows, share)
    d *= actor_share
    fraction = float(share @ (np.abs(r - 1) > c.clip))
    stats = {"policy/clip_fraction": fraction, "policy/ratio_max": float(r.max())}
    return PolicyTerm(-float(actor_share @ gain), np.negative(d, out=d), None, stats)


def kl_penalty(
    loss: Any, head: Head, log_prob: Array, advantage: Array, rows: Rows, share: Array, c: Coefficients
) -> PolicyTerm:
    term = surrogate(loss, head, log_prob, advantage, rows, share, c)
    beta = float(loss.beta)
    return term._replace(loss=term.loss + beta * float(share @ head.kl(rows.params)), d_kl=beta * share)


def _actor_share(mean_over: str, rows: Rows, share: Array) -> Array:
    return rows.weight / np.float64(rows.episodes).astype(share.dtype) if mean_over == "episodes" else share


def _ratio(log_prob: Array, old: Array) -> tuple[Array, Array]:
    """r = π/π_old and dr/dlog π, [B]; see `objectives.ratio`."""
    difference = log_prob - old
    held = np.minimum(np.maximum(difference, -MAX_LOG_RATIO), MAX_LOG_RATIO)
    r = np.exp(held)
    return r, np.where(difference == held, r, 0)


PolicyFormula = Callable[[Any, Head, Array, Array, Rows, Array, Coefficients], PolicyTerm]
POLICY_LOSSES: dict[type, PolicyFormula] = {
    losses.PolicyGradient: policy_gradient,
    losses.Surrogate: surrogate,
    losses.ClippedSurrogate: clipped_surrogate,
    losses.KLPenalty: kl_penalty,
}

# ----------------------------------------------------------------------------------------------- value losses

ValueFormula = Callable[[Any, Array, Array, Array, Array, Coefficients], tuple[float, Array]]


def squared_error(
    loss: Any, value: Array, old: Array, target: Array, share: Array, c: Coefficients
) -> tuple[float, Array]:
    error = value - target
    d = share * error
    return 0.5 * float(d @ error), d


def clipped_error(
    loss: Any, value: Array, old: Array, target: Array, share: Array, c: Coefficients
) -> tuple[float, Array]:
    move = value - old
    held = move.clip(-c.value_clip, c.value_clip)
    error = old + held - target
    d = np.where(move == held, error, 0)
    if loss.form != "clip_max":
        return float(share @ (error * error)), 2 * share * d
    plain = value - target
    larger = error * error > plain * plain
    d = share * np.where(larger, d, plain)
    return 0.5 * float(share @ np.where(larger, error, plain) ** 2), d


def huber_error(
    loss: Any, value: Array, old: Array, target: Array, share: Array, c: Coefficients
) -> tuple[float, Array]:
    error = value - target
    size = np.abs(error)
    inner = np.minimum(size, loss.delta)
    return float(share @ (inner * (size - 0.5 * inner))), share * error.clip(-loss.delta, loss.delta)


VALUE_LOSSES: dict[type, ValueFormula] = {
    losses.SquaredError: squared_error,
    losses.ClippedError: clipped_error,
    losses.HuberError: huber_error,
}
