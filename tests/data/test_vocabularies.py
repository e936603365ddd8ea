import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from trained_tokenizers import CODE, DOCUMENTS, SIZE, TOKENIZERS, ids_of
from transformers import AutoTokenizer

from onward.data import Document
from onward.data.pieces import PIECE, cut_between_words, tokenizes_pieces_alike
from onward.data.vocabularies import byte_tokenizer, load_tokenizer, train_vocabulary
from onward.utils.hub import HubUnreachable

every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
ODD = ["▁", "\ufdd0", "\ufdd00", "\ufdd01", "<0x41>", "<end>", "<unk>", "漢字", "e\u0301", "🎉", "\x00", "\x1c", "\r\n"]
texts = st.lists(st.text() | st.sampled_from([*ODD, " ", "  ", "\t", "\n", "\n\n   ", "0", "1", "width"])).map("".join)


@every_tokenizer
@given(text=texts)
@example(text="".join(ODD))
@example(text=" ".join(ODD))
@example(text="  a\t\tb   \n\n\n  c  ")
def test_every_text_comes_back_as_it_was(tokenizer, text):
    assert tokenizer.decode(ids_of(tokenizer, text)) == text


@every_tokenizer
def test_the_end_is_not_in_any_text(tokenizer):
    end = tokenizer.eos_token_id
    assert end == tokenizer.pad_token_id == 0 and tokenizer.all_special_ids == [0]
    assert end not in ids_of(tokenizer, "before<end>after <end>")
    assert tokenizer.decode([*ids_of(tokenizer, "a b"), end], skip_special_tokens=True) == "a b"


def test_one_token_for_each_byte():
    assert len(TOKENIZERS["bytes"]) == 257
    assert len(ids_of(TOKENIZERS["bytes"], "größe ▁ 🎉<end>")) == len("größe ▁ 🎉<end>".encode())


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_a_vocabulary_has_its_size_and_learns_words(kind):
    tokenizer = TOKENIZERS[kind]
    assert len(tokenizer) == SIZE and sorted(tokenizer.get_vocab().values()) == list(range(SIZE))
    space = "Ġ" if kind == "bpe" else "▁"
    words = tokenizer.tokenize("  return self.width")
    assert f"{space}return" in words and "width" in words and len(words) <= 5
    assert len(tokenizer.tokenize("\n        return")) == 2  # runs of spaces are joined
    assert len(ids_of(tokenizer, CODE)) < len(CODE) / 3
    assert SIZE < len(train_vocabulary(DOCUMENTS, 5000, kind)) < 500  # there is no more to learn


def test_sentencepiece_gives_frequent_characters_a_token_and_reads_others_as_bytes():
    rare = Document("rare", "a b c " * 5000 + "ß")
    tokenizer = train_vocabulary([rare], 280, "sentencepiece")
    assert tokenizer.tokenize("ßa") == ["<0xC3>", "<0x9F>", "a"]
    many = Document("many", "".join(map(chr, range(0x4E00, 0x4E00 + 500))) * 4)
    tokenizer = train_vocabulary([many], 357, "sentencepiece")
    assert len(tokenizer) <= 357 and sum(len(piece) == 1 for piece in tokenizer.get_vocab()) == 50


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_training_is_the_same_on_every_run(kind):
    """The package's tables are in another order every time, also in one process: its own unigram trainer fails here."""
    for _ in range(3):
        again = train_vocabulary(iter(DOCUMENTS), SIZE, kind)
        assert again.backend_tokenizer.to_str() == TOKENIZERS[kind].backend_tokenizer.to_str()


def test_wordpiece_is_berts(tmp_path):
    text = "The reader's ÉLAN was great; greater readers read greatly, and the greatest reread. "
    prose = [Document("prose", text * 40)]
    tokenizer = train_vocabulary(prose, 300, "wordpiece")
    assert train_vocabulary(prose, 300, "wordpiece").get_vocab() == tokenizer.get_vocab()
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.tokenize("The reader, [MASK] élan 漢") == ["the", "reader", ",", "[MASK]", "elan", "[UNK]"]
    assert "".join(tokenizer.tokenize("gat")).replace("##", "") == "gat"  # letter by letter, where nothing is known
    assert "##," not in tokenizer.get_vocab()  # which never goes on with a word
    pair = tokenizer("the reader", "was great")
    assert tokenizer.decode(pair["input_ids"]) == "[CLS] the reader [SEP] was great [SEP]"
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).get_vocab() == tokenizer.get_vocab()


def test_wordpiece_knows_signs_that_are_rare():
    text = "the reader read on, and nobody asked whether anything was to come of it " * 300
    tokenizer = train_vocabulary([Document("prose", text + "or was it?")], 300, "wordpiece")
    assert tokenizer.tokenize("was it?")[-1] == "?"


def test_wordpiece_gives_the_same_in_pieces():
    text = "Ünïted e\u0301lan, no'one\u00a0here\t[MASK]\r\n 漢字 \x00x \ufffd" * 900
    tokenizer = train_vocabulary([Document("d", text)], 300, "wordpiece")
    pieces = list(cut_between_words(text))
    assert len(pieces) > 2 and tokenizes_pieces_alike(tokenizer)
    assert [token for piece in pieces for token in tokenizer.tokenize(piece)] == tokenizer.tokenize(text)


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_long_corpora_are_sampled_from_beginning_to_end(kind):
    words = ["alpha", "beta", "gamma", "delta"]
    documents = (Document(word, f"{word} " * (2 * PIECE)) for word in words)
    read = []
    tokenizer = train_vocabulary(documents, 320, kind, max_bytes=9 * PIECE, progress=read.append)
    assert [len(tokenizer.tokenize(f" {word}")) for word in words] == [1, 1, 1, 1]
    count = int(read[0].removeprefix("read ").removesuffix(" characters").replace(",", ""))
    assert 4 * PIECE < count <= 9 * PIECE


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_words_without_end_are_no_trouble(kind):
    blobs = ["ACGT" * 10_000, " " * 30_000 + "x", "\n" * 10_000]
    tokenizer = train_vocabulary([Document("blob", blob) for blob in blobs], 300, kind)
    assert tokenizer.decode(ids_of(tokenizer, "ACGT " + " " * 99)) == "ACGT " + " " * 99


@every_tokenizer
def test_saved_and_loaded(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    for loaded in (load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)):
        assert loaded.get_vocab() == tokenizer.get_vocab()
        assert (loaded.eos_token_id, loaded.pad_token_id) == (0, 0)
        text = CODE + "▁漢 <end>"
        assert ids_of(loaded, text) == ids_of(tokenizer, text) and loaded.decode(ids_of(loaded, text)) == text
        assert tokenizes_pieces_alike(loaded)


def test_tokenizers_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("onward.data.vocabularies.hub_is_reachable", lambda: False)
    assert load_tokenizer("bytes").get_vocab() == byte_tokenizer().get_vocab()
    with pytest.raises(FileNotFoundError, match="holds no tokenizer: save_pretrained one there"):
        load_tokenizer(str(tmp_path))
    for name in (str(tmp_path / "missing"), "./missing", "a/b/c", "~/missing", ""):
        with pytest.raises(FileNotFoundError, match=f"there is no tokenizer '{name}': use 'bytes', a folder"):
            load_tokenizer(name)
    with pytest.raises(HubUnreachable, match="there is no folder 'nobody/nothing'.* or use 'bytes', a folder"):
        load_tokenizer("nobody/nothing")


def test_names_that_the_hub_does_not_know(monkeypatch):
    def unknown(name, local_files_only):
        assert not local_files_only
        raise OSError(f"{name} is not a valid model identifier")

    monkeypatch.setattr("onward.data.vocabularies.hub_is_reachable", lambda: True)
    monkeypatch.setattr("onward.data.vocabularies.AutoTokenizer.from_pretrained", unknown)
    with pytest.raises(FileNotFoundError, match="no tokenizer 'nobody/nothing' is here or on the Hugging Face Hub"):
        load_tokenizer("nobody/nothing")


def test_vocabularies_that_cannot_be_trained():
    with pytest.raises(ValueError, match="kind='words': choose 'bpe', 'sentencepiece', 'wordpiece'"):
        train_vocabulary(DOCUMENTS, 400, "words")
    with pytest.raises(ValueError, match="max_bytes=0"):
        train_vocabulary(DOCUMENTS, 400, max_bytes=0)
    for kind in ("bpe", "sentencepiece", "wordpiece"):
        with pytest.raises(ValueError, match="size=256: .* alone are 257"):
            train_vocabulary(DOCUMENTS, 256, kind)
        for documents in ([], [Document("d", "")], [Document("d", " \n")]):
            with pytest.raises(ValueError, match="a corpus with no text"):
                train_vocabulary(documents, 400, kind)
