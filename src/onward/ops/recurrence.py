"""The light recurrence of masked language models: a soft running maximum, channel by channel, and its gate.

c[i] = act(c[i - stride] - x[i]) + x[i], then c * sigmoid(gate). With ReLU as the activation c is the running maximum
itself. Steps must follow each other, since c is not linear in its past; everything else runs in parallel. Time is the
first dimension, so that a step is one contiguous piece of memory.

The paper adds a bias to c, which starts from 0: c + b is the same recurrence of x + b, started from b.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .modes import applied, full_precision

VALUES_AT_ONCE = 131_072
"""How many numbers are processed at a time: as many as stay in a processor's cache through several operations."""


@dataclass(frozen=True)
class Activation:
    """act(u) = u * factor(u). `factor(u, out)` writes the factor; `slope(u, factors)` overwrites u with the derivative;
    `plain` is for the reference, where autograd differentiates."""

    plain: Callable[[Tensor], Tensor]
    factor: Callable[..., Tensor]
    slope: Callable[[Tensor, Tensor], object]


def _silu_slope(u: Tensor, share: Tensor) -> None:
    """s + s (u - u s)"""
    torch.addcmul(u, u, share, value=-1, out=u)
    torch.addcmul(share, share, u, out=u)


def _positive(u: Tensor, out: Tensor) -> Tensor:
    return torch.gt(u, 0, out=out)


ACTIVATIONS = {
    "silu": Activation(F.silu, torch.sigmoid, _silu_slope),
    "relu": Activation(F.relu, _positive, lambda u, positive: u.copy_(positive)),
}


def plain_recurrence(x: Tensor, start: Tensor, stride: int = 1, activation: str = "silu") -> Tensor:
    """The reference: c for x [n, ..., d], step by step. start: [d]."""
    act = ACTIVATIONS[activation].plain
    states: list[Tensor] = []
    for step, row in enumerate(x):
        before = states[step - stride] if step >= stride else start
        states.append(act(before - row) + row)
    return torch.stack(states)


def plain_gated_recurrence(x: Tensor, start: Tensor, stride: int = 1, activation: str = "silu") -> Tensor:
    values, gates = x.chunk(2, -1)
    return plain_recurrence(values, start, stride, activation) * gates.sigmoid()


class _GatedRecurrence(torch.autograd.Function):
    """Two small operations per step forward and one backward; the rest in pieces that stay in the cache.

    With u[i] = c[i - s] - x[i] the state is c[i] = act(u[i]) + x[i], and so u[i + s] = act(u[i]) + (x[i] - x[i + s]),
    where the differences of the inputs are computed for all steps at once.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, start: Tensor, stride: int, activation: str, overwrite: bool) -> Tensor:
        act, learns = ACTIVATIONS[activation], any(ctx.needs_input_grad)
        x = x if overwrite else x.clone()
        values = x.chunk(2, -1)[0]  # overwritten by the states
        size = _steps_at_once(values, stride)
        room = x.new_empty(min(size, len(x)), *values.shape[1:])
        slopes = x.new_empty(values.shape) if learns else torch.empty_like(room)
        for begin in range(0, len(x), size):
            given = values[begin : begin + size]
            u = slopes[begin : begin + size] if learns else slopes[: len(given)]
            factors = room[: len(given)]
            first = given[:stride]
            torch.sub(values[begin - stride : begin][: len(first)] if begin else start, first, out=u[:stride])
            torch.sub(given[:-stride], given[stride:], out=u[stride:])
            _steps(u.split(stride), factors.split(stride), act.factor)
            given.addcmul_(u, factors)
            if learns:
                act.slope(u, factors)
        ctx.save_for_backward(*((x, slopes) if learns else ()))
        ctx.stride = stride
        return F.glu(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, slopes = ctx.saved_tensors
        stride, size = ctx.stride, _steps_at_once(slopes, ctx.stride)
        of_x = torch.ops.aten.glu_backward(grad, x, -1)
        of_values = of_x.chunk(2, -1)[0]
        later: Tensor | None = None  # the gradient from the steps after the piece
        for begin in reversed(range(0, len(x), size)):
            of_states, slope = of_values[begin : begin + size], slopes[begin : begin + size]
            if later is not None:
                of_states[-stride:][: len(later)].add_(later)
            _steps_back(of_states.split(stride), slope.split(stride))
            later = slope[:stride] * of_states[:stride]
            of_states.addcmul_(of_states, slope, value=-1)
        assert later is not None
        return of_x, later.flatten(0, -2).sum(0), None, None, None


def _steps(u: Sequence[Tensor], factors: Sequence[Tensor], factor: Callable[..., Tensor]) -> None:
    """u[i] holds x[i - 1] - x[i], to which act(u[i - 1]) is added; the last may be shorter than a stride."""
    before, by = u[0], factor(u[0], out=factors[0])
    for now, room in zip(u[1:-1], factors[1:-1], strict=True):
        now.addcmul_(before, by)
        before, by = now, factor(now, out=room)
    if len(u) > 1:
        size = len(u[-1])
        factor(u[-1].addcmul_(before[:size], by[:size]), out=factors[-1])


def _steps_back(grads: Sequence[Tensor], slopes: Sequence[Tensor]) -> None:
    """Adds each step's gradient, times its slope, to that of the step before."""
    if len(grads) < 2:
        return
    after = grads[-2]
    after[: len(grads[-1])].addcmul_(slopes[-1], grads[-1])
    for slope, before in zip(slopes[-2:0:-1], grads[-3::-1], strict=True):
        before.addcmul_(slope, after)
        after = before


def _steps_at_once(values: Tensor, stride: int) -> int:
    row = stride * max(1, values[0].numel())
    return stride * max(1, VALUES_AT_ONCE // row)


def gated_recurrence(
    x: Tensor, start: Tensor, stride: int = 1, activation: str = "silu", *, overwrite: bool = False
) -> Tensor:
    """c * sigmoid(gates), where c[i] = act(c[i - stride] - values[i]) + values[i] from c = start. [n, ..., d]

    x: [n, ..., 2 d], values and then gates; start: [d]. `overwrite` allows x to be overwritten, which saves a copy.
    """
    exact = full_precision(x.dtype)  # the rounding of half precision would add up from step to step
    given, start = x.to(exact).contiguous(), start.to(exact)
    if x.is_cuda and importlib.util.find_spec("triton") is not None:
        from .recurrence_triton import gated_recurrence as kernel

        return kernel(given, start, stride, activation).to(x.dtype)
    return applied(_GatedRecurrence, given, start, stride, activation, overwrite or given is not x).to(x.dtype)
