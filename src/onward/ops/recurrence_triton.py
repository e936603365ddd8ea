"""The light recurrence as a GPU kernel: one program follows a block of channels through all steps.

Imported only if Triton is installed. Reference and explanation: recurrence.py.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 128
"""Channels per program. Few, so that there are enough programs to fill a GPU."""


@triton.jit
def _there(
    x, gate, bias, out, slopes, n, width, channels, stride, silu: tl.constexpr, exact: tl.constexpr, block: tl.constexpr
):
    columns = tl.program_id(0) * block + tl.arange(0, block)
    real = columns < width
    shift = tl.load(bias + columns % channels, mask=real, other=0.0).to(exact)
    state = tl.zeros([block], dtype=exact)
    for step in range(tl.program_id(1), n, stride):
        at = step * width + columns
        given = tl.load(x + at, mask=real, other=0.0).to(exact)
        difference = state - given
        if silu:
            share = 1 / (1 + tl.exp(-difference))
            state = difference * share + given
            slope = share + difference * share * (1 - share)
        else:
            state = tl.maximum(difference, 0.0) + given
            slope = tl.where(difference > 0, 1.0, 0.0).to(exact)
        opened = 1 / (1 + tl.exp(-tl.load(gate + at, mask=real, other=0.0).to(exact)))
        tl.store(out + at, (state + shift) * opened, mask=real)
        tl.store(slopes + at, slope, mask=real)


@triton.jit
def _back(
    grad, gate, out, slopes, grad_x, grad_gate, grad_state, n, width, stride, exact: tl.constexpr, block: tl.constexpr
):
    columns = tl.program_id(0) * block + tl.arange(0, block)
    first = tl.program_id(1)
    real = columns < width
    last = first + (n - 1 - first) // stride * stride
    later = tl.zeros([block], dtype=exact)
    for back in range(0, last - first + 1, stride):
        at = (last - back) * width + columns
        given = tl.load(grad + at, mask=real, other=0.0).to(exact)
        opened = 1 / (1 + tl.exp(-tl.load(gate + at, mask=real, other=0.0).to(exact)))
        tl.store(grad_gate + at, given * tl.load(out + at, mask=real, other=0.0).to(exact) * (1 - opened), mask=real)
        tl.store(grad_state + at, given * opened, mask=real)
        slope = tl.load(slopes + at, mask=real, other=0.0).to(exact)
        total = given * opened + later
        tl.store(grad_x + at, total * (1 - slope), mask=real)
        later = total * slope


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, bias: Tensor, stride: int, activation: str) -> Tensor:
        out, slopes = torch.empty_like(x), torch.empty_like(x)
        n, width = len(x), x[0].numel()
        ctx.grid, ctx.stride = (triton.cdiv(width, BLOCK), min(stride, n)), stride
        ctx.exact = tl.float64 if x.dtype == torch.float64 else tl.float32
        silu = activation == "silu"
        _there[ctx.grid](x, gate, bias, out, slopes, n, width, x.shape[-1], stride, silu, ctx.exact, BLOCK)
        ctx.save_for_backward(gate, out, slopes)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gate, out, slopes = ctx.saved_tensors
        of_x, of_gate, of_state = (torch.empty_like(out) for _ in range(3))
        n, width = len(out), out[0].numel()
        given = (grad.contiguous(), gate, out, slopes, of_x, of_gate, of_state)
        _back[ctx.grid](*given, n, width, ctx.stride, ctx.exact, BLOCK)
        return of_x, of_gate, of_state.flatten(0, -2).sum(0), None, None


def gated_recurrence(x: Tensor, start: Tensor, stride: int = 1, activation: str = "silu") -> Tensor:
    """As `recurrence.gated_recurrence`, for "silu" and "relu"."""
    values, gates = x.chunk(2, -1)
    # The kernel starts from 0 and adds the bias at the end.
    return _Kernel.apply((values - start).contiguous(), gates.contiguous(), start, stride, activation)
