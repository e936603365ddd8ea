"""Corpora that have a name. To add one, write a function here with `@corpus("name")` on it that returns a `Corpus`."""

from __future__ import annotations

import importlib.util
import re
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .documents import SPLITS, Corpus, CorpusError, Document, LazyDocuments, split_documents
from .files import load_documents, read_text
from .hub import load_hub_data_set

CORPORA: dict[str, Callable[..., Corpus]] = {}


def corpus(name: str) -> Callable[[Callable[..., Corpus]], Callable[..., Corpus]]:
    """Register a function as the corpus `name`; `name:argument` passes its first parameter."""

    def register(load: Callable[..., Corpus]) -> Callable[..., Corpus]:
        CORPORA[name] = load
        return load

    return register


# Whole plays, of every kind. Less quoted ones, since pretrained backbones know Hamlet by heart, and histories
# that are no part of a series, since Henry V would share its people with Henry IV in the training split.
SHAKESPEARE_VALIDATION = ("henry_viii", "much_ado_about_nothing", "timon_of_athens")
SHAKESPEARE_TEST = ("coriolanus", "john", "twelfth_night", "winters_tale")


@corpus("shakespeare")
def shakespeare() -> Corpus:
    """42 plays and poems, 5 MB, public domain, carried by this package: shakespeare.md tells their source."""
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
    """PG-19 as "Adding Recurrence to Pretrained Transformers" uses it: the first 1250 training books by file
    name, and of each validation book the first 15,000 tokens.

    `source` is a folder with train, validation and test folders of .txt. Without it the Hub is asked for
    `dataset`, a copy in Parquet, because current `datasets` no longer runs the loading script of the
    original. There the file name is rebuilt from the book's number at the end of its `url`.
    """
    if books < 1:
        raise CorpusError(f"books={books}: take at least one training book")
    splits: dict[str, Sequence[Document]] = {}
    if source is not None:
        for split in SPLITS:
            folder = Path(source).expanduser() / split
            if not folder.is_dir():
                raise CorpusError(f"pg19 needs a folder {str(folder)!r}: make train, validation and test folders there")
            splits[split] = load_documents(folder)
    else:
        data = load_hub_data_set(dataset, None)
        splits = {split: _books_by_file_name(data[split]) for split in SPLITS}
    return Corpus("pg19", splits["train"][:books], splits["validation"], splits["test"], validation_tokens)


@corpus("pg19-all")
def pg19_all(source: str | Path | None = None, dataset: str = "emozilla/pg19") -> Corpus:
    """All books of PG-19, as "Block-Recurrent Transformers" reads it."""
    return replace(pg19(source, sys.maxsize, None, dataset), name="pg19-all")


def _books_by_file_name(rows: Any) -> LazyDocuments:
    def file_name(url: str) -> str:
        number = re.search(r"(\d+)\D*$", url)
        if number is None:
            raise CorpusError(
                f"pg19: no book number in the url {url!r}: give another dataset=, or local files by source="
            )
        return f"{number[1]}.txt"

    named = sorted((file_name(url), row) for row, url in enumerate(rows["url"]))
    return LazyDocuments(named, lambda book: Document(book[0], rows[book[1]]["text"]))


@corpus("wikitext-103")
def wikitext_103(source: str | Path | None = None) -> Corpus:
    """WikiText-103 raw, its lines joined to whole articles.

    `source` is a folder with wiki.train.raw, wiki.valid.raw and wiki.test.raw.
    """
    files = {"train": "wiki.train.raw", "validation": "wiki.valid.raw", "test": "wiki.test.raw"}
    splits: dict[str, Sequence[Document]] = {}
    if source is None:
        data = load_hub_data_set("Salesforce/wikitext", "wikitext-103-raw-v1")
        splits = {split: _articles(data[split]["text"]) for split in SPLITS}
    else:
        for split, name in files.items():
            path = Path(source).expanduser() / name
            if not path.is_file():
                raise CorpusError(f"wikitext-103 needs the file {str(path)!r}: put {', '.join(files.values())} there")
            splits[split] = _articles(read_text(path).splitlines(keepends=True))
    return Corpus("wikitext-103", splits["train"], splits["validation"], splits["test"])


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
        raise CorpusError("wikitext-103: no line like ' = Title = ' was found: is this the raw version?")
    ends = [start for start, _ in starts[1:]] + [number + 1]
    spans = [(start, end, title) for (start, title), end in zip(starts, ends, strict=True)]
    return LazyDocuments(spans, lambda span: Document(span[2], "".join(lines[span[0] : span[1]])))


@corpus("installed-code")
def installed_code(packages: str | Sequence[str] = (), by: str = "package") -> Corpus:
    """The Python source of installed packages (all, or the named ones): all files of one package, by path,
    make one document; or, `by="folder"`, those of one folder, for more and shorter documents. It depends on what
    is installed; it is for trying things out without a download.

    Files that are not UTF-8 are left out: they are test cases for other encodings.
    """
    names = packages.split(",") if isinstance(packages, str) else list(packages)
    names = [name.strip() for name in names if name.strip()]
    folders = [_package_folder(name) for name in sorted(set(names))] if names else _all_package_folders()
    if by not in ("package", "folder"):
        raise CorpusError(f"by={by!r} is not known: documents are made by 'package' or by 'folder'")
    if by == "package":
        documents = LazyDocuments(folders, lambda folder: _code_document(folder.name, sorted(folder.rglob("*.py"))))
    else:
        inner = [(top, folder) for top in folders for folder in _code_folders(top)]
        documents = LazyDocuments(inner, lambda pair: _code_document(_dotted(*pair), sorted(pair[1].glob("*.py"))))
    return split_documents("installed-code" + (":" + ",".join(names) if names else ""), documents)


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    folder = Path(next(iter(spec.submodule_search_locations or ()), "")) if spec else Path()
    if not folder.name or not _has_code(folder):
        raise CorpusError(f"no Python package {name!r} with source files is installed: pip install it, or name another")
    return folder


def _all_package_folders() -> list[Path]:
    places = {Path(sysconfig.get_paths()[place]) for place in ("purelib", "platlib")}
    found = [folder for place in places for folder in place.iterdir() if (folder / "__init__.py").is_file()]
    return sorted((folder for folder in found if _has_code(folder)), key=lambda folder: folder.name)


def _has_code(folder: Path) -> bool:
    return any(file.stat().st_size for file in folder.rglob("*.py"))


def _code_folders(top: Path) -> list[Path]:
    """All folders in a package with text in a Python file of their own."""
    return sorted({file.parent for file in top.rglob("*.py") if file.stat().st_size})


def _dotted(top: Path, folder: Path) -> str:
    return ".".join((top.name, *folder.relative_to(top).parts))


def _code_document(name: str, files: Sequence[Path]) -> Document:
    sources = []
    for file in files:
        try:
            sources.append(file.read_text(encoding="utf-8").rstrip() + "\n")
        except UnicodeDecodeError:
            continue
    return Document(name, "\n".join(source for source in sources if source.strip()))
