"""Documents come through tokenizers whole, and are counted right."""

import logging
import math

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from onward.data import Document
from onward.data.pieces import PIECE
from onward.data.tokens import tokenize
from onward.data.vocabularies import byte_tokenizer


@pytest.fixture
def tokenizer():
    vocabulary = {"[UNK]": 0, "[BOS]": 1, "a": 2, "b": 3, "ü": 4}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.enable_truncation(3)
    words.enable_padding(length=5)
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", bos_token="[BOS]", pad_token="[UNK]", model_max_length=4
    )


def test_documents_come_through_whole(tokenizer, caplog):
    logging.getLogger("transformers").propagate = True
    (document,) = tokenize([Document("d", "a b ü a b ü a")], tokenizer)
    assert document.ids.tolist() == [2, 3, 4, 2, 3, 4, 2] and len(document) == 7
    assert (document.name, document.words, document.bytes) == ("d", 7, 15)
    assert not caplog.records
    assert tokenizer.model_max_length == 4


def test_only_the_first_tokens_and_the_counts_of_their_text(tokenizer):
    (document,) = tokenize([Document("d", "ü b  ü a")], tokenizer, max_tokens=3)
    assert document.ids.tolist() == [4, 3, 4] and (document.words, document.bytes) == (3, 8)
    (short,) = tokenize([Document("d", "a \n")], tokenizer, max_tokens=3)
    assert (len(short), short.words, short.bytes) == (1, 1, 3)


@pytest.mark.parametrize("max_tokens", [None, 1, PIECE - 1, PIECE + 1, 2 * PIECE + 7, 10**7])
def test_long_documents_go_through_the_tokenizer_in_pieces(max_tokens):
    text = "größer  \n\n als  " * (PIECE // 5)
    tokenizer = byte_tokenizer()
    seen = []
    encode = tokenizer._encode_plus
    tokenizer._encode_plus = lambda text, **options: seen.append(len(text)) or encode(text, **options)
    (document,) = tokenize([Document("d", text)], tokenizer, max_tokens)
    whole = text.encode()[:max_tokens]
    assert tokenizer.decode(document.ids) == whole.decode(errors="replace")
    assert len(document) == len(whole) and document.bytes - len(whole) in (0, 1)  # "ö" cut through counts as a whole
    assert document.words == len(whole.decode(errors="ignore").split())
    assert len(seen) == math.ceil(document.bytes / len(text.encode()) * len(text) / PIECE) and max(seen) < PIECE + 20


def test_what_cannot_be_tokenized(tokenizer):
    with pytest.raises(ValueError, match="document 'hollow' is empty"):
        tokenize([Document("hollow", " \n")], tokenizer)
    with pytest.raises(ValueError, match="max_tokens=0"):
        tokenize([Document("d", "a")], tokenizer, max_tokens=0)
    mute = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    mute.pre_tokenizer = pre_tokenizers.Split("a", "removed")
    with pytest.raises(ValueError, match="document 'd' has 1 words but gives no tokens"):
        tokenize([Document("d", "a")], PreTrainedTokenizerFast(tokenizer_object=mute))
