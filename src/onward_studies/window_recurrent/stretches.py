"""Stretches of held-out documents, and how well a model predicts their later tokens, which have much to remember."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from onward.data import Document
from onward.data.tokens import TokenizedDocument, tokenize
from onward.evaluation.controls import controls_of
from onward.evaluation.scoring import Tally, batches, score_batch

TOKENS_AT_ONCE = 2048


def stretches_of(
    documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase, count: int, length: int, reach: int
) -> list[TokenizedDocument]:
    """`count` stretches of `length` tokens from the first documents that are long enough, as many from each, evenly.

    They lie in the first `reach` tokens of a document, each in the middle of its part of them. Neighbours, which swap
    memories, are from different documents. Words and bytes are not counted.
    """
    found: list[TokenizedDocument] = []
    for document in documents:
        (tokens,) = tokenize([document], tokenizer, reach)
        found += [tokens] if len(tokens) >= length else []
        if len(found) == count:
            break
    if len(found) < 2:
        needed = f"memories are swapped between two documents of at least {length} tokens"
        raise ValueError(f"{needed}, and of {len(documents)} that are held out {len(found)} are so long: give more")
    each = -(-count // len(found))
    cut = [_cut(tokens, length, part, each) for part in range(each) for tokens in found]
    return [stretch for stretch in cut if stretch is not None][:count]


def _cut(tokens: TokenizedDocument, length: int, part: int, parts: int) -> TokenizedDocument | None:
    """None if a document has not as many stretches as are asked for."""
    parts = min(parts, len(tokens) // length)
    if part >= parts:
        return None
    start = (2 * part + 1) * len(tokens) // (2 * parts) - length // 2
    start = max(0, min(start, len(tokens) - length))
    return TokenizedDocument(tokens.name, tokens.ids[start : start + length], 0, 0)


def losses_of(
    model: Any, stretches: Sequence[TokenizedDocument], memories: Sequence[str], scored_from: int
) -> dict[str, dict[str, Any]]:
    """With each of these memories: the mean loss of all tokens from `scored_from` on, that of each document's, and the
    speed of reading. Stretches are of equal lengths."""
    controls = controls_of(model)
    tallies = {memory: Tally(stretches) for memory in memories}
    rows = max(2, TOKENS_AT_ONCE // controls.window)
    lengths = [len(stretch) - 1 for stretch in stretches]  # the last token predicts nothing
    with torch.no_grad():
        for batch in batches(lengths, rows, controls.window, swapped="swapped" in memories):
            score_batch(controls, stretches, batch, tallies, lambda scored: None)
    return {memory: _summary(tally, scored_from) for memory, tally in tallies.items()}


def _summary(tally: Tally, scored_from: int) -> dict[str, Any]:
    by_document: dict[str, list[float]] = {}
    for stretch, losses in zip(tally.documents, tally.losses, strict=True):
        later = torch.cat(losses)[scored_from - 1 :]  # the first token is predicted by nothing
        by_document.setdefault(stretch.name, []).append(float(later.double().mean()))
    return {
        "loss": fmean(loss for losses in by_document.values() for loss in losses),
        "documents": [(name, round(fmean(losses), 6)) for name, losses in by_document.items()],
        "tokens_per_second": sum(len(stretch) - 1 for stretch in tally.documents) / tally.seconds,
    }
