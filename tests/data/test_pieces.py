"""Pieces of long texts have the tokens of the whole, for the tokenizers that promise it."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from trained_tokenizers import TOKENIZERS, ids_of
from transformers import PreTrainedTokenizerFast

from onward.data.pieces import BORDER, PIECE, WORDS, cut_between_words, tokenizes_pieces_alike


def gpt2_like(**options):
    """As SmolLM2's: digits by themselves, then GPT-2's words."""
    backend = Tokenizer(TOKENIZERS["bpe"].backend_tokenizer.model)
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)


@pytest.mark.parametrize("tokenizer", [*TOKENIZERS.values(), gpt2_like(bos_token="<|bos|>")])
@settings(max_examples=200)
@given(data=st.data())
def test_a_cut_between_words_leaves_the_tokens_as_they_were(tokenizer, data):
    assert tokenizes_pieces_alike(tokenizer)
    odd = ["'s", "'", "\x1c", "\u2028", "\u3000", "<|bos|>", "<end>", "▁", "é", "12", "\n", "\r\n", " ", "\t", "a"]
    text = "".join(data.draw(st.lists(st.sampled_from(odd) | st.characters(codec="utf-8"), max_size=60)))
    for border in BORDER.finditer(text):
        cut = border.start()
        assert ids_of(tokenizer, text[:cut]) + ids_of(tokenizer, text[cut:]) == ids_of(tokenizer, text)


def test_no_character_is_whitespace_to_tokenizers_only():
    """Borders are found by Python, and words by the tokenizers package."""
    every = "".join(chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    whitespace = pre_tokenizers.Split(Regex(r"\s"), "removed", invert=True).pre_tokenize_str(every)
    assert len(whitespace) == 25 and all(character.isspace() for character, _ in whitespace)


@pytest.mark.parametrize("text", ["", "short", "no-space" * PIECE, "word " * PIECE, "\r\n".join(["line   "] * PIECE)])
def test_pieces_make_up_the_text(text):
    pieces = list(cut_between_words(text))
    assert "".join(pieces) == text and (" " not in text or len(pieces) > len(text) / (PIECE + 10))
    for before, after in zip(pieces, pieces[1:], strict=False):
        assert not before[-1].isspace() and after[0] in " \r\n" and PIECE <= len(before) < PIECE + 10


def test_tokenizers_that_might_read_pieces_in_another_way():
    def changed(**parts):
        tokenizer = gpt2_like(bos_token="<|bos|>")
        for name, part in parts.items():
            setattr(tokenizer.backend_tokenizer, name, part)
        return tokenizer

    assert tokenizes_pieces_alike(changed(pre_tokenizer=pre_tokenizers.Split(Regex(WORDS), "isolated")))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    others = [
        byte_level_with_prefix := pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        pre_tokenizers.Split(Regex(r"\s+"), "isolated"),
        pre_tokenizers.Split(Regex(WORDS), "merged_with_next"),
        pre_tokenizers.Metaspace(prepend_scheme="never", split=False),
        pre_tokenizers.Sequence([byte_level, pre_tokenizers.Metaspace()]),
        pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="never", split=False), byte_level]),
        pre_tokenizers.Sequence([pre_tokenizers.Digits()]),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(), byte_level_with_prefix]),
        None,
    ]
    for pre_tokenizer in others:
        assert not tokenizes_pieces_alike(changed(pre_tokenizer=pre_tokenizer))
    for normalizer in (normalizers.Strip(), normalizers.Replace("a", " "), normalizers.Replace("a\n", "b")):
        assert not tokenizes_pieces_alike(changed(normalizer=normalizer))
    for odd in ({"lstrip": True}, {"rstrip": True}, {"single_word": True}):
        assert not tokenizes_pieces_alike(gpt2_like(bos_token=AddedToken("<|bos|>", special=True, **odd)))
    assert not tokenizes_pieces_alike(gpt2_like(bos_token="a\nb"))
    bert = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    assert tokenizes_pieces_alike(PreTrainedTokenizerFast(tokenizer_object=bert))
