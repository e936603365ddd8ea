"""Records of files: damaged or odd ones are refused by file and place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from changed_records import changed

from onward.data import CorpusError, DataError, load_corpus, load_documents
from onward.finetuning.data import read
from onward.finetuning.tasks import task_of

LINES = b'{"text": "a b c"}\n' * 99


def damaged(data: bytes) -> bytes:
    """The first byte after gzip's header says how what follows is packed."""
    return data[:10] + b"\x07" + data[11:]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt", b" \n ", "a.txt is empty"),
        ("a.txt", b"caf\xe9", "a.txt is not UTF-8: byte 0xe9 at position 3"),
        ("a.jsonl", b'{"text": "x"}\n{"text": ', "a.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b'{"body": "x"}', "field='text': .*a.jsonl, line 1 has only 'body'; name the field"),
        ("a.jsonl", b'{"text": " "}', "a.jsonl, line 1: field 'text' is empty"),
        ("a.jsonl", b'{"text": 3}', "a.jsonl, line 1: field 'text' is a int, not text"),
        ("a.jsonl", b"[1]", "a.jsonl, line 1: a list, not a JSON object"),
        ("a.jsonl", b'{"text": "\xe9"}', "a.jsonl, line 1 is not UTF-8: byte 0xe9"),
        ("a.jsonl", b"\n", "a.jsonl: no documents"),
        ("a.jsonl.gz", b"plain", "a.jsonl.gz, line 1: not a whole gzip file"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "x"}' * 99, mtime=0)[:-9], "line 1: not a whole gzip file"),
        ("a.jsonl.gz", damaged(gzip.compress(LINES, mtime=0)), "line 1: not a whole gzip file .*block type"),
        ("a.jsonl.gz", gzip.compress(LINES, mtime=0)[:-8] + bytes(8), "line .*: not a whole gzip file .*CRC"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl, line 1: lists or objects are nested too deeply"),
        ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}", "a.jsonl, line 1: JSON that cannot be read"),
        ("a.jsonl", b'{"text": "sea \\ud83d."}', r"a.jsonl, line 1: half a character, .ud83d, is not text"),
        ("a.jsonl", b'{"text": "sea", "title": "\\udfff"}', r"a.jsonl, line 1: half a character, .udfff, is not text"),
    ],
)
def test_bad_files_are_named_with_the_place(tmp_path, file, content, message):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        load_corpus(str(tmp_path / file))


def test_two_halves_of_a_character_are_one(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud83d\\ude00 b"}\n' * 3, encoding="utf-8")
    assert load_documents(tmp_path)[0].text == "a \U0001f600 b"


def test_glue(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    for record in changed({"sentence1": "a", "sentence2": "b", "label": 1}):
        file.write_text(json.dumps(record) + '\n{"sentence1": "c", "sentence2": "d", "label": 0}\n')
        try:
            read(task_of("rte"), file)
        except DataError as error:
            assert str(file) in str(error)
    table = tmp_path / "train.csv"
    table.write_text("sentence1,sentence2,label\n" + "x" * 200_000 + ",b,1\n")
    with pytest.raises(DataError, match=r"train.csv, line 2: field larger"):
        read(task_of("rte"), table)
