"""Networks of the user's own, found by name: `policy=module:Name`.

A module registers its networks when it is imported, and only the command line (or a Python caller) says which module
that is: a config or a checkpoint from somebody else can name a network, but no code to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pgtrain.faults import FAULTS, import_module, told
from pgtrain.types import Leaf, UserError

NETWORKS: dict[str, type[nn.Module]] = {}
N = TypeVar("N", bound=type[nn.Module])


def register_policy(name: str) -> Callable[[N], N]:
    """Class decorator: makes a network known as `policy=<its module>:<name>`.

    The class is made as `Network(layout, outputs, critic, **policy.kwargs)`: `layout` describes the columns of an
    observation (`pgtrain.policies.encoders.split` takes them apart), `outputs` is how many numbers the action
    distribution needs, `critic` whether a value is wanted. Its `forward` takes observations [B, D] and gives (outputs
    [B, outputs], value [B], or None without a critic).
    """

    def register(cls: N) -> N:
        other = NETWORKS.get(name)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"register_policy({name!r}): {other.__module__}.{other.__qualname__} has this name"
            )
        NETWORKS[name] = cls
        return cls

    return register


def find_policy(policy: str) -> type[nn.Module]:
    """The class of `module:Name`; imports the module. Raises UserError with the names that it has."""
    module, _, name = policy.rpartition(":")
    import_module(module, f"policy={policy}")
    if name not in NETWORKS:
        known = ", ".join(sorted(NETWORKS)) or "none"
        raise UserError(
            f"policy={policy}: {module} registers no policy {name!r} (registered: {known}); put "
            f"@pgtrain.register_policy({name!r}) before the class"
        )
    return NETWORKS[name]


class UserNetwork(nn.Module):
    """A registered network behind the interface of pgtrain's own."""

    def __init__(
        self, policy: str, layout: Sequence[Leaf], outputs: int, critic: bool, kwargs: dict[str, Any]
    ) -> None:
        super().__init__()
        self.critic: bool | None = critic or None
        self.columns = layout[-1].stop
        cls = find_policy(policy)
        try:
            self.body = cls(tuple(layout), outputs, critic, **kwargs)
            self._probe(layout, outputs)
        except FAULTS as error:
            raise UserError(f"policy={policy} cannot be made: {told(error)}") from error

    @torch.no_grad()
    def _probe(self, layout: Sequence[Leaf], outputs: int) -> None:
        head, value = self.body(torch.zeros(3, self.columns))
        if tuple(head.shape) != (3, outputs):
            raise ValueError(
                f"forward gives outputs of shape {tuple(head.shape)} for 3 rows, expected (3, {outputs})"
            )
        if self.critic and (value is None or tuple(value.shape) != (3,)):
            given = None if value is None else tuple(value.shape)
            raise ValueError(f"forward gives a value of shape {given} for 3 rows, expected (3,)")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        head, value = self.body(x[..., : self.columns].flatten(0, -2))
        lead = x.shape[:-1]
        return head.unflatten(0, lead), value.unflatten(0, lead) if self.critic else None

    def act(self, x: Tensor) -> Tensor:
        return self(x)[0]

    def value(self, x: Tensor) -> Tensor:
        value = self(x)[1]
        if value is None:
            raise ValueError("this policy has no critic: no baseline or estimator asked for one")
        return value

    def actor_numpy(self) -> None:
        """Nothing is known of its layers."""

    def critic_numpy(self) -> None:
        """Nor this."""
