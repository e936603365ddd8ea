"""JSON that is not what it must be is refused by the name of its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.utils.files import DamagedFile, DataError
from onward.utils.safe_json import field_of, parse_json, read_json, write_json

DAMAGED = [b"", b"{", b"null", b"[]", b'"text"', b"7", b"\xff\xfe{}", b"[" * 100_000, b"9" * 10_000]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_anything_but_an_object_is_refused_by_the_name_of_its_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "run.json"
    file.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"run\.json is damaged: it should be what a run is, and .*: begin anew$"):
        read_json(file, "what a run is", "begin anew")


def test_fields_are_refused_by_name_and_kind(tmp_path: Path) -> None:
    write_json(file := tmp_path / "run.json", {"steps": "many"})
    saved = read_json(file)
    assert field_of(saved, file, "steps", str) == "many"
    with pytest.raises(DamagedFile, match="has no field 'seed'"):
        field_of(saved, file, "seed")
    with pytest.raises(DamagedFile, match="field 'steps' holds \"many\""):
        field_of(saved, file, "steps", int)


def test_json_of_others_is_refused_by_its_place() -> None:
    assert parse_json('{"a": [1, "\\ud83d\\ude00"]}', "here") == {"a": [1, "\U0001f600"]}
    for text, message in (
        ('{"a": ', "here: not valid JSON: .* at column 7; correct it"),
        ('{\n"a": ', "here: not valid JSON: .* at line 2, column 6"),
        ('["\\ud83d"]', r"here: half a character, .ud83d, is not text"),
    ):
        with pytest.raises(DataError, match=message):
            parse_json(text, "here")
