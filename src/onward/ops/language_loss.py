"""The loss of a language model without its logits: they are made, used and forgotten a few tokens at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

IGNORED = -100
LOGITS_AT_ONCE = 4_000_000
"""How many logits are there at a time."""


class _LanguageLoss(torch.autograd.Function):
    """Makes the gradients together with the loss, while the logits are at hand. No work is done twice: a loss has
    one gradient to be scaled, so that nothing more need be known."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, factor: float) -> Tensor:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        loss = torch.zeros((), dtype=exact, device=hidden.device)
        size = max(1, LOGITS_AT_ONCE // weight.shape[0])
        for start in range(0, len(labels), size):
            piece, wanted = hidden[start : start + size], labels[start : start + size]
            places = torch.arange(len(wanted), device=wanted.device), wanted.clamp(min=0)
            ignored = wanted == IGNORED
            logits = (piece @ weight.mT).to(exact).mul_(factor)
            largest = logits.amax(-1, keepdim=True)
            right = (logits[places] - largest[:, 0]).masked_fill_(ignored, 0)
            shares = logits.sub_(largest).exp_()
            total = shares.sum(-1, keepdim=True)
            loss += (total.log()[:, 0].masked_fill_(ignored, 0) - right).sum()
            if grad_hidden is None and grad_weight is None:
                continue
            shares.mul_(total.reciprocal_().masked_fill_(ignored[:, None], 0).mul_(factor))
            shares[places] -= factor * (~ignored).to(exact)
            shares = shares.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(shares, weight, out=grad_hidden[start : start + size])
            if grad_weight is not None:
                grad_weight.addmm_(shares.mT, piece)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grad_hidden, grad_weight = ctx.saved_tensors
        hidden, weight = (None if g is None else g * grad.to(g.dtype) for g in (grad_hidden, grad_weight))
        return hidden, weight, None, None


def language_loss(hidden: Tensor, weight: Tensor, labels: Tensor, factor: float = 1.0) -> Tensor:
    """The sum of the cross entropies of the logits `factor * hidden @ weight.T`, over the labels that are not -100.

    hidden: [M, d]; weight: [V, d]; labels: [M].
    """
    return _LanguageLoss.apply(hidden, weight, labels, factor)
