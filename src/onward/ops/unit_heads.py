"""Queries and keys of length 1, with a learned scale per head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .applying import applied

SHORTEST = 1e-6
"""Vectors shorter than this are not made longer than length / SHORTEST: zero stays zero."""


class _UnitHeads(torch.autograd.Function):
    """Four passes over the data, where autograd's own way through normalize and multiply takes a dozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        exact = torch.float64 if x.dtype == torch.float64 else torch.float32  # half precision cannot hold 1 / SHORTEST
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=exact)
        inverse = length.clamp_min_(SHORTEST).reciprocal_()
        ctx.save_for_backward(x, scale, inverse)
        return (x * (inverse * scale[:, None])).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, scale, inverse = ctx.saved_tensors
        along = (grad * x).sum(-1, keepdim=True) * inverse  # of the gradient, along the unit vector
        grad_scale = along.flatten(0, -3).sum((0, 2)) if x.dim() > 2 else along[:, 0]
        factor = inverse * scale[:, None]
        # Below SHORTEST the length is a constant, and turning the vector is all there is to differentiate.
        turning = torch.where(inverse < 1 / SHORTEST, along * inverse * factor, 0)
        return torch.addcmul(grad * factor, x, turning, value=-1).to(x.dtype), grad_scale.to(scale.dtype)


def unit_heads(x: Tensor, scale: Tensor) -> Tensor:
    """x / |x| * scale, head by head. x: [..., H, D]; scale: [H]."""
    return applied(_UnitHeads, x, scale)
