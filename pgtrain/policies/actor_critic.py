"""The policy: observation normaliser, networks and action distribution."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pgtrain.policies.distributions import Distribution
from pgtrain.policies.gsde import StateDependentGaussian
from pgtrain.policies.masks import MaskedNetwork
from pgtrain.policies.memory import RecurrentNetwork
from pgtrain.policies.networks import MLP
from pgtrain.policies.normalizer import RunningMoments


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
    squashed: Tensor  # [A] bool: this output is a mean that goes through tanh

    def __init__(
        self,
        network: MLP | MaskedNetwork | RecurrentNetwork,
        distribution: Distribution,
        normalizer: RunningMoments | None,
        *,
        value_moments: RunningMoments | None = None,
        input_dtype: torch.dtype = torch.float32,
        mean: str = "tanh",
        log_std_init: float = 0.0,
        log_std_min: float = -5.0,
        log_std_max: float = 2.0,
    ) -> None:
        super().__init__()
        self.network = network
        self.distribution = distribution
        self.normalizer = normalizer
        self.observing = True  # False: the normaliser's statistics are fixed
        self.value_moments = value_moments
        self.input_dtype = input_dtype  # uint8: pictures stay bytes until the network reads them
        self.log_std_min, self.log_std_max = log_std_min, log_std_max
        self.log_std = None
        squashed = torch.as_tensor(distribution.tanh_mean) & (mean == "tanh")
        self.register_buffer("squashed", squashed, persistent=False)
        if distribution.log_std_shape is not None:
            start = min(max(log_std_init, log_std_min), log_std_max)
            self.log_std = nn.Parameter(torch.full(distribution.log_std_shape, start))

    @property
    def has_critic(self) -> bool:
        return self.network.critic is not None

    @property
    def memory_dim(self) -> int:
        """Columns that follow the observation's in a row of inputs: episode_start and the state; 0 without memory."""
        return getattr(self.network, "memory_dim", 0)

    def prepare(self, obs: Tensor) -> Tensor:
        """Raw observations [..., D] → network inputs, in `input_dtype`."""
        return obs.to(self.input_dtype) if self.normalizer is None else self.normalizer.normalize(obs)

    def params(self, head: Tensor) -> Tensor:
        """Actor output [..., A or K] → distribution parameters [..., P].

        Gaussian: μ = tanh(head) where the box is bounded on both sides (or head itself for mean="identity"), and log σ
        from a free parameter held within [log_std_min, log_std_max]; gSDE: from the features after the head, too.
        Masked: choices that the mask after the head rules out get probability 0.
        """
        d = self.distribution
        own, features = head[..., : d.head_dim], head[..., d.head_dim :]
        if self.log_std is None:
            return d.join(own, None, features)
        own = torch.where(self.squashed, torch.tanh(own), own)
        return d.join(own, self.clamped_log_std(), features)

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
        return self.params(head), None if value is None else self.in_reward_units(value)

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
        return self.in_reward_units(self.network.value(inputs))

    def in_reward_units(self, value: Tensor) -> Tensor:
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

    def constrain(self) -> None:
        """Puts log σ back to its limits: beyond them the clamp in `params` has no gradient that could bring it back."""
        if self.log_std is not None:
            self.log_std.data.clamp_(self.log_std_min, self.log_std_max)

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
        if self.normalizer is not None and self.observing:
            flat = obs.reshape(-1, obs.shape[-1])
            self.normalizer.update(flat, None if weight is None else weight.reshape(-1))
