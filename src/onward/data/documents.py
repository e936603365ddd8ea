"""Documents, and three splits of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, overload

SPLITS = ("train", "validation", "test")
HALF = re.compile("[\ud800-\udfff]")
"""A surrogate without the other: JSON can write one, UTF-8 and tokenizers know none."""

Key = TypeVar("Key")


class CorpusError(ValueError):
    """A corpus that cannot be read; the message says which, where and what to do."""


@dataclass(frozen=True)
class Document:
    name: str
    text: str

    def __post_init__(self) -> None:
        if not self.text.isascii() and (half := HALF.search(self.text)):
            raise CorpusError(
                f"document {self.name!r}: half a character, \\u{ord(half[0]):04x}, stands at position {half.start()}; "
                "correct or remove it"
            )

    @cached_property
    def words(self) -> int:
        """Whitespace words of the raw text: what word-level perplexity divides by."""
        return len(self.text.split())

    @cached_property
    def bytes(self) -> int:
        """UTF-8 bytes: what bits per byte divides by."""
        return len(self.text.encode("utf-8"))


class LazyDocuments(Sequence[Document]):
    """Documents read when asked for, so that a corpus may be larger than memory; slices stay lazy."""

    def __init__(self, keys: Sequence[Key], read: Callable[[Key], Document]):
        self._keys: Sequence[Any] = keys
        self._read: Callable[[Any], Document] = read

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> LazyDocuments: ...
    def __getitem__(self, index: int | slice) -> Document | LazyDocuments:
        if isinstance(index, slice):
            return LazyDocuments(self._keys[index], self._read)
        return self._read(self._keys[index])


@dataclass(frozen=True)
class Corpus:
    """Three splits of documents.

    `validation_tokens` asks readers to use only so many first tokens of each validation document. It is
    carried along and not applied here, because tokens depend on the tokenizer: pass it to
    `streams.tokenize(max_tokens=...)`.
    """

    name: str
    train: Sequence[Document]
    validation: Sequence[Document]
    test: Sequence[Document]
    validation_tokens: int | None = None

    def __post_init__(self) -> None:
        for split in SPLITS:
            if len(getattr(self, split)) == 0:
                raise CorpusError(f"corpus {self.name!r} has no {split} documents: give it some text")


def split_documents(name: str, documents: Sequence[Document]) -> Corpus:
    """Hold out the last tenth of the documents; with fewer than three, the last fifth of the last text."""
    count = len(documents)
    if count == 0:
        raise CorpusError(f"corpus {name!r} has no documents: give it some text")
    if count < 3:
        head, middle, tail = _split_text(documents[-1])
        return Corpus(name, [*documents[:-1], head], [middle], [tail])
    held = max(2, round(count / 10))
    first_held, first_test = count - held, count - held + held // 2
    return Corpus(name, documents[:first_held], documents[first_held:first_test], documents[first_test:])


def _split_text(document: Document) -> tuple[Document, Document, Document]:
    text = document.text
    first_letter, last_letter = len(text) - len(text.lstrip()), len(text.rstrip())
    for boundary in (
        r"\n\s*\n",
        r"([^\S\n]*\n)+",
        r"\s+",
    ):  # the ends of paragraphs, else of lines, else of words
        found = re.finditer(boundary, text)
        ends = [match.end() for match in found if first_letter < match.start() and match.end() < last_letter]
        if len(ends) < 2:
            continue
        first = min(ends[:-1], key=lambda end: abs(end - 0.8 * len(text)))
        second = min((e for e in ends if e > first), key=lambda end: abs(end - 0.9 * len(text)))
        near = max(abs(first - 0.8 * len(text)), abs(second - 0.9 * len(text))) < 0.05 * len(text)
        if near or boundary == r"\s+":
            return (
                Document(f"{document.name} [train]", text[:first]),
                Document(f"{document.name} [validation]", text[first:second]),
                Document(f"{document.name} [test]", text[second:]),
            )
    raise CorpusError(
        f"document {document.name!r} has too few words ({document.words}) to be split into train, validation "
        "and test: give at least three documents, or a longer one"
    )


def from_splits(name: str, splits: Mapping[str, Sequence[Document]]) -> Corpus:
    """Take the splits that are there; one held-out split is halved, none means the last tenth of train."""
    if "train" not in splits:
        raise CorpusError(f"corpus {name!r} has the splits {', '.join(splits)} but no train split: add one")
    held = [splits[split] for split in ("validation", "test") if split in splits]
    if len(held) == 2:
        return Corpus(name, splits["train"], held[0], held[1])
    if len(held) == 1 and len(held[0]) >= 2:
        half = len(held[0]) // 2
        return Corpus(name, splits["train"], held[0][:half], held[0][half:])
    if len(held) == 1:
        raise CorpusError(
            f"corpus {name!r} has train and one held-out document only, which cannot serve as both "
            "validation and test: add the missing split"
        )
    return split_documents(name, splits["train"])
