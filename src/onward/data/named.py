"""Named corpora. To add one, write a function here with `@corpus("name")` on it that returns a `Corpus`."""

from __future__ import annotations

import importlib.util
import re
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..utils.files import DataError
from .documents import SPLITS, Corpus, Document, LazyDocuments, split_documents
from .files import load_documents
from .hub import load_hub_data_set
from .records import DataFieldError, read_text

CORPORA: dict[str, Callable[..., Corpus]] = {}


def corpus(name: str) -> Callable[[Callable[..., Corpus]], Callable[..., Corpus]]:
    """Registers a function as the corpus `name`; `name:argument` passes its first parameter."""

    def register(load: Callable[..., Corpus]) -> Callable[..., Corpus]:
        CORPORA[name] = load
        return load

    return register


# Whole plays of every kind. Less quoted ones, because pretrained backbones know Hamlet by heart, and histories that
# are not part of a series, because Henry V would share its people with Henry IV in the training split.
SHAKESPEARE_VALIDATION = ("henry_viii", "much_ado_about_nothing", "timon_of_athens")
SHAKESPEARE_TEST = ("coriolanus", "john", "twelfth_night", "winters_tale")


@corpus("shakespeare")
def shakespeare() -> Corpus:
    """42 plays and poems, 5 MB, public domain, packaged with onward: shakespeare.md tells their source."""
    works = {work.name: work for work in load_documents(Path(__file__).with_name("shakespeare.jsonl.gz"))}
    held = {*SHAKESPEARE_VALIDATION, *SHAKESPEARE_TEST}
    return Corpus(
        "shakespeare",
        train=[work for name, work in works.items() if name not in held],
        validation=[works[name] for name in SHAKESPEARE_VALIDATION],
        test=[works[name] for name in SHAKESPEARE_TEST],
    )


@corpus("pg19")
def pg19(
    source: str | Path | None = None,
    books: int = 1250,
    validation_tokens: int | None = 15_000,
    dataset: str = "emozilla/pg19",
) -> Corpus:
    """PG-19 as "Adding Recurrence to Pretrained Transformers" uses it: the first 1250 training books by file name, and
    the first 15,000 tokens of each validation book.

    `source` is a folder with train, validation and test folders of .txt. Without it, `dataset` is loaded from the Hub:
    a copy in Parquet, because current `datasets` no longer runs the original's loading script. Its file names are
    rebuilt from the book's number at the end of its `url`.
    """
    if books < 1:
        raise DataFieldError("books", books, "take at least one training book")
    if source is None:
        hub = load_hub_data_set(dataset, None)
        splits: dict[str, Sequence[Document]] = {split: _books_by_file_name(hub[split]) for split in SPLITS}
    else:
        splits = {split: _books_in(Path(source).expanduser() / split) for split in SPLITS}
    return Corpus("pg19", splits["train"][:books], splits["validation"], splits["test"], validation_tokens)


def _books_in(folder: Path) -> Sequence[Document]:
    if not folder.is_dir():
        raise DataError(f"pg19 needs a folder {str(folder)!r}: make train, validation and test folders there")
    return load_documents(folder)


@corpus("pg19-all")
def pg19_all(source: str | Path | None = None, dataset: str = "emozilla/pg19") -> Corpus:
    """All books of PG-19, as "Block-Recurrent Transformers" uses it."""
    return replace(pg19(source, sys.maxsize, None, dataset), name="pg19-all")


def _books_by_file_name(rows: Any) -> LazyDocuments:
    def file_name(url: str) -> str:
        number = re.search(r"(\d+)\D*$", url)
        if number is None:
            raise DataError(f"pg19: no book number in the url {url!r}: give another data set, or local files")
        return f"{number[1]}.txt"

    named = sorted((file_name(url), row) for row, url in enumerate(rows["url"]))
    return LazyDocuments(named, lambda book: Document(book[0], rows[book[1]]["text"]))


@corpus("wikitext-103")
def wikitext_103(source: str | Path | None = None) -> Corpus:
    """WikiText-103 raw, its lines joined to whole articles. `source` is a folder with wiki.train.raw, wiki.valid.raw
    and wiki.test.raw."""
    if source is None:
        hub = load_hub_data_set("Salesforce/wikitext", "wikitext-103-raw-v1")
        train, validation, test = (_articles(hub[split]["text"]) for split in SPLITS)
        return Corpus("wikitext-103", train, validation, test)
    files = [Path(source).expanduser() / f"wiki.{split}.raw" for split in ("train", "valid", "test")]
    for file in files:
        if not file.is_file():
            names = ", ".join(other.name for other in files)
            raise DataError(f"wikitext-103 needs the file {str(file)!r}: put {names} there")
    train, validation, test = (_articles(read_text(file).splitlines(keepends=True)) for file in files)
    return Corpus("wikitext-103", train, validation, test)


def _articles(lines: Sequence[str]) -> LazyDocuments:
    """A heading of level one, ` = Title = ` between two blank lines, starts a document."""
    starts: list[tuple[int, str]] = []
    before_last, last = "", ""
    number = 0
    # Tables hold a few lines that look like headings; only a real heading has blank lines on both sides.
    for number, line in enumerate(lines):
        title = re.fullmatch(r" = (?!=)(.*[^= ]) = \s*", last)
        if title and not before_last.strip() and not line.strip():
            starts.append((number - 1, title[1]))
        before_last, last = last, line
    if not starts:
        raise DataError("wikitext-103: no line like ' = Title = ' was found: is this the raw version?")
    ends = [start for start, _ in starts[1:]] + [number + 1]
    spans = [(start, end, title) for (start, title), end in zip(starts, ends, strict=True)]
    return LazyDocuments(spans, lambda span: Document(span[2], "".join(lines[span[0] : span[1]])))


@corpus("installed-code")
def installed_code(packages: str | Sequence[str] = (), by: str = "package") -> Corpus:
    """The Python source of installed packages, all or the named ones, for trying things out without a download.

    A document is all files of one package, by path, or, with `by="folder"`, those of one folder, which gives more and
    shorter documents. Files that are not UTF-8 are left out: they are test cases for other encodings.
    """
    if by not in ("package", "folder"):
        raise DataFieldError("by", by, "choose 'package' or 'folder'")
    names = packages.split(",") if isinstance(packages, str) else list(packages)
    names = [name.strip() for name in names if name.strip()]
    documents: list[tuple[str, list[Path]]] = []
    for top in [_package_folder(name) for name in sorted(set(names))] if names else _all_package_folders():
        files = sorted(file for file in top.rglob("*.py") if file.stat().st_size)
        if not files and names:
            raise DataError(f"the package {top.name!r} has no source files: name another")
        if by == "package" and files:
            documents.append((top.name, files))
        elif by == "folder":
            for folder in sorted({file.parent for file in files}):
                name = ".".join((top.name, *folder.relative_to(top).parts))
                documents.append((name, [file for file in files if file.parent == folder]))
    found = LazyDocuments(documents, lambda document: _code_document(*document))
    return split_documents("installed-code" + (":" + ",".join(names) if names else ""), found)


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    folder = Path(next(iter(spec.submodule_search_locations or ()), "")) if spec else Path()
    if not folder.name:
        raise DataError(f"no Python package {name!r} with source files is installed: pip install it, or name another")
    return folder


def _all_package_folders() -> list[Path]:
    places = {Path(sysconfig.get_paths()[place]) for place in ("purelib", "platlib")}
    found = [folder for place in places for folder in place.iterdir() if (folder / "__init__.py").is_file()]
    return sorted(found, key=lambda folder: folder.name)


def _code_document(name: str, files: Sequence[Path]) -> Document:
    sources = []
    for file in files:
        try:
            sources.append(file.read_text(encoding="utf-8").rstrip() + "\n")
        except UnicodeDecodeError:
            continue
    return Document(name, "\n".join(source for source in sources if source.strip()))
