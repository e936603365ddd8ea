"""Tokens -> segments, one after another or in lanes: every token is an input once, and a label once."""

from __future__ import annotations

import heapq
import random
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from ..ops.language_loss import IGNORED
from ..utils.fields import FieldError
from .tokens import TokenizedDocument


class Segments(Dataset[dict[str, Tensor]]):
    """Consecutive pieces of `length` tokens, in order, never across documents.

    An item has `input_ids` [n] and `shift_labels` [n]: the token that follows each input, even if that is in the next
    segment, and IGNORED after the document's last token. So every token is an input once, and every token except each
    document's first is a label once.

    A document's rest of fewer than `min_length` tokens joins the segment before it, which becomes a little longer than
    `length`: a rest of one token would be a segment with nothing to predict.
    """

    def __init__(self, documents: Sequence[TokenizedDocument], length: int, min_length: int = 2):
        _check(documents, length)
        if not 1 <= min_length <= length:
            raise FieldError("min_length", min_length, f"choose it between 1 and length={length}")
        self.documents = documents
        self.length = length
        self.spans = [
            (index, start, end)
            for index, document in enumerate(documents)
            for start, end in _cut(len(document), length, min_length)
        ]
        """(document, first token, one past the last token) of every segment."""

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        document, start, end = self.spans[index]
        return _segment(self.documents[document], start, end)


def _cut(count: int, length: int, min_length: int) -> list[tuple[int, int]]:
    starts = list(range(0, count, length))
    if len(starts) > 1 and count - starts[-1] < min_length:
        starts.pop()
    return list(zip(starts, [*starts[1:], count], strict=True))


def _check(documents: Sequence[TokenizedDocument], length: int) -> None:
    if length < 1:
        raise FieldError("length", length, "a segment needs at least one token")
    if not documents:
        raise ValueError("no documents to cut into segments: pass at least one tokenized document")
    for document in documents:
        if not len(document):
            raise ValueError(f"document {document.name!r} has no tokens: leave it out")


def _segment(document: TokenizedDocument, start: int, end: int) -> dict[str, Tensor]:
    following = document.ids[start + 1 : end + 1].long()
    labels = nn.functional.pad(following, (0, end - start - len(following)), value=IGNORED)
    return {"input_ids": document.ids[start:end].long(), "shift_labels": labels}


class Lanes(Dataset[dict[str, Tensor]]):
    """Many documents side by side: each lane follows one to its end, then takes the next that no lane has taken.

    The order of documents depends only on `seed` and the epoch; it is the given one if `seed` is None. The next epoch
    follows at once, so lanes are idle only at the very end.

    Item `step * lanes + lane` has `input_ids` [n] and `shift_labels` [n] as in `Segments`, and `starts_document` [],
    whether the lane has taken a new document. n is `length`, less at a document's end, 0 if the lane is idle.
    A rest of one token is a segment, too: it predicts nothing, but belongs to the state.

    Take items in order, without shuffling, `lanes` of them per step. The number of steps done is the whole position:
    `Subset(lanes, range(step * lanes.lanes, len(lanes)))` continues from there. If every rank takes `rows` items at
    once, batch by batch in turn, and `lanes` is a multiple of rows times ranks, then a lane never changes its rank or
    its row.
    """

    def __init__(
        self, documents: Sequence[TokenizedDocument], lanes: int, length: int, *, epochs: int = 1, seed: int | None = 0
    ):
        _check(documents, length)
        if lanes < 1:
            raise FieldError("lanes", lanes, "there must be at least one")
        refuse_no_epochs(epochs)
        if lanes > (most := epochs * len(documents)):
            passes = "1 epoch" if epochs == 1 else f"{epochs} epochs"
            raise FieldError(
                "lanes",
                lanes,
                f"{lanes - most} lanes would have no document in the whole run, because {len(documents)} documents in "
                f"{passes} fill only {most}; use at most {most} lanes, or more epochs",
            )
        self.documents = documents
        self.lanes = lanes
        self.length = length
        # For each lane: the documents that it takes, and the steps at which it takes them.
        self._taken = [array("q") for _ in range(lanes)]
        self._steps = [array("q") for _ in range(lanes)]
        free = [(0, lane) for lane in range(lanes)]
        for epoch in range(epochs):
            for document in order(len(documents), seed, epoch):
                step, lane = free[0]
                self._taken[lane].append(document)
                self._steps[lane].append(step)
                heapq.heapreplace(free, (step + -(-len(documents[document]) // length), lane))
        self._ends = sorted(step for step, _ in free)
        self.steps = self._ends[-1]

    def __len__(self) -> int:
        return self.steps * self.lanes

    def reading(self, step: int) -> int:
        """How many lanes are not idle at this step."""
        return self.lanes - bisect_right(self._ends, step)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        step, lane = divmod(range(len(self))[index], self.lanes)
        latest = bisect_right(self._steps[lane], step) - 1
        document = self.documents[self._taken[lane][latest]]
        start = min((step - self._steps[lane][latest]) * self.length, len(document))
        segment = _segment(document, start, min(start + self.length, len(document)))
        return segment | {"starts_document": torch.tensor(start == 0)}


def refuse_no_epochs(epochs: int) -> None:
    if epochs < 1:
        raise FieldError("epochs", epochs, "the documents must be used at least once")


def order(count: int, seed: int | None, epoch: int) -> list[int]:
    """The order of `count` items in an epoch: random, or 0, 1, 2, ... if `seed` is None."""
    if seed is None:
        return list(range(count))
    # Python guarantees these numbers in all versions, so that a run can be resumed with another one.
    generator = random.Random(f"{seed} {epoch}")
    return sorted(range(count), key=lambda _: generator.random())


def collate(segments: Sequence[Mapping[str, Any]], pad_token_id: int = 0) -> dict[str, Tensor]:
    """Segments -> a batch, padded on the right to the longest; without padding there is no `attention_mask`.

    Rows may be empty. If all are, they are padded to one token, because models need at least one.
    `labels` is there for Trainer, which counts the tokens of a batch by it; the models use `shift_labels`.
    """
    if not segments:
        raise ValueError("no segments to collate: pass at least one")
    if "shift_labels" not in segments[0]:
        raise ValueError(
            f"segments without shift_labels, only {', '.join(segments[0])}: a stock Trainer drops fields that it does "
            "not know; give it TrainingArguments(remove_unused_columns=False)"
        )
    batch = {
        "input_ids": padded(segments, "input_ids", pad_token_id),
        "shift_labels": padded(segments, "shift_labels", IGNORED),
    }
    mask = mask_of(segments)
    if not mask.all():
        batch["attention_mask"] = mask
    if "starts_document" in segments[0]:
        batch["starts_document"] = torch.stack([segment["starts_document"] for segment in segments])
    return batch | {"labels": batch["shift_labels"]}


def padded(rows: Sequence[Mapping[str, Any]], field: str, value: int) -> Tensor:
    """A field of all rows, padded on the right to the longest, at least 1: [B, n]."""
    found = pad_sequence([row[field] for row in rows], True, value)
    return found if found.shape[1] else found.new_full((len(rows), 1), value)


def mask_of(rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """1 for tokens, 0 for padding: [B, n]."""
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    return (torch.arange(max(1, int(lengths.max()))) < lengths[:, None]).long()
