"""Files that are whole: what is read is what must be there, and what is written replaces at once or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from onward.utils.files import put_all_in_place, settle, whole_file, whole_folder, why_not_writable
from onward.utils.safe_json import read_json, write_json


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    write_json(file := tmp_path / "run.json", {"steps": 1})
    with pytest.raises(RuntimeError), whole_file(file) as unfinished:
        unfinished.write_text("half")
        raise RuntimeError("killed")
    assert read_json(file) == {"steps": 1} and list(tmp_path.iterdir()) == [file]

    with whole_folder(place := tmp_path / "model") as unfinished:
        (unfinished / "weights").write_text("whole")
    with pytest.raises(RuntimeError), whole_folder(place) as unfinished:
        (unfinished / "weights").write_text("half")
        raise RuntimeError("killed")
    assert (place / "weights").read_text() == "whole" and sorted(tmp_path.iterdir()) == [place, file]


def test_many_files_take_their_places_beside_others(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    for folder, names in ((new, ("a", "b")), (old, ("b", "c"))):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(f"{folder.name} {name}")
    put_all_in_place(new, old)
    assert {file.name: file.read_text() for file in old.iterdir()} == {"a": "new a", "b": "new b", "c": "old c"}
    assert not new.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such rights")
@pytest.mark.parametrize("mask, rights", [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_that_no_one_else_may_read_get_the_usual_rights(tmp_path: Path, mask: int, rights: int) -> None:
    before = os.umask(mask)
    try:
        for name in ("secret", "chosen"):
            (tmp_path / name).write_text("")
        (tmp_path / "secret").chmod(0o600)
        (tmp_path / "chosen").chmod(0o640)
        settle(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == rights
    assert stat.S_IMODE((tmp_path / "chosen").stat().st_mode) == 0o640
    assert sorted(file.name for file in tmp_path.iterdir()) == ["chosen", "secret"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (file := tmp_path / "file").touch()
    assert why_not_writable(file) is why_not_writable(tmp_path / "new" / "folder") is None
    assert why_not_writable(file / "inside") == f"{file} is a file, not a folder"
    assert list(tmp_path.iterdir()) == [file]
    if Path("/proc").is_dir():
        assert "/proc cannot be written to" in (why_not_writable(Path("/proc/new")) or "")
