"""Documents of files and folders of one's own."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .documents import HALF, SPLITS, Corpus, CorpusError, Document, LazyDocuments, from_splits, split_documents


def local_corpus(path: Path, field: str | None = None, pattern: str | None = None) -> Corpus:
    if folders := _folders_of_splits(path, pattern):
        return from_splits(str(path), {s: load_documents(f, field, pattern) for s, f in folders.items()})
    return split_documents(str(path), load_documents(path, field, pattern))


def _folders_of_splits(path: Path, pattern: str | None) -> dict[str, Path]:
    """None where texts are not split yet."""
    folders = {split: path / split for split in SPLITS if (path / split).is_dir()}
    return folders if "train" in folders or not pattern else {}  # a folder of code may have one named "test"


def load_documents(path: str | Path, field: str | None = None, pattern: str | None = None) -> Sequence[Document]:
    """All documents of one file or folder, without a split, sorted by file name.

    `pattern` (such as "*.tex", or "**/*.py" for all folders within) chooses the files of a folder, blank ones left
    out; without it, they are .txt, or .jsonl and .jsonl.gz. `field` is the JSON field that holds the text ("text").
    """
    path = Path(path).expanduser()
    if field is not None and not field:
        raise CorpusError(f"field={field!r}: name the JSON field that holds the text, or leave it out")
    if not path.exists():
        raise CorpusError(f"there is no file or folder {str(path)!r}: check the path")
    if path.is_file() and _is_json_lines(path):
        return _json_documents([path], field or "text")
    if path.is_file():
        _refuse_field(field, path)
        return [_text_document(path)]
    json_files, text_files = _files_of(path, pattern)
    if json_files and text_files:
        raise CorpusError(
            f"folder {str(path)!r} holds both .txt and .jsonl files: choose with pattern='*.txt' or pattern='*.jsonl*'"
        )
    if json_files:
        return _json_documents(json_files, field or "text")
    if not text_files:
        raise CorpusError(
            f"folder {str(path)!r} holds no {pattern or '.txt, .jsonl or .jsonl.gz'} files: "
            "put some there, or choose others with pattern='*.ending'"
        )
    _refuse_field(field, path)
    blank = [file for file in text_files if _is_blank(file)]  # found now rather than in the middle of a run
    if blank and (not pattern or len(blank) == len(text_files)):
        raise CorpusError(f"{blank[0]} is empty: remove it, or put text into it")
    return LazyDocuments([file for file in text_files if file not in set(blank)], _text_document)


def _refuse_field(field: str | None, path: Path) -> None:
    if field is not None:
        raise CorpusError(f"field={field!r} is of .jsonl, and {path} has plain text: leave it out")


def _files_of(folder: Path, pattern: str | None) -> tuple[list[Path], list[Path]]:
    """Those of JSON lines, and those of plain text."""
    if pattern is not None and (not pattern or Path(pattern).is_absolute() or ".." in Path(pattern).parts):
        raise CorpusError(f"pattern={pattern!r} chooses files inside of a folder: write it as '*.py' or '**/*.py'")
    try:
        files = sorted(file for file in folder.glob(pattern or "*") if file.is_file())
    except (ValueError, NotImplementedError) as error:
        raise CorpusError(f"pattern={pattern!r}: {error}; write it as '*.py' or '**/*.py'") from None
    json_files = [file for file in files if _is_json_lines(file)]
    return json_files, [file for file in files if file.suffix == ".txt" or (pattern and not _is_json_lines(file))]


def fingerprint(path: Path, pattern: str | None = None, but: Path | None = None) -> str | None:
    """Of the files that are read here: texts that changed have another, and elsewhere it is the same. Of a folder that
    others than this module read, all files in it `but` those of a folder. None if there are none."""
    if path.is_file():
        files = [path]
    else:
        folders = _folders_of_splits(path, pattern).values() or [path]
        files = [file for folder in folders for of_kind in _files_of(folder, pattern) for file in of_kind]
        if not files and not pattern:
            inside = sorted(file for file in path.glob("**/*") if file.is_file())
            files = [file for file in inside if but is None or not file.resolve().is_relative_to(but)]
    if not files:
        return None
    found = hashlib.blake2b(digest_size=8)
    for file in files:
        found.update(f"{file.relative_to(path).as_posix()!r} {file.stat().st_size} ".encode())
        with file.open("rb") as content:
            found.update(hashlib.file_digest(content, "blake2b").digest())
    return f"{len(files)} {'file' if len(files) == 1 else 'files'}, {found.hexdigest()}"


def _is_blank(path: Path) -> bool:
    return path.stat().st_size < 1000 and not path.read_bytes().strip()


def _is_json_lines(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def read_text(path: Path) -> str:
    """A file that must have some, in UTF-8."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path} is not UTF-8: byte {data[error.start]:#04x} at position {error.start}; "
            "save it as UTF-8 (iconv -f OLD -t UTF-8)"
        ) from None
    if not text.strip():
        raise CorpusError(f"{path} is empty: remove it, or put text into it")
    return text.replace("\r\n", "\n")


def _text_document(path: Path) -> Document:
    return Document(path.name, read_text(path))


def _json_documents(paths: Sequence[Path], field: str) -> list[Document]:
    documents = [document for path in paths for document in _read_json_lines(path, field)]
    if not documents:
        raise CorpusError(f"{', '.join(map(str, paths))}: no documents; put one JSON object per line there")
    return documents


def _read_json_lines(path: Path, field: str) -> Iterator[Document]:
    with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
        number = 0
        while True:
            number += 1
            where = f"{path}, line {number}"
            try:
                line = file.readline()
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise CorpusError(f"{where}: not a whole gzip file ({error}); make it again") from None
            if not line:
                return
            if not line.strip():
                continue
            yield _json_document(line, field, path.name, number, where)


def parse_json(text: str, where: str) -> Any:
    """What is written at a place; refused if it is no JSON, or has letters that no file takes."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise CorpusError(f"{where}: not valid JSON: {error.msg} at {place}; correct it") from None
    except RecursionError:
        raise CorpusError(f"{where}: lists or objects lie too deep in each other; correct it") from None
    except ValueError as error:  # a number of thousands of digits
        raise CorpusError(f"{where}: JSON that cannot be read: {error}; correct it") from None
    if re.search(r"\\u[dD][89a-fA-F]", text) and (half := HALF.search(_written(content))):
        raise CorpusError(f"{where}: half a character, \\u{ord(half[0]):04x}, is no text; correct or remove it")
    return content


def _written(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)


def _json_document(line: bytes, field: str, file_name: str, number: int, where: str) -> Document:
    try:
        record = parse_json(line.decode("utf-8"), where)
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{where}: not UTF-8: byte {line[error.start]:#04x} at position {error.start} of the line; "
            "save the file as UTF-8"
        ) from None
    if not isinstance(record, dict):
        raise CorpusError(f"{where}: a {type(record).__name__}, not a JSON object; write {{{field!r}: ...}}")
    if field not in record:
        raise CorpusError(
            f"{where}: no field {field!r} (its fields are {', '.join(map(repr, record))}): "
            "name the one that holds the text with field="
        )
    text = record[field]
    if not isinstance(text, str) or not text.strip():
        found = "empty" if isinstance(text, str) else f"a {type(text).__name__}, not text"
        raise CorpusError(f"{where}: field {field!r} is {found}; remove the line, or put text into it")
    name = record.get("name") or record.get("title") or f"{file_name}:{number}"
    return Document(str(name), text)
