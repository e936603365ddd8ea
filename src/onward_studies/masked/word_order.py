"""What a masked language model gains from the order of words: its loss when visible words are shuffled."""

from __future__ import annotations

import random

import torch
from torch import Tensor
from transformers import BertForMaskedLM

from onward.data.masked_rows import Hiding, PackedTexts, collate_rows
from onward.ops.language_loss import IGNORED
from onward.training.masked import losses_of_hidden, only_hidden_logits

ROWS_AT_ONCE = 32


def shuffled(ids: Tensor, labels: Tensor, hiding: Hiding, number: int) -> Tensor:
    """ids: [n] -> [n]. Hidden and special tokens stay where they are; `number` is the seed of the order."""
    generator = torch.Generator().manual_seed(random.Random(f"word order {number}").getrandbits(63))
    visible = ((labels == IGNORED) & ~hiding.special[ids]).nonzero()[:, 0]
    mixed = ids.clone()
    mixed[visible] = ids[visible[torch.randperm(len(visible), generator=generator)]]
    return mixed


@torch.inference_mode()
def losses(model: BertForMaskedLM, texts: PackedTexts, pad: int) -> dict[str, float]:
    """The mean over hidden tokens, in nats: of rows "in_order", and "shuffled"."""
    model.eval()
    totals, tokens = {"in_order": 0.0, "shuffled": 0.0}, 0
    with only_hidden_logits(model):
        for start in range(0, len(texts), ROWS_AT_ONCE):
            numbers = range(start, min(start + ROWS_AT_ONCE, len(texts)))
            rows = [texts[number] for number in numbers]
            mixed = [
                {**row, "input_ids": shuffled(row["input_ids"], row["labels"], texts.hiding, number)}
                for number, row in zip(numbers, rows, strict=True)
            ]
            for read, given in (("in_order", rows), ("shuffled", mixed)):
                each = losses_of_hidden(model, collate_rows(given, pad))
                totals[read] += float(each.sum())
            tokens += len(each)
    return {read: total / tokens for read, total in totals.items()}
