"""Tokens of long corpora, made once and kept in files, which a second start and every other process map into memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from .corpora import Document
from .locks import locked
from .streams import TokenizedDocument, tokenize

TOKENS_OF_A_FILE = 2**28  # a gigabyte
Progress = Callable[[int, int], None]  # of how many documents so many are behind us


def tokenize_into(
    folder: Path,
    documents: Sequence[Document],
    tokenizer: PreTrainedTokenizerBase,
    add_end: bool = False,
    progress: Progress | None = None,
) -> list[TokenizedDocument]:
    """What `tokenize` gives, from files in `folder` that the first who needs them writes, while others wait.

    Files are found by the texts and the tokenizer themselves, so that changed ones are never mistaken for them.
    """
    place = folder / _fingerprint(documents, tokenizer, add_end)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(place.with_suffix(".lock"), wait=True):  # where there are no locks, the same is written twice at worst
        try:
            return _read(place)
        except (FileNotFoundError, SafetensorError):  # not there yet, or a copy that broke off
            shutil.rmtree(place, ignore_errors=True)
        _write(place, documents, tokenizer, add_end, progress)
        return _read(place)


def _fingerprint(documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase, add_end: bool) -> str:
    """The same texts cut and named otherwise are others."""
    inside = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else json.dumps(tokenizer.get_vocab())
    asked = [type(tokenizer).__name__, inside, tokenizer.eos_token_id, add_end]
    found = hashlib.blake2b(json.dumps(asked).encode(), digest_size=16)
    for document in documents:
        text = document.text.encode()
        found.update(f"{document.name!r} {len(text)} ".encode())
        found.update(text)
    return found.hexdigest()


def _write(
    place: Path,
    documents: Sequence[Document],
    tokenizer: PreTrainedTokenizerBase,
    add_end: bool,
    progress: Progress | None,
) -> None:
    """Many files of many documents each; renamed into place when all are there."""
    unfinished = place.with_name(f"{place.name}.{os.getpid()}.unfinished")
    unfinished.mkdir()
    files = 0
    waiting: list[TokenizedDocument] = []
    try:
        for number, document in enumerate(documents):
            if progress is not None:
                progress(number, len(documents))
            waiting += tokenize([document], tokenizer, add_end=add_end)
            if sum(map(len, waiting)) >= TOKENS_OF_A_FILE:
                _save(waiting, unfinished / _file(files))
                files, waiting = files + 1, []
        if waiting:
            _save(waiting, unfinished / _file(files))
        (unfinished / "files.json").write_text(json.dumps({"files": files + bool(waiting)}), encoding="utf-8")
        if not place.exists():  # else another was faster
            unfinished.rename(place)
    except (OSError, SafetensorError) as error:
        free = shutil.disk_usage(place.parent).free / 1e6
        raise OSError(
            f"tokens could not be written to {place.parent} ({error}; {free:,.1f} MB were free): each token "
            "takes four bytes. When there is room on the disk, run the same again"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _file(number: int) -> str:
    return f"tokens-{number:05}.safetensors"


def _save(documents: Sequence[TokenizedDocument], file: Path) -> None:
    about = [{"name": d.name, "words": d.words, "bytes": d.bytes} for d in documents]
    save_file({str(i): d.ids for i, d in enumerate(documents)}, file, {"documents": json.dumps(about)})


def _read(place: Path) -> list[TokenizedDocument]:
    """Ids stay in the file until they are looked at."""
    documents = []
    for number in range(json.loads((place / "files.json").read_text(encoding="utf-8"))["files"]):
        with safe_open(place / _file(number), "pt") as file:
            for i, about in enumerate(json.loads(file.metadata()["documents"])):
                documents.append(TokenizedDocument(ids=file.get_tensor(str(i)), **about))
    return documents
