"""Rows of packed text, and which of their tokens are hidden."""

from collections import Counter

import pytest
import torch
from masked_runs import documents, word_tokenizer

from onward.data.masked_rows import Hiding, PackedTexts, collate_rows, continuing_pieces

TOKENIZER = word_tokenizer()
IDS = len(TOKENIZER)
CLS, SEP, MASK, PAD = (getattr(TOKENIZER, f"{name}_token_id") for name in ("cls", "sep", "mask", "pad"))


def hiding(share=0.15, whole_words=False):
    return Hiding.with_tokenizer(TOKENIZER, IDS, share, whole_words)


def numbers(seed=0):
    return torch.Generator().manual_seed(seed)


def text(count, seed=0):
    return torch.randint(5, IDS, (count,), generator=numbers(seed))


# -- hiding


def test_a_share_is_hidden_of_which_eight_in_ten_become_masks_and_one_is_replaced():
    ids = text(40_000)
    read, labels = hiding()(ids, numbers())
    asked = labels != -100
    assert asked.sum() == 6000 and torch.equal(labels[asked], ids[asked])
    assert torch.equal(read[~asked], ids[~asked])
    masks = (read == MASK)[asked].float().mean()
    kept = (read == ids)[asked].float().mean()
    assert masks == pytest.approx(0.8, abs=0.02)
    assert kept == pytest.approx(0.1 + 0.1 / IDS, abs=0.015)
    others = read[asked & (read != MASK) & (read != ids)]
    assert others.numel() > 300 and len(others.unique()) > 0.9 * (IDS - 1)  # any id may stand there


def test_special_tokens_are_never_hidden_and_one_token_always_is():
    row = torch.tensor([CLS, 7, SEP, 9, PAD, SEP])
    chosen = Counter()
    for seed in range(50):
        _, labels = hiding()(row, numbers(seed))
        chosen[tuple((labels != -100).nonzero()[:, 0].tolist())] += 1
    assert set(chosen) == {(1,), (3,)} and min(chosen.values()) > 10
    _, labels = hiding()(torch.tensor([CLS, SEP]), numbers())
    assert labels.tolist() == [-100, -100]


@pytest.mark.parametrize("share", [0.1, 0.15, 0.4])
def test_whole_words_are_hidden_or_none_of_their_pieces(share):
    pieces = set(continuing_pieces(TOKENIZER))
    assert pieces == {i for piece, i in TOKENIZER.get_vocab().items() if piece.startswith("##")}
    ids = torch.cat([torch.tensor([CLS]), text(600), torch.tensor([SEP]), text(400, 1), torch.tensor([SEP])])
    words, word = [], -1
    for before, token in zip([SEP, *ids.tolist()], ids.tolist(), strict=False):
        word += token not in pieces or before in (CLS, SEP)
        words.append(word)
    assert Counter(Counter(words).values())[2] > 30  # there are words of more than one piece
    hidden_ever = torch.zeros(len(ids), dtype=torch.bool)
    for seed in range(30):
        _, labels = hiding(share, whole_words=True)(ids, numbers(seed))
        asked = labels != -100
        hidden_ever |= asked
        sizes, found = Counter(words), Counter(w for a, w in zip(asked.tolist(), words, strict=True) if a)
        assert all(sizes[word] == count for word, count in found.items())
        assert share * 1000 - 5 <= asked.sum() <= share * 1000
    assert hidden_ever.sum() > (1 - (1 - share) ** 30 - 0.05) * 1000  # any word may be hidden


def test_a_word_longer_than_the_share_is_hidden_where_there_is_no_other():
    row = torch.tensor([CLS, 7, *sorted(continuing_pieces(TOKENIZER))[:2], SEP])
    _, labels = hiding(whole_words=True)(row, numbers())
    assert (labels != -100).tolist() == [False, True, True, True, False]


def test_what_replaces_a_token_is_one_that_the_tokenizer_has():
    read, _ = Hiding.with_tokenizer(TOKENIZER, 10 * IDS, 0.15, False)(text(40_000), numbers())
    assert read.max() < IDS


def test_pieces_that_go_on_with_a_word_are_found_by_their_signs():
    class Tokenizer:
        all_special_ids = [0]

        def __init__(self, *pieces):
            self.pieces = pieces

        def get_vocab(self):
            return {piece: i for i, piece in enumerate(("[X]", *self.pieces))}

    assert continuing_pieces(Tokenizer("a", "##b", "c")) == [2]
    assert continuing_pieces(Tokenizer("Ġa", "b", "Ġ")) == [2]
    assert continuing_pieces(Tokenizer("b", "▁a")) == [1]
    with pytest.raises(ValueError, match="whole_words=True: the tokenizer does not show where words begin"):
        continuing_pieces(Tokenizer("a", "b"))


# -- packing


def packed(lengths=(30, 7, 55, 1, 12), length=16, **options):
    return PackedTexts(documents(lengths), length, TOKENIZER, hiding(), **options)


def whole(item):
    """What the row was before anything was hidden."""
    return torch.where(item["labels"] == -100, item["input_ids"], item["labels"]).tolist()


def in_order(rows):
    """The text of rows, without what each has at its ends."""
    return [token for row in rows for token in row[1:-1]]


def test_rows_are_all_documents_in_a_row_each_token_once():
    texts = packed(seed=None)
    rows = [whole(texts[i]) for i in range(len(texts))]
    assert all(row[0] == CLS and row[-1] == SEP for row in rows)
    assert [len(row) for row in rows[:-1]] == [16] * (len(rows) - 1) and 3 <= len(rows[-1]) <= 16
    expected = [token for document in documents((30, 7, 55, 1, 12)) for token in [*document.ids.tolist(), SEP]][:-1]
    assert in_order(rows) == expected
    assert sum(map(len, rows)) == texts.tokens and texts.rows == len(texts) == len(rows)


def test_every_epoch_has_every_row_in_another_order_and_hides_others():
    texts = packed(epochs=3)
    assert len(texts) == 3 * texts.rows
    items = [texts[i] for i in range(len(texts))]
    epochs = [[whole(item) for item in items[i : i + texts.rows]] for i in range(0, len(texts), texts.rows)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]
    hidden = [
        {tuple(whole(item)): tuple(item["labels"].tolist()) for item in items[i : i + texts.rows]}
        for i in range(0, len(texts), texts.rows)
    ]
    assert sum(hidden[0][row] == hidden[1][row] for row in hidden[0]) <= 3


def test_an_item_depends_on_its_number_and_the_seed_alone():
    one, two, other = packed(epochs=2), packed(epochs=3), packed(epochs=2, seed=1)
    for index in (5, 0, len(one) - 1, -1):
        for name in ("input_ids", "labels"):
            assert torch.equal(one[index][name], packed(epochs=2)[index][name])
    assert torch.equal(one[3]["input_ids"], two[3]["input_ids"])
    assert any(whole(one[i]) != whole(other[i]) for i in range(4))
    with pytest.raises(IndexError):
        one[len(one)]


@pytest.mark.parametrize("length", range(3, 40))
def test_any_length_of_rows(length):
    texts = packed(length=length, seed=None)
    assert len(in_order([whole(texts[i]) for i in range(len(texts))])) == 30 + 7 + 55 + 1 + 12 + 4


def test_rows_that_cannot_be():
    with pytest.raises(ValueError, match="sequence_length=2: .* are 3"):
        packed(length=2)
    with pytest.raises(ValueError, match="epochs=0"):
        packed(epochs=0)


def test_a_batch_is_padded_and_says_where():
    texts = packed(seed=None)
    batch = collate_rows([texts[0], texts[len(texts) - 1]], PAD)
    last = len(texts[len(texts) - 1]["input_ids"])
    assert last < 16 and batch["attention_mask"].sum(1).tolist() == [16, last]
    assert (batch["input_ids"][1, last:] == PAD).all() and (batch["labels"][1, last:] == -100).all()
    assert torch.equal(batch["input_ids"][0], texts[0]["input_ids"])
