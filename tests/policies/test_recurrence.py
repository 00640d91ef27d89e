"""Recurrent cores against torch's own, a hand-written loop of cells, and finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pgtrain.policies.recurrence import CORES, GRU

KINDS = ["gru", "lstm"]
REFERENCE: dict[str, Any] = {"gru": nn.GRU, "lstm": nn.LSTM}
CELLS: dict[str, Any] = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}
STEPS, SIDE, FEATURES, SIZE = 9, 4, 3, 5
EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}


def make_core(kind: str, ortho_init: bool = False, seed: int = 0) -> GRU:
    torch.manual_seed(seed)
    return CORES[kind](FEATURES, SIZE, ortho_init).double()


def window(core: GRU, resets: bool = True, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(STEPS, SIDE, FEATURES, dtype=torch.float64, generator=g)
    start = torch.rand(STEPS, SIDE, 1, generator=g) < (0.3 if resets else -1)
    return x, start, torch.randn(SIDE, core.state_dim, dtype=torch.float64, generator=g)


def parts(state: Tensor, kind: str) -> Any:
    """Our state as torch's cells have it."""
    return state if kind == "gru" else tuple(state.split(SIZE, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_equals_torch_without_resets(kind: str) -> None:
    core, reference = make_core(kind), REFERENCE[kind](FEATURES, SIZE).double()
    reference.load_state_dict({f"{name}_l0": x for name, x in core.state_dict().items()})
    x, start, state = window(core, resets=False)
    expected, last = reference(
        x, state[None] if kind == "gru" else tuple(s[None].contiguous() for s in parts(state, kind))
    )
    y, after = core(x, start, state)
    torch.testing.assert_close(y, expected, **EXACT)
    torch.testing.assert_close(after, last[0] if kind == "gru" else torch.cat(last, -1)[0], **EXACT)


def hand_unrolled(cell: Any, kind: str, x: Tensor, start: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """torch's cell in a loop, the state taken from scratch where an episode starts."""
    y = []
    for t in range(len(x)):
        state = torch.where(start[t], torch.zeros_like(state), state)
        new = cell(x[t], parts(state, kind))
        state = new if kind == "gru" else torch.cat(new, -1)
        y.append(state[:, :SIZE])
    return torch.stack(y), state


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_equal_those_of_a_loop_of_cells(kind: str) -> None:
    core, cell = make_core(kind), CELLS[kind](FEATURES, SIZE).double()
    cell.load_state_dict(core.state_dict())
    x, start, state = window(core)
    assert 0 < start.sum() < start.numel()
    results = []
    for module, run in ((core, core), (cell, lambda *a: hand_unrolled(cell, kind, *a))):
        inputs = x.clone().requires_grad_(), state.clone().requires_grad_()
        y, last = run(inputs[0], start, inputs[1])
        weight = torch.arange(y.numel(), dtype=y.dtype).view_as(y).sin()
        ((y * weight).sum() + last.square().sum()).backward()
        grads = [p.grad for _, p in sorted(module.named_parameters())]
        results.append([y, last, inputs[0].grad, inputs[1].grad, *grads])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_first_and_second_order_equal_finite_differences(kind: str) -> None:
    core = make_core(kind)
    x, start, state = window(core)
    x, start, state = x[:4, :2], start[:4, :2], state[:2]
    start[2, 0] = True
    weights = [core.weight_hh, core.bias_hh]

    def run(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return torch.func.functional_call(core, {"weight_hh": weight, "bias_hh": bias}, (x, start, state))

    inputs = [y.detach().clone().requires_grad_() for y in (x, state, *weights)]
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_at_a_time_is_the_window(kind: str) -> None:
    core = make_core(kind)
    x, start, state = window(core)
    y, last = core(x, start, state)
    with torch.no_grad():
        for t in range(STEPS):
            one, state = core(x[t : t + 1], start[t : t + 1], state)
            torch.testing.assert_close(one[0], y[t], **EXACT)
    torch.testing.assert_close(state, last, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_before_an_episode_starts_reaches_neither_it_nor_its_gradient(kind: str) -> None:
    core = make_core(kind)
    x, start, state = window(core, resets=False)
    start[0] = True
    y, _ = core(x, start, torch.full_like(state, torch.nan))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in core.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_orthogonal_start(kind: str) -> None:
    core = make_core(kind, ortho_init=True)
    for gate in core.weight_hh.chunk(core.GATES):
        torch.testing.assert_close(gate @ gate.t(), torch.eye(SIZE, dtype=torch.float64), rtol=0, atol=1e-6)
    bias = (core.bias_ih + core.bias_hh).view(core.GATES, SIZE)
    expected = torch.zeros_like(bias)
    expected[1] = 1.0  # the gate that keeps the state
    torch.testing.assert_close(bias, expected)
