import gzip
import json
import re

import datasets
import pytest

from onward import data
from onward.data import Corpus, CorpusError, Document, fingerprint_of, load_corpus, load_documents
from onward.data.questions import load_questions
from onward.utils.hub import HubUnreachable


def write_books(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"book{number:02}.txt").write_text(f"book {number} has words", encoding="utf-8")
    return folder


def names(documents):
    return [document.name for document in documents]


def texts(found: Corpus):
    return [[document.text for document in split] for split in (found.train, found.validation, found.test)]


@pytest.fixture
def hub(monkeypatch):
    """A Hub that answers with the data sets put into it."""
    shelf = {}

    def load_dataset(name, config=None):
        return shelf[name.removeprefix("hf://datasets/"), config]

    monkeypatch.setattr("onward.utils.hub.hub_is_reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return shelf


def test_a_document_counts_whitespace_words_and_utf8_bytes():
    document = Document("d", "zwölf  Boxkämpfer\njagen")
    assert (document.words, document.bytes) == (3, 25)


# --- splits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "sizes"), [(3, (1, 1, 1)), (10, (8, 1, 1)), (90, (81, 4, 5))])
def test_the_last_tenth_of_a_folder_is_held_out(tmp_path, count, sizes):
    found = load_corpus(str(write_books(tmp_path, count)))
    assert (len(found.train), len(found.validation), len(found.test)) == sizes
    all_names = names(found.train) + names(found.validation) + names(found.test)
    assert all_names == sorted(all_names) and len(set(all_names)) == count


def test_one_text_is_split_at_paragraphs_near_80_and_90_percent(tmp_path):
    text = "\n\n".join(f"Paragraph {number} of the text." for number in range(100))
    (tmp_path / "one.txt").write_text(text, encoding="utf-8")
    for source in (tmp_path, tmp_path / "one.txt"):
        found = load_corpus(str(source))
        train, validation, test = (document[0] for document in texts(found))
        assert train + validation + test == text
        assert 0.78 < len(train) / len(text) < 0.82 and 0.08 < len(test) / len(text) < 0.12
        assert train.endswith(".\n\n") and test.startswith("Paragraph")
        assert names(found.test) == ["one.txt [test]"]


@pytest.mark.parametrize("text", ["a b c", "one\ntwo\nthree", "\n\nstart a b c d e f g h i j k l"])
def test_short_texts_are_split_without_loss(tmp_path, text):
    (tmp_path / "short.txt").write_text(text, encoding="utf-8")
    pieces = [piece for split in texts(load_corpus(str(tmp_path))) for piece in split]
    assert "".join(pieces) == text and all(piece.strip() for piece in pieces)


def test_of_two_documents_the_first_is_for_training(tmp_path):
    found = load_corpus(str(write_books(tmp_path, 2)))
    assert names(found.train) == ["book00.txt", "book01.txt [train]"]


def test_a_long_text_with_its_paragraphs_at_the_front_is_split_at_lines(tmp_path):
    text = "Title\n\nBy someone\n\n" + "A line of the text.\n" * 200
    (tmp_path / "one.txt").write_text(text, encoding="utf-8")
    train, validation, test = (split[0] for split in texts(load_corpus(str(tmp_path))))
    assert train + validation + test == text and 0.78 < len(train) / len(text) < 0.82


def test_a_text_too_short_to_split(tmp_path):
    (tmp_path / "word.txt").write_text("word", encoding="utf-8")
    with pytest.raises(CorpusError, match="word.txt' has too few words .1."):
        load_corpus(str(tmp_path))


def test_split_folders_are_respected(tmp_path):
    for split, count in (("train", 2), ("validation", 1), ("test", 4)):
        write_books(tmp_path / split, count)
    found = load_corpus(str(tmp_path))
    assert (len(found.train), len(found.validation), len(found.test)) == (2, 1, 4)


def test_one_held_out_folder_is_halved(tmp_path):
    write_books(tmp_path / "train", 2)
    write_books(tmp_path / "test", 4)
    found = load_corpus(str(tmp_path))
    assert (names(found.validation), names(found.test)) == (
        ["book00.txt", "book01.txt"],
        ["book02.txt", "book03.txt"],
    )


def test_split_folders_without_train(tmp_path):
    write_books(tmp_path / "test", 4)
    with pytest.raises(CorpusError, match="no train split"):
        load_corpus(str(tmp_path))


# --- files -----------------------------------------------------------------------------------------


def test_folders_are_read_lazily(tmp_path):
    documents = load_documents(write_books(tmp_path, 5))
    (tmp_path / "book03.txt").unlink()
    assert documents[:2][1].text == "book 1 has words"
    with pytest.raises(FileNotFoundError):
        documents[3]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_json_lines(tmp_path, ending):
    lines = "\n".join(json.dumps({"title": f"t{n}", "body": f"text {n}"}) for n in range(4)) + "\n\n"
    data = lines.encode()
    path = tmp_path / f"some{ending}"
    path.write_bytes(gzip.compress(data, mtime=0) if ending.endswith("gz") else data)
    for source in (path, tmp_path):
        found = load_corpus(str(source), field="body")
        assert names(found.train) == ["t0", "t1"] and found.test[0] == Document("t3", "text 3")


def test_text_files_of_another_ending(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.tex").write_text("some $x$", encoding="utf-8")
    assert names(load_documents(tmp_path, pattern="*.tex")) == ["0.tex", "1.tex", "2.tex"]
    with pytest.raises(CorpusError, match="holds no .txt, .jsonl"):
        load_documents(tmp_path)


def test_an_empty_file_among_others_is_found_at_once(tmp_path):
    (write_books(tmp_path, 5) / "book02.txt").write_text("")
    with pytest.raises(CorpusError, match="book02.txt is empty"):
        load_corpus(str(tmp_path))


@pytest.mark.parametrize("pattern", ["", "/etc/*", "../*.txt", "a/../*", "**a", "*.txt\0"])
def test_patterns_that_choose_nothing_of_a_folder(tmp_path, pattern):
    with pytest.raises(CorpusError, match=f"^pattern={re.escape(repr(pattern))}|holds no"):
        load_corpus(str(write_books(tmp_path, 3)), pattern=pattern)


def test_a_field_is_of_json_lines(tmp_path):
    with pytest.raises(CorpusError, match="field='body': .* holds plain text, which has no fields"):
        load_corpus(str(write_books(tmp_path, 3)), field="body")
    with pytest.raises(CorpusError, match="field=''"):
        load_corpus(str(tmp_path), field="")


def test_half_a_character_is_no_text():
    with pytest.raises(CorpusError, match=r"document 'notes': half a character, .udcff, is at position 1"):
        Document("notes", "é\udcff")


def test_mixed_folders_need_a_choice(tmp_path):
    (write_books(tmp_path, 3) / "more.jsonl").write_text('{"text": "x"}')
    with pytest.raises(CorpusError, match="both .txt and .jsonl"):
        load_corpus(str(tmp_path))
    assert len(load_documents(tmp_path, pattern="*.txt")) == 3
    assert len(load_documents(tmp_path, pattern="*.jsonl*")) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shakespear", "did you mean 'shakespeare'.* corpora are installed-code, pg19, "),
        ("zzz", "corpus='zzz': there is no corpus, file or folder of this name: corpora are"),
        ("no/such/folder", "corpus='no/such/folder': there is no file or folder of this name"),
        ("missing.txt", "corpus='missing.txt': there is no file or folder of this name"),
        ("hub:", "needs the name of a data set"),
        ("", "corpus='': there is no corpus, file or folder of this name"),
    ],
)
def test_names_that_are_nothing(name, message):
    with pytest.raises(CorpusError, match=message):
        load_corpus(name)


def test_unknown_options_are_refused():
    with pytest.raises(
        CorpusError, match="bokos=3: the corpus 'pg19' has no such option; its options are source, books"
    ):
        load_corpus("pg19", bokos=3)


def test_a_new_corpus_is_one_function(monkeypatch):
    monkeypatch.setitem(data.CORPORA, "counted", None)  # so that it is taken away again

    @data.corpus("counted")
    def counted(count: str) -> Corpus:
        return data.split_documents("counted", [Document(str(n), "text") for n in range(int(count))])

    assert len(load_corpus("counted:20").train) == 18


# --- the Hub ---------------------------------------------------------------------------------------


def rows(**columns):
    return datasets.Dataset.from_dict(columns)


def test_a_hub_data_set(hub):
    hub["owner/name", "small"] = datasets.DatasetDict(
        train=rows(body=["one", "", "two"]), validation=rows(body=["three"]), test=rows(body=["four", None])
    )
    found = load_corpus("hub:owner/name:small", field="body")
    assert texts(found) == [["one", "two"], ["three"], ["four"]]
    with pytest.raises(CorpusError, match="field='text': data set 'owner/name train' has only body; name the column"):
        load_corpus("hub:owner/name:small")
    hub["owner/name", None] = datasets.DatasetDict(train=rows(text=[None, 3]))
    with pytest.raises(CorpusError, match="field='text': in data set 'owner/name train' it holds a int, not text"):
        load_corpus("hub:owner/name")


def test_a_hub_data_set_with_one_split_is_split(hub):
    hub["owner/name", None] = datasets.DatasetDict(train=rows(text=[f"text {n}" for n in range(20)]))
    assert [len(split) for split in texts(load_corpus("hub:owner/name"))] == [18, 1, 1]


def test_without_network_the_error_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr("onward.utils.hub.hub_is_reachable", lambda: False)
    before = datasets.config.HF_HUB_OFFLINE
    with pytest.raises(HubUnreachable, match="'owner/nothing' is not in the") as caught:
        load_corpus("hub:owner/nothing")
    assert "\n" not in str(caught.value) and caught.value.__suppress_context__
    assert before == datasets.config.HF_HUB_OFFLINE


def test_a_folder_here_is_not_mistaken_for_the_hub(monkeypatch, tmp_path):
    """`datasets` reads a folder of that name, if there is one."""
    for folder in ("here/owner/name", "x", "here/csv"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "train.jsonl").write_text('{"text": "mine"}\n' * 20, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("onward.utils.hub.hub_is_reachable", lambda: False)
    with pytest.raises(HubUnreachable, match="'owner/name' is not in the local cache"):
        load_corpus("hub:owner/name")
    with pytest.raises(HubUnreachable, match="'owner/name' is not in the local cache"):
        load_questions("hub:owner/name")


@pytest.mark.parametrize("name", ["../x", "./x", "/x", "~/x", "a/b/c", "no name", "-x", "csv", "x" * 200])
def test_names_that_the_hub_cannot_have(name):
    with pytest.raises(CorpusError, match=f"{re.escape(repr(name))} is no name of a data set"):
        load_corpus(f"hub:{name}")
    with pytest.raises(CorpusError, match="is no name of a data set"):
        load_questions(f"hub:{name}")


# --- named corpora ---------------------------------------------------------------------------------


def test_shakespeare_is_carried_whole_and_split_by_works():
    found = load_corpus("shakespeare")
    assert (len(found.train), len(found.validation), len(found.test)) == (35, 3, 4)
    works = [*found.train, *found.validation, *found.test]
    assert len({work.name for work in works}) == len({work.text for work in works}) == 42
    assert 4_900_000 < sum(work.bytes for work in works) < 5_200_000
    foreign = re.compile(r"gutenberg|\betext|e-text|trademark|copyright|@", re.IGNORECASE)
    assert not [work.name for work in works if foreign.search(work.text)]


def test_pg19_from_local_files(tmp_path):
    for split, count in (("train", 12), ("validation", 2), ("test", 2)):
        write_books(tmp_path / split, count)
    found = load_corpus("pg19", source=tmp_path, books=3)
    assert names(found.train) == ["book00.txt", "book01.txt", "book02.txt"]
    assert (len(found.validation), len(found.test), found.validation_tokens) == (2, 2, 15_000)
    assert len(load_corpus(f"pg19:{tmp_path}").train) == 12
    with pytest.raises(CorpusError, match="books=0"):
        load_corpus("pg19", source=tmp_path, books=0)


def test_pg19_needs_its_three_folders(tmp_path):
    with pytest.raises(CorpusError, match="pg19 needs a folder .*train"):
        load_corpus("pg19", source=write_books(tmp_path, 3))


def test_pg19_from_the_hub_is_ordered_by_file_name(hub):
    def books(*numbers):
        urls = [f"http://www.gutenberg.org/ebooks/{number}" for number in numbers]
        return rows(url=urls, text=[f"text of {number}" for number in numbers])

    hub["emozilla/pg19", None] = datasets.DatasetDict(train=books(9, 80, 10), validation=books(7), test=books(3))
    found = load_corpus("pg19", books=2)
    assert list(found.train) == [Document("10.txt", "text of 10"), Document("80.txt", "text of 80")]


WIKI_LINES = [
    " \n",
    " = First article = \n",
    " \n",
    " Some text with = signs = inside . \n",
    " = 1 = \n",  # looks like a heading, but stands in the text
    " = = A section = = \n",
    " \n",
    " More text . \n",
    " \n",
    " = Second = \n",
    " \n",
    " Its text . \n",
]


def wiki_articles(documents):
    first, second = documents
    assert first == Document("First article", "".join(WIKI_LINES[1:9]))
    assert second == Document("Second", "".join(WIKI_LINES[9:]))


def test_wikitext_from_local_files(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.raw").write_text("".join(WIKI_LINES), encoding="utf-8")
    found = load_corpus("wikitext-103", source=tmp_path)
    for documents in (found.train, found.validation, found.test):
        wiki_articles(documents)
    (tmp_path / "wiki.test.raw").unlink()
    with pytest.raises(CorpusError, match="needs the file .*wiki.test.raw"):
        load_corpus("wikitext-103", source=tmp_path)


def test_wikitext_from_the_hub(hub):
    lines = rows(text=["" if not line.strip() else line for line in WIKI_LINES])
    hub["Salesforce/wikitext", "wikitext-103-raw-v1"] = datasets.DatasetDict(train=lines, validation=lines, test=lines)
    found = load_corpus("wikitext-103")
    assert names(found.train) == ["First article", "Second"]
    assert found.test[1].text == " = Second = \n Its text . \n"


def test_installed_code(tmp_path, monkeypatch):
    for name in ("onward_code_a", "onward_code_b", "onward_code_c"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "z.py").write_text("z = 1\n")
        (tmp_path / name / "inner" / "a.py").write_text("a = 'ä'\n", encoding="utf-8")
        (tmp_path / name / "latin.py").write_bytes(b"# \xe9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = load_corpus("installed-code:onward_code_c,onward_code_a,onward_code_b")
    assert found.train[0] == Document("onward_code_a", "a = 'ä'\n\nz = 1\n")
    assert names(found.test) == ["onward_code_c"]
    with pytest.raises(CorpusError, match="no Python package 'onward_code_d'"):
        load_corpus("installed-code", packages=["onward_code_d"])


def test_all_installed_packages():
    found = load_corpus("installed-code")
    folders = names(found.validation) + names(found.test)
    assert len(found.train) > 10 and folders == sorted(folders)


def test_a_folder_of_code(tmp_path):
    """Blank files and a folder of tests are in every package."""
    files = {"a.py": "x = 1", "b/c.py": "y = 2", "__init__.py": "", "b/__init__.py": "\n", "test/d.py": "z"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [d.text for d in load_documents(tmp_path, pattern="**/*.py")] == ["x = 1", "y = 2", "z"]
    assert load_corpus(str(tmp_path), pattern="**/*.py").train
    both = load_corpus(f"{tmp_path}/**/*.py"), load_corpus(str(tmp_path), pattern="**/*.py")
    assert list(both[0].train) == list(both[1].train) and list(both[0].test) == list(both[1].test)
    with pytest.raises(CorpusError, match="holds no [*].rs files"):
        load_corpus(f"{tmp_path}/*.rs")
    with pytest.raises(CorpusError, match="there is no file or folder"):
        load_corpus(f"{tmp_path}/nowhere/*.py")
    (tmp_path / "a.py").write_text("")
    with pytest.raises(CorpusError, match="is empty"):
        load_documents(tmp_path, pattern="*.py")


def test_a_fingerprint_is_of_the_texts_that_are_read(tmp_path, monkeypatch):
    books = write_books(tmp_path / "books", 3)
    before = fingerprint_of(str(books))
    assert before.startswith("3 files, ")
    (books / "notes.md").write_text("not read")
    (books / "runs" / "smoke").mkdir(parents=True)
    (books / "runs" / "smoke" / "table.txt").write_text("not read, either")
    assert fingerprint_of(str(books)) == before
    monkeypatch.chdir(books)
    assert fingerprint_of(".") == before, "wherever it is looked at from"
    (books / "book01.txt").write_text("book 2 has words")
    assert fingerprint_of(str(books)) != before, "as long, but another text"
    (books / "book01.txt").rename(books / "book03.txt")
    assert fingerprint_of(str(books)) not in (None, before), "split by names, they are others"
    assert fingerprint_of(f"{books}/book0*.txt").startswith("3 files, ")
    assert fingerprint_of(f"{books}/book00.txt").startswith("1 file, ")
    for split in ("train", "validation", "test"):
        write_books(tmp_path / "split" / split, 2)
    assert fingerprint_of(str(tmp_path / "split")).startswith("6 files, ")
    assert fingerprint_of(f"pg19:{tmp_path / 'split'}").startswith("6 files, ")
    for elsewhere in ("shakespeare", "hub:a/b", "installed-code:torch", "no/such/*.tex", "nowhere"):
        assert fingerprint_of(elsewhere) is None
    # What others read: tasks, or wiki.train.raw.
    (tmp_path / "tasks" / "sst2").mkdir(parents=True)
    (tmp_path / "tasks" / "sst2" / "train.tsv").write_text("a film\t1")
    before = fingerprint_of(str(tmp_path / "tasks"))
    (tmp_path / "tasks" / "out").mkdir()
    (tmp_path / "tasks" / "out" / "table.md").write_text("results")
    assert (
        before
        == fingerprint_of(str(tmp_path / "tasks"), tmp_path / "tasks" / "out")
        != fingerprint_of(str(tmp_path / "tasks"))
    )
    (tmp_path / "tasks" / "sst2" / "train.tsv").write_text("a film\t0")
    assert fingerprint_of(str(tmp_path / "tasks"), tmp_path / "tasks" / "out") != before
