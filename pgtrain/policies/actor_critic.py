"""The policy: observation normaliser, networks and action distribution; and the actors that act with it in an env."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from pgtrain.policies.distributions import Categorical, DiagonalGaussian, StateDependentGaussian
from pgtrain.policies.exploration import Exploration, HeldMatrix, Independent
from pgtrain.policies.networks import MLP
from pgtrain.policies.normalizer import RunningMoments

NUMPY_ROWS = 128  # up to this batch NumPy acts faster than torch on a CPU (see networks.numpy_forward)


class Evaluation(NamedTuple):
    """What the policy says of stored inputs and actions; each [...]."""

    log_prob: Tensor
    entropy: Tensor
    params: Tensor  # [..., P]
    value: Tensor | None


class ActorCritic(nn.Module):
    """π(a|o) and, where an estimator needs it, V(o).

    `prepare` standardises raw observations into the networks' inputs; a rollout stores these inputs, and the
    statistics move only between iterations (`observe`), so that acting and the update see exactly the same numbers.
    """

    log_std: nn.Parameter | None
    squashed: Tensor  # [A] bool, Gaussian only: the mean of this dimension goes through tanh

    def __init__(
        self,
        network: MLP,
        distribution: Categorical | DiagonalGaussian,
        normalizer: RunningMoments | None,
        *,
        value_moments: RunningMoments | None = None,
        mean: str = "tanh",
        log_std_init: float = 0.0,
        log_std_min: float = -5.0,
        log_std_max: float = 2.0,
    ) -> None:
        super().__init__()
        self.network = network
        self.distribution = distribution
        self.normalizer = normalizer
        self.value_moments = value_moments
        self.log_std_min, self.log_std_max = log_std_min, log_std_max
        self.log_std = None
        if isinstance(distribution, DiagonalGaussian):
            start = min(max(log_std_init, log_std_min), log_std_max)
            self.log_std = nn.Parameter(torch.full(distribution.log_std_shape, start))
            squashed = torch.as_tensor(distribution.bounded) & (mean == "tanh")
            self.register_buffer("squashed", squashed, persistent=False)

    @property
    def has_critic(self) -> bool:
        return self.network.critic is not None

    def prepare(self, obs: Tensor) -> Tensor:
        """Raw observations [..., D] → network inputs, float32."""
        return obs.to(torch.float32) if self.normalizer is None else self.normalizer.normalize(obs)

    def params(self, head: Tensor) -> Tensor:
        """Actor output [..., A or K] → distribution parameters [..., P].

        Gaussian: μ = tanh(head) where the box is bounded on both sides (or head itself for mean="identity"), and log σ
        from a free parameter held within [log_std_min, log_std_max]; gSDE: from the features after the head, too.
        """
        if self.log_std is None:
            return head
        assert isinstance(self.distribution, DiagonalGaussian)
        mean, features = head[..., : self.distribution.dim], head[..., self.distribution.dim :]
        mean = torch.where(self.squashed, torch.tanh(mean), mean)
        return self.distribution.join(mean, self.clamped_log_std(), features)

    def clamped_log_std(self) -> Tensor:
        assert self.log_std is not None
        return self.log_std.clamp(self.log_std_min, self.log_std_max)

    @torch.no_grad()
    def noise_std(self) -> Tensor:
        """gSDE: standard deviations of the exploration matrix, [L, A]."""
        assert isinstance(self.distribution, StateDependentGaussian)
        return self.distribution.std(self.clamped_log_std())

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        head, value = self.network(inputs)
        return self.params(head), None if value is None else self._real(value)

    def evaluate(self, inputs: Tensor, action: Tensor) -> Evaluation:
        params, value = self(inputs)
        d = self.distribution
        return Evaluation(d.log_prob(params, action), d.entropy(params), params, value)

    def evaluate_actor(self, inputs: Tensor, action: Tensor) -> Evaluation:
        """As `evaluate`, without the critic's pass."""
        params = self.params(self.network.act(inputs))
        d = self.distribution
        return Evaluation(d.log_prob(params, action), d.entropy(params), params, None)

    def value(self, inputs: Tensor) -> Tensor:
        """V(o) in units of the reward that training uses, [...]."""
        return self._real(self.network.value(inputs))

    def _real(self, value: Tensor) -> Tensor:
        """The critic's output (of mean 0 and std 1, if value targets are standardised) in units of the reward."""
        if self.value_moments is None:
            return value
        shift, std = self.value_scale()
        return value * std + shift

    def value_scale(self) -> tuple[Tensor, Tensor]:
        """Mean and std of the value targets, float32 0-d; (0, 1) until two targets were seen."""
        assert self.value_moments is not None
        frozen = self.value_moments.frozen()
        return frozen.shift[0].float(), frozen.scale[0].reciprocal().float()

    def value_loss_weight(self) -> Tensor | float:
        """1/σ²: the critic's squared error in standardised units, so that one learning rate serves all rewards."""
        return 1.0 if self.value_moments is None else self.value_scale()[1] ** -2

    def standardize_value(self, value: Tensor) -> Tensor:
        """(V − μ)/σ, the units of the critic's output; V itself where value targets are not standardised."""
        if self.value_moments is None:
            return value
        shift, std = self.value_scale()
        return (value - shift) / std

    @torch.no_grad()
    def constrain(self) -> None:
        """Puts log σ back to its limits: beyond them the clamp in `params` has no gradient that could bring it back."""
        if self.log_std is not None:
            self.log_std.clamp_(self.log_std_min, self.log_std_max)

    @torch.no_grad()
    def observe_targets(self, target: Tensor, weight: Tensor | None = None) -> None:
        """Merges value targets [...] into their statistics; rescales the critic's last layer so that V stays the same.

        w ← w σ/σ',  b ← (b σ + μ − μ')/σ'.  Source: van Hasselt et al. 2016 (Pop-Art), eq. 5.
        """
        if self.value_moments is None or self.network.critic is None:
            return
        shift, std = self.value_scale()
        self.value_moments.update(target.reshape(-1, 1), None if weight is None else weight.reshape(-1))
        new_shift, new_std = self.value_scale()
        last = self.network.critic[-1]
        assert isinstance(last, nn.Linear)
        last.weight.mul_(std / new_std)
        last.bias.copy_((last.bias * std + shift - new_shift) / new_std)

    def observe(self, obs: Tensor, weight: Tensor | None = None) -> None:
        """Merges the raw observations [..., D] that were acted on into the normaliser (not those of weight 0)."""
        if self.normalizer is not None:
            flat = obs.reshape(-1, obs.shape[-1])
            self.normalizer.update(flat, None if weight is None else weight.reshape(-1))

    def actor(self, num_envs: int, seed: int) -> Actor:
        """The quickest actor for this policy, device and number of envs."""
        device = next(self.parameters()).device
        if device.type == "cpu" and num_envs <= NUMPY_ROWS:
            forward = self.network.actor_numpy()
            if forward is not None:
                return NumpyActor(self, forward, seed)
        return TorchActor(self, seed)


class Actor(Protocol):
    """Acts in a host env (NumPy in, NumPy out); what it returns beside the env's action is of its own kind."""

    def refresh(self) -> None:
        """Takes over the policy's normaliser statistics and starts its noise anew; called once before each rollout."""
        ...

    def act(self, obs: np.ndarray, greedy: bool = False) -> tuple[np.ndarray, Any, Any, Any]:
        """obs [N, D] → the env's action, own action [N, …], params [N, P], inputs [N, D]."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        """An array of the actor's kind, for a rollout's storage."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def _exploration(policy: ActorCritic, sample: Any, std: Any, normal: Any) -> Exploration:
    d = policy.distribution
    if isinstance(d, StateDependentGaussian):
        return HeldMatrix(d.dim, std, normal, d.sample_freq)
    return Independent(sample)


class NumpyActor:
    """Acts through NumPy on the memory of the policy's own parameters: no framework call in a step."""

    def __init__(self, policy: ActorCritic, forward: Any, seed: int) -> None:
        self.policy, self.forward = policy, forward
        self.rng = np.random.default_rng(seed)
        self.distribution = policy.distribution
        self.log_std = None if policy.log_std is None else policy.log_std.detach().numpy()
        self.squashed = np.zeros(0, bool) if policy.log_std is None else policy.squashed.numpy()
        self.exploration = _exploration(
            policy,
            lambda params: self.distribution.sample_numpy(params, self.rng),
            lambda: policy.noise_std().numpy(),
            lambda shape: self.rng.standard_normal(shape, dtype=np.float32),
        )
        self.refresh()

    def refresh(self) -> None:
        policy, moments = self.policy, self.policy.normalizer
        self.standardizer = None
        if moments is not None:
            frozen = moments.frozen()
            self.standardizer = frozen.shift.numpy(), frozen.scale.numpy(), float(frozen.limit)
        if self.log_std is not None:
            clamped = self.log_std.clip(policy.log_std_min, policy.log_std_max)
            self.spread = policy.distribution.spread_numpy(clamped)  # pyright: ignore[reportAttributeAccessIssue]
        self.exploration.restart()

    def _prepare(self, obs: np.ndarray) -> np.ndarray:
        if self.standardizer is None:
            return obs.astype(np.float32)
        shift, scale, limit = self.standardizer
        x = obs - shift  # float64: exact also where the observations lie far from 0
        x *= scale
        return np.clip(x, -limit, limit, out=x).astype(np.float32)

    def act(
        self, obs: np.ndarray, greedy: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        inputs = self._prepare(obs)
        params = head = self.forward(inputs)
        d = self.distribution
        if self.log_std is not None:
            mean = head[..., : d.head_dim]
            mean = np.where(self.squashed, np.tanh(mean), mean)
            params = d.join_numpy(mean, self.spread, head[..., d.head_dim :])  # pyright: ignore[reportAttributeAccessIssue]
        action = d.mode(params) if greedy else self.exploration(params, head)
        return d.to_env(action), action, params, inputs

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
        return np.empty(shape, {torch.int64: np.int64, torch.float32: np.float32}[dtype])

    def state_dict(self) -> dict[str, Any]:
        return {"numpy": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["numpy"]


class TorchActor:
    """Acts on the policy's device: any network, big batches; the env's side stays on the host."""

    def __init__(self, policy: ActorCritic, seed: int) -> None:
        self.policy = policy
        self.device = next(policy.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed % 2**63)
        self.exploration = _exploration(
            policy,
            lambda params: policy.distribution.sample(params, self.generator),
            policy.noise_std,
            lambda shape: torch.empty(shape, device=self.device).normal_(generator=self.generator),
        )

    def refresh(self) -> None:
        self.exploration.restart()

    @torch.no_grad()
    def act(self, obs: np.ndarray, greedy: bool = False) -> tuple[np.ndarray, Tensor, Tensor, Tensor]:
        d = self.policy.distribution
        inputs = self.policy.prepare(torch.from_numpy(obs).to(self.device))
        head = self.policy.network.act(inputs)
        params = self.policy.params(head)
        action = d.mode(params) if greedy else self.exploration(params, head)
        return d.to_env(action.cpu().numpy()), action, params, inputs

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        return {"torch": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["torch"])
