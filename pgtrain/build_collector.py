"""Config → what gathers experience for updates that need no gradient of the env."""

from __future__ import annotations

from pgtrain.collector import Collector
from pgtrain.config import schema
from pgtrain.device_rollout import DeviceCollector
from pgtrain.envs.differentiable import registration
from pgtrain.envs.differentiable.host import HostEnv
from pgtrain.envs.vector import VectorEnv
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.actors import Actor, RecurrentActor, TorchActor
from pgtrain.policies.device_actions import device_actions


def make_collector(
    cfg: schema.Config, env: VectorEnv, policy: ActorCritic, actor: Actor, seed: int, notices: list[str]
) -> Collector | DeviceCollector:
    """Where the policy acts through torch and the env is a task in torch, both stay on one device, step by step.

    Not with memory, whose state is carried by the host's actor, nor where something stands between task and policy
    (stacked frames, single envs of the sync and process backends).
    """
    rows = cfg.horizon or 512
    device = next(policy.parameters()).device
    plain = isinstance(env, HostEnv) and device_actions(policy.distribution, device, env.env.dtype)
    if not plain or not isinstance(actor, TorchActor) or isinstance(actor, RecurrentActor):
        return Collector(env, policy, actor, seed, rows)
    task = registration.make(
        cfg.env.id,
        env.num_envs,
        device=device,
        max_episode_steps=cfg.env.max_episode_steps,
        **cfg.env.kwargs,
    )
    if device.type != "cpu":
        notices.append(f"the envs are on {device} beside the policy: no step goes through the host")
    return DeviceCollector(task, policy, actor, seed, rows, env.before)
