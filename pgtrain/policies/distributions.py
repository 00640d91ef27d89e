"""Action distributions as pure functions of their parameters.

A distribution is described by one tensor `params` [..., P] that a rollout can store, so that log-probabilities,
entropies and exact KLs are computed for a whole [T, N] window at once and acting needs no distribution objects.
`action` is always the policy's own variable (what was sampled); `to_env` turns it into what the env gets, a member of
its space.

Dimension legend: A = action dimensions, K = number of choices, P = size of `params`, ... = any leading dimensions.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pgtrain.policies.constants import Constant

UNBOUNDED = 1e30  # envs write "no bound" as infinity or as the largest float32; nobody means to span 1e30
ILLEGAL = (
    -1e30
)  # logit of a choice that is not to be had: probability 0 exactly, and every gradient stays finite
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
TINY = float(
    np.finfo(np.float32).tiny
)  # keeps the log of a float32 exponential finite: 1 draw in 10⁷ is exactly 0


def where(condition: Any, x: Any, y: Any) -> Any:
    """torch's or NumPy's, as `condition` is."""
    return torch.where(condition, x, y) if isinstance(condition, Tensor) else np.where(condition, x, y)


class Distribution(Protocol):
    """What the policy, `collect` and the update ask of an action distribution."""

    name: str
    head_dim: int  # outputs that the actor network must have
    param_dim: int  # P
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype
    mask_dim: int  # numbers that an action mask has, 0 where nothing can be masked
    tanh_mean: (
        np.ndarray
    )  # [head_dim] bool: outputs that are a mean within two bounds (policy.mean=tanh squashes them)

    @property
    def log_std_shape(self) -> tuple[int, ...] | None:
        """Of the free parameter that a spread comes from; None where there is none."""
        ...

    def join(self, head: Tensor, log_std: Tensor | None, features: Tensor) -> Tensor:
        """Actor's outputs [..., head_dim] → params [..., P]; `features` is what the network gives after them."""
        ...

    def spread_numpy(self, log_std: np.ndarray) -> np.ndarray:
        """What `join_numpy` needs of log_std, made once a rollout."""
        ...

    def join_numpy(self, head: np.ndarray, spread: np.ndarray | None, features: np.ndarray) -> np.ndarray: ...

    def apply_mask(self, params: Any, mask: Any) -> Any:
        """params [..., P] whose choices that mask [..., mask_dim] rules out have probability 0; NumPy or torch."""
        ...

    def sample_numpy(self, params: np.ndarray, rng: np.random.Generator) -> np.ndarray: ...

    def sample(self, params: Tensor, generator: torch.Generator | None) -> Tensor: ...

    def mode(self, params: Any) -> Any: ...

    def to_env(self, action: np.ndarray) -> np.ndarray: ...

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor: ...

    def entropy(self, params: Tensor) -> Tensor: ...

    def kl(self, old: Tensor, new: Tensor) -> Tensor: ...

    def metrics(self, params: Tensor, action: Tensor) -> dict[str, Tensor]: ...


class Categorical:
    """K choices with π(k) = softmax(params)_k; `params` are the logits [..., K], `action` an int64 index [...]."""

    name = "categorical"
    action_shape: tuple[int, ...] = ()
    action_dtype = torch.int64
    log_std_shape = None

    def __init__(self, choices: int) -> None:
        self.head_dim = self.param_dim = self.mask_dim = choices
        self.tanh_mean = np.zeros(choices, bool)

    def join(self, head: Tensor, log_std: Tensor | None, features: Tensor) -> Tensor:
        return head

    def spread_numpy(self, log_std: np.ndarray) -> np.ndarray:
        return log_std

    def join_numpy(self, head: np.ndarray, spread: np.ndarray | None, features: np.ndarray) -> np.ndarray:
        return head

    def apply_mask(self, params: Any, mask: Any) -> Any:
        return where(mask > 0, params, ILLEGAL)

    def sample_numpy(self, params: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Gumbel trick: argmax_k(logit_k − log E_k), E ~ Exp(1), is distributed as softmax(logits)."""
        noise = rng.standard_exponential(params.shape, dtype=np.float32)
        noise += TINY
        np.log(noise, out=noise)
        return np.subtract(params, noise, out=noise).argmax(-1)

    def sample(self, params: Tensor, generator: torch.Generator | None) -> Tensor:
        noise = torch.empty_like(params).exponential_(generator=generator).clamp_(min=TINY)
        return (params - noise.log()).argmax(-1)

    def mode(self, params: Any) -> Any:
        return params.argmax(-1)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        return action

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log π(a) = logit_a − log Σ_k exp logit_k, [...]."""
        return torch.log_softmax(params, -1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """H = −Σ_k π_k log π_k in nats, [...]; a choice of probability 0 adds 0."""
        log_p = torch.log_softmax(params, -1)
        p = log_p.exp()
        return -torch.where(p == 0, 0.0, p * log_p).sum(-1)  # a NaN stays one

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old ‖ new) = Σ_k old_k (log old_k − log new_k), [...]."""
        log_old, log_new = torch.log_softmax(old, -1), torch.log_softmax(new, -1)
        p = log_old.exp()
        return torch.where(p == 0, 0.0, p * (log_old - log_new)).sum(-1)  # a NaN stays one

    def metrics(self, params: Tensor, action: Tensor) -> dict[str, Tensor]:
        return {}


class DiagonalGaussian:
    """A Gaussian with independent dimensions, in units of the action box.

    The policy's own variable is u [..., A] ~ N(μ, σ²) with `params` = [μ, log σ] [..., 2A]. The env gets
    clip(center + half·u, low, high): a dimension with two bounds has center and half-width of its box, so that
    u in [−1, 1] spans it and σ = 1 means half the box; any other dimension has center 0 and half 1.
    log π and the entropy are those of a = center + half·u before clipping (the log-probability of what was sampled).
    """

    name = "gaussian"
    action_dtype = torch.float32
    mask_dim = 0

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        self.low = np.asarray(low, np.float64).reshape(-1)
        self.high = np.asarray(high, np.float64).reshape(-1)
        self.bounded = (self.low > -UNBOUNDED) & (self.high < UNBOUNDED)
        unit_low, unit_high = np.where(self.bounded, self.low, -1.0), np.where(self.bounded, self.high, 1.0)
        self.center = 0.5 * unit_low + 0.5 * unit_high
        half = 0.5 * unit_high - 0.5 * unit_low
        # a box of no width leaves nothing to choose: any positive scale serves, the clip does the rest
        self.half = np.where(half > 0, half, 1.0)
        self.dim = self.head_dim = len(self.low)
        self.param_dim = 2 * self.dim
        self.action_shape = (self.dim,)
        self.log_half = float(np.log(self.half).sum())
        self.tanh_mean = self.bounded
        self.u_low = (self.low - self.center) / self.half
        self.u_high = (self.high - self.center) / self.half
        self._u_low, self._u_high = Constant(self.u_low), Constant(self.u_high)

    @property
    def log_std_shape(self) -> tuple[int, ...]:
        return (self.dim,)

    def apply_mask(self, params: Any, mask: Any) -> Any:
        return params

    def join(self, head: Tensor, log_std: Tensor | None, features: Tensor) -> Tensor:
        """μ [..., A] and log σ [A] → params [..., 2A]; `features` do not matter to this distribution."""
        assert log_std is not None
        return torch.cat([head, log_std.expand_as(head)], -1)

    def spread_numpy(self, log_std: np.ndarray) -> np.ndarray:
        return log_std

    def join_numpy(self, head: np.ndarray, spread: np.ndarray | None, features: np.ndarray) -> np.ndarray:
        assert spread is not None
        params = np.empty((*head.shape[:-1], self.param_dim), head.dtype)
        params[..., : self.dim], params[..., self.dim :] = head, spread
        return params

    def sample_numpy(self, params: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        noise = rng.standard_normal((*params.shape[:-1], self.dim), dtype=np.float32)
        noise *= np.exp(params[..., self.dim :])
        noise += params[..., : self.dim]
        return noise

    def sample(self, params: Tensor, generator: torch.Generator | None) -> Tensor:
        mean, log_std = params.split(self.dim, -1)
        noise = torch.empty_like(mean).normal_(generator=generator)
        return mean + log_std.exp() * noise

    def mode(self, params: Any) -> Any:
        return params[..., : self.dim]

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """clip(center + half·u, low, high) in float64; a NaN (from a NaN observation) becomes the center.

        The env must never see an action that is no member of its space; the update learns of the bad observation.
        """
        scaled = self.center + self.half * np.where(np.isfinite(action), action, 0.0)
        return np.clip(scaled, self.low, self.high)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log π = −½ Σ_j [((u_j − μ_j)/σ_j)² + 2 log σ_j + log 2π] − Σ_j log half_j, [...]."""
        mean, log_std = params.split(self.dim, -1)
        z = (action - mean) * torch.exp(-log_std)
        return -(0.5 * z * z + log_std).sum(-1) - (self.dim * HALF_LOG_2PI + self.log_half)

    def entropy(self, params: Tensor) -> Tensor:
        """Differential entropy H = Σ_j [log σ_j + ½ log 2πe + log half_j] in nats, [...]; may be negative."""
        log_std = params[..., self.dim :]
        return log_std.sum(-1) + (self.dim * (HALF_LOG_2PI + 0.5) + self.log_half)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old ‖ new) = Σ_j [log σ'_j/σ_j + (σ_j² + (μ_j − μ'_j)²)/(2σ'_j²) − ½], [...]."""
        mean_old, log_old = old.split(self.dim, -1)
        mean_new, log_new = new.split(self.dim, -1)
        ratio = torch.exp(2 * (log_old - log_new))
        shift = ((mean_old - mean_new) * torch.exp(-log_new)) ** 2
        return (log_new - log_old + 0.5 * (ratio + shift - 1)).sum(-1)

    def metrics(self, params: Tensor, action: Tensor) -> dict[str, Tensor]:
        """`policy/std` in units of the half box, `policy/clipped_actions`: share of components the box cut."""
        low = self._u_low.on(action.device, action.dtype)
        high = self._u_high.on(action.device, action.dtype)
        clipped = ((action < low) | (action > high)).to(action.dtype).mean(-1)
        return {"policy/std": params[..., self.dim :].exp().mean(-1), "policy/clipped_actions": clipped}
