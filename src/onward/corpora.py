"""A name or a path -> documents, split into train, validation and test.

    load_corpus("shakespeare")                        carried by this package
    load_corpus("my_books/")                          a folder of .txt, or of .jsonl / .jsonl.gz
    load_corpus("notes.jsonl", field="body")          one document per line
    load_corpus("papers/*.tex")                       text files of another ending; or pattern="*.tex"
    load_corpus("hub:owner/name:config#field")        a data set of the Hugging Face Hub; config and field if needed
    load_corpus("installed-code:torch,transformers")  source code, one document per package
    load_corpus("pg19"), load_corpus("wikitext-103")  the papers' data sets; source= reads local copies

To add a corpus, write one function with `@corpus("name")` on it that returns a `Corpus`.
"""

from __future__ import annotations

import difflib
import gzip
import importlib.util
import inspect
import json
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, overload

SPLITS = ("train", "validation", "test")

Key = TypeVar("Key")


class CorpusError(ValueError):
    """A corpus that cannot be read; the message says which, where and what to do."""


@dataclass(frozen=True)
class Document:
    name: str
    text: str

    @cached_property
    def words(self) -> int:
        """Whitespace words of the raw text: what word-level perplexity divides by."""
        return len(self.text.split())

    @cached_property
    def bytes(self) -> int:
        """UTF-8 bytes: what bits per byte divides by."""
        return len(self.text.encode("utf-8"))


class LazyDocuments(Sequence[Document]):
    """Documents read when asked for, so that a corpus may be larger than memory; slices stay lazy."""

    def __init__(self, keys: Sequence[Key], read: Callable[[Key], Document]):
        self._keys: Sequence[Any] = keys
        self._read: Callable[[Any], Document] = read

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> LazyDocuments: ...
    def __getitem__(self, index: int | slice) -> Document | LazyDocuments:
        if isinstance(index, slice):
            return LazyDocuments(self._keys[index], self._read)
        return self._read(self._keys[index])


@dataclass(frozen=True)
class Corpus:
    """Three splits of documents.

    `validation_tokens` asks readers to use only so many first tokens of each validation document. It is
    carried along and not applied here, because tokens depend on the tokenizer: pass it to
    `streams.tokenize(max_tokens=...)`.
    """

    name: str
    train: Sequence[Document]
    validation: Sequence[Document]
    test: Sequence[Document]
    validation_tokens: int | None = None

    def __post_init__(self) -> None:
        for split in SPLITS:
            if len(getattr(self, split)) == 0:
                raise CorpusError(f"corpus {self.name!r} has no {split} documents: give it some text")


# --- named corpora ---------------------------------------------------------------------------------

CORPORA: dict[str, Callable[..., Corpus]] = {}


def corpus(name: str) -> Callable[[Callable[..., Corpus]], Callable[..., Corpus]]:
    """Register a function as the corpus `name`; `name:argument` passes its first parameter."""

    def register(load: Callable[..., Corpus]) -> Callable[..., Corpus]:
        CORPORA[name] = load
        return load

    return register


def load_corpus(name_or_path: str, **options: Any) -> Corpus:
    """Load a named corpus, a Hub data set, or a file or folder: see the top of this file.

    Folders may hold sub-folders train, validation and test. Otherwise, the last tenth of the documents, in
    the order of their file names, is held out: its first half is validation, its second half test. With
    fewer than three documents, the last one's text is split instead, at the ends of paragraphs near 80 % and
    90 % of it (of lines or words, where no paragraph ends near). Either way, no text is in two splits.
    """
    name_or_path = str(name_or_path)
    name, _, argument = name_or_path.partition(":")
    if name == "hub":
        return _call(_hub_corpus, name_or_path, (argument,), options)
    if name in CORPORA:
        return _call(CORPORA[name], name_or_path, (argument,) if argument else (), options)
    path = Path(name_or_path).expanduser()
    if path.exists():
        return _call(_local_corpus, name_or_path, (path,), options)
    if "*" in name_or_path and "pattern" not in options:
        folder = next(parent for parent in path.parents if "*" not in str(parent))
        pattern = str(path.relative_to(folder))
        return _call(_local_corpus, name_or_path, (folder,), options | {"pattern": pattern})
    if path.suffix or len(path.parts) > 1 or name_or_path.startswith((".", "~")):
        raise CorpusError(f"there is no file or folder {name_or_path!r}: check the path")
    close = difflib.get_close_matches(name, CORPORA, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    raise CorpusError(
        f"there is no corpus, file or folder {name_or_path!r}: {hint}"
        f"corpora are {', '.join(sorted(CORPORA))}; or give a path, or hub:owner/name"
    )


def _call(load: Callable[..., Corpus], name: str, arguments: tuple[Any, ...], options: dict) -> Corpus:
    parameters = list(inspect.signature(load).parameters)[len(arguments) :]
    known = ", ".join(parameters)
    for option in options:
        if option not in parameters:
            raise CorpusError(f"corpus {name!r} has no option {option!r}: it knows {known or 'none'}")
    return load(*arguments, **options)


# --- splitting -------------------------------------------------------------------------------------


def split_documents(name: str, documents: Sequence[Document]) -> Corpus:
    """Hold out the last tenth of the documents; with fewer than three, the last fifth of the last text."""
    count = len(documents)
    if count == 0:
        raise CorpusError(f"corpus {name!r} has no documents: give it some text")
    if count < 3:
        head, middle, tail = _split_text(documents[-1])
        return Corpus(name, [*documents[:-1], head], [middle], [tail])
    held = max(2, round(count / 10))
    first_held, first_test = count - held, count - held + held // 2
    return Corpus(name, documents[:first_held], documents[first_held:first_test], documents[first_test:])


def _split_text(document: Document) -> tuple[Document, Document, Document]:
    text = document.text
    first_letter, last_letter = len(text) - len(text.lstrip()), len(text.rstrip())
    for boundary in (
        r"\n\s*\n",
        r"([^\S\n]*\n)+",
        r"\s+",
    ):  # the ends of paragraphs, else of lines, else of words
        found = re.finditer(boundary, text)
        ends = [match.end() for match in found if first_letter < match.start() and match.end() < last_letter]
        if len(ends) < 2:
            continue
        first = min(ends[:-1], key=lambda end: abs(end - 0.8 * len(text)))
        second = min((e for e in ends if e > first), key=lambda end: abs(end - 0.9 * len(text)))
        near = max(abs(first - 0.8 * len(text)), abs(second - 0.9 * len(text))) < 0.05 * len(text)
        if near or boundary == r"\s+":
            return (
                Document(f"{document.name} [train]", text[:first]),
                Document(f"{document.name} [validation]", text[first:second]),
                Document(f"{document.name} [test]", text[second:]),
            )
    raise CorpusError(
        f"document {document.name!r} has too few words ({document.words}) to be split into train, validation "
        "and test: give at least three documents, or a longer one"
    )


def _from_splits(name: str, splits: Mapping[str, Sequence[Document]]) -> Corpus:
    """Take the splits that are there; one held-out split is halved, none means the last tenth of train."""
    if "train" not in splits:
        raise CorpusError(f"corpus {name!r} has the splits {', '.join(splits)} but no train split: add one")
    held = [splits[split] for split in ("validation", "test") if split in splits]
    if len(held) == 2:
        return Corpus(name, splits["train"], held[0], held[1])
    if len(held) == 1 and len(held[0]) >= 2:
        half = len(held[0]) // 2
        return Corpus(name, splits["train"], held[0][:half], held[0][half:])
    if len(held) == 1:
        raise CorpusError(
            f"corpus {name!r} has train and one held-out document only, which cannot serve as both "
            "validation and test: add the missing split"
        )
    return split_documents(name, splits["train"])


# --- files and folders -----------------------------------------------------------------------------


def _local_corpus(path: Path, field: str = "text", pattern: str | None = None) -> Corpus:
    folders = {split: path / split for split in SPLITS if (path / split).is_dir()}
    if folders and not (pattern and "train" not in folders):  # a folder of code may have one named "test"
        return _from_splits(str(path), {s: load_documents(f, field, pattern) for s, f in folders.items()})
    return split_documents(str(path), load_documents(path, field, pattern))


def load_documents(path: str | Path, field: str = "text", pattern: str | None = None) -> Sequence[Document]:
    """All documents of one file or folder, without a split, sorted by file name.

    `pattern` (such as "*.tex", or "**/*.py" for all folders within) chooses the files of a folder, blank ones left
    out; without it, they are .txt, or .jsonl and .jsonl.gz. `field` is the JSON field that holds the text.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise CorpusError(f"there is no file or folder {str(path)!r}: check the path")
    if path.is_file():
        return _json_documents([path], field) if _is_json_lines(path) else [_text_document(path)]
    files = sorted(file for file in path.glob(pattern or "*") if file.is_file())
    json_files = [file for file in files if _is_json_lines(file)]
    text_files = [file for file in files if file.suffix == ".txt" or (pattern and not _is_json_lines(file))]
    if json_files and text_files:
        raise CorpusError(
            f"folder {str(path)!r} holds both .txt and .jsonl files: "
            "choose with pattern='*.txt' or pattern='*.jsonl*'"
        )
    if json_files:
        return _json_documents(json_files, field)
    if not text_files:
        raise CorpusError(
            f"folder {str(path)!r} holds no {pattern or '.txt, .jsonl or .jsonl.gz'} files: "
            "put some there, or choose others with pattern='*.ending'"
        )
    blank = [file for file in text_files if _is_blank(file)]  # found now rather than in the middle of a run
    if blank and (not pattern or len(blank) == len(text_files)):
        raise CorpusError(f"{blank[0]} is empty: remove it, or put text into it")
    return LazyDocuments([file for file in text_files if file not in set(blank)], _text_document)


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
            except (EOFError, gzip.BadGzipFile) as error:
                raise CorpusError(f"{where}: not a whole gzip file ({error}); make it again") from None
            if not line:
                return
            if not line.strip():
                continue
            yield _json_document(line, field, path.name, number, where)


def _json_document(line: bytes, field: str, file_name: str, number: int, where: str) -> Document:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{where}: not UTF-8: byte {line[error.start]:#04x} at position {error.start} of the line; "
            "save the file as UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        found = f"{error.msg} at column {error.colno}"
        raise CorpusError(f"{where}: not valid JSON: {found}; correct the line") from None
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


# --- the Hugging Face Hub --------------------------------------------------------------------------


def load_hub_data_set(name: str, config: str | None) -> Mapping[str, Any]:
    import datasets

    from onward.pretrained import HubUnreachable, hub_is_reachable

    reachable = hub_is_reachable()
    was_offline = datasets.config.HF_HUB_OFFLINE
    # Offline, `datasets` looks into its cache at once; otherwise it first retries the network for 23 seconds.
    datasets.config.HF_HUB_OFFLINE = was_offline or not reachable
    try:
        return datasets.load_dataset(name, config)
    except ConnectionError as error:
        raise HubUnreachable(
            f"the data set {name!r} is not in the local cache and the Hugging Face Hub cannot be reached: "
            "connect to the network, or use local files (a folder of .txt or .jsonl, or source= for pg19 and "
            "wikitext-103), or the corpora 'shakespeare' and 'installed-code', which need no download"
        ) from (error if reachable else None)
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline


def _hub_corpus(name: str, field: str = "text") -> Corpus:
    name, _, named = name.partition("#")
    field = named or field
    repository, _, config = name.partition(":")
    if not repository:
        raise CorpusError("'hub:' needs the name of a data set: write hub:owner/name[:config]")
    splits = load_hub_data_set(repository, config or None)
    found = {name: _rows(f"{repository} {name}", splits[name], field) for name in SPLITS if name in splits}
    return _from_splits(f"hub:{name}", found)


def _rows(name: str, rows: Any, field: str) -> LazyDocuments:
    """The rows with text in them; data sets of lines use empty rows as separators."""
    if field not in rows.column_names:
        raise CorpusError(
            f"data set {name!r} has no column {field!r} (its columns are {', '.join(rows.column_names)}): "
            "name the one that holds the text with field="
        )
    texts = rows.select_columns([field])
    filled = [number for number, row in enumerate(texts) if row[field] and row[field].strip()]
    return LazyDocuments(filled, lambda number: Document(f"{name} {number}", texts[number][field]))


# --- the named corpora -----------------------------------------------------------------------------

# Whole plays, of every kind. Less quoted ones, since pretrained backbones know Hamlet by heart, and histories
# that are no part of a series, since Henry V would share its people with Henry IV in the training split.
SHAKESPEARE_VALIDATION = ("henry_viii", "much_ado_about_nothing", "timon_of_athens")
SHAKESPEARE_TEST = ("coriolanus", "john", "twelfth_night", "winters_tale")


@corpus("shakespeare")
def shakespeare() -> Corpus:
    """42 plays and poems, 5 MB, public domain, carried by this package: data/README.md tells their source."""
    works = {
        work.name: work for work in load_documents(Path(__file__).parent / "data" / "shakespeare.jsonl.gz")
    }
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
                raise CorpusError(
                    f"pg19 needs a folder {str(folder)!r}: make train, validation and test folders there"
                )
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
                raise CorpusError(
                    f"wikitext-103 needs the file {str(path)!r}: put {', '.join(files.values())} there"
                )
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
        raise CorpusError(
            f"no Python package {name!r} with source files is installed: pip install it, or name another"
        )
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
