"""Several distributions side by side: the actions of Dict and Tuple spaces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgtrain.policies.distributions import Distribution


class Product:
    """Independent parts: π(a) = Π_i π_i(a_i). Outputs, params, masks and actions lie side by side, in order.

    `action` [..., A] is int64 if every part's is, else float32, which holds indices up to 2²⁴ exactly.
    """

    name = "product"

    def __init__(self, parts: Sequence[Distribution]) -> None:
        self.parts = list(parts)
        discrete = all(p.action_dtype is torch.int64 for p in self.parts)
        self.action_dtype = torch.int64 if discrete else torch.float32
        self._heads = _slices([p.head_dim for p in self.parts])
        self._params = _slices([p.param_dim for p in self.parts])
        self._masks = _slices([p.mask_dim for p in self.parts])
        self._actions = _slices([math.prod(p.action_shape) for p in self.parts])
        self._spreads = _slices([math.prod(p.log_std_shape or (0,)) for p in self.parts])
        self.head_dim, self.param_dim = self._heads[-1].stop, self._params[-1].stop
        self.mask_dim = self._masks[-1].stop
        self.action_shape = (self._actions[-1].stop,)
        self.tanh_mean = np.concatenate([p.tanh_mean for p in self.parts])

    @property
    def log_std_shape(self) -> tuple[int, ...] | None:
        total = self._spreads[-1].stop
        return (total,) if total else None

    def join(self, head: Tensor, log_std: Tensor | None, features: Tensor) -> Tensor:
        return torch.cat(
            [
                p.join(head[..., at], None if log_std is None else log_std[std], features)
                for p, at, std in zip(self.parts, self._heads, self._spreads, strict=True)
            ],
            -1,
        )

    def spread_numpy(self, log_std: np.ndarray) -> np.ndarray:
        return log_std

    def join_numpy(self, head: np.ndarray, spread: np.ndarray | None, features: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [
                p.join_numpy(head[..., at], None if spread is None else spread[std], features)
                for p, at, std in zip(self.parts, self._heads, self._spreads, strict=True)
            ],
            -1,
        )

    def apply_mask(self, params: Any, mask: Any) -> Any:
        masked = [
            p.apply_mask(params[..., at], mask[..., m])
            for p, at, m in zip(self.parts, self._params, self._masks, strict=True)
        ]
        return torch.cat(masked, -1) if isinstance(params, Tensor) else np.concatenate(masked, -1)

    def sample_numpy(self, params: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._flat([p.sample_numpy(params[..., at], rng) for p, at in self._each()], params)

    def sample(self, params: Tensor, generator: torch.Generator | None) -> Tensor:
        return self._flat([p.sample(params[..., at], generator) for p, at in self._each()], params)

    def mode(self, params: Any) -> Any:
        return self._flat([p.mode(params[..., at]) for p, at in self._each()], params)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        parts = self._parts_of(action)
        columns = [
            p.to_env(a).reshape(*action.shape[:-1], -1) for p, a in zip(self.parts, parts, strict=True)
        ]
        return np.concatenate(columns, -1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        actions = self._parts_of(action)
        terms = [p.log_prob(params[..., at], a) for (p, at), a in zip(self._each(), actions, strict=True)]
        return torch.stack(terms).sum(0)

    def entropy(self, params: Tensor) -> Tensor:
        return torch.stack([p.entropy(params[..., at]) for p, at in self._each()]).sum(0)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.stack([p.kl(old[..., at], new[..., at]) for p, at in self._each()]).sum(0)

    def metrics(self, params: Tensor, action: Tensor) -> dict[str, Tensor]:
        """Those of the parts, each weighted by its number of action components."""
        found: dict[str, list[tuple[int, Tensor]]] = {}
        for (p, at), a in zip(self._each(), self._parts_of(action), strict=True):
            for name, value in p.metrics(params[..., at], a).items():
                found.setdefault(name, []).append((math.prod(p.action_shape), value))
        return {
            name: torch.stack([w * x for w, x in each]).sum(0) / max(sum(w for w, _ in each), 1)
            for name, each in found.items()
        }

    def _each(self) -> Any:
        return zip(self.parts, self._params, strict=True)

    def _flat(self, actions: list[Any], params: Any) -> Any:
        """The parts' actions → one array [..., A]."""
        lead = params.shape[:-1]
        if isinstance(params, Tensor):
            return torch.cat([a.reshape(*lead, -1).to(self.action_dtype) for a in actions], -1)
        dtype = np.int64 if self.action_dtype is torch.int64 else np.float32
        return np.concatenate([a.reshape(*lead, -1).astype(dtype) for a in actions], -1)

    def _parts_of(self, action: Any) -> list[Any]:
        """[..., A] → each part's own action, in its own shape and dtype."""
        parts = []
        for p, at in zip(self.parts, self._actions, strict=True):
            a = action[..., at].reshape(*action.shape[:-1], *p.action_shape)
            if p.action_dtype is torch.int64:
                a = a.to(torch.int64) if isinstance(a, Tensor) else a.astype(np.int64)
            parts.append(a)
        return parts


def _slices(widths: list[int]) -> list[slice]:
    """Neighbouring slices of these widths."""
    ends = list(itertools.accumulate(widths))
    return [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
