"""Tokens of long corpora, kept in files. Later starts and other processes map them into memory."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from ..utils.files import DamagedFile, make_folder, put_in_place
from ..utils.locks import locked
from ..utils.manifests import fault_in, has_manifest, write_manifest
from .documents import Document
from .tokens import TokenizedDocument, tokenize

TOKENS_OF_A_FILE = 2**28  # a gigabyte
DOCUMENTS_AT_A_TIME = 64
DOCUMENTS, TOKENS = "documents.json", "tokens-{:05}.safetensors"
Progress = Callable[[str, int, int], None]  # called with what is being done, documents done, and all documents


def tokenize_into(
    folder: Path,
    documents: Sequence[Document],
    tokenizer: PreTrainedTokenizerBase,
    add_end: bool = False,
    progress: Progress | None = None,
) -> list[TokenizedDocument]:
    """What `tokenize` returns, from files in `folder`. The first process that needs them writes them; others wait.

    Files are named by a hash of the texts and the tokenizer, so a changed text or tokenizer has other files. Slow
    tokenizers cannot be hashed, and their tokens stay in memory.
    """
    if not tokenizer.is_fast:
        return tokenize(documents, tokenizer, add_end=add_end)
    said = progress or (lambda *_: None)
    place = folder / _fingerprint(documents, tokenizer, add_end, said)
    with _writing(folder):
        make_folder(folder)
    with locked(place.with_suffix(".lock"), wait=True) as alone:
        if alone:  # then these are left by killed processes
            for left in folder.glob(f"{place.name}.*.unfinished"):
                shutil.rmtree(left)
        if place.exists():
            try:
                return _read(place, len(documents))
            except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError):  # damaged
                shutil.rmtree(place)
        _write(place, documents, tokenizer, add_end, said)
        return _read(place, len(documents))


def _fingerprint(
    documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase, add_end: bool, said: Progress
) -> str:
    """Of texts with their names and borders, and of everything that decides their tokens."""
    inside = json.loads(tokenizer.backend_tokenizer.to_str())
    for setting_of_a_call in ("truncation", "padding"):
        inside.pop(setting_of_a_call, None)
    found = hashlib.blake2b(json.dumps([inside, tokenizer.eos_token_id, add_end]).encode(), digest_size=16)
    for number, document in enumerate(documents):
        said("comparing", number, len(documents))
        text = document.text.encode()
        found.update(f"{document.name!r} {len(text)} ".encode())
        found.update(text)
    return found.hexdigest()


def _write(
    place: Path, documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase, add_end: bool, said: Progress
) -> None:
    """Documents one after another in large files, which get their names when all are complete."""
    with _writing(place.parent):
        unfinished = place.with_name(f"{place.name}.{uuid4().hex}.unfinished")
        unfinished.mkdir()
    listed: list[tuple[int, int, str, int, int]] = []  # file, length, name, words, bytes
    waiting: list[TokenizedDocument] = []
    files = tokens = 0
    try:
        for start in range(0, len(documents), DOCUMENTS_AT_A_TIME):
            said("tokenizing", start, len(documents))
            new = tokenize(documents[start : start + DOCUMENTS_AT_A_TIME], tokenizer, add_end=add_end)
            waiting += new
            listed += [(files, len(d), d.name, d.words, d.bytes) for d in new]
            tokens += sum(map(len, new))
            if tokens >= TOKENS_OF_A_FILE or start + DOCUMENTS_AT_A_TIME >= len(documents):
                with _writing(place.parent):
                    save_file({"ids": torch.cat([d.ids for d in waiting])}, unfinished / TOKENS.format(files))
                files, tokens, waiting = files + 1, 0, []
        with _writing(place.parent):
            (unfinished / DOCUMENTS).write_text(json.dumps(listed), encoding="utf-8")
            write_manifest(unfinished)
            try:
                put_in_place(unfinished, place)
            except OSError:
                if not place.exists():  # otherwise, without locks, another process was faster
                    raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(there).free / 1e6
        raise OSError(
            getattr(error, "errno", None) or errno.EIO,
            f"tokens could not be written to {folder} ({error}; {free:,.1f} MB were free): each takes four bytes. When "
            "there is room on the disk, run the same again",
        ) from error


def _read(place: Path, count: int) -> list[TokenizedDocument]:
    """Ids are mapped, and loaded on access. Files of older versions, without hashes, are trusted."""
    if has_manifest(place) and (fault := fault_in(place)):
        raise DamagedFile(fault)
    documents: list[TokenizedDocument] = []
    listed = json.loads((place / DOCUMENTS).read_text(encoding="utf-8"))
    if not isinstance(listed, list) or len(listed) != count:
        raise DamagedFile(f"{place / DOCUMENTS} is damaged: it should list {count} documents")
    for number, of_file in groupby(listed, key=itemgetter(0)):
        with safe_open(place / TOKENS.format(number), "pt") as file:
            ids = file.get_tensor("ids")
        about = list(of_file)
        for (_, _, name, words, size), part in zip(about, ids.split([one[1] for one in about]), strict=True):
            documents.append(TokenizedDocument(name, part, words, size))
    return documents
