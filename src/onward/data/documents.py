"""Documents, and their splits into train, validation and test."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, overload

from ..utils.files import DataError
from ..utils.safe_json import HALF_A_CHARACTER

SPLITS = ("train", "validation", "test")

Key = TypeVar("Key")


@dataclass(frozen=True)
class Document:
    name: str
    text: str

    def __post_init__(self) -> None:
        if not self.text.isascii() and (half := HALF_A_CHARACTER.search(self.text)):
            raise DataError(
                f"document {self.name!r}: half a character, \\u{ord(half[0]):04x}, is at position {half.start()}; "
                "correct or remove it"
            )

    @cached_property
    def words(self) -> int:
        """Whitespace words of the raw text, by which word-level perplexity divides."""
        return len(self.text.split())

    @cached_property
    def bytes(self) -> int:
        """UTF-8 bytes, by which bits per byte divides."""
        return len(self.text.encode("utf-8"))


class LazyDocuments(Sequence[Document]):
    """Documents that are read on access, so that a corpus may be larger than memory. Slices stay lazy."""

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

    `validation_tokens` is how many of each validation document's first tokens are meant to be used. Tokens depend on
    the tokenizer, so it is not applied here: pass it to `tokenize(max_tokens=...)`.
    """

    name: str
    train: Sequence[Document]
    validation: Sequence[Document]
    test: Sequence[Document]
    validation_tokens: int | None = None

    def __post_init__(self) -> None:
        for split in SPLITS:
            if len(getattr(self, split)) == 0:
                raise DataError(f"corpus {self.name!r} has no {split} documents: give it some text")


def split_documents(name: str, documents: Sequence[Document]) -> Corpus:
    """Holds out the last tenth of the documents, or, with fewer than three, the last fifth of the last text."""
    count = len(documents)
    if count == 0:
        raise DataError(f"corpus {name!r} has no documents: give it some text")
    if count < 3:
        head, middle, tail = _split_text(documents[-1])
        return Corpus(name, [*documents[:-1], head], [middle], [tail])
    held = max(2, round(count / 10))
    first_held, first_test = count - held, count - held + held // 2
    return Corpus(name, documents[:first_held], documents[first_held:first_test], documents[first_test:])


def _split_text(document: Document) -> tuple[Document, Document, Document]:
    text = document.text
    first_letter, last_letter = len(text) - len(text.lstrip()), len(text.rstrip())
    for boundary in (r"\n\s*\n", r"([^\S\n]*\n)+", r"\s+"):  # the ends of paragraphs, else of lines, else of words
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
    raise DataError(
        f"document {document.name!r} has too few words ({document.words}) to be split into train, validation "
        "and test: give at least three documents, or a longer one"
    )


def from_splits(name: str, splits: Mapping[str, Sequence[Document]]) -> Corpus:
    """Takes given splits. A single held-out split is halved; without one, the last tenth of train is held out."""
    if "train" not in splits:
        raise DataError(f"corpus {name!r} has the splits {', '.join(splits)}, and no train split: add one")
    held = [splits[split] for split in ("validation", "test") if split in splits]
    if not held:
        return split_documents(name, splits["train"])
    if len(held) == 2:
        return Corpus(name, splits["train"], held[0], held[1])
    half = len(held[0]) // 2
    if not half:
        raise DataError(
            f"corpus {name!r} has only one held-out document, which cannot serve as both validation and test: add the "
            "missing split"
        )
    return Corpus(name, splits["train"], held[0][:half], held[0][half:])
