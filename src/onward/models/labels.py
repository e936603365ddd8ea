"""Which token each one is to predict."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops.language_loss import IGNORED


def next_labels(labels: Tensor, attention_mask: Tensor | None) -> Tensor:
    """For each real token the label of the next real one of its row; nothing for the last, and for padding. [B, N]"""
    if attention_mask is None or bool(attention_mask.all()):
        return F.pad(labels[:, 1:], (0, 1), value=IGNORED).long()
    padding = attention_mask == 0  # which may stand between a token and the next
    order = padding.int().argsort(dim=1, stable=True)
    packed = labels.long().masked_fill(padding, IGNORED).gather(1, order)
    following = torch.full_like(packed, IGNORED).scatter(1, order, F.pad(packed[:, 1:], (0, 1), value=IGNORED))
    return following.masked_fill(padding, IGNORED)
