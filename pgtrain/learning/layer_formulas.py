"""From a layer's inputs and the gradients at its outputs to the gradients of its parameters, for each kind of layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pgtrain.learning.layer_gradients import Direct, Lookup, Outer, Rows


class Unsupported(Exception):
    """A layer met something that its formula does not cover; its gradients are taken another way."""


def _linear(layer: nn.Linear, names: dict[str, str], x: Tensor, d: Tensor) -> Rows:
    places = d.reshape(len(d), -1, 1, d.shape[-1])
    return _affine(names, x.reshape(len(x), -1, 1, x.shape[-1]), places)


def _conv2d(layer: nn.Conv2d, names: dict[str, str], x: Tensor, d: Tensor) -> Rows:
    if x.dim() != 4:
        raise Unsupported
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    patches = F.unfold(x, layer.kernel_size, layer.dilation, 0, layer.stride)  # [B, C·k·k, S]
    groups = (layer.groups, -1)
    return _affine(
        names,
        patches.unflatten(1, groups).permute(0, 3, 1, 2),
        d.flatten(2).unflatten(1, groups).permute(0, 3, 1, 2),
    )


def _affine(names: dict[str, str], x: Tensor, d: Tensor) -> Rows:
    if "weight" not in names:
        return Direct([names["bias"]], d.flatten(2))
    return Outer(list(names.values()), x, d, "bias" in names)


def _embedding(layer: nn.Embedding, names: dict[str, str], x: Tensor, d: Tensor) -> Rows:
    if layer.max_norm is not None or layer.scale_grad_by_freq:
        raise Unsupported
    index = x.reshape(len(x), -1)
    d = d.reshape(*index.shape, -1)
    if layer.padding_idx is not None:
        d = d * (index != layer.padding_idx)[:, :, None]
    return Lookup(list(names.values()), index, d, layer.num_embeddings)


def _layer_norm(layer: nn.LayerNorm, names: dict[str, str], x: Tensor, d: Tensor) -> Rows:
    standard = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    parts = {"weight": d * standard, "bias": d}
    size = layer.weight.numel()
    return Direct(
        list(names.values()), torch.cat([parts[n].reshape(len(d), -1, size) for n in names], dim=-1)
    )


# exact types: a subclass may compute something else
LAYERS: dict[type[nn.Module], Callable[..., Rows]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
}
