"""No minibatch makes the host wait for the device: watched by its operations on a CPU, by CUDA itself on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pgtrain
from pgtrain.learning.batch import Batch
from pgtrain.learning.updates import TorchPipeline
from tests.watching import Crossings, Questions

PENDULUM, CARTPOLE = "pgtrain/Pendulum-v0", "pgtrain/CartPole-v0"
SMALL = ("num_envs=4", "eval.episodes=0", "monitor=quiet")
PPO = ("algo=ppo", "horizon=8", "update.epochs=2", "update.minibatch_size=16")
RUNS: list[tuple[str, ...]] = [
    ("algo=reinforce", f"env={CARTPOLE}", "env.max_episode_steps=8", "total_steps=200"),
    ("algo=a2c", f"env={CARTPOLE}"),
    ("algo=actor_critic", f"env={PENDULUM}"),
    (*PPO, f"env={CARTPOLE}", "update/value_loss=clip_max", "optim/lr=linear"),
    (
        *PPO,
        f"env={PENDULUM}",
        "update/value_loss=huber",
        "update/kl_guard=learning_rate",
        "optim/lr=constant",
        "entropy.coef=0.01",
    ),
    (*PPO, f"env={PENDULUM}", "policy/distribution=beta", "optim=rmsprop"),
    (*PPO, f"env={PENDULUM}", "policy/distribution=gsde", "optim=sgd", "policy.normalize_value=running"),
    (*PPO, f"env={PENDULUM}", "policy/distribution=tanh_gaussian", "policy.layer_norm=true"),
    (*PPO, "env=tests.action_envs:Test/Masked-v0", "+env.kwargs.kind=multi"),
    (*PPO, "env=tests.action_envs:Test/Masked-v0", "+env.kwargs.kind=dict"),
    (*PPO, "env=tests.action_envs:Test/Masked-v0", "+env.kwargs.kind=bits", "policy/memory=gru"),
    ("algo=ppo_kl", *PPO[1:], f"env={PENDULUM}"),
]


@contextlib.contextmanager
def by_operations() -> Iterator[Callable[[], list[str]]]:
    with Crossings() as crossings, Questions() as questions:
        yield lambda: crossings.made + questions.asked
        assert questions.seen > 50


@contextlib.contextmanager
def by_cuda() -> Iterator[Callable[[], list[str]]]:
    """CUDA raises at once where the host waits."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield list
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    "overrides", RUNS, ids=lambda overrides: "-".join(o.split("=")[-1] for o in overrides)
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_minibatch_asks_the_device_for_nothing(
    device: str, overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU: torch.cuda.set_sync_debug_mode has nothing to watch")
    epoch, noticed, epochs = TorchPipeline.epoch, [], -1  # the first may make what all the others use
    watch = by_cuda if device == "cuda" else by_operations

    def watched(self: TorchPipeline, batch: Batch, *args: Any) -> Any:
        nonlocal epochs
        epochs += 1
        batch.as_dict()  # what lay on the host goes to the device when it is first read, once an iteration
        if not epochs:
            return epoch(self, batch, *args)
        with watch() as found:
            tally = epoch(self, batch, *args)
        noticed.extend(found())
        return tally

    monkeypatch.setattr(TorchPipeline, "epoch", watched)
    # gelu: no closed form, so that a CPU takes the modules' way as well
    steps = () if any(o.startswith("total_steps") for o in overrides) else ("total_steps=256",)
    pgtrain.train(
        *SMALL, *steps, *overrides, "policy.activation=gelu", f"device={device}", run_dir=tmp_path / "run"
    )
    assert epochs >= 1 and not noticed


def test_a_wait_would_be_noticed() -> None:
    x = torch.arange(5.0)
    for wait in (
        lambda: x.sum().item(),
        lambda: bool(x.sum() > 0),
        lambda: x[x > 2],
        lambda: torch.tensor(1.0),
    ):
        with Crossings() as crossings, Questions() as questions:
            wait()
        assert crossings.made + questions.asked
