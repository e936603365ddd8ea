"""The loss of a language model without its logits: they are computed and dropped a few tokens at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .modes import autocast_dtype, full_precision, may_look

IGNORED = -100
"""The label that losses leave out."""
LOGITS_AT_ONCE = 8_000_000
"""How many logits are in memory at a time."""
VANISHING = 80
"""Larger losses are the logarithm of a probability that float32 can hardly hold."""
VOCABULARY = "the vocabulary {} ids, from 0: use the ids of the model's tokenizer"


def refuse_labels_outside(labels: Tensor, size: int, of_what: str = VOCABULARY) -> None:
    if not may_look(labels):  # other devices raise an error of their own
        return
    wrong = labels[(labels != IGNORED) & ((labels < 0) | (labels >= size))]
    if len(wrong):
        raise ValueError(
            f"labels has {int(wrong[0])}, and {of_what.format(size)}, and {IGNORED} for what is not to be scored"
        )


class _LanguageLoss(torch.autograd.Function):
    """Computes the gradients together with the loss, while the logits are in memory: the loss is a number, so its own
    gradient only scales them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, factor: float) -> Tensor:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        exact = full_precision(hidden.dtype)
        is_exact = exact == hidden.dtype
        # Summed in full precision: many pieces in half precision would lose most of the sum.
        grad_weight = torch.zeros_like(weight, dtype=exact) if wants_weight else None
        loss = torch.zeros((), dtype=exact, device=hidden.device)
        scaled, looking = hidden * factor, may_look(hidden)
        size = max(1, min(len(labels), LOGITS_AT_ONCE // len(weight)))
        # Every piece uses the same memory: allocating it anew costs more than the work in it.
        room = hidden.new_empty(size, len(weight))
        exact_room = room if is_exact else torch.empty_like(room, dtype=exact)
        for start in range(0, len(labels), size):
            piece, wanted = scaled[start : start + size], labels[start : start + size]
            ignored = wanted == IGNORED
            rows, right = torch.arange(len(wanted), device=wanted.device), wanted.clamp(min=0)
            made, logits = room[: len(wanted)], exact_room[: len(wanted)]
            torch.mm(piece, weight.mT, out=made)
            if not is_exact:
                logits.copy_(made)
            if looking:
                shares = torch.softmax(logits, -1, out=logits)
                losses = -shares[rows, right].log()
                vanished = losses > VANISHING  # probabilities too small for a float: computed again
                if bool(vanished.any()):
                    far = (piece[vanished] @ weight.mT).to(exact)
                    losses[vanished] = far.logsumexp(-1) - far[rows[: len(far)], right[vanished]]
            else:
                torch.log_softmax(logits, -1, out=logits)
                losses = -logits[rows, right]
                shares = logits.exp_()
            loss += losses.masked_fill_(ignored, 0).sum()
            if grad_hidden is None and grad_weight is None:
                continue
            shares[rows, right] -= 1
            if not looking:
                shares.masked_fill_(ignored[:, None], 0)
            elif bool(ignored.any()):
                shares[ignored] = 0
            errors = shares if is_exact else made.copy_(shares)
            if grad_hidden is not None:
                torch.mm(errors, weight, out=grad_hidden[start : start + size]).mul_(factor)
            if grad_weight is not None:
                if is_exact:
                    grad_weight.addmm_(errors.mT, piece)
                else:
                    grad_weight += errors.mT @ piece
        ctx.save_for_backward(grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grad_hidden, grad_weight = ctx.saved_tensors
        hidden, weight = (None if g is None else g * grad.to(g.dtype) for g in (grad_hidden, grad_weight))
        return hidden, weight, None, None


def language_loss(hidden: Tensor, weight: Tensor, labels: Tensor, factor: float = 1.0) -> Tensor:
    """The cross entropy of the logits `factor * hidden @ weight.T`, summed over the labels that are not -100.

    hidden: [M, d]; weight: [V, d]; labels: [M].
    """
    refuse_labels_outside(labels, len(weight))
    lower = autocast_dtype(hidden.device.type)  # autocast does not reach products into existing memory
    if lower is not None:
        hidden, weight = (x if x.dtype == torch.float64 else x.to(lower) for x in (hidden, weight))
    return _LanguageLoss.apply(hidden, weight, labels, factor)
