"""Says in plain words which number looks bad right now, and what to try: the terminal's traffic lights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from pgtrain.monitor.monitor import RunInfo

Numbers = Mapping[str, float | None]

_WARM_UP = 20  # iterations before a critic can be blamed
_IN_A_ROW = 10


class Hints:
    """Remembers what a judgement needs (first entropy, first and best return) and judges each iteration.

    These are rules of thumb, not proofs: each fires only where the number is far outside what healthy runs show.
    """

    def __init__(self, info: RunInfo) -> None:
        self.info = info
        optim = info.config.get("optim")
        limit = optim.get("max_grad_norm") if isinstance(optim, dict) else None
        update = info.config.get("update")
        natural = isinstance(update, dict) and "cg_iterations" in update  # its actor's gradient has no limit
        given = isinstance(limit, (int, float)) and limit > 0 and not natural
        self.max_grad_norm: float | None = limit if given else None
        policy = info.config.get("policy")
        distribution = policy.get("distribution") if isinstance(policy, dict) else None
        kind = distribution.get("name") if isinstance(distribution, dict) else None
        self.squashes = kind in ("tanh_gaussian", "beta")
        self.first_entropy: float | None = None
        self.first_return: float | None = None
        self.best_return = -math.inf
        self.critic_below_0 = 0  # iterations in a row; a single one is noise
        self.iterations = 0
        self.progress = 0.0  # of what is seen here: a resumed run begins anew

    def update(self, step: int, metrics: Numbers) -> dict[str, str]:
        """This iteration's hints, by metric tag, the most telling first; read after the metric's name and value."""
        self.iterations += 1
        begun = self.info.start_step
        self.progress = (step - begun) / max(self.info.total_steps - begun, 1)
        entropy, mean_return = (
            _finite(metrics.get("policy/entropy")),
            _finite(metrics.get("episode/return_100")),
        )
        explained = _finite(metrics.get("critic/explained_variance"))
        self.critic_below_0 = self.critic_below_0 + 1 if explained is not None and explained < 0.0 else 0
        if self.first_entropy is None:
            self.first_entropy = entropy
        if self.first_return is None:
            self.first_return = mean_return
        if mean_return is not None:
            self.best_return = max(self.best_return, mean_return)
        found: dict[str, str] = {}
        for tag, rule in _RULES:
            value = metrics.get(tag)
            text = None if value is None else rule(self, value, metrics)
            if text:
                found.setdefault(tag, text)
        return found

    def solved(self, metrics: Numbers) -> bool:
        """Whether the mean return reaches the env's threshold: then a settled policy is as it should be."""
        value, threshold = metrics.get("episode/return_100"), self.info.reward_threshold
        return value is not None and threshold is not None and value >= threshold


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _not_finite(hints: Hints, value: float, metrics: Numbers) -> str | None:
    return None if math.isfinite(value) else "not a finite number, see run.log: try a lower optim.lr.value"


def _skipped(hints: Hints, value: float, metrics: Numbers) -> str | None:
    return "the loss or gradient was not finite: see run.log" if value > 0 else None


def _return_fell(hints: Hints, value: float, metrics: Numbers) -> str | None:
    first, best = hints.first_return, hints.best_return
    if first is None or hints.solved(metrics):
        return None
    gained = best - first
    scale = max(abs(first), abs(best), 1.0)
    much = gained > 0.2 * scale
    if much and best - value > 0.5 * gained:
        return f"fell from its best {best:.4g}: updates too large? try a lower optim.lr.value"
    threshold = hints.info.reward_threshold
    late = hints.progress > 0.3 and hints.iterations > _WARM_UP
    if threshold is not None and late and not much and gained < 0.05 * abs(threshold - first):
        return "no better than at the start: try another seed, optim.lr.value or more entropy.coef"
    return None


def _entropy(hints: Hints, value: float, metrics: Numbers) -> str | None:
    if not math.isfinite(value):
        return "not a finite number: see run.log"
    if metrics.get("policy/std") is not None or hints.solved(metrics):
        return None  # a Gaussian's entropy may be negative: its std is judged instead
    if hints.first_entropy and value < 0.03 * hints.first_entropy:
        return "near 0, the policy has collapsed: raise entropy.coef or lower optim.lr.value"
    return None


def _std(hints: Hints, value: float, metrics: Numbers) -> str | None:
    if value < 0.02 and not hints.solved(metrics):
        return "near 0, the policy no longer explores: raise entropy.coef"
    return "huge, noise drowns the policy: lower entropy.coef" if value > 5.0 else None


def _clipped(hints: Hints, value: float, metrics: Numbers) -> str | None:
    if value <= 0.5:
        return None
    if hints.squashes:
        return (
            "most sampled actions are held at a bound of the box: raise entropy.coef or lower optim.lr.value"
        )
    return (
        "most sampled actions lie outside the action box and are cut to its edge: lower policy.log_std_init, or try "
        "policy/distribution=tanh_gaussian"
    )


def _kl(hints: Hints, value: float, metrics: Numbers) -> str | None:
    if not math.isfinite(value):
        return "not a finite number: see run.log"
    return "the policy jumps in one iteration: lower optim.lr.value" if value > 0.1 else None


def _explained_variance(hints: Hints, value: float, metrics: Numbers) -> str | None:
    if hints.critic_below_0 >= _IN_A_ROW and hints.iterations > _WARM_UP:
        return "below 0 for long, the critic is worse than a constant guess: try another optim.lr.value"
    return None


def _gradient(hints: Hints, value: float, metrics: Numbers) -> str | None:
    if not math.isfinite(value):
        return "not a finite number, see run.log: try a lower optim.lr.value"
    if value == 0.0:
        return "nothing is learned"
    if hints.max_grad_norm and value > 100.0 * hints.max_grad_norm:
        return f"{value / hints.max_grad_norm:.0f} times its limit: large rewards? try reward.scaling=running_std"
    return None


def _line_search(hints: Hints, value: float, metrics: Numbers) -> str | None:
    iterations = metrics.get("progress/iteration") or 0
    if value > 0.3 * iterations and iterations > _IN_A_ROW:
        return "many line searches find no step: try a longer horizon or more update.damping"
    return None


def _advantage_std(hints: Hints, value: float, metrics: Numbers) -> str | None:
    if value < 1e-8 and not hints.solved(metrics):
        return "advantages are all equal, nothing tells good actions from bad"
    return None


_RULES: tuple[tuple[str, Callable[[Hints, float, Numbers], str | None]], ...] = (
    ("gradient/skipped_updates", _skipped),
    ("loss/actor", _not_finite),
    ("loss/critic", _not_finite),
    ("gradient/norm", _gradient),
    ("update/line_search_failed", _line_search),
    ("policy/entropy", _entropy),
    ("policy/std", _std),
    ("policy/approx_kl", _kl),
    ("episode/return_100", _return_fell),
    ("critic/explained_variance", _explained_variance),
    ("policy/clipped_actions", _clipped),
    ("advantage/std", _advantage_std),
)
