"""Config → a network with memory."""

from __future__ import annotations

from typing import Any

from torch import nn

from pgtrain.config import schema
from pgtrain.policies.encoders import Encoder, needs_encoder
from pgtrain.policies.memory import RecurrentNetwork
from pgtrain.policies.networks import MLP, as_made, orthogonal
from pgtrain.policies.recurrence import CORES, GRU
from pgtrain.types import Leaf


def make_recurrent_network(
    cfg: schema.Config, layout: tuple[Leaf, ...], outputs: int, settings: dict[str, Any], mask_dim: int = 0
) -> RecurrentNetwork:
    """Encoder, core, and an MLP with `settings` behind it; weights from torch's global generator."""
    p = cfg.policy
    assert isinstance(p.memory, schema.RecurrentConfig)
    memory, columns = p.memory, layout[-1].stop

    def encoder() -> Encoder | None:
        init = orthogonal if p.ortho_init else as_made
        return Encoder(layout, p.encoder.cnn, init) if needs_encoder(layout) else None

    def core(of: nn.Module | None) -> GRU:
        features = columns if of is None else of.features
        return CORES[memory.name](features, memory.size, p.ortho_init)  # pyright: ignore[reportArgumentType]

    own = encoder()
    apart = settings["critic"] and not memory.share
    own_core, heads = core(own), MLP(memory.size, outputs, **settings)
    critics = encoder() if apart and not p.encoder.share else None
    return RecurrentNetwork(
        own_core,
        heads,
        obs_dim=columns,
        mask_dim=mask_dim,
        encoder=own,
        critic_core=core(own if critics is None else critics) if apart else None,
        critic_encoder=critics,
    )
