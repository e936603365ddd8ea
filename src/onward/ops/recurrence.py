"""The light recurrence of masked language models: a running maximum with a soft edge, channel by channel.

c[i] = act(c[i - stride] - x[i]) + x[i] from c = 0, and then (c + bias) * sigmoid(gate). With ReLU for the activation c
is the running maximum itself. It is not linear in c, so that steps must follow each other; but all else need not. Time
comes first here, so that a step is one piece of memory.
"""

from __future__ import annotations

import importlib.util
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
    """`add(u, x, room, out)` makes act(u) + x, and leaves in `room` what `slope(u, room)` needs to put the derivative
    in u's place; `plain` is what autograd can differentiate itself."""

    plain: Callable[[Tensor], Tensor]
    add: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def _add_silu(u: Tensor, x: Tensor, room: Tensor, out: Tensor) -> Tensor:
    return torch.addcmul(x, u, torch.sigmoid(u, out=room), out=out)


def _silu_slope(u: Tensor, share: Tensor) -> Tensor:
    """s + u s (1 - s)"""
    u.mul_(share)
    return u.addcmul_(u, share, value=-1).add_(share)


def _add_relu(u: Tensor, x: Tensor, room: Tensor, out: Tensor) -> Tensor:
    return torch.add(torch.clamp(u, min=0, out=room), x, out=out)


ACTIVATIONS = {
    "silu": Activation(F.silu, _add_silu, _silu_slope),
    "relu": Activation(F.relu, _add_relu, lambda u, room: torch.gt(u, 0, out=u)),
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
        act, learns, size = ACTIVATIONS[activation], any(ctx.needs_input_grad), _steps_at_once(x, stride)
        out, room, state = torch.empty_like(x), torch.empty_like(x[:size]), torch.zeros_like(x[:stride])
        slopes, shares = (torch.empty_like(x if learns else room) for _ in range(2))
        for start in range(0, len(x), size):
            here = slice(start, min(start + size, len(x)))
            kept = here if learns else slice(0, here.stop - start)
            given, new, slope = x[here], out[here], slopes[kept]
            left = room[: len(given)]
            # c[i - stride] - x[i], then c[i]; the last step may be shorter than a stride.
            for row, difference, rest, after in zip(*(t.split(stride) for t in (given, slope, left, new)), strict=True):
                torch.sub(state[: len(row)], row, out=difference)
                state = act.add(difference, row, rest, after)
            state = state.clone()  # which the gate is not to change
            new.add_(bias).mul_(torch.sigmoid(gate[here], out=shares[kept]))
            if learns:
                act.slope(slope, left)
        ctx.save_for_backward(*((slopes, shares, out) if learns else ()))
        ctx.stride = stride
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        slopes, shares, out = ctx.saved_tensors
        stride, size = ctx.stride, _steps_at_once(out, ctx.stride)
        grad_x, grad_gate, grad_bias = torch.empty_like(out), torch.empty_like(out), out.new_zeros(out.shape[-1])
        later: Tensor | None = None  # what comes back from the steps after the piece
        for start in reversed(range(0, len(out), size)):
            here = slice(start, start + size)
            of_out, of_gate, of_state, share, slope = (t[here] for t in (grad, grad_gate, grad_x, shares, slopes))
            torch.mul(of_out, out[here], out=of_gate)
            of_gate.addcmul_(of_gate, share, value=-1)
            torch.mul(of_out, share, out=of_state)
            grad_bias += of_state.flatten(0, -2).sum(0)
            rows, steep = of_state.split(stride), slope.split(stride)
            if later is not None:
                rows[-1][: len(later)].add_(later)
            for number in range(len(rows) - 1, 0, -1):
                rows[number - 1][: len(rows[number])].addcmul_(steep[number], rows[number])
            later = steep[0] * rows[0]
            of_state.addcmul_(of_state, slope, value=-1)
        return grad_x, grad_gate, grad_bias, None, None


def _steps_at_once(x: Tensor, stride: int) -> int:
    row = stride * max(1, x[0].numel())
    return stride * max(1, AT_ONCE // row)


def gated_recurrence(x: Tensor, gate: Tensor, bias: Tensor, stride: int = 1, activation: str = "silu") -> Tensor:
    """(c + bias) * sigmoid(gate), where c[i] = act(c[i - stride] - x[i]) + x[i]. x, gate: [n, ..., d]; bias: [d]."""
    if x.is_cuda and importlib.util.find_spec("triton") is not None:
        from .recurrence_triton import gated_recurrence as kernel

        return kernel(x, gate, bias, stride, activation)
    return _GatedRecurrence.apply(x.contiguous(), gate.contiguous(), bias, stride, activation)
