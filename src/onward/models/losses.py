"""The losses of all heads: the mean over a call's labels, or the call's share of the mean over a larger batch.

transformers' Trainer splits a batch over several calls and processes and tells each call how many labels the whole
batch has (`num_items_in_batch`). The losses of the calls then add up to the loss of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops.language_loss import IGNORED, refuse_labels_outside
from ..ops.modes import full_precision, may_look
from .checking import check_labels

REGRESSION, ONE_LABEL, MANY_LABELS = "regression", "single_label_classification", "multi_label_classification"


def labels_to_predict(
    labels: Tensor | None, shift_labels: Tensor | None, mask: Tensor | None, shape: torch.Size, vocab_size: int
) -> Tensor | None:
    """The label of each token: the next token, [B, N]. `shift_labels` are such labels already."""
    given = labels if shift_labels is None else shift_labels
    if given is None:
        return None
    check_labels(given, shape, vocab_size)
    if shift_labels is None:
        return next_labels(given, mask)
    return given.long() if mask is None else given.long().masked_fill(mask == 0, IGNORED)


def next_labels(labels: Tensor, attention_mask: Tensor | None) -> Tensor:
    """For each real token the label of the row's next real token; none for the last, and for padding. [B, N]"""
    if attention_mask is None or bool(attention_mask.all()):
        return F.pad(labels[:, 1:], (0, 1), value=IGNORED).long()
    padding = attention_mask == 0  # may stand between a token and the next
    order = padding.int().argsort(dim=1, stable=True)
    packed = labels.long().masked_fill(padding, IGNORED).gather(1, order)
    following = torch.full_like(packed, IGNORED).scatter(1, order, F.pad(packed[:, 1:], (0, 1), value=IGNORED))
    return following.masked_fill(padding, IGNORED)


def share(total: Tensor, counted: Tensor | int, num_items_in_batch: Tensor | int | None) -> Tensor:
    """The summed loss of a call divided by the number of labels: `counted` in the call, or those of the whole batch.
    Without any label the loss is 0."""
    count = counted if num_items_in_batch is None else num_items_in_batch
    if isinstance(count, Tensor):
        return total / count.to(total.device).clamp(min=1)
    return total / max(count, 1)


def labelled_loss(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """One of C classes for each token, document or question. logits: [.., C]; labels: [..]."""
    if labels.is_floating_point():
        raise TypeError(f"labels must be whole numbers (torch.long), got {labels.dtype}")
    if labels.numel() != logits.numel() // logits.shape[-1]:
        raise ValueError(
            f"labels have the shape {tuple(labels.shape)}, the logits {tuple(logits.shape)}: there must be one label "
            "for each row of logits"
        )
    wanted = labels.flatten().to(logits.device).long()
    refuse_labels_outside(wanted, logits.shape[-1], "the head {} classes, from 0: use one of them")
    total = F.cross_entropy(exact(logits).flatten(0, -2), wanted, ignore_index=IGNORED, reduction="sum")
    return share(total, (wanted != IGNORED).sum(), num_items_in_batch)


def document_loss(
    logits: Tensor, labels: Tensor, problem_type: str | None, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """A number, one of C classes, or any of C classes for each document. logits: [B, C].

    Without a `problem_type` the usual rule of transformers applies: one logit means regression, whole numbers are
    classes, and floating-point labels say for each class whether it applies.
    """
    if problem_type is None:
        several = MANY_LABELS if labels.is_floating_point() else ONE_LABEL
        problem_type = REGRESSION if logits.shape[-1] == 1 else several
    if problem_type == ONE_LABEL:
        return labelled_loss(logits, labels, num_items_in_batch)
    if labels.numel() != logits.numel():
        raise ValueError(
            f"labels have the shape {tuple(labels.shape)}, the logits {tuple(logits.shape)}: for {problem_type} there "
            "must be a label for each logit"
        )
    scores = exact(logits)
    wanted = labels.to(scores.device, scores.dtype).view_as(scores)
    loss = F.mse_loss if problem_type == REGRESSION else F.binary_cross_entropy_with_logits
    return share(loss(scores, wanted, reduction="sum"), wanted.numel(), num_items_in_batch)


def place_loss(name: str, logits: Tensor, positions: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """One of N places for each text; positions beyond its end are left out. logits: [B, N]; positions: [B]."""
    if positions.is_floating_point():
        raise TypeError(f"{name} must be whole numbers (torch.long), got {positions.dtype}")
    if positions.numel() != len(logits):
        raise ValueError(f"{name} has {positions.numel()} values for {len(logits)} rows: give one for each row")
    places = positions.flatten().to(logits.device).long()
    if may_look(places) and bool((places < 0).any()):
        raise ValueError(
            f"{name} has {int(places.min())}: positions are counted from 0; a position at or beyond the end of the "
            "text marks an answer outside of it"
        )
    places = places.masked_fill(places == IGNORED, -1)  # so that devices whose values were not checked complain
    places = places.masked_fill(places >= logits.shape[1], IGNORED)
    total = F.cross_entropy(exact(logits), places, ignore_index=IGNORED, reduction="sum")
    return share(total, (places != IGNORED).sum(), num_items_in_batch)


def exact(logits: Tensor) -> Tensor:
    return logits.to(full_precision(logits.dtype))


# -- by head


@dataclass(frozen=True)
class HeadLoss:
    labels: tuple[str, ...]  # the arguments of `forward` that a head is trained on
    of: Callable[..., Tensor]  # (output, num_items_in_batch, problem_type, **labels) -> the loss


CLASSES = HeadLoss(("labels",), lambda output, count, kind, labels: labelled_loss(output.logits, labels, count))
DOCUMENTS = HeadLoss(("labels",), lambda output, count, kind, labels: document_loss(output.logits, labels, kind, count))
ANSWERS = HeadLoss(
    ("start_positions", "end_positions"),
    lambda output, count, kind, start_positions, end_positions: (
        (
            place_loss("start_positions", output.start_logits, start_positions, count)
            + place_loss("end_positions", output.end_logits, end_positions, count)
        )
        / 2
    ),
)
