"""Documents -> tokens, each document whole, with its counts of words and bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..utils.fields import FieldError
from .documents import Document
from .pieces import cut_between_words, tokenizes_pieces_alike


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
    documents: Iterable[Document | str],
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int | None = None,
    add_end: bool = False,
) -> list[TokenizedDocument]:
    """Tokenizes documents or plain strings, whole, or the first `max_tokens` of each.

    No special tokens are added, except, with `add_end`, the tokenizer's end of text after each document that is kept
    whole: a model learns from it to end a text. Ids are int32, half the memory of int64; segments convert them.
    """
    if max_tokens is not None and max_tokens < 1:
        raise FieldError("max_tokens", max_tokens, "keep at least one token, or pass None to keep all")
    in_pieces = tokenizes_pieces_alike(tokenizer)
    return [
        _tokenize_one(_as_document(document, number), tokenizer, max_tokens, in_pieces, add_end)
        for number, document in enumerate(documents)
    ]


def _as_document(given: Document | str, number: int) -> Document:
    if isinstance(given, str):
        return Document(f"document {number}", given)
    if not isinstance(given, Document):
        raise TypeError(f"documents are onward.data.Document or strings, got {type(given).__name__}")
    return given


def _tokenize_one(
    document: Document, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None, in_pieces: bool, add_end: bool
) -> TokenizedDocument:
    if not document.text.strip():
        raise ValueError(f"document {document.name!r} is empty: leave it out, or give it text")
    kept = document
    parts: list[Tensor] = []
    count = characters = 0
    # Tokenizers need some hundred bytes of memory for a byte of text, so long texts go through them in pieces.
    for piece in cut_between_words(document.text) if in_pieces else [document.text]:
        # Some tokenizers are saved with truncation and padding switched on.
        encoded = tokenizer(
            piece,
            add_special_tokens=False,
            truncation=False,
            padding=False,
            split_special_tokens=True,  # "[SEP]" in a text is not a separator
            return_offsets_mapping=tokenizer.is_fast and max_tokens is not None,
            verbose=False,  # no warning about texts longer than the backbone's context: they are the usual case
        )
        ids: list[int] = encoded["input_ids"]
        if max_tokens is not None and count + len(ids) > max_tokens:
            ids = ids[: max_tokens - count]
            if not tokenizer.is_fast:
                kept = Document(document.name, str(tokenizer.decode(ids)))
            else:
                characters += encoded["offset_mapping"][len(ids) - 1][1] if ids else 0
                kept = Document(document.name, document.text[:characters])
        parts.append(torch.tensor(ids, dtype=torch.int32))
        count += len(ids)
        characters += len(piece)
        if kept is not document:
            break
    if not count:
        raise ValueError(
            f"document {document.name!r} has {document.words} words but gives no tokens: "
            "use a tokenizer that knows its characters"
        )
    is_whole = kept is document and (max_tokens is None or count < max_tokens)
    if add_end and is_whole and tokenizer.eos_token_id is not None:
        parts.append(torch.tensor([tokenizer.eos_token_id], dtype=torch.int32))
    return TokenizedDocument(document.name, torch.cat(parts), kept.words, kept.bytes)
