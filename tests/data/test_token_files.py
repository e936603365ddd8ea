"""Tokens in files: those that `tokenize` gives, written once, by one of several processes, whatever breaks off."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch

from onward.data import Document, LazyDocuments, token_files
from onward.data.token_files import tokenize_into
from onward.data.tokens import TokenizedDocument, tokenize
from onward.data.vocabularies import train_vocabulary
from onward.utils import locks

TEXTS = [Document(f"number {i}", f"text {i} says: " + "some words, and more " * (i + 1)) for i in range(5)]
TOKENIZER = train_vocabulary(TEXTS, 300)


def assert_same(found: list[TokenizedDocument], expected: list[TokenizedDocument]) -> None:
    assert [(d.name, d.words, d.bytes) for d in found] == [(d.name, d.words, d.bytes) for d in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.ids.dtype == theirs.ids.dtype
        assert torch.equal(ours.ids, theirs.ids)


def written(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.safetensors"))


@pytest.mark.parametrize("add_end", [False, True])
@pytest.mark.parametrize("tokens_of_a_file", [1, 40, 10**6])
def test_gives_what_tokenize_gives_in_any_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add_end: bool, tokens_of_a_file: int
) -> None:
    monkeypatch.setattr(token_files, "TOKENS_OF_A_FILE", tokens_of_a_file)
    monkeypatch.setattr(token_files, "DOCUMENTS_AT_A_TIME", 1)
    expected = tokenize(TEXTS, TOKENIZER, add_end=add_end)
    assert_same(tokenize_into(tmp_path, TEXTS, TOKENIZER, add_end), expected)
    files = len(written(tmp_path))
    assert files == {1: 5, 10**6: 1}.get(tokens_of_a_file, files)
    assert_same(tokenize_into(tmp_path, TEXTS, TOKENIZER, add_end), expected)


def test_nothing_is_tokenized_twice_and_texts_may_be_lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, int, int]] = []
    expected = tokenize_into(tmp_path, TEXTS, TOKENIZER, progress=lambda *of: said.append(of))
    assert said == [*(("comparing", i, 5) for i in range(5)), ("tokenizing", 0, 5)]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("tokenized again")

    monkeypatch.setattr(token_files, "tokenize", refuse)
    assert_same(tokenize_into(tmp_path, LazyDocuments(range(5), TEXTS.__getitem__), TOKENIZER), expected)


def test_what_differs_has_other_files(tmp_path: Path) -> None:
    changed = [*TEXTS[:4], Document(TEXTS[4].name, TEXTS[4].text + "!")]
    renamed = [*TEXTS[:4], Document("another", TEXTS[4].text)]
    other = train_vocabulary([Document("other", "quite other words, other and quite")], 300)
    for texts, tokenizer, end in (
        (TEXTS, TOKENIZER, False),
        (TEXTS, TOKENIZER, True),
        (changed, TOKENIZER, False),
        (renamed, TOKENIZER, False),
        (TEXTS[::-1], TOKENIZER, False),
        (TEXTS, other, False),
    ):
        before = len(written(tmp_path))
        assert_same(tokenize_into(tmp_path, texts, tokenizer, end), tokenize(texts, tokenizer, add_end=end))
        assert len(written(tmp_path)) == before + 1


@pytest.mark.parametrize("name", ["tokens-00000.safetensors", "documents.json"])
@pytest.mark.parametrize("kept", [0.5, 0])
def test_a_file_that_broke_off_is_written_anew(tmp_path: Path, name: str, kept: float) -> None:
    tokenize_into(tmp_path, TEXTS, TOKENIZER)
    (file,) = tmp_path.rglob(name)
    content = file.read_bytes()
    file.unlink()  # the old one may still be mapped
    file.write_bytes(content[: int(kept * len(content))])
    assert_same(tokenize_into(tmp_path, TEXTS, TOKENIZER), tokenize(TEXTS, TOKENIZER))
    assert file.read_bytes() == content


@pytest.mark.parametrize("content", ["{}", "[]", "null", '""', "[[0, 1]]", "garbage"])
def test_a_list_of_other_documents_is_written_anew(tmp_path: Path, content: str) -> None:
    tokenize_into(tmp_path, TEXTS, TOKENIZER)
    (file,) = tmp_path.rglob("documents.json")
    file.write_text(content)
    assert_same(tokenize_into(tmp_path, TEXTS, TOKENIZER), tokenize(TEXTS, TOKENIZER))


def _killed_at_the_second(folder: Path) -> None:
    token_files.TOKENS_OF_A_FILE = token_files.DOCUMENTS_AT_A_TIME = 1

    def kill(what: str, number: int, _: int) -> None:
        if (what, number) == ("tokenizing", 2):
            os.kill(os.getpid(), signal.SIGKILL)

    tokenize_into(folder, TEXTS, TOKENIZER, progress=kill)


def test_what_a_killed_process_left_is_no_obstacle_and_is_removed(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_killed_at_the_second, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(written(tmp_path)) == 2 and ".unfinished" in written(tmp_path)[0]
    assert_same(tokenize_into(tmp_path, TEXTS, TOKENIZER), tokenize(TEXTS, TOKENIZER))
    assert not list(tmp_path.glob("*.unfinished"))


def test_without_locks_the_faster_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "fcntl", None)

    def another(what: str, *_: int) -> None:
        if what == "tokenizing":
            tokenize_into(tmp_path, TEXTS, TOKENIZER)

    assert_same(tokenize_into(tmp_path, TEXTS, TOKENIZER, progress=another), tokenize(TEXTS, TOKENIZER))
    assert not list(tmp_path.glob("*.unfinished"))


def test_what_cannot_be_read_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    def gone(_: int) -> Document:
        raise FileNotFoundError("books/one.txt")

    with pytest.raises(FileNotFoundError, match="books/one.txt"):
        tokenize_into(tmp_path, LazyDocuments(range(2), gone), TOKENIZER)


def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(token_files, "save_file", full)
    with pytest.raises(OSError, match=r"No space left on device; .* MB were free.*run the same again"):
        tokenize_into(tmp_path, TEXTS, TOKENIZER)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def _log(file: TextIO, what: str, number: int, _: int) -> None:
    if what == "tokenizing":
        file.write(f"{number}\n")


def _in_a_process(folder: Path) -> None:
    with (folder / "tokenized.txt").open("a") as log:
        found = tokenize_into(folder / "tokens", TEXTS, TOKENIZER, progress=lambda *said: _log(log, *said))
    assert_same(found, tokenize(TEXTS, TOKENIZER))


def test_of_several_processes_one_tokenizes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_in_a_process, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / "tokenized.txt").read_text().split() == ["0"]
