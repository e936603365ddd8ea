"""The loss of whole documents, from their beginning to their end with the state carried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.language_loss import IGNORED


def never_empty(mask: Tensor) -> Tensor:
    """A mask [B, N] with at least one token: models skip their layers for padding alone."""
    if mask.any():
        return mask
    mask = mask.clone()
    mask[0, 0] = 1
    return mask


@torch.no_grad()
def document_losses(model: Any, batch: Mapping[str, Tensor], pieces: Iterable[tuple[int, int]]) -> Tensor:
    """The total loss and the number of labels of each row, [B, 2].

    The model processes one piece (from one token up to another, of every row) after the other, so that only one
    piece's logits are in memory at a time, and rows that have ended are left out.
    """
    lengths = batch["attention_mask"].sum(1)
    totals = torch.zeros(len(lengths), 2, dtype=torch.float64, device=lengths.device)
    rows = torch.arange(len(lengths), device=lengths.device)
    state: Any = None
    for start, stop in pieces:
        alive = (lengths[rows] > start).nonzero()[:, 0]
        if not len(alive):  # other processes have longer documents, and would wait for this one
            alive = rows.new_zeros(1)
        if state is not None and len(alive) < len(rows):
            rows, state = rows[alive], state.select(alive)
        columns = slice(start, stop)
        mask, labels = (batch[name][rows, columns] for name in ("attention_mask", "shift_labels"))
        output = model(batch["input_ids"][rows, columns], never_empty(mask), state=state, use_cache=False)
        state = output.state
        losses = nn.functional.cross_entropy(
            output.logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
        )
        totals[rows, 0] += losses.double().sum(1)
        totals[rows, 1] += (labels != IGNORED).double().sum(1)
    return totals
