"""Which documents a study trains on."""

from __future__ import annotations

from onward.data import Document
from onward_studies.engine.texts import cut, some_of


def test_texts_are_chosen_and_cut() -> None:
    documents = [Document(str(n), "line\n" * 10) for n in range(50)]
    some = some_of(documents, 220)
    assert len(some) == 5 and some == list(some_of(documents, None))[:5] and some != documents[:5]
    assert len(some_of(documents, None)) == 50
    pieces = cut(documents[0], 12)
    assert [piece.text for piece in pieces] == ["line\n" * 3] * 3 + ["line\n"] and pieces[1].name == "0, 2"
    assert [piece.text for piece in cut(Document("d", "no end of line"), 3)] == ["no end of line"]
