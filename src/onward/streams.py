"""Documents -> tokens -> segments: every token once, every label once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from onward.corpora import Document

IGNORED = -100
"""The label that losses leave out."""


@dataclass(frozen=True, eq=False)
class TokenizedDocument:
    """`words` and `bytes` count the raw text behind `ids`, for perplexity per word and bits per byte."""

    name: str
    ids: Tensor
    words: int
    bytes: int

    def __len__(self) -> int:
        return len(self.ids)


def tokenize(
    documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase, max_tokens: int | None = None
) -> list[TokenizedDocument]:
    """Tokenize whole documents, adding no special tokens; `max_tokens` keeps only the first so many of each.

    Ids are kept as int32, half of int64's memory; segments hand them out as int64.
    """
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens={max_tokens}: keep at least one token, or pass None to keep all")
    with _no_length_warning(tokenizer):
        return [_tokenize_one(document, tokenizer, max_tokens) for document in documents]


def _tokenize_one(
    document: Document, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None
) -> TokenizedDocument:
    if not document.text.strip():
        raise ValueError(f"document {document.name!r} is empty: leave it out, or give it text")
    # Some tokenizers are saved with truncation and padding switched on; a document must come through whole.
    encoded = tokenizer(
        document.text,
        add_special_tokens=False,
        truncation=False,
        padding=False,
        return_offsets_mapping=tokenizer.is_fast and max_tokens is not None,
    )
    ids: list[int] = encoded["input_ids"]
    if not ids:
        raise ValueError(
            f"document {document.name!r} has {document.words} words but gives no tokens: "
            "use a tokenizer that knows its characters"
        )
    kept = document
    if max_tokens is not None and len(ids) > max_tokens:
        ids = ids[:max_tokens]
        if tokenizer.is_fast:
            kept = Document(document.name, document.text[: encoded["offset_mapping"][max_tokens - 1][1]])
        else:
            kept = Document(document.name, str(tokenizer.decode(ids)))
    return TokenizedDocument(document.name, torch.tensor(ids, dtype=torch.int32), kept.words, kept.bytes)


@contextlib.contextmanager
def _no_length_warning(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Tokenizers warn of texts longer than the backbone's context, which are this library's usual case."""
    limit = tokenizer.model_max_length
    tokenizer.model_max_length = int(1e30)
    try:
        yield
    finally:
        tokenizer.model_max_length = limit


class Segments(Dataset[dict[str, Tensor]]):
    """Consecutive pieces of `length` tokens, in order, never across documents.

    An item has `input_ids` [n] and `shift_labels` [n]: the token that follows each input, also across the
    segment's end, and -100 after the document's last token. So every token is an input once, and every token
    but each document's first is a label once.

    A document's rest of fewer than `min_length` tokens joins the segment before it, which is then a little
    longer than `length`: alone, a rest of one token would be a segment with nothing to predict.
    """

    def __init__(self, documents: Sequence[TokenizedDocument], length: int, min_length: int = 2):
        if length < 1:
            raise ValueError(f"length={length}: a segment needs at least one token")
        if not 1 <= min_length <= length:
            raise ValueError(f"min_length={min_length}: choose it between 1 and length={length}")
        if not documents:
            raise ValueError("no documents to cut into segments: pass at least one tokenized document")
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
        ids = self.documents[document].ids
        labels = torch.full((end - start,), IGNORED, dtype=torch.int64)
        following = ids[start + 1 : end + 1]
        labels[: len(following)] = following
        return {"input_ids": ids[start:end].long(), "shift_labels": labels}


def _cut(count: int, length: int, min_length: int) -> list[tuple[int, int]]:
    starts = list(range(0, count, length))
    if len(starts) > 1 and count - starts[-1] < min_length:
        starts.pop()
    return list(zip(starts, [*starts[1:], count], strict=True))


def collate(segments: Sequence[Mapping[str, Any]], pad_token_id: int = 0) -> dict[str, Tensor]:
    """Right-pad segments to the longest; where nothing is padded there is no `attention_mask`.

    `labels` are there for Trainer, which counts the tokens of a batch by them; the models go by `shift_labels`.
    """
    if not segments:
        raise ValueError("no segments to collate: pass at least one")

    def padded(field: str, value: int) -> Tensor:
        rows = [segment[field] for segment in segments]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)

    batch = {"input_ids": padded("input_ids", pad_token_id), "shift_labels": padded("shift_labels", IGNORED)}
    lengths = torch.tensor([len(segment["input_ids"]) for segment in segments])
    longest = batch["input_ids"].shape[1]
    if bool((lengths < longest).any()):
        batch["attention_mask"] = (torch.arange(longest) < lengths[:, None]).long()
    return batch | {"labels": batch["shift_labels"]}
