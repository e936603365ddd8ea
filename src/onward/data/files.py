"""Documents in local files and folders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ..utils.files import DataError
from .documents import SPLITS, Corpus, Document, LazyDocuments, from_splits, split_documents
from .records import DataFieldError, Record, json_lines
from .records import read_text as read_text


def local_corpus(path: Path, field: str | None = None, pattern: str | None = None) -> Corpus:
    if folders := _folders_of_splits(path, pattern):
        return from_splits(str(path), {s: load_documents(f, field, pattern) for s, f in folders.items()})
    return split_documents(str(path), load_documents(path, field, pattern))


def _folders_of_splits(path: Path, pattern: str | None) -> dict[str, Path]:
    """Empty if texts are not split yet."""
    folders = {split: path / split for split in SPLITS if (path / split).is_dir()}
    return folders if "train" in folders or not pattern else {}  # a folder of code may have one named "test"


def load_documents(path: str | Path, field: str | None = None, pattern: str | None = None) -> Sequence[Document]:
    """All documents of one file or folder, without a split, sorted by file name.

    Of a folder, `pattern` (such as "*.tex", or "**/*.py" for all folders within) chooses the files, and blank ones are
    left out; without it, they are .txt, or .jsonl and .jsonl.gz. `field` is the JSON field with the text ("text").
    """
    path = Path(path).expanduser()
    if field is not None and not field:
        raise DataFieldError("field", field, "name the JSON field that holds the text, or leave it out")
    if not path.exists():
        raise DataError(f"there is no file or folder {str(path)!r}: check the path")
    json_files, text_files = _files_of(path, pattern)
    if json_files and text_files:
        problem = f"folder {str(path)!r} holds both .txt and .jsonl files; choose with '*.txt' or '*.jsonl*'"
        raise DataFieldError("pattern", pattern, problem)
    if json_files:
        lines = (line for file in json_files for line in json_lines(file))
        documents = [_document_of(record, field or "text", where) for where, record in lines]
        if not documents:
            raise DataError(f"{', '.join(map(str, json_files))}: no documents; put one JSON object per line there")
        return documents
    if not text_files:
        wanted = pattern or ".txt, .jsonl or .jsonl.gz"
        problem = f"folder {str(path)!r} holds no {wanted} files; put some there, or choose others, such as '*.ending'"
        raise DataFieldError("pattern", pattern, problem)
    if field is not None:
        raise DataFieldError("field", field, f"{path} holds plain text, which has no fields; leave it out")
    blank = {file for file in text_files if _is_blank(file)}  # checked first rather than in the middle of a run
    if blank and (not pattern or len(blank) == len(text_files)):
        raise DataError(f"{min(blank)} is empty: remove it, or put text into it")
    filled = [file for file in text_files if file not in blank]
    texts = LazyDocuments(filled, lambda file: Document(file.name, read_text(file)))
    return list(texts) if path.is_file() else texts


def _files_of(path: Path, pattern: str | None) -> tuple[list[Path], list[Path]]:
    """The files of JSON lines and those of plain text, in a folder or at the path itself."""
    if path.is_file():
        return ([path], []) if _is_json_lines(path) else ([], [path])
    if pattern is not None and (not pattern or Path(pattern).is_absolute() or ".." in Path(pattern).parts):
        raise DataFieldError("pattern", pattern, "it chooses files inside a folder; write it as '*.py' or '**/*.py'")
    try:
        files = sorted(file for file in path.glob(pattern or "*") if file.is_file())
    except (ValueError, NotImplementedError) as error:
        raise DataFieldError("pattern", pattern, f"{error}; write it as '*.py' or '**/*.py'") from None
    json_files = [file for file in files if _is_json_lines(file)]
    return json_files, [file for file in files if file.suffix == ".txt" or (pattern and not _is_json_lines(file))]


def _is_json_lines(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def _is_blank(path: Path) -> bool:
    return path.stat().st_size < 1000 and not path.read_bytes().strip()


def _document_of(record: Record, field: str, where: str) -> Document:
    if field not in record:
        names = ", ".join(map(repr, record))
        raise DataFieldError("field", field, f"{where} has only {names}; name the field that holds the text")
    text = record[field]
    if not isinstance(text, str) or not text.strip():
        found = "empty" if isinstance(text, str) else f"a {type(text).__name__}, not text"
        raise DataError(f"{where}: field {field!r} is {found}; remove the line, or put text into it")
    file, _, line = where.rpartition(", line ")
    return Document(str(record.get("name") or record.get("title") or f"{Path(file).name}:{line}"), text)


def fingerprint(path: Path, pattern: str | None = None, but: Path | None = None) -> str | None:
    """A hash of the files that `local_corpus` would read: the same wherever they are, another when a text changes. If
    it would read none, of all files in the folder except those in `but`. None if there are none."""
    folders = _folders_of_splits(path, pattern).values() or [path]
    files = [file for folder in folders for some in _files_of(folder, pattern) for file in some]
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
