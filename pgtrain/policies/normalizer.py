"""Running statistics that adapt: standardised observations and scaled rewards.

Both are modules whose float64 buffers hold the statistics, so a checkpoint carries them. B samples, D dimensions,
[T, N] time and envs. Nothing here waits for a GPU: what depends on data is selected, never branched on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

HUGE = (
    1e100  # a sample at least this large would overflow the sum of squares for good; it counts as non-finite
)


class Moments(NamedTuple):
    """Mean, sum of squared deviations from it, and number of samples: float64 [D], [D], []."""

    mean: Tensor
    m2: Tensor
    count: Tensor


def batch_moments(x: Tensor, weight: Tensor | None = None) -> Moments:
    """Moments of the rows of `x`, in two passes (no cancellation at large offsets).

    n = Σ w,   mean = Σ w x / n,   m2 = Σ w (x − mean)²

    Args: x [..., D]; weight [...], 0 for rows to leave out, None for all 1. Rows with a NaN, an infinity or a
    number of 1e100 and more are left out whole.
    """
    x = x.detach().to(torch.float64).reshape(-1, x.shape[-1])
    usable = (x.abs() < HUGE).all(dim=-1)
    w = usable.to(torch.float64)
    if weight is not None:
        w = w * weight.detach().to(x).reshape(-1)
    x = torch.where((w > 0)[:, None], x, torch.zeros_like(x))
    count = w.sum()
    mean = w @ x / torch.where(count > 0, count, torch.ones_like(count))
    return Moments(mean, w @ (x - mean).square(), count)


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Moments of two sets of samples together, exact in any order and grouping.

    n = n_a + n_b,   d = mean_b − mean_a,   mean = mean_a + d n_b / n,   m2 = m2_a + m2_b + d² n_a n_b / n

    Also the way to join the statistics of several processes. Empty sets change nothing.
    Source: Chan, Golub & LeVeque 1983, "Algorithms for computing the sample variance", eq. 2.1.
    """
    count = a.count + b.count
    share = b.count / torch.where(count > 0, count, torch.ones_like(count))
    delta = b.mean - a.mean
    return Moments(a.mean + delta * share, a.m2 + b.m2 + delta.square() * a.count * share, count)


class Standardizer(NamedTuple):
    """A fixed standardisation, clip((x − shift) · scale, ±limit): what one iteration acts and learns with."""

    shift: Tensor  # [D] float64
    scale: Tensor  # [D] float64
    limit: Tensor  # [] or [D] float64

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., D] → float32 [..., D] on the device of `x`."""
        standard = (x.to(self.shift) - self.shift) * self.scale
        return standard.clamp(-self.limit, self.limit).to(device=x.device, dtype=torch.float32)


class _Float64Buffers(nn.Module):
    """Buffers follow the module from device to device but stay float64.

    `policy.float()` would round the sums, after which each update of a long run is lost. A device without float64
    (mps) leaves them on the CPU.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        if recurse:
            for module in self.children():
                module._apply(fn)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                device = fn(torch.empty(0, device=buffer.device)).device
                self._buffers[name] = buffer.to("cpu" if device.type == "mps" else device)
        return self


def _alone(moments: Moments) -> Moments:
    """No other process has samples for this update."""
    return moments


class RunningMoments(_Float64Buffers):
    """Running mean and variance of D-dimensional samples, and the standardisation by them.

    normalize(x) = clip((x − mean) / √(m2 / count + 1e-8), ±10)

    Starts empty (no made-up prior samples), so after any sequence of updates mean and variance are those of all
    samples at once. Until two samples were seen, `normalize` changes nothing. A dimension that never changed gives 0,
    and at most ±10 when it moves.

    Buffers: mean [D], m2 [D] (sum of squared deviations), count []; float64.
    """

    mean: Tensor
    m2: Tensor
    count: Tensor
    join: Callable[[Moments], Moments]

    def __init__(self, dim: int, clip: float = 10.0, eps: float = 1e-8) -> None:
        super().__init__()
        self.clip, self.eps = clip, eps
        self.join = _alone  # what an update's samples are added to, before they are taken in
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @property
    def var(self) -> Tensor:
        """Population variance m2 / count, [D]; 0 while empty."""
        return self.m2 / self.count.clamp(min=1.0)

    @torch.no_grad()
    def update(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Takes in the rows of x [..., D] whose weight [...] is not 0; skips rows with a NaN or infinity."""
        self.merge(self.join(batch_moments(x, weight)))

    @torch.no_grad()
    def merge(self, other: Moments) -> None:
        """Takes in samples that were summed up elsewhere (another process)."""
        here = Moments(self.mean, self.m2, self.count)
        merged = merge_moments(here, Moments(*(part.to(self.mean) for part in other)))
        for buffer, new in zip(here, merged, strict=True):
            buffer.copy_(new)  # in place: addresses stay, as a flat view or a CUDA graph needs

    @torch.no_grad()
    def frozen(self) -> Standardizer:
        """Today's standardisation as a value: take it once, use it for a whole iteration. Later updates leave it."""
        ready = self.count >= 2
        shift = torch.where(ready, self.mean, torch.zeros_like(self.mean))
        scale = torch.where(ready, (self.var + self.eps).rsqrt(), torch.ones_like(self.mean))
        limit = torch.where(
            ready, torch.full_like(self.count, self.clip), torch.full_like(self.count, torch.inf)
        )
        return Standardizer(shift, scale, limit)

    def normalize(self, x: Tensor) -> Tensor:
        """x [..., D] of any dtype → float32 [..., D]; differentiable in x. Statistics are not changed."""
        return self.frozen()(x)


class ColumnMoments(RunningMoments):
    """Statistics of some columns of rows [..., D]; the other columns pass `normalize` as they are.

    For observations of several parts, of which only numbers without a natural scale are standardised.
    """

    columns: Tensor

    def __init__(self, dim: int, columns: Sequence[int], clip: float = 10.0, eps: float = 1e-8) -> None:
        super().__init__(len(columns), clip, eps)
        self.dim = dim
        self.register_buffer("columns", torch.tensor(columns, dtype=torch.int64), persistent=False)

    @torch.no_grad()
    def update(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Takes in those columns of the rows of x [..., D] whose weight [...] is not 0."""
        super().update(x[..., self.columns.to(x.device)], weight)

    @torch.no_grad()
    def frozen(self) -> Standardizer:
        """Over all D columns: shift 0, scale 1 and no limit where nothing is standardised."""
        inner = super().frozen()
        fill = [(0.0, inner.shift), (1.0, inner.scale), (torch.inf, inner.limit)]
        whole = [torch.full((self.dim,), value).to(inner.shift) for value, _ in fill]
        for row, (_, values) in zip(whole, fill, strict=True):
            row[self.columns.to(row.device)] = values
        return Standardizer(*whole)


class RewardScaler(_Float64Buffers):
    """Divides rewards by the running standard deviation of the discounted return; never centres them.

    R_t = γ (1 − done_{t−1}) R_{t−1} + r_t,   scaled r_t = clip(r_t / √(Var[R] + 1e-8), ±10)

    Var[R] runs over all steps so far, those of the window being scaled included, so that one scale holds for a
    window. R lives on from window to window, one per env, and is cleared after an episode's last step,
    terminated or truncated. Rows of weight 0 (reset rows, idle envs) and non-finite rewards are neither added
    nor counted; a non-finite reward comes out as it went in, for the update to refuse.

    Buffers: accumulator [N], mean [1], m2 [1], count []; float64.
    Source: Engstrom et al. 2020, "Implementation matters in deep policy gradients", §3 (reward scaling).
    """

    accumulator: Tensor

    def __init__(self, num_envs: int, gamma: float, clip: float = 10.0, eps: float = 1e-8) -> None:
        super().__init__()
        self.gamma, self.clip = gamma, clip
        self.moments = RunningMoments(1, clip, eps)
        self.register_buffer("accumulator", torch.zeros(num_envs, dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        """What rewards are divided by now, []; 1 until two steps were seen."""
        return self.moments.frozen().scale[0].reciprocal()

    @torch.no_grad()
    def update(self, reward: Tensor, done: Tensor, weight: Tensor | None = None) -> Tensor:
        """Takes in a window [T, N]; returns R after each step, float64 [T, N] (its rows of weight 0 repeat R)."""
        reward = reward.to(self.accumulator)
        done = done.to(self.accumulator)
        used = reward.abs() < HUGE
        if weight is not None:
            used = used & (weight.to(self.accumulator) > 0)
        x = torch.where(used, reward, torch.zeros_like(reward))
        alive = torch.cat([torch.ones_like(done[:1]), 1.0 - done[:-1]])  # accumulator was cleared at its done
        decay = torch.where(used, self.gamma * alive, alive)
        x = torch.cat([x[:1] + decay[:1] * self.accumulator, x[1:]])
        running = _running_sum(x, decay)
        self.moments.update(running[..., None], used)
        self.accumulator.copy_(running[-1] * (1.0 - done[-1]))
        return running

    def apply_scale(self, reward: Tensor) -> Tensor:
        """`reward` (any shape) over the std so far, clipped; same dtype, differentiable, statistics unchanged."""
        frozen = self.moments.frozen()
        scale, limit = frozen.scale[0].to(reward), frozen.limit.to(reward)
        return torch.where(reward.isfinite(), (reward * scale).clamp(-limit, limit), reward)

    def scale(self, reward: Tensor, done: Tensor, weight: Tensor | None = None) -> Tensor:
        """`update` with the window [T, N], then `apply_scale` to it. The input stays as it was."""
        self.update(reward, done, weight)
        return self.apply_scale(reward)


class RewardSign(nn.Module):
    """Rewards as −1, 0 or 1, whatever their size: what Atari agents learn from. Has no state.

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning", methods (training details).
    """

    @property
    def std(self) -> Tensor:
        """There is no number that rewards are divided by: NaN."""
        return torch.tensor(torch.nan)

    def scale(self, reward: Tensor, done: Tensor, weight: Tensor | None = None) -> Tensor:
        """sign(r) of any shape; a NaN stays one, for the update to refuse. The input stays as it was."""
        return torch.where(reward.isnan(), reward, reward.sign())


def _running_sum(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t · y_{t−1},  y_{−1} = 0,  for x, decay [T, …] by doubling (as `learning.returns`, forward)."""
    y, c, step = x, decay[1:], 1
    while step < x.shape[0]:
        y = torch.cat([y[:step], y[step:] + c * y[:-step]])
        c = c[step:] * c[:-step]
        step *= 2
    return y
