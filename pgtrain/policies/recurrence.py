"""Recurrent cores: GRU and LSTM over a window, with resets at episode starts, and their gradient through time.

Dimension legend: T steps, n sequences side by side, F features, H size of the core, S size of its state, G gates.

The gradient is written out (`Unroll`) rather than left to automatic differentiation: what comes back to a step is
linear in what comes back to its output, so all that does not depend on the order of steps (coefficients, the gradient
of the weights) is done for the whole window at once. About twice as fast as the graph of the loop on small nets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Tape = tuple[Tensor, ...]


class GRU(nn.Module):
    """Gated recurrent unit; state [h], S = H.

    r, z = σ(W x + b + U h + c) each,   m = tanh(W_m x + b_m + r ∘ (U_m h + c_m)),   h' = m + z ∘ (h − m)

    Weights and gates in the order (r, z, m) of `torch.nn.GRU`. Source: Cho et al. 2014, in the form of cuDNN's.
    """

    GATES, STATES = 3, 1

    weight_ih: nn.Parameter  # W [G·H, F]
    weight_hh: nn.Parameter  # U [G·H, H]
    bias_ih: nn.Parameter  # b [G·H]
    bias_hh: nn.Parameter  # c [G·H]

    def __init__(self, inputs: int, size: int, ortho_init: bool = True) -> None:
        """Orthogonal weights for each gate and no bias but 1 for the gate that keeps the state (the second), so that
        what was seen lives on at first; or PyTorch's own, all uniform within ±1/√H.

        Without that 1 a state fades by a factor of about 0.6 a step, and no gradient tells of what was seen 10 steps
        ago.
        Source: Jozefowicz et al. 2015, §2.2 (of LSTM).
        """
        super().__init__()
        self.size, self.state_dim = size, self.STATES * size
        bound = size**-0.5
        for name, shape in (("ih", (inputs,)), ("hh", (size,))):
            weight = torch.empty(self.GATES * size, *shape).uniform_(-bound, bound)
            bias = torch.empty(self.GATES * size).uniform_(-bound, bound)
            if ortho_init:
                for gate in weight.chunk(self.GATES):
                    nn.init.orthogonal_(gate)
                nn.init.zeros_(bias)
                bias[size : 2 * size] = float(name == "ih")
            self.register_parameter(f"weight_{name}", nn.Parameter(weight))
            self.register_parameter(f"bias_{name}", nn.Parameter(bias))

    def forward(self, x: Tensor, start: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, n, F], start [T, n, 1] bool, state before the first step [n, S] → h [T, n, H], state after the last.

        Where start is true the state before the step is 0.
        """
        gates = nn.functional.linear(x, self.weight_ih, self.bias_ih)  # of all steps at once
        if len(x) > 1 and torch.is_grad_enabled():
            return Unroll.apply(self, gates, start, state, self.weight_hh, self.bias_hh)  # pyright: ignore[reportReturnType]
        return self.unroll(gates, start, state, self.weight_hh, self.bias_hh)[:2]

    def unroll(
        self, gates: Tensor, start: Tensor, state: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, list[Tape]]:
        """gates = W x + b [T, n, G·H] → as `forward`, and of each step what `coefficients` needs."""
        outputs, tapes, across = [], [], weight.t()
        for projected, begins in zip(gates.unbind(0), start.unbind(0), strict=True):
            state = state.masked_fill(begins, 0.0)  # selected: a NaN of another episode ends here
            state, tape = self.step(projected, state, across, bias)
            outputs.append(state[:, : self.size])
            tapes.append(tape)
        return torch.stack(outputs), state, tapes

    def step(self, gates: Tensor, h: Tensor, across: Tensor, bias: Tensor) -> tuple[Tensor, Tape]:
        """W x + b [n, 3H], h [n, H], Uᵀ, c → h', and (h, z, r, m, U_m h + c_m)."""
        both = 2 * self.size
        recurrent = torch.addmm(bias, h, across)
        r, z = (gates[:, :both] + recurrent[:, :both]).sigmoid().split(self.size, -1)
        inner = recurrent[:, both:]
        m = torch.addcmul(gates[:, both:], r, inner).tanh()
        return torch.lerp(m, h, z), (h, z, r, m, inner)

    def backward_through_time(
        self, tape: Tape, start: Tensor, weight: Tensor, g_output: Tensor, g_state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of h [T, n, H] and of the last state → of W x + b, U h + c (both [T, n, G·H]) and the first state.

        With g the gradient of h':  ∂(U h + c) = g ∘ [a r', b, a r],   ∂h = g ∘ z + Uᵀ ∂(U h + c),   where
        a = (1 − z)(1 − m²),   b = (h − m) z (1 − z),   r' = (U_m h + c_m) r (1 − r);   of m's W x it is g ∘ a.
        """
        h, z, r, m, inner = tape
        to_m = (1 - z) * (1 - m * m)
        factor = torch.stack([to_m * inner * r * (1 - r), (h - m) * z * (1 - z), to_m * r], 2)  # [T, n, 3, H]
        g_recurrent, g_h = torch.empty_like(factor), torch.empty_like(h)
        for t in range(len(h) - 1, -1, -1):
            g = torch.add(g_state, g_output[t], out=g_h[t])
            torch.mul(g[:, None], factor[t], out=g_recurrent[t])
            g_state = torch.addmm(g * z[t], g_recurrent[t].flatten(1), weight).masked_fill_(start[t], 0.0)
        g_gates = torch.cat([g_recurrent[:, :, :2], (g_h * to_m)[:, :, None]], 2)
        return g_gates.flatten(2), g_recurrent.flatten(2), g_state


class LSTM(GRU):
    """Long short-term memory; state [h, c], S = 2H.

    i, f, o = σ(W x + b + U h + d) each,   g = tanh(W_g x + b_g + U_g h + d_g)
    c' = f ∘ c + i ∘ g,   h' = o ∘ tanh(c')

    Weights and gates in the order (i, f, g, o) of `torch.nn.LSTM`. Source: Hochreiter & Schmidhuber 1997.
    """

    GATES, STATES = 4, 2

    def step(self, gates: Tensor, h: Tensor, across: Tensor, bias: Tensor) -> tuple[Tensor, Tape]:
        """W x + b [n, 4H], [h, c] [n, 2H], Uᵀ, d → [h', c'], and (h, c, i, f, g, o, tanh c')."""
        h, c = h.split(self.size, -1)
        i, f, g, o = torch.addmm(gates + bias, h, across).split(self.size, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        after = torch.addcmul(f * c, i, g)
        bent = after.tanh()
        return torch.cat([o * bent, after], -1), (h, c, i, f, g, o, bent)

    def backward_through_time(
        self, tape: Tape, start: Tensor, weight: Tensor, g_output: Tensor, g_state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As of a GRU. With g of h', k = ∂c' + g ∘ o (1 − tanh² c'):

        ∂(U h + d) = [k ∘ g i (1 − i), k ∘ c f (1 − f), k ∘ i (1 − g²), g ∘ tanh(c') o (1 − o)],   ∂c = k ∘ f
        """
        h, c, i, f, g, o, bent = tape
        through = o * (1 - bent * bent)
        factor = torch.stack([g * i * (1 - i), c * f * (1 - f), i * (1 - g * g)], 2)  # [T, n, 3, H]
        out = bent * o * (1 - o)
        g_recurrent = h.new_empty(*h.shape[:2], 4, self.size)
        g_h, g_c = g_state.split(self.size, -1)
        for t in range(len(h) - 1, -1, -1):
            g_h = g_h + g_output[t]
            g_c = torch.addcmul(g_c, g_h, through[t])
            torch.mul(g_c[:, None], factor[t], out=g_recurrent[t, :, :3])
            torch.mul(g_h, out[t], out=g_recurrent[t, :, 3])
            g_h = (g_recurrent[t].flatten(1) @ weight).masked_fill_(start[t], 0.0)
            g_c = (g_c * f[t]).masked_fill_(start[t], 0.0)
        flat = g_recurrent.flatten(2)
        return flat, flat, torch.cat([g_h, g_c], -1)


class Unroll(torch.autograd.Function):
    """`core.unroll` with the core's own gradient through time.

    A gradient of the gradient (a natural update's) goes through the graph of the loop instead.
    """

    @staticmethod
    def forward(
        ctx: Any, core: GRU, gates: Tensor, start: Tensor, state: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        outputs, last, tapes = core.unroll(gates, start, state, weight, bias)
        ctx.core = core
        ctx.tape = tuple(torch.stack(column) for column in zip(*tapes, strict=True))
        ctx.save_for_backward(gates, start, state, weight, bias)
        return outputs, last.clone()

    @staticmethod
    def backward(ctx: Any, g_output: Tensor, g_state: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        _, start, _, weight, _ = ctx.saved_tensors
        if torch.is_grad_enabled():
            return Unroll._differentiable(ctx, g_output, g_state)
        g_gates, g_recurrent, g_first = ctx.core.backward_through_time(
            ctx.tape, start, weight, g_output, g_state
        )
        flat, h = g_recurrent.flatten(0, 1), ctx.tape[0].flatten(0, 1)
        return None, g_gates, None, g_first, flat.t() @ h, flat.sum(0)

    @staticmethod
    def _differentiable(ctx: Any, g_output: Tensor, g_state: Tensor) -> Any:
        gates, start, state, weight, bias = ctx.saved_tensors
        outputs, last, _ = ctx.core.unroll(gates, start, state, weight, bias)
        wanted = [i for i, x in enumerate((gates, state, weight, bias)) if x.requires_grad]
        inputs = [(gates, state, weight, bias)[i] for i in wanted]
        found = torch.autograd.grad([outputs, last], inputs, [g_output, g_state], create_graph=True)
        g: list[Tensor | None] = [None] * 4
        for i, gradient in zip(wanted, found, strict=True):
            g[i] = gradient
        return None, g[0], None, *g[1:]


CORES: dict[str, type[GRU]] = {"gru": GRU, "lstm": LSTM}
