"""Gradients of single samples, held as what they are made of: layer inputs and gradients at layer outputs.

A linear layer's gradient in one sample is Σ_s δ_s x_sᵀ, a sum over the places s where the sample meets the layer: one
for a plain MLP, one for each pixel of a convolution, each call of a reused layer, each time step of an episode. From
x and δ alone come exact squared norms, inner products and sums, without the samples' gradients ever being stored.

Dimension legend: B samples, S places, G groups of a convolution, i and o a layer's inputs and outputs, p its size.
Source: Goodfellow 2015, "Efficient per-example gradient computations"; Li et al. 2022 (ghost norms), §4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor


class Rows(Protocol):
    """The gradients of B samples with respect to a few parameters."""

    @property
    def names(self) -> Sequence[str]:
        """Parameters in the order in which `gradients` lays them side by side."""
        ...

    def squared_norms(self) -> Tensor:
        """|g|² of each sample, [B]."""
        ...

    def gradients(self) -> Tensor:
        """[B, p]."""
        ...

    def write(self, out: Tensor) -> None:
        """Puts `gradients` into out [B, p]."""
        ...

    def gram(self, parts: int) -> Tensor:
        """Inner products of the gradients of `parts` equal groups of places, [B, parts, parts]."""
        ...

    def products(self, factor: Tensor) -> Tensor:
        """Inner products of K weighted sums over steps, Σ_t f^k_t g_t: factor [B, K, L] → [B, K, K]; L divides S."""
        ...

    def sums(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_b w g and Σ_b w g², weight [K, B], [K, p] each."""
        ...

    def take(self, index: Tensor, factor: Tensor) -> Rows:
        """New samples [E], each the sum of L of the old: index [E, L], every one times its factor [E, L]."""
        ...

    def size(self) -> int:
        """Bytes held."""
        ...


@dataclass(frozen=True)
class Outer:
    """g = Σ_s δ_s x_sᵀ, group by group, and Σ_s δ_s for a bias."""

    names: Sequence[str]
    x: Tensor  # [B, S, G, i]
    d: Tensor  # [B, S, G, o]
    bias: bool

    def squared_norms(self) -> Tensor:
        """With one place (|x|² + 1)|δ|², the 1 being the bias's."""
        if self.x.shape[1] > 1:
            return self.gram(1).flatten()
        x2, d2 = _square(self.x.flatten(0, 2)), _square(self.d.flatten(0, 2))
        product = torch.addcmul(d2, x2, d2) if self.bias else x2 * d2  # [B·G]
        return product if self.x.shape[2] == 1 else product.view(len(self.x), -1).sum(1)

    def gradients(self) -> Tensor:
        return self._grouped(1).squeeze(1)

    def write(self, out: Tensor) -> None:
        """With one place straight into out: a large result is memory traffic above all."""
        if self.x.shape[1] > 1:
            out.copy_(self.gradients())
            return
        x, d = self.x.squeeze(1), self.d.squeeze(1)  # [B, G, ·]
        size = d[0].numel() * x.shape[2]
        shape = (d.shape[1], d.shape[2], x.shape[2])
        torch.mul(d[..., :, None], x[..., None, :], out=out[:, :size].unflatten(1, shape))
        if self.bias:
            out[:, size:] = d.flatten(1)

    def gram(self, parts: int) -> Tensor:
        """Either Σ_{s,t} (x_s·x_t + 1)(δ_s·δ_t) or products of the groups' matrices XᵀΔ, whichever is less work."""
        places, inputs, outputs = self.x.shape[1], self.x.shape[3], self.d.shape[3]
        if places**2 * (inputs + outputs) > (places + parts**2) * inputs * outputs:
            grouped = self._grouped(parts)
            return grouped @ grouped.mT
        x, d = self.x.transpose(1, 2), self.d.transpose(1, 2)  # [B, G, S, ·]
        xx = x @ x.mT
        return _fold(((xx + 1 if self.bias else xx) * (d @ d.mT)).sum(1), parts)

    def products(self, factor: Tensor) -> Tensor:
        """As `gram`, the cheaper of the two."""
        if self.has_cheap_gram(factor.shape[1]):
            return products_of(self.gram(self.x.shape[1]), factor)
        factor = _per_place(factor, self.x.shape[1])
        k = factor.shape[1]
        d = self.d[:, None] * factor[..., None, None]  # [B, K, S, G, o]
        x = self.x[:, None].expand(-1, k, -1, -1, -1)
        grouped = replace(self, x=x.flatten(1, 2), d=d.flatten(1, 2))._grouped(k)
        return grouped @ grouped.mT

    def has_cheap_gram(self, parts: int) -> bool:
        places, inputs, outputs = self.x.shape[1], self.x.shape[3], self.d.shape[3]
        return places**2 * (inputs + outputs + parts) <= parts * (places + parts) * inputs * outputs

    def sums(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """With one place, squares of outer products are outer products of squares: no sample is formed."""
        if self.x.shape[1] > 1:
            return _sums(self.gradients(), weight)
        x, d = self.x.squeeze(1), self.d.squeeze(1)
        return self._weighted(x, d, weight), self._weighted(x.square(), d.square(), weight)

    def take(self, index: Tensor, factor: Tensor) -> Outer:
        return replace(self, x=self.x[index].flatten(1, 2), d=_picked(self.d, index, factor))

    def size(self) -> int:
        return self.x.nbytes + self.d.nbytes

    def _grouped(self, parts: int) -> Tensor:
        """The gradients of `parts` equal groups of places, [B, parts, p]."""
        x, d = self.x.unflatten(1, (parts, -1)), self.d.unflatten(1, (parts, -1))  # [B, parts, S, G, ·]
        if x.shape[2] == 1:
            matrix = (d.squeeze(2)[..., None] * x.squeeze(2)[..., None, :]).flatten(2)
        else:
            matrix = (d.permute(0, 1, 3, 4, 2) @ x.transpose(2, 3)).flatten(2)  # [B, parts, G·o·i]
        return torch.cat([matrix, d.sum(2).flatten(2)], 2) if self.bias else matrix

    def _weighted(self, x: Tensor, d: Tensor, weight: Tensor) -> Tensor:
        scaled = weight[:, :, None, None] * d  # [K, B, G, o]
        matrix = (scaled.permute(0, 2, 3, 1) @ x.transpose(0, 1)).flatten(1)  # [K, G·o·i]
        return torch.cat([matrix, scaled.sum(1).flatten(1)], 1) if self.bias else matrix


@dataclass(frozen=True)
class Lookup:
    """An embedding: δ_s is added to the table's row `index_s`."""

    names: Sequence[str]
    index: Tensor  # [B, S] int64
    d: Tensor  # [B, S, o]
    rows: int

    def squared_norms(self) -> Tensor:
        if self.d.shape[1] == 1:
            return _square(self.d).flatten()
        return self.gram(1).flatten()

    def gradients(self) -> Tensor:
        table = self.d.new_zeros(len(self.d), self.rows, self.d.shape[2])
        return table.scatter_add_(1, self.index[:, :, None].expand_as(self.d), self.d).flatten(1)

    def write(self, out: Tensor) -> None:
        out.copy_(self.gradients())

    def gram(self, parts: int) -> Tensor:
        same = self.index[:, :, None] == self.index[:, None, :]
        return _fold((self.d @ self.d.mT) * same, parts)

    def products(self, factor: Tensor) -> Tensor:
        return products_of(self.gram(self.d.shape[1]), factor)

    def sums(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return _sums(self.gradients(), weight)

    def take(self, index: Tensor, factor: Tensor) -> Lookup:
        return replace(self, index=self.index[index].flatten(1, 2), d=_picked(self.d, index, factor))

    def size(self) -> int:
        return self.index.nbytes + self.d.nbytes


@dataclass(frozen=True)
class Direct:
    """Gradients as they are: small parameters, or those of layers that no other form serves."""

    names: Sequence[str]
    g: Tensor  # [B, S, p]

    def squared_norms(self) -> Tensor:
        return _square(self.gradients())

    def gradients(self) -> Tensor:
        return self.g.squeeze(1) if self.g.shape[1] == 1 else self.g.sum(1)

    def write(self, out: Tensor) -> None:
        out.copy_(self.gradients())

    def gram(self, parts: int) -> Tensor:
        grouped = self.g.unflatten(1, (parts, -1)).sum(2)
        return grouped @ grouped.mT

    def products(self, factor: Tensor) -> Tensor:
        grouped = _per_place(factor, self.g.shape[1]) @ self.g
        return grouped @ grouped.mT

    def sums(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return _sums(self.gradients(), weight)

    def take(self, index: Tensor, factor: Tensor) -> Direct:
        return replace(self, g=_picked(self.g, index, factor))

    def size(self) -> int:
        return self.g.nbytes


def _square(x: Tensor) -> Tensor:
    """Σ x² over the last dimension, without a temporary as large as x."""
    return torch.linalg.vector_norm(x, dim=-1).square()


def _sums(g: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return weight @ g, weight @ g.square()


def _picked(d: Tensor, index: Tensor, factor: Tensor) -> Tensor:
    """[B, S, …] → [E, L·S, …]."""
    return (d[index] * factor.reshape(*index.shape, *[1] * (d.dim() - 1))).flatten(1, 2)


def products(rows: Sequence[Rows], factor: Tensor) -> Tensor:
    """The sum over the layers of their `products`; Gram matrices of like size are added up first."""
    step, k = factor.shape[2], factor.shape[1]
    cheap = [r for r in rows if isinstance(r, Outer) and r.x.shape[1] == step and r.has_cheap_gram(k)]
    found = [r.products(factor) for r in rows if all(r is not other for other in cheap)]
    if cheap:
        gram = cheap[0].gram(step)
        for r in cheap[1:]:
            gram = gram + r.gram(step)
        found.append(products_of(gram, factor))
    return torch.stack(found).sum(0)


def products_of(gram: Tensor, factor: Tensor) -> Tensor:
    """gram [B, S, S], factor [B, K, L] → [B, K, K]."""
    factor = _per_place(factor, gram.shape[1])
    return factor @ gram @ factor.mT


def _per_place(factor: Tensor, places: int) -> Tensor:
    """[B, K, L] → [B, K, S]: a step may meet a layer at several places."""
    repeats = places // factor.shape[2]
    return factor if repeats == 1 else factor.repeat_interleave(repeats, 2)


def _fold(gram: Tensor, parts: int) -> Tensor:
    """[B, S, S] → [B, parts, parts]."""
    if gram.shape[1] == parts:
        return gram
    return gram.unflatten(2, (parts, -1)).sum(3).unflatten(1, (parts, -1)).sum(2)


def joined(rows: list[Rows]) -> Rows:
    """The rows of one layer that was called several times: its places are put behind each other."""
    first = rows[0]
    if len(rows) == 1:
        return first
    fields = {Outer: ("x", "d"), Lookup: ("index", "d"), Direct: ("g",)}[type(first)]  # pyright: ignore
    return replace(first, **{f: torch.cat([getattr(r, f) for r in rows], 1) for f in fields})  # pyright: ignore
