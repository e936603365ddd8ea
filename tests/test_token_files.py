"""Tokens in files: those that `tokenize` gives, written once, by one of several processes, whatever breaks off."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from onward import token_files
from onward.corpora import Document, LazyDocuments
from onward.streams import TokenizedDocument, tokenize
from onward.token_files import tokenize_into
from onward.vocabularies import train_vocabulary

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
    expected = tokenize(TEXTS, TOKENIZER, add_end=add_end)
    assert_same(tokenize_into(tmp_path, TEXTS, TOKENIZER, add_end), expected)
    files = len(written(tmp_path))
    assert files == {1: 5, 10**6: 1}.get(tokens_of_a_file, files)
    assert_same(tokenize_into(tmp_path, TEXTS, TOKENIZER, add_end), expected)


def test_nothing_is_tokenized_twice_and_texts_may_be_lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[int, int]] = []
    expected = tokenize_into(tmp_path, TEXTS, TOKENIZER, progress=lambda *of: said.append(of))
    assert said == [(i, 5) for i in range(5)]

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


def test_a_file_that_broke_off_is_written_anew(tmp_path: Path) -> None:
    expected = tokenize_into(tmp_path, TEXTS, TOKENIZER)
    expected = [TokenizedDocument(d.name, d.ids.clone(), d.words, d.bytes) for d in expected]
    file = tmp_path / written(tmp_path)[0]
    content = file.read_bytes()
    file.unlink()  # the old one may still be mapped
    file.write_bytes(content[: len(content) // 2])
    assert_same(tokenize_into(tmp_path, TEXTS, TOKENIZER), expected)
    assert file.read_bytes() == content


def test_what_a_killed_process_left_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize_into(tmp_path, TEXTS, TOKENIZER, progress=killed)
    assert not written(tmp_path)
    assert_same(tokenize_into(tmp_path, TEXTS, TOKENIZER), tokenize(TEXTS, TOKENIZER))


def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(token_files, "save_file", full)
    with pytest.raises(OSError, match=r"No space left on device; .* MB were free.*run the same again"):
        tokenize_into(tmp_path, TEXTS, TOKENIZER)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def _in_a_process(folder: Path) -> None:
    with (folder / "tokenized.txt").open("a") as log:
        found = tokenize_into(folder / "tokens", TEXTS, TOKENIZER, progress=lambda i, n: log.write(f"{i}\n") and None)
    assert_same(found, tokenize(TEXTS, TOKENIZER))


def test_of_several_processes_one_tokenizes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_in_a_process, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / "tokenized.txt").read_text().split() == ["0", "1", "2", "3", "4"]
