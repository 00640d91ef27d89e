"""What `throughput.py` measures: the same settings for pgtrain and for a peer. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scenario:
    """Networks are two of 64-64 tanh, γ = 0.99, gradients limited to 0.5; nothing is standardised."""

    name: str
    title: str
    algo: str
    env: str
    num_envs: int
    horizon: int | None  # None: whole episodes
    epochs: int
    minibatch: int | None  # None: the whole batch
    steps: int  # of a measured run
    peer_steps: int
    warm_up: int = 2100
    lr: float = 3e-4
    extra: tuple[str, ...] = ()
    tool: str = "stable-baselines3"  # the peer: the quickest that has the algorithm
    peer: dict[str, Any] = field(default_factory=dict)  # further arguments of the peer's

    @property
    def overrides(self) -> list[str]:
        """pgtrain's."""
        common = [f"algo={self.algo}", f"env={self.env}", f"num_envs={self.num_envs}", "gamma=0.99"]
        common += ["policy.hidden=[64,64]", "policy.activation=tanh", "policy.normalize_obs=none"]
        common += ["optim/lr=constant", f"optim.lr.value={self.lr}", "optim.max_grad_norm=0.5"]
        if self.horizon is not None:
            common += [f"horizon={self.horizon}", "policy.normalize_value=none"]
        if self.algo == "ppo":
            common += [
                f"update.epochs={self.epochs}",
                f"update.minibatch_size={self.minibatch}",
                "update.clip.value=0.2",
            ]
        if self.env.startswith("HalfCheetah"):
            common += ["policy.mean=identity", "env.threads=1"]
        return common + list(self.extra)


PEERS = {  # tool → its script, the modules that it needs, its name
    "stable-baselines3": ("peer_sb3.py", ("stable_baselines3", "sb3_contrib"), "Stable-Baselines3"),
    "tianshou": ("peer_tianshou.py", ("tianshou",), "Tianshou"),
}
CARTPOLE, CHEETAH = "CartPole-v1", "HalfCheetah-v5"
_ALL = [
    Scenario(
        "ppo-cartpole",
        "PPO CartPole, 8 envs × 128, 4 epochs, minibatch 256",
        "ppo",
        CARTPOLE,
        8,
        128,
        4,
        256,
        steps=98_304,
        peer_steps=16_384,
        lr=2.5e-4,
        extra=("entropy.coef=0.01",),
        peer={"ent_coef": 0.01},
    ),
    Scenario(
        "ppo-cartpole-1env",
        "PPO CartPole, 1 env × 2048, 10 epochs, minibatch 64",
        "ppo",
        CARTPOLE,
        1,
        2048,
        10,
        64,
        steps=24_576,
        peer_steps=4096,
    ),
    Scenario(
        "ppo-cheetah-mb64",
        "PPO HalfCheetah, 8 × 256, 10 epochs, minibatch 64",
        "ppo",
        CHEETAH,
        8,
        256,
        10,
        64,
        steps=16_384,
        peer_steps=4096,
    ),
    Scenario(
        "ppo-cheetah-mb512",
        "PPO HalfCheetah, the same, minibatch 512",
        "ppo",
        CHEETAH,
        8,
        256,
        10,
        512,
        steps=16_384,
        peer_steps=6144,
    ),
    Scenario(
        "a2c-cartpole",
        "A2C CartPole, 8 × 5",
        "a2c",
        CARTPOLE,
        8,
        5,
        1,
        None,
        steps=200_000,
        peer_steps=8000,
        lr=7e-4,
        extra=(
            "advantage=gae",
            "advantage.lam=1.0",
            "advantage.normalize=false",
            "optim=rmsprop",
            "entropy.coef=0",
        ),
    ),
    Scenario(
        "trpo-cartpole",
        "TRPO CartPole, 8 × 128, critic 10 epochs of minibatch 256",
        "trpo",
        CARTPOLE,
        8,
        128,
        10,
        256,
        steps=65_536,
        peer_steps=8192,
        lr=1e-3,
        extra=("update.critic_epochs=10", "update.critic_minibatch_size=256"),
    ),
    Scenario(
        "reinforce-cartpole",
        "REINFORCE CartPole, one episode of each of 8 envs",
        "reinforce",
        CARTPOLE,
        8,
        None,
        1,
        None,
        steps=98_304,
        peer_steps=16_384,
        lr=1e-2,
        tool="tianshou",
    ),
]
SCENARIOS = {scenario.name: scenario for scenario in _ALL}
