"""Numbers that tell how learning goes, and the normalisation of advantages.

Arrays are [T, N] or flat; `weight` of the same shape is 0 for rows to leave out (reset rows, idle envs) and 1
otherwise, None for all 1. What a left-out row holds, even NaN, does not matter. Every result is a 0-d tensor on
the input's device (nan where there is nothing to tell): the caller moves all of them to the host at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pgtrain.learning.shapes import check_same_shape


def normalize(advantage: Tensor, weight: Tensor | None = None, eps: float = 1e-8) -> Tensor:
    """Shifts and scales advantages to mean 0 and standard deviation 1.

    Â = (A − mean) / (std + eps),   mean = Σ w A / Σ w,   std² = Σ w (A − mean)² / (n − 1)   for 0/1 weights w

    A single entry (n = 1) is returned unchanged: it has no spread, and 0 would throw its sample away. Entries that
    are all equal give exact zeros, not rounding noise over eps. Left-out entries give 0.
    Args: advantage [...], weight [...]. Returns: [...], same dtype; differentiable.
    """
    dtype = advantage.dtype if advantage.is_floating_point() else torch.get_default_dtype()
    x, w, used = _clean(double(advantage), weight)
    count = used.sum()
    centre = _mean(x, w)
    spread = _spread(x, used)
    var = _variance(x, w, used)
    usable = (spread > 0) & (var > 0)
    std = torch.where(usable, var, torch.ones_like(var)).sqrt()
    standard = torch.where(usable, (x - centre) / (std + eps), torch.zeros_like(x))
    # A NaN or infinity must stay visible to the update's finite check, not turn into "no spread".
    standard = torch.where(spread.isfinite(), standard, torch.full_like(x, torch.nan))
    return torch.where(count == 1, x, torch.where(used, standard, torch.zeros_like(x))).to(dtype)


def weighted_mean(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Σ w x / Σ w."""
    clean, w, used = _clean(x, weight)
    return _unless(used.any(), _mean(clean, w))


def weighted_std(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sample standard deviation, √(Σ w (x − mean)² / (n − 1)); nan for fewer than two entries."""
    clean, w, used = _clean(x, weight)
    return _unless(used.sum() > 1, _variance(clean, w, used).sqrt())


def weighted_min(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Least of the entries of weight above 0."""
    clean, _, used = _clean(x, weight)
    return _unless(used.any(), torch.where(used, clean, torch.full_like(clean, torch.inf)).min())


def weighted_max(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Greatest of the entries of weight above 0."""
    clean, _, used = _clean(x, weight)
    return _unless(used.any(), torch.where(used, clean, torch.full_like(clean, -torch.inf)).max())


def explained_variance(value: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Share of the returns' variance that the critic explains.

    EV = 1 − Var(target − value) / Var(target)

    1 is perfect, 0 no better than a constant, below 0 worse; nan when all targets are equal. A constant error of the
    critic does not show: look at `r2` with it. `value` is the prediction at rollout time.
    """
    check_same_shape(value=value, target=target)
    y, w, used = _clean(double(target), weight)
    error, _, _ = _clean(double(target) - double(value), weight)
    return _one_minus_ratio(_variance(error, w, used), _variance(y, w, used), y, used)


def r2(value: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Coefficient of determination; unlike `explained_variance` it falls with a constant error of the critic.

    R² = 1 − mean (target − value)² / Var(target),   Var with 1/n; nan when all targets are equal
    """
    check_same_shape(value=value, target=target)
    y, w, used = _clean(double(target), weight)
    error, _, _ = _clean(double(target) - double(value), weight)
    return _one_minus_ratio(_mean(error.square(), w), _mean((y - _mean(y, w)).square(), w), y, used)


def approx_kl_k1(log_ratio: Tensor, weight: Tensor | None = None) -> Tensor:
    """KL(old ‖ new) from old samples, k1 = mean(−ℓ) with ℓ = log π_new − log π_old. Unbiased; may be negative.

    Source: Schulman 2020, "Approximating KL divergence".
    """
    return weighted_mean(-double(log_ratio), weight)


def approx_kl_k3(log_ratio: Tensor, weight: Tensor | None = None) -> Tensor:
    """KL(old ‖ new) from old samples, k3 = mean(e^ℓ − 1 − ℓ) with ℓ = log π_new − log π_old.

    Unbiased, never negative, and steadier than k1: the one for limits and dashboards. In float64, by expm1.
    Source: Schulman 2020, "Approximating KL divergence".
    """
    log_ratio = double(log_ratio)
    return weighted_mean(torch.expm1(log_ratio) - log_ratio, weight)


def double(x: Tensor) -> Tensor:
    """float64, where the device has it."""
    return x if x.device.type == "mps" else x.to(torch.float64)


def _clean(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """x with 0 in left-out entries, weights in x's dtype, and which entries are used."""
    check_same_shape(x=x, weight=weight)
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    w = torch.ones_like(x) if weight is None else weight.to(x)
    used = w > 0
    return torch.where(used, x, torch.zeros_like(x)), w, used


def _mean(x: Tensor, w: Tensor) -> Tensor:
    total = w.sum()
    return (w * x).sum() / torch.where(total > 0, total, torch.ones_like(total))


def _variance(x: Tensor, w: Tensor, used: Tensor) -> Tensor:
    """Mean squared deviation times n/(n−1), n = entries of weight above 0: ddof 1 for 0/1 weights. 0 for n ≤ 1."""
    count = used.sum().to(x.dtype)
    return _mean((x - _mean(x, w)).square(), w) * count / (count - 1).clamp(min=1)


def _spread(x: Tensor, used: Tensor) -> Tensor:
    """max − min of the used entries; 0 exactly when all are equal, where a variance may be rounding noise."""
    top = torch.where(used, x, torch.full_like(x, -torch.inf)).max()
    return top - torch.where(used, x, torch.full_like(x, torch.inf)).min()


def _one_minus_ratio(top: Tensor, bottom: Tensor, target: Tensor, used: Tensor) -> Tensor:
    varies = (_spread(target, used) > 0) & (bottom > 0)
    return _unless(varies, 1 - top / torch.where(varies, bottom, torch.ones_like(bottom)))


def _unless(there: Tensor, x: Tensor) -> Tensor:
    """x, or nan where not `there`."""
    return torch.where(there, x, torch.full_like(x, torch.nan))
