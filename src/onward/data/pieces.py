"""Pieces of long texts that have the same tokens as the whole: where to cut, and for which tokenizers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedTokenizerBase

PIECE = 10_000
"""Characters that are tokenized at once, about. More only cost memory."""
# Letters, digits, signs, each with one space before them; other whitespace alone: almost GPT-2's words.
WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
BORDER = re.compile(r"(?<=\S)[ \t\r\n]")


def cut_between_words(text: str) -> Iterator[str]:
    """Pieces of PIECE characters or a little more; each but the first begins with the whitespace after a word."""
    start = 0
    while border := BORDER.search(text, start + PIECE):
        yield text[start : border.start()]
        start = border.start()
    yield text[start:]


def tokenizes_pieces_alike(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the pieces of `cut_between_words` certainly have the tokens of the whole text.

    They do if the tokenizer first splits text into words that never continue from a letter to whitespace, and that
    depend on the text after them only at the end of whitespace. This holds for GPT-2's words, which many tokenizers
    use, for BERT's, and for ours. If it is not known to hold, the answer is no.
    """
    if not tokenizer.is_fast:
        return False
    for added in tokenizer.added_tokens_decoder.values():
        if added.lstrip or added.rstrip or added.single_word or re.search(r"\s", added.content):
            return False
    backend = tokenizer.backend_tokenizer
    # Whether a character is a digit does not depend on others, so it does not matter when digits are split off.
    words, *after = [step for step in _steps(backend.pre_tokenizer) if step["type"] != "Digits"] or [{}]
    return (
        all(map(_keeps_borders, _steps(backend.normalizer)))
        and _splits_at_borders(words)
        and all(_splits_at_borders(step) or _only_writes_spaces(step) for step in after)
    )


def _steps(part: Any) -> list[dict[str, Any]]:
    """The description of a normalizer or a pre-tokenizer, step by step."""
    if part is None:
        return []
    description = json.loads(part.__getstate__())
    return description.get("pretokenizers") or description.get("normalizers") or [description]


def _keeps_borders(normalizer: dict[str, Any]) -> bool:
    match normalizer:
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return len(old) == 1 and bool(new) and not re.search(r"\s", old + new)
        case {"type": "BertNormalizer"}:
            return True  # it changes one letter, with the accents after it, at a time
    return False


def _splits_at_borders(step: dict[str, Any]) -> bool:
    match step:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True} | {"type": "BertPreTokenizer"}:
            return True
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
            return bool(pattern == WORDS)
    return False


def _only_writes_spaces(step: dict[str, Any]) -> bool:
    return step["type"] == "Metaspace" and step["prepend_scheme"] == "never" and not step["split"]
