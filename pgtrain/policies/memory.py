"""Memory: a recurrent core between the observations and the hidden layers, and how its state travels.

A row of inputs has all that a step needs: [observation D | action mask M | episode_start 1 | state S]. The state is
that BEFORE the step; where episode_start is 1 it is not used and the memory starts from 0. Since the state travels with
the row, all that works on stored rows (values of true successors, a KL guard, a line search) needs no path of its own.

One code path serves both: rows [B, ·] make one step each from their own state; a window [T, n, ·] is unrolled from the
states of its first row, and the states stored with later rows are made anew, so that a gradient flows through time.

Dimension legend: T steps, n sequences side by side, B rows, D observation, M mask, S state, A actor outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pgtrain.policies.networks import MLP
from pgtrain.policies.recurrence import GRU


class RecurrentNetwork(nn.Module):
    """Encoder (None: the observation as it is) → recurrent core → the hidden layers and heads of an MLP.

    Actor and critic have one core, or one each (`critic_core`; then an encoder may be one's own, too). The state in a
    row is the actor's core's, then the critic's. What the mask columns hold follows the actor's outputs, for the
    distribution.
    """

    def __init__(
        self,
        core: GRU,
        heads: MLP,
        *,
        obs_dim: int,
        mask_dim: int = 0,
        encoder: nn.Module | None = None,
        critic_core: GRU | None = None,
        critic_encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if critic_encoder is not None and critic_core is None:
            raise ValueError("an encoder of the critic's own needs a core of its own")
        # the actor's parameters come first among the module's, as updates of one after the other rely on
        self.encoder, self.core, self.heads = encoder, core, heads
        self.critic_encoder, self.critic_core = critic_encoder, critic_core
        self.obs_dim, self.mask_dim = obs_dim, mask_dim
        self.memory_dim = 1 + core.state_dim + (0 if critic_core is None else critic_core.state_dim)

    @property
    def trunk(self) -> nn.Sequential:
        return self.heads.trunk

    @property
    def actor(self) -> nn.Sequential:
        return self.heads.actor

    @property
    def critic(self) -> nn.Sequential | None:
        return self.heads.critic

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows [B, ·] or a window [T, n, ·] → actor output [..., A (+ M)], value [...] (None without a critic)."""
        if self.critic_core is not None:
            return self.act(x), self.value(x)
        head, value = self.heads(self._of_actor(x)[0].reshape(*x.shape[:-1], -1))
        return self._with_mask(head, x), value

    def act(self, x: Tensor) -> Tensor:
        """The actor's output alone."""
        return self._with_mask(self.heads.act(self._of_actor(x)[0].reshape(*x.shape[:-1], -1)), x)

    def value(self, x: Tensor) -> Tensor:
        y = self._of_actor(x)[0] if self.critic_core is None else self._of_critic(x)[0]
        return self.heads.value(y.reshape(*x.shape[:-1], -1))

    def advance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [B, ·] → the actor's output [B, A (+ M)] and the state after the step [B, S]."""
        y, state = self._of_actor(x)
        if self.critic_core is not None:
            state = torch.cat([state, self._of_critic(x)[1]], -1)
        return self._with_mask(self.heads.act(y[0]), x), state

    def actor_numpy(self) -> None:
        """Acts through torch: what a step returns has a state beside it."""

    def _of_actor(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._remember(x, self.encoder, self.core, 0)

    def _of_critic(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert self.critic_core is not None
        encoder = self.encoder if self.critic_encoder is None else self.critic_encoder
        return self._remember(x, encoder, self.critic_core, self.core.state_dim)

    def _remember(self, x: Tensor, encoder: nn.Module | None, core: GRU, first: int) -> tuple[Tensor, Tensor]:
        """The core's h of each step, and its state after the last; `first`: where its state begins among all states."""
        if x.dim() < 3:
            x = x.reshape(1, -1, x.shape[-1])
        obs = x[..., : self.obs_dim]
        begins = self.obs_dim + self.mask_dim
        state = x[0, :, begins + 1 + first : begins + 1 + first + core.state_dim]
        features = obs if encoder is None else encoder(obs)
        return core(features, x[..., begins : begins + 1] > 0, state)

    def _with_mask(self, head: Tensor, x: Tensor) -> Tensor:
        if not self.mask_dim:
            return head
        return torch.cat([head, x[..., self.obs_dim : self.obs_dim + self.mask_dim]], -1)
