"""One pass through a policy that leaves what the gradient of each sample's log π is made of.

Forward hooks keep each layer's inputs; the backward pass goes to the layers' outputs only, so that no weight gradient
is formed: cheaper than the ordinary backward pass of the batch. Parameters that no formula covers go through
`torch.func` (vmap of grad), or, where that cannot follow a module, one sample at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap

from pgtrain.learning import mlp_capture
from pgtrain.learning.layer_formulas import LAYERS, Unsupported
from pgtrain.learning.layer_gradients import Direct, Rows, joined
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.distributions import DiagonalGaussian
from pgtrain.policies.networks import MLP
from pgtrain.types import UserError

Watched = tuple[
    Tensor, Callable[[Tensor], Rows]
]  # a tensor [B, …], and what its gradient says of a parameter
LogProb = Callable[[Any, Tensor, Tensor], Tensor]  # (policy, obs [B, …], action [B, …]) → log π [B]


ALL = slice(None)


class _Scored(nn.Module):
    """log π as a module, so that parameters can be swapped below it."""

    def __init__(self, policy: nn.Module, log_prob: LogProb) -> None:
        super().__init__()
        self.policy, self.log_prob = policy, log_prob

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.log_prob(self.policy, obs, action)


class Scorer:
    """log π of any module, and which of its parameters are reached in which way."""

    trusted = False  # whether log π is known to reach each layer's parameters through the layer alone

    def __init__(self, policy: nn.Module, log_prob: LogProb) -> None:
        self.policy, self.function = policy, log_prob
        self.parameters = dict(policy.named_parameters())
        self.trainable = [name for name, p in self.parameters.items() if p.requires_grad]
        self.columns: dict[str, slice] = {}
        start = 0
        for name, parameter in self.parameters.items():
            self.columns[name] = slice(start, start + parameter.numel())
            start += parameter.numel()
        self.width = start  # P
        self.layers = _layers(policy)
        covered = {name for names in self.layers.values() for name in names.values()}
        self.free = [name for name in self.trainable if name not in covered]

    def log_prob(self, obs: Tensor, action: Tensor) -> tuple[Tensor, list[Watched]]:
        """log π [B], and other places than layers' outputs at which gradients are wanted."""
        return self.function(self.policy, obs, action), []

    def free_rows(self, obs: Tensor, action: Tensor) -> list[Rows]:
        """The gradients of the parameters that are not captured."""
        return [Direct(self.free, self.by_vmap(self.free, obs, action)[:, None])] if self.free else []

    def by_vmap(self, names: Sequence[str], obs: Tensor, action: Tensor) -> Tensor:
        """[B, Σ p] by `torch.func`, each sample as a batch of one."""

        scored = _Scored(self.policy, self.function)

        def one(wanted: dict[str, Tensor], o: Tensor, a: Tensor) -> Tensor:
            swapped = {f"policy.{name}": p for name, p in wanted.items()}
            return functional_call(scored, swapped, (o[None], a[None])).squeeze(0)

        wanted = {name: self.parameters[name].detach() for name in names}
        try:
            by_name = vmap(grad(one), in_dims=(None, 0, 0))(wanted, obs, action)
        except RuntimeError:  # control flow on data, or a layer that vmap has no rule for
            return self.by_loop(names, obs, action)
        return torch.cat([by_name[name].detach().flatten(1) for name in names], 1)

    def by_loop(self, names: Sequence[str], obs: Tensor, action: Tensor) -> Tensor:
        """[B, Σ p], one backward pass for each sample."""
        wanted = [self.parameters[name] for name in names]
        rows = []
        for o, a in zip(obs, action, strict=True):
            with torch.enable_grad():
                log_prob = self.function(self.policy, o[None], a[None]).sum()
            found = torch.autograd.grad(log_prob, wanted, allow_unused=True, materialize_grads=True)
            rows.append(torch.cat([g.flatten() for g in found]))
        return torch.stack(rows)

    def capture(self, obs: Tensor, action: Tensor) -> list[Rows]:
        """The gradients of log π in each sample.

        Raises: Unsupported where a layer is used in a way that its formula does not cover.
        """
        calls: list[tuple[nn.Module, Tensor, int, GradientEdge]] = []

        def keep(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if not args:
                raise Unsupported  # called with keywords
            if output.requires_grad:
                # the edge is that of the output as it is now, whatever is done to it in place later
                calls.append((module, args[0].detach(), args[0]._version, get_gradient_edge(output)))

        hooks = [module.register_forward_hook(keep) for module in self.layers]
        try:
            with torch.enable_grad():
                log_prob, watched = self.log_prob(obs, action)
                if log_prob.shape != (len(obs),):
                    shape = list(log_prob.shape)
                    raise ValueError(f"log_prob must give one number a sample, [{len(obs)}], got {shape}")
                total = log_prob.sum()
        finally:
            for hook in hooks:
                hook.remove()
        wanted: Any = [*(call[3] for call in calls), *(tensor for tensor, _ in watched)]
        found = torch.autograd.grad(total, wanted, allow_unused=True) if wanted else ()
        rows = self._by_layer(calls, found, len(obs))
        after = found[len(calls) :]
        rows += [rows_of(g) for (_, rows_of), g in zip(watched, after, strict=True) if g is not None]
        return rows + self.free_rows(obs, action)

    def _by_layer(self, calls: Sequence[Any], found: Sequence[Tensor | None], batch: int) -> list[Rows]:
        by_layer: dict[nn.Module, list[Rows]] = {}
        for (module, x, version, _), d in zip(calls, found, strict=False):
            if d is None:
                continue
            if x._version != version or x.dim() < 1 or len(x) != batch or len(d) != batch:
                raise Unsupported
            by_layer.setdefault(module, []).append(
                LAYERS[type(module)](module, self.layers[module], x, d.detach())
            )
        return [joined(rows) for rows in by_layer.values()]

    def agrees(self, obs: Tensor, action: Tensor) -> bool:
        """Whether captured gradients of a few samples are those of each sample alone: no other use of a weight."""
        exact = self.by_loop(self.trainable, obs, action)
        found = obs.new_zeros(len(obs), self.width, dtype=exact.dtype)
        for rows in self.capture(obs, action):
            self.place(rows, found)
        found = torch.cat([found[:, self.columns[name]] for name in self.trainable], 1)
        return torch.allclose(found, exact, rtol=1e-3, atol=1e-3 * float(exact.abs().max()))

    def place(self, rows: Rows, out: Tensor, values: Tensor | None = None, at: Tensor | slice = ALL) -> None:
        """Writes `values` [b, p] (None: the gradients) of these parameters into their columns of rows `at` of out."""
        parts = [self.columns[name] for name in rows.names]
        adjoining = all(a.stop == b.start for a, b in itertools.pairwise(parts))
        if values is None and adjoining and isinstance(at, slice):
            rows.write(out[at, parts[0].start : parts[-1].stop])
            return
        values = rows.gradients() if values is None else values
        start = 0
        for part in parts:
            stop = start + part.stop - part.start
            out[at, part] = values[:, start:stop]
            start = stop


class PolicyScorer(Scorer):
    """log π of pgtrain's policies: the spread's free parameter comes after the network and needs no pass through it.

    A Gaussian's log σ [A] is the same in each sample: its gradient is read off those of `params` = [μ, log σ].
    gSDE's [L, A] goes through vmap, from the network's output on.
    """

    def __init__(self, policy: ActorCritic) -> None:
        if policy.memory_dim:
            raise UserError(
                "per-sample gradients are those of single steps and would leave out the gradient through time: use "
                "policy/memory=none"
            )
        super().__init__(policy, log_prob_of_inputs)
        self.policy: ActorCritic = policy
        self.trusted = type(policy.network) is MLP
        self.by_hand = self.trusted and mlp_capture.supports(policy)
        self.spread = "log_std" in self.free
        if self.spread:
            self.free.remove("log_std")

    def capture(self, obs: Tensor, action: Tensor) -> list[Rows]:
        if not self.by_hand:
            return super().capture(obs, action)
        found, d_log_std = mlp_capture.capture(self.policy, obs, action)
        rows = [LAYERS[type(x)](x, self.layers[x], i, d) for x, i, d in found if x in self.layers]
        return rows if d_log_std is None or not self.spread else [*rows, self._of_log_std(d_log_std)]

    def log_prob(self, obs: Tensor, action: Tensor) -> tuple[Tensor, list[Watched]]:
        policy = self.policy
        self.head = policy.network.act(obs)
        params = policy.params(self.head)
        log_prob = policy.distribution.log_prob(params, action)
        width = params.shape[1] // 2
        return log_prob, [(params, lambda d: self._of_log_std(d[:, width:]))] if self._plain() else []

    def free_rows(self, obs: Tensor, action: Tensor) -> list[Rows]:
        rows = super().free_rows(obs, action)
        if self.spread and not self._plain():
            tail = _Scored(self.policy, _log_prob_of_head)

            def one(log_std: Tensor, head: Tensor, a: Tensor) -> Tensor:
                return functional_call(tail, {"policy.log_std": log_std}, (head, a))

            log_std = self.parameters["log_std"].detach()
            g = vmap(grad(one), in_dims=(None, 0, 0))(log_std, self.head.detach(), action)
            rows.append(Direct(["log_std"], g.detach().reshape(len(obs), 1, -1)))
        return rows

    def _plain(self) -> bool:
        return self.spread and type(self.policy.distribution) is DiagonalGaussian

    def _of_log_std(self, d: Tensor) -> Rows:
        """From the gradients with respect to each sample's log σ, [B, A]."""
        log_std = self.policy.log_std
        assert log_std is not None
        low, high = self.policy.log_std_min, self.policy.log_std_max
        inside = (log_std >= low) & (log_std <= high)  # beyond its limits the clamp has no gradient
        return Direct(["log_std"], (d * inside)[:, None])


def log_prob_of_inputs(policy: ActorCritic, inputs: Tensor, action: Tensor) -> Tensor:
    """log π from standardised observations, such as a rollout stores."""
    return _log_prob_of_head(policy, policy.network.act(inputs), action)


def _log_prob_of_head(policy: ActorCritic, head: Tensor, action: Tensor) -> Tensor:
    return policy.distribution.log_prob(policy.params(head), action)


def _layers(policy: nn.Module) -> dict[nn.Module, dict[str, str]]:
    """Layers with a formula → their trainable parameters, local name → full name."""
    owners: dict[int, int] = {}
    known: list[tuple[str, nn.Module, dict[str, nn.Parameter]]] = []
    for prefix, module in policy.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise ValueError(
                "a sample has no gradient of its own in a batch that batch normalisation mixes; call policy.eval()"
            )
        own = {name: p for name, p in module._parameters.items() if p is not None}
        for parameter in own.values():
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        if type(module) in LAYERS and "weight" in own and set(own) <= {"weight", "bias"}:
            known.append((f"{prefix}." if prefix else "", module, own))
    layers = {}
    for prefix, module, own in known:
        tied = any(owners[id(p)] > 1 for p in own.values())  # then its gradient has a part from elsewhere
        names = {name: prefix + name for name, p in own.items() if p.requires_grad}
        if names and not tied:
            layers[module] = names
    return layers
