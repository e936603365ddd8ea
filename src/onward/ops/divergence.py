"""How far predicted distributions are from a teacher's, without keeping any of them for the gradient.

Shapes: M tokens, V ids.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .language_loss import LOGITS_AT_ONCE
from .modes import applied, full_precision


class _Divergence(torch.autograd.Function):
    """Computes the gradient with the divergence, a few tokens at a time: it is all that is kept."""

    @staticmethod
    def forward(ctx: Any, teacher: Tensor, student: Tensor, counted: Tensor) -> Tensor:
        exact = full_precision(torch.promote_types(teacher.dtype, student.dtype))
        errors = torch.empty_like(student) if ctx.needs_input_grad[1] else None
        total = torch.zeros((), dtype=exact, device=student.device)
        size = max(1, LOGITS_AT_ONCE // student.shape[-1])
        for start in range(0, len(student), size):
            piece = slice(start, start + size)
            skipped = ~counted[piece, None]
            theirs, ours = (logits[piece].to(exact).log_softmax(-1) for logits in (teacher, student))
            likely = theirs.exp()
            # An id that the teacher excludes counts nothing, whatever its logarithm.
            total += ((theirs - ours) * likely).masked_fill_((likely == 0) | skipped, 0).sum()
            if errors is not None:
                errors[piece] = ours.exp_().sub_(likely).masked_fill_(skipped, 0)
        ctx.save_for_backward(errors)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (errors,) = ctx.saved_tensors
        return None, None if errors is None else errors * grad.to(errors.dtype), None


def divergence(teacher: Tensor, student: Tensor, counted: Tensor) -> Tensor:
    """The Kullback-Leibler divergence KL(teacher || student) of the distributions that the logits [M, V] stand for, in
    nats, summed over the tokens that are `counted` [M]. Only the student has a gradient."""
    return applied(_Divergence, teacher, student, counted)
