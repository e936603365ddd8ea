"""The losses of all heads: the mean of a call's labels, or its share of the mean of a larger batch.

transformers' Trainer spreads a batch over several calls and processes and tells each call how many labels the whole
batch has (`num_items_in_batch`). The sum of the calls' losses is then the loss of the batch, however it was spread.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops.language_loss import IGNORED, refuse_labels_outside
from ..ops.modes import may_look

REGRESSION, ONE_LABEL, MANY_LABELS = "regression", "single_label_classification", "multi_label_classification"


def share(total: Tensor, counted: Tensor | int, num_items_in_batch: Tensor | int | None) -> Tensor:
    """The sum of a call's losses divided by how many labels there are: `counted` in the call, or in the whole batch.
    Of no label at all the loss is 0, as there is nothing to learn."""
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
    """What a whole document is: a number, one of C classes, or any of them. logits: [B, C].

    Where `problem_type` does not say which, it is told as everywhere in transformers: one logit is a number, labels
    that are whole numbers are classes, others say of each class whether it fits.
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


def answer_loss(
    start_logits: Tensor,
    end_logits: Tensor,
    start_positions: Tensor,
    end_positions: Tensor,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """Where an answer starts and ends. logits: [B, N]; positions: [B], those beyond the text's end are left out."""
    found = (
        _place_loss("start_positions", start_logits, start_positions, num_items_in_batch),
        _place_loss("end_positions", end_logits, end_positions, num_items_in_batch),
    )
    return (found[0] + found[1]) / 2


def _place_loss(name: str, logits: Tensor, positions: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    if positions.is_floating_point():
        raise TypeError(f"{name} must be whole numbers (torch.long), got {positions.dtype}")
    if positions.numel() != len(logits):
        raise ValueError(f"{name} has {positions.numel()} values for {len(logits)} rows: one each is wanted")
    places = positions.flatten().to(logits.device).long()
    if may_look(places) and bool((places < 0).any()):
        raise ValueError(
            f"{name} has {int(places.min())}: positions are counted from 0; one at or beyond the length of the text "
            "marks an answer that is not there"
        )
    places = places.masked_fill(places == IGNORED, -1)  # for devices to complain of, where no one looked
    places = places.masked_fill(places >= logits.shape[1], IGNORED)
    total = F.cross_entropy(exact(logits), places, ignore_index=IGNORED, reduction="sum")
    return share(total, (places != IGNORED).sum(), num_items_in_batch)


def exact(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
