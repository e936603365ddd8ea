"""RMS norm, and queries and keys of length 1, with hand-written gradients.

Autograd takes a dozen passes over the data; these take four.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .modes import applied, full_precision

SMALLEST_LENGTH = 1e-6
"""Shorter vectors are divided by this instead of their length, so that zero stays zero."""


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = (length.square() / x.shape[-1] + eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, inverse = ctx.saved_tensors
        product = grad * x
        grad_weight = torch.einsum("nd,n->d", product.flatten(0, -2), inverse.flatten())
        along = torch.einsum("...d,d->...", product, weight)[..., None] * inverse.pow(3) / x.shape[-1]
        return torch.addcmul((grad * weight).mul_(inverse), x, along, value=-1), grad_weight, None


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        plain = x.dtype == self.weight.dtype and x.dtype in (torch.float32, torch.float64)
        if x.device.type != "cpu" or not plain or torch.is_autocast_enabled("cpu") or not torch.is_grad_enabled():
            return super().forward(x)  # torch has a kernel for other devices, and handles half precision with care
        return _RMSNorm.apply(x, self.weight, self.eps)


class _UnitHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        # Half precision cannot hold 1 / SMALLEST_LENGTH.
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=full_precision(x.dtype))
        inverse = length.clamp_min_(SMALLEST_LENGTH).reciprocal_()
        ctx.save_for_backward(x, scale, inverse)
        return (x * (inverse * scale[:, None])).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, scale, inverse = ctx.saved_tensors
        along = (grad * x).sum(-1, keepdim=True) * inverse  # the gradient's part along the unit vector
        grad_scale = along.flatten(0, -3).sum((0, 2)) if x.dim() > 2 else along[:, 0]
        factor = inverse * scale[:, None]
        # Below SMALLEST_LENGTH the divisor is a constant and has no gradient.
        turning = torch.where(inverse < 1 / SMALLEST_LENGTH, along * inverse * factor, 0)
        return torch.addcmul(grad * factor, x, turning, value=-1).to(x.dtype), grad_scale.to(scale.dtype)


def unit_heads(x: Tensor, scale: Tensor) -> Tensor:
    """x / |x| * scale, head by head. x: [..., H, D]; scale: [H]."""
    return applied(_UnitHeads, x, scale)
