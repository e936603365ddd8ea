"""The light recurrence of masked language models: a running maximum with a soft edge, channel by channel.

c[i] = act(c[i - stride] - x[i]) + x[i] from c = 0, and then (c + bias) * sigmoid(gate). With ReLU for the activation c
is the running maximum itself. It is not linear in c, so that steps must follow each other; but all else need not. Time
comes first here, so that a step is one piece of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

AT_ONCE = 65_536
"""How many numbers are worked on before the next: as many as stay in a processor's cache through a dozen operations."""


@dataclass(frozen=True)
class Activation:
    """`value(u, out)` and `slope(u, out, room)`, its derivative; `plain` is what autograd can differentiate itself."""

    plain: Callable[[Tensor], Tensor]
    value: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor, Tensor], Tensor]


def _silu_slope(u: Tensor, out: Tensor, room: Tensor) -> Tensor:
    """s + u s (1 - s)"""
    share = torch.sigmoid(u, out=room)
    torch.mul(u, share, out=out)
    return out.addcmul_(out, share, value=-1).add_(share)


ACTIVATIONS = {
    "silu": Activation(F.silu, lambda u, out: torch.ops.aten.silu.out(u, out=out), _silu_slope),
    "relu": Activation(
        F.relu,
        lambda u, out: torch.clamp(u, min=0, out=out),
        lambda u, out, room: torch.gt(u, 0, out=out),
    ),
}


def plain_recurrence(x: Tensor, stride: int = 1, activation: str = "silu") -> Tensor:
    """The reference: c for x [n, ..., d], step by step."""
    act = ACTIVATIONS[activation].plain
    states: list[Tensor] = []
    for step, row in enumerate(x):
        before = states[step - stride] if step >= stride else torch.zeros_like(row)
        states.append(act(before - row) + row)
    return torch.stack(states)


def plain_gated_recurrence(
    x: Tensor, gate: Tensor, bias: Tensor, stride: int = 1, activation: str = "silu"
) -> Tensor:
    return (plain_recurrence(x, stride, activation) + bias) * gate.sigmoid()


class _GatedRecurrence(torch.autograd.Function):
    """Three small operations a step forwards and one backwards; all the rest in pieces that stay in the cache."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, bias: Tensor, stride: int, activation: str) -> Tensor:
        act = ACTIVATIONS[activation]
        before, out = torch.empty_like(x), torch.empty_like(x)  # before: c[i - stride] - x[i]
        size = _steps_at_once(x, stride)
        state = torch.zeros_like(x[:stride])
        room = torch.empty_like(x[:size])
        for start in range(0, len(x), size):
            piece = slice(start, start + size)
            steps = zip(*(t[piece].split(stride) for t in (x, before, out)), strict=True)
            for given, difference, new in steps:  # the last may be shorter than a stride
                torch.sub(state[: len(given)], given, out=difference)
                state = act.value(difference, new).add_(given)
            state = state.clone()  # which the gate is not to change
            done = out[piece]
            done.add_(bias).mul_(torch.sigmoid(gate[piece], out=room[: len(done)]))
        ctx.save_for_backward(before, gate, out, bias)
        ctx.stride, ctx.activation = stride, activation
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        before, gate, out, bias = ctx.saved_tensors
        act, stride = ACTIVATIONS[ctx.activation], ctx.stride
        grad_x, grad_gate, grad_bias = torch.empty_like(out), torch.empty_like(out), torch.zeros_like(bias)
        size = _steps_at_once(out, stride)
        slopes, room = torch.empty_like(out[:size]), torch.empty_like(out[:size])
        later: Tensor | None = None  # what comes back from the steps after the piece
        for start in reversed(range(0, len(out), size)):
            piece = slice(start, start + size)
            of_out, of_gate, of_state = grad[piece], grad_gate[piece], grad_x[piece]
            open_ = torch.sigmoid(gate[piece], out=room[: len(of_out)])
            torch.mul(of_out, out[piece], out=of_gate)
            of_gate.addcmul_(of_gate, open_, value=-1)
            torch.mul(of_out, open_, out=of_state)
            grad_bias += of_state.flatten(0, -2).sum(0)
            slope = act.slope(before[piece], slopes[: len(of_out)], open_)
            rows, steepness = of_state.split(stride), slope.split(stride)
            if later is not None:
                rows[-1][: len(later)].add_(later)
            for number in range(len(rows) - 1, 0, -1):
                rows[number - 1][: len(rows[number])].addcmul_(steepness[number], rows[number])
            later = steepness[0] * rows[0]
            of_state.addcmul_(of_state, slope, value=-1)
        return grad_x, grad_gate, grad_bias, None, None


def _steps_at_once(x: Tensor, stride: int) -> int:
    row = stride * max(1, x[0].numel())
    return stride * max(1, AT_ONCE // row)


def gated_recurrence(x: Tensor, gate: Tensor, bias: Tensor, stride: int = 1, activation: str = "silu") -> Tensor:
    """(c + bias) * sigmoid(gate), where c[i] = act(c[i - stride] - x[i]) + x[i]. x, gate: [n, ..., d]; bias: [d]."""
    return _GatedRecurrence.apply(x.contiguous(), gate.contiguous(), bias, stride, activation)
