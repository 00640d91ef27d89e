"""Natural gradients: the policy's step in the metric of the KL, by conjugate gradients.

Dimension legend: P actor parameters (the leading part of the flat tensor).

    F = E[∇log π ∇log πᵀ] = ∇² mean KL(π_old ‖ π_θ) at θ = θ_old,   x = (F + c I)⁻¹ g,   g = −∇ actor loss

F is never formed: its products with vectors come from differentiating the exact mean KL twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from pgtrain.learning.batch import Batch, Coefficients
from pgtrain.learning.gradients import ActorLoss
from pgtrain.learning.kl_guard import mean_kl
from pgtrain.learning.statistics import weighted_mean
from pgtrain.learning.updates import Reestimate, Update, UpdateResult, joined
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters
from pgtrain.types import UserError

Product = Callable[[Tensor], Tensor]
FAILED = "update/line_search_failed"


def flat_gradient(y: Tensor, parameters: Sequence[Tensor], **options: Any) -> Tensor:
    """∂y/∂θ for a 0-d y, [P]; 0 where y does not depend on a parameter."""
    return torch.cat(
        [g.flatten() for g in torch.autograd.grad(y, parameters, materialize_grads=True, **options)]
    )


def fisher_product(kl: Tensor, parameters: Sequence[Tensor], damping: float) -> Product:
    """v ↦ (F + c I) v, [P] → [P], for a mean KL(old ‖ θ), 0-d, whose graph is at θ = θ_old (where its gradient is 0).

    F v = ∇(∇KL · v). Source: Pearlmutter 1994; Schulman et al. 2015 (TRPO), App. C.
    """
    slope = flat_gradient(kl, parameters, create_graph=True)
    return lambda v: flat_gradient(slope @ v, parameters, retain_graph=True) + damping * v


def conjugate_gradient(
    product: Product, b: Tensor, iterations: int, tolerance: float = 1e-10
) -> tuple[Tensor, Tensor]:
    """Solves A x = b for a positive definite A given by its products.

    Stops by a mask (no host sync) when ‖b − A x‖ ≤ tolerance · ‖b‖, or when A shows no positive curvature.
    b = 0 gives 0. Returns: x [P] and ‖b − A x‖ / ‖b‖, 0-d (from the recursion). Source: Hestenes & Stiefel 1952.
    """
    largest = b.abs().max()
    scale = torch.where(
        largest > 0, largest, torch.ones_like(largest)
    )  # of tiny or huge b the square would not fit
    r = b / scale
    x, p = torch.zeros_like(b), r
    start = rr = r @ r
    for _ in range(iterations):
        q = product(p)
        curvature = p @ q
        active = (rr > tolerance**2 * start) & (curvature > 0)
        alpha = torch.where(active, rr / curvature, 0.0)
        x = x + alpha * p
        r = r - alpha * q
        following = r @ r
        beta = torch.where(active, following / rr, 0.0)
        p = torch.where(active, r + beta * p, p)
        rr = following
    return x * scale, torch.where(start > 0, (rr / start).sqrt(), 0.0)


class Move(NamedTuple):
    """A step to take: where from, which way, and how to judge where it leads."""

    data: Tensor  # [P] the actor's parameters, changed in place
    direction: Tensor  # [P] x / scale: of a size that its square can be formed, however small or large the advantages
    scale: Tensor  # 0-d
    curvature: Tensor  # (x / scale)ᵀ (F + c I) (x / scale), 0-d
    trial: Callable[[], tuple[Tensor, Tensor]]  # mean KL(old ‖ now), improvement of the objective; 0-d


class StepRule(Protocol):
    def __call__(self, move: Move) -> dict[str, float]:
        """Makes the step in place; tells about it by metric tag."""
        ...


@dataclass(frozen=True)
class FixedStep:
    """Natural policy gradient: θ ← θ + size · x. Source: Kakade 2001."""

    size: float

    def __call__(self, move: Move) -> dict[str, float]:
        move.data.add_(self.size * move.scale * move.direction)
        return {}


@dataclass(frozen=True)
class LineSearch:
    """TRPO: the longest of θ + shrinkʲ · √(2 δ / xᵀ(F + c I)x) · x, j < trials, with KL ≤ δ and a better objective.

    If there is none the parameters stay as they were, bit for bit, and that is told. One branch a trial.
    Source: Schulman et al. 2015 (TRPO), App. C; the damped product in the step's length as in its known codes.
    """

    max_kl: float = 0.01
    shrink: float = 0.8
    trials: int = 10

    def __call__(self, move: Move) -> dict[str, float]:
        before = move.data.clone()
        full = (2 * self.max_kl / move.curvature).sqrt() * move.direction
        for j in range(self.trials):
            move.data.copy_(before + self.shrink**j * full)
            kl, improvement = move.trial()
            if bool((kl <= self.max_kl) & (improvement > 0)):  # a NaN is refused
                return {"update/line_search_trials": j + 1, FAILED: 0}
        move.data.copy_(before)
        return {"update/line_search_trials": self.trials, FAILED: 1}


def critic_names(names: Iterable[str]) -> list[str]:
    """Parameters that only the critic uses."""
    return [name for name in names if any(part.startswith("critic") for part in name.split("."))]


def shared_layers(names: Iterable[str]) -> list[str]:
    """What actor and critic both use, by the names of a network's parameters."""
    parts = {part for name in names for part in name.split(".")}
    apart = {"encoder": "critic_encoder", "core": "critic_core"}
    return [x for x in ("trunk", "encoder", "core") if x in parts and apart.get(x) not in parts]


class ActorModel(Protocol):
    """The actor's loss and the metric at today's parameters. The actor's are the leading `size` of the flat ones."""

    def gradient(self, batch: Batch, coefficients: Coefficients) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Loss, 0-d statistics and ∇ loss [size]."""
        ...

    def fisher(self, batch: Batch, damping: float) -> Product:
        """v ↦ (F + c I) v, [size] → [size], where `gradient` was just taken."""
        ...

    def trial(self, batch: Batch, coefficients: Coefficients) -> tuple[Tensor, Tensor]:
        """Mean KL(rollout's policy ‖ now) and the loss, 0-d."""
        ...


class AutogradActor:
    """By automatic differentiation: any policy, any device."""

    def __init__(self, policy: ActorCritic, parameters: Sequence[Tensor], actor_loss: ActorLoss) -> None:
        self.policy, self.parameters, self.actor_loss = policy, parameters, actor_loss

    def gradient(self, batch: Batch, coefficients: Coefficients) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        new = self.policy.evaluate_actor(batch.inputs, batch.action)
        self.params = new.params
        loss, stats = self.actor_loss(new, batch, coefficients)
        gradient = flat_gradient(loss, self.parameters, retain_graph=True)
        return loss.detach(), {name: x.detach() for name, x in stats.items()}, gradient

    def fisher(self, batch: Batch, damping: float) -> Product:
        kl = weighted_mean(self.policy.distribution.kl(self.params.detach(), self.params), batch.weight)
        return fisher_product(kl, self.parameters, damping)

    @torch.no_grad()
    def trial(self, batch: Batch, coefficients: Coefficients) -> tuple[Tensor, Tensor]:
        new = self.policy.evaluate_actor(batch.inputs, batch.action)
        loss, _ = self.actor_loss(new, batch, coefficients)
        return mean_kl(self.policy, batch, new.params), loss


def actor_parameters(policy: ActorCritic, flat: FlatParameters) -> Sequence[Tensor]:
    """The actor's parameters, which lead the flat tensor.

    Raises: UserError if actor and critic share layers: a step in the actor's metric would move the critic blindly.
    """
    named = dict(policy.named_parameters())
    critics = critic_names(named) if policy.has_critic else []
    shared = shared_layers(named)
    if critics and shared:
        raise UserError(
            "update=natural needs an actor with layers of its own: set policy.share=0, policy.encoder.share=false "
            f"and policy.memory.share=false (given: shared {' and '.join(shared)})"
        )
    actor = [p for name, p in named.items() if name not in critics]
    size = sum(p.numel() for p in actor)
    assert all(flat.slices[name].start >= size for name in critics), "the actor comes first"
    return actor


@dataclass
class NaturalUpdate:
    """One natural-gradient step of the actor, then passes over the batch for the critic through its own pipeline.

    The actor loss is best a `Surrogate` (whose gradient at θ_old is the policy gradient). Where that gradient
    is exactly 0 there is no direction and no step is made.
    `model` works out gradient and metric (None: by automatic differentiation). Raises: as `actor_parameters`.
    """

    through_time: ClassVar[bool] = False

    policy: ActorCritic
    flat: FlatParameters
    actor_loss: ActorLoss
    rule: StepRule
    critic: Update | None  # with a CriticBackprop for its source; None without a critic
    damping: float = 0.1
    cg_iterations: int = 15
    cg_tolerance: float = 1e-10
    model: ActorModel | None = None
    failed: int = 0  # line searches so far that found no good step

    def __post_init__(self) -> None:
        parameters = actor_parameters(self.policy, self.flat)
        self.size = sum(p.numel() for p in parameters)
        if self.model is None:
            self.model = AutogradActor(self.policy, parameters, self.actor_loss)

    def __call__(
        self, batch: Batch, coefficients: Coefficients, reestimate: Reestimate | None = None
    ) -> UpdateResult:
        actor = self._actor_step(batch, coefficients)
        if self.critic is None:
            nothing = torch.full((), torch.nan, device=batch.device)
            told = {"schedule/learning_rate": nothing}  # it has no use
            return UpdateResult(lambda: actor.stats | told, actor.ok)
        critic = self.critic(batch, coefficients, reestimate)
        return UpdateResult(lambda: critic.stats | actor.stats, joined([actor.ok, critic.ok]))

    def _actor_step(self, batch: Batch, coefficients: Coefficients) -> UpdateResult:
        assert self.model is not None
        loss, stats, slope = self.model.gradient(batch, coefficients)
        gradient = -slope
        told: dict[str, Any] = {
            "loss/actor": stats["loss/actor"],
            "policy/entropy": stats["policy/entropy"],
            "gradient/norm": torch.linalg.vector_norm(gradient),
        }
        finite = bool(torch.isfinite(told["gradient/norm"]) & torch.isfinite(loss))
        if finite and bool(gradient.any()):
            product = self.model.fisher(batch, self.damping)
            scale = gradient.abs().max()
            direction, residual = conjugate_gradient(
                product, gradient / scale, self.cg_iterations, self.cg_tolerance
            )
            curvature = direction @ product(direction)
            finite = bool(torch.isfinite(curvature) & (curvature > 0) & torch.isfinite(direction).all())
            if finite:
                trial = self._trial(batch, coefficients, loss)
                move = Move(self.flat.data[: self.size], direction, scale, curvature, trial)
                moved = self.rule(move)
                self.failed += int(moved.get(FAILED, 0))
                told |= (
                    {"update/cg_residual": residual}
                    | moved
                    | dict.fromkeys(moved.keys() & {FAILED}, self.failed)
                )
        return UpdateResult(lambda: told, torch.tensor([finite], device=loss.device))

    def _trial(
        self, batch: Batch, coefficients: Coefficients, before: Tensor
    ) -> Callable[[], tuple[Tensor, Tensor]]:
        def trial() -> tuple[Tensor, Tensor]:
            assert self.model is not None
            kl, loss = self.model.trial(batch, coefficients)
            return kl, before - loss

        return trial

    def state_dict(self) -> dict[str, Any]:
        return {"critic": None if self.critic is None else self.critic.state_dict(), "failed": self.failed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.failed = state["failed"]
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])
