"""The power fails, and what was not synced is gone: the same command resumes from what was saved."""

import os
from functools import partial
from pathlib import Path

import pytest
from power import FAILED, run_until_it_fails
from processes import in_a_process
from training_runs import same
from window_runs import LONG, documents, make_model, run

from onward.data.token_files import tokenize_into
from onward.training import RecurrentTrainer
from onward.utils.files import make_folder, settle, whole_folder, write_text
from onward.utils.safe_json import write_json


def fails(root: Path, renames: int, left: Path, names_kept: bool, work) -> None:
    root.mkdir()
    process = in_a_process(run_until_it_fails, root, renames, left, names_kept, work)
    process.join(240)
    assert process.exitcode == FAILED


@pytest.mark.parametrize("names_kept", [True, False])
@pytest.mark.parametrize("renames", [7, 16])
def test_a_run_goes_on_from_what_was_synced(uninterrupted, tokenizer, tmp_path, renames, names_kept):
    work = partial(run, tmp_path / "disk" / "run", tokenizer, None, LONG)
    fails(tmp_path / "disk", renames, tmp_path / "left", names_kept, work)
    model = make_model(seed=1)
    result = run(tmp_path / "left" / "run", tokenizer, model, LONG)
    assert result.history == uninterrupted[1].history and same(model, uninterrupted[0])


@pytest.mark.parametrize("names_kept", [True, False])
def test_what_a_run_says_is_saved_is_there(uninterrupted, tokenizer, tmp_path, monkeypatch, names_kept):
    work = partial(run, tmp_path / "disk" / "run", tokenizer, None, LONG)
    fails(tmp_path / "disk", 10_000, tmp_path / "left", names_kept, work)
    monkeypatch.setattr(RecurrentTrainer, "train", None)
    model = make_model(seed=1)
    result = run(tmp_path / "left" / "run", tokenizer, model, LONG)
    assert result.history == uninterrupted[1].history and same(model, uninterrupted[0])
    assert (tmp_path / "left" / "run" / "tokenizer.json").stat().st_size > 0


def write_all(folder: Path, tokenizer) -> None:
    make_folder(folder / "a" / "b")
    write_json(folder / "a" / "b" / "facts.json", {"one": 1})
    write_text(folder / "a" / "text.md", "text")
    with whole_folder(folder / "model") as place:
        (place / "below").mkdir()
        (place / "below" / "file").write_text("whole")
    tokenize_into(folder / "tokens", documents(), tokenizer)
    make_model()(*[make_input()]).state.save(folder / "a" / "state.safetensors")


def make_input():
    import torch

    return torch.arange(20)[None]


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.suffix != ".lock"}


@pytest.mark.parametrize("names_kept", [True, False])
def test_files_that_were_written_are_on_the_disk(tokenizer, tmp_path, names_kept):
    fails(tmp_path / "disk", 10_000, tmp_path / "left", names_kept, partial(write_all, tmp_path / "disk", tokenizer))
    assert contents(tmp_path / "left") == contents(tmp_path / "disk")
    assert len(contents(tmp_path / "disk")) == 7


def test_the_simulation_loses_what_is_not_synced(tmp_path):
    def work():
        (tmp_path / "disk" / "file").write_text("never synced")
        settle(tmp_path / "disk" / "file")
        (tmp_path / "disk" / "file").write_text("changed")
        os.rename(tmp_path / "disk" / "file", tmp_path / "disk" / "renamed")

    fails(tmp_path / "disk", 10_000, tmp_path / "kept", True, work)
    assert contents(tmp_path / "kept") == {"renamed": b"never synced"}
    (tmp_path / "disk" / "renamed").unlink()
    (tmp_path / "disk").rmdir()
    fails(tmp_path / "disk", 10_000, tmp_path / "undone", False, work)
    assert contents(tmp_path / "undone") == {}


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o027])
def test_files_of_a_run_have_the_usual_rights(tokenizer, tmp_path, mask):
    before = os.umask(mask)
    try:
        run(tmp_path / "run", tokenizer, None, {"max_tokens": 100})
    finally:
        os.umask(before)
    rights = {file: file.stat().st_mode & 0o777 for file in (tmp_path / "run").rglob("*") if file.is_file()}
    assert len(rights) > 15 and set(rights.values()) == {0o666 & ~mask}, rights
