"""Which documents a study trains on: some of a corpus, and pieces of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from onward.data import Document, LazyDocuments

from .work import Work

ORDER_SEED = 0


def some_of(documents: Sequence[Document], max_bytes: int | None) -> Sequence[Document]:
    """A random part of them, the same for every run. Only a part is held in memory."""
    order = list(range(len(documents)))
    random.Random(ORDER_SEED).shuffle(order)
    if max_bytes is None:
        return LazyDocuments(order, documents.__getitem__)
    found: list[Document] = []
    total = 0
    for i in order:
        if total >= max_bytes:
            break
        found.append(documents[i])
        total += found[-1].bytes
    return found


def cut(document: Document, characters: int) -> list[Document]:
    """Pieces of about this many characters, each of which ends with a line."""
    pieces: list[Document] = []
    start, text = 0, document.text
    while start < len(text):
        end = text.find("\n", start + characters) + 1 or len(text)
        piece = text[start:end]
        if piece.strip():
            pieces.append(Document(f"{document.name}, {len(pieces) + 1}", piece))
        start = end
    return pieces


def check_texts(work: Work, *names: str) -> None:
    """Refuses corpora that cannot be trained on, before hours are spent; by default all corpora of the study."""
    for name in names or work.setting.corpora:
        if len(work.corpus(name).train) < 2:
            raise ValueError(f"corpus {name!r} has a single training document: give at least two")
