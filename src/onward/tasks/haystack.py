"""The text in which facts are hidden: the sentences of a corpus, one after another."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from ..data import Document

END = re.compile(r"(?<=[.!?])[\"'”’)]*\s+")
LONGEST = 1000  # characters of a sentence; tables of contents have no full stops


class Haystack:
    """Sentences with their number of tokens. Made once, it serves any number of questions."""

    def __init__(self, documents: Iterable[Document | str], tokenizer: PreTrainedTokenizerBase):
        texts = [document.text if isinstance(document, Document) else document for document in documents]
        self.tokenizer = tokenizer
        self.sentences = [sentence for text in texts for sentence in sentences_of(text)]
        if not self.sentences:
            raise ValueError(f"{len(texts)} documents without a sentence: give texts in which facts can be hidden")

    @cached_property
    def counts(self) -> list[int]:
        return self.count(self.sentences)

    def count(self, sentences: list[str]) -> list[int]:
        """The tokens of each, as they are after another sentence."""
        spaced = [" " + sentence for sentence in sentences]
        return [len(ids) for ids in self.tokenizer(spaced, add_special_tokens=False, verbose=False).input_ids]

    def stretch(self, start: int, tokens: int) -> list[int]:
        """The numbers of sentences from `start` on that together have at most so many tokens. At the end of the text it
        begins again."""
        found: list[int] = []
        while True:
            number = (start + len(found)) % len(self.sentences)
            tokens -= self.counts[number]
            if tokens < 0:
                return found
            found.append(number)


def sentences_of(text: str) -> list[str]:
    """On one line each, none longer than some hundred words."""
    found = []
    for sentence in END.split(text):
        words = " ".join(sentence.split())
        while len(words) > LONGEST:
            cut = words.rfind(" ", 0, LONGEST)
            cut = cut if cut > 0 else LONGEST
            found.append(words[:cut])
            words = words[cut:].strip()
        if words:
            found.append(words)
    return found
