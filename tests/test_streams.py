import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from onward.corpora import Document
from onward.streams import Segments, TokenizedDocument, collate, tokenize


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


def tokens(*lengths):
    """Documents whose tokens are all different, so that each can be followed."""
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    return [
        TokenizedDocument(f"d{start}", torch.arange(start, start + length, dtype=torch.int32), length, length)
        for start, length in zip(starts, lengths, strict=True)
    ]


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


def test_what_cannot_be_tokenized(tokenizer):
    with pytest.raises(ValueError, match="document 'hollow' is empty"):
        tokenize([Document("hollow", " \n")], tokenizer)
    with pytest.raises(ValueError, match="max_tokens=0"):
        tokenize([Document("d", "a")], tokenizer, max_tokens=0)
    mute = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    mute.pre_tokenizer = pre_tokenizers.Split("a", "removed")
    with pytest.raises(ValueError, match="document 'd' has 1 words but gives no tokens"):
        tokenize([Document("d", "a")], PreTrainedTokenizerFast(tokenizer_object=mute))


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    length=st.integers(1, 15),
    min_length=st.integers(1, 5),
)
def test_every_token_is_read_once_and_predicted_once(lengths, length, min_length):
    min_length = min(min_length, length)
    documents = tokens(*lengths)
    segments = Segments(documents, length, min_length)
    items = [segments[index] for index in range(len(segments))]
    read = torch.cat([item["input_ids"] for item in items]).tolist()
    labels = torch.cat([item["shift_labels"] for item in items]).tolist()
    assert read == list(range(sum(lengths)))
    firsts = {int(document.ids[0]) for document in documents}
    assert [label for label in labels if label != -100] == [token for token in read if token not in firsts]
    for token, label in zip(read, labels, strict=True):
        assert label == (-100 if token + 1 in firsts or token + 1 == len(read) else token + 1)
    for (document, start, end), item in zip(segments.spans, items, strict=True):
        assert start % length == 0 and len(item["input_ids"]) == end - start < length + min_length
        assert end - start >= min(min_length, lengths[document])
        assert item["input_ids"].dtype == item["shift_labels"].dtype == torch.int64


def test_segments_of_a_document():
    segments = Segments(tokens(9), length=4)
    assert len(segments) == 2
    assert segments[0]["shift_labels"].tolist() == [1, 2, 3, 4]
    assert segments[1]["input_ids"].tolist() == [4, 5, 6, 7, 8]
    assert segments[1]["shift_labels"].tolist() == [5, 6, 7, 8, -100]


def test_segments_that_make_no_sense():
    with pytest.raises(ValueError, match="length=0"):
        Segments(tokens(3), 0)
    with pytest.raises(ValueError, match="min_length=6: choose it between 1 and length=4"):
        Segments(tokens(3), 4, min_length=6)
    with pytest.raises(ValueError, match="no documents"):
        Segments([], 4)


def test_collate_pads_on_the_right():
    segments = Segments(tokens(4, 2), 4)
    batch = collate([segments[0], segments[1]], pad_token_id=7)
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3], [4, 5, 7, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["shift_labels"].tolist() == [[1, 2, 3, -100], [5, -100, -100, -100]]


def test_collate_leaves_the_mask_out_when_nothing_is_padded():
    segments = Segments(tokens(8), 4)
    assert set(collate([segments[0], segments[1]])) == {"input_ids", "shift_labels", "labels"}
    with pytest.raises(ValueError, match="no segments"):
        collate([])


def test_segments_feed_a_data_loader():
    loader = torch.utils.data.DataLoader(Segments(tokens(10, 5), 4), batch_size=2, collate_fn=collate)
    assert [tuple(batch["input_ids"].shape) for batch in loader] == [(2, 4), (2, 5)]
