"""A name or a path -> documents, split into train, validation and test.

    load_corpus("shakespeare")                        carried by this package
    load_corpus("my_books/")                          a folder of .txt, or of .jsonl / .jsonl.gz
    load_corpus("notes.jsonl", field="body")          one document per line
    load_corpus("papers/*.tex")                       text files of another ending; or pattern="*.tex"
    load_corpus("hub:owner/name:config#field")        a data set of the Hugging Face Hub; config and field if needed
    load_corpus("installed-code:torch,transformers")  source code, one document per package
    load_corpus("pg19"), load_corpus("wikitext-103")  the papers' data sets; source= reads local copies

To add a corpus, write one function with `@corpus("name")` on it that returns a `Corpus`, as those in named.py do.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .documents import Corpus, CorpusError
from .files import fingerprint, local_corpus
from .hub import hub_corpus
from .named import CORPORA


def load_corpus(name_or_path: str, **options: Any) -> Corpus:
    """Load a named corpus, a Hub data set, or a file or folder: see the top of this file.

    Folders may hold sub-folders train, validation and test. Otherwise, the last tenth of the documents, in
    the order of their file names, is held out: its first half is validation, its second half test. With
    fewer than three documents, the last one's text is split instead, at the ends of paragraphs near 80 % and
    90 % of it (of lines or words, where no paragraph ends near). Either way, no text is in two splits.
    """
    name_or_path = str(name_or_path)
    if not name_or_path.strip():
        known = ", ".join(sorted(CORPORA))
        raise CorpusError(f"the corpus {name_or_path!r} has no name: give a path, or one of {known}")
    name, _, argument = name_or_path.partition(":")
    if name == "hub":
        return _call(hub_corpus, name_or_path, (argument,), options)
    if name in CORPORA:
        return _call(CORPORA[name], name_or_path, (argument,) if argument else (), options)
    path = Path(name_or_path).expanduser()
    if path.exists():
        return _call(local_corpus, name_or_path, (path,), options)
    if "*" in name_or_path and "pattern" not in options:
        folder, pattern = _folder_and_pattern(path)
        return _call(local_corpus, name_or_path, (folder,), options | {"pattern": pattern})
    if path.suffix or len(path.parts) > 1 or name_or_path.startswith((".", "~")):
        raise CorpusError(f"there is no file or folder {name_or_path!r}: check the path")
    close = difflib.get_close_matches(name, CORPORA, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    raise CorpusError(
        f"there is no corpus, file or folder {name_or_path!r}: {hint}"
        f"corpora are {', '.join(sorted(CORPORA))}; or give a path, or hub:owner/name"
    )


def fingerprint_of(name_or_path: str, but: Path | None = None) -> str | None:
    """Of the files that this stands for, `but` those of a folder; None where texts come from elsewhere."""
    name, _, argument = str(name_or_path).partition(":")
    if name == "hub" or (name in CORPORA and not argument):
        return None
    path = Path(argument if name in CORPORA else name_or_path).expanduser()
    if path.exists():
        return fingerprint(path, but=but)
    return fingerprint(*_folder_and_pattern(path)) if "*" in str(path) else None


def _folder_and_pattern(path: Path) -> tuple[Path, str]:
    folder = next(parent for parent in path.parents if "*" not in str(parent))
    return folder, str(path.relative_to(folder))


def _call(load: Callable[..., Corpus], name: str, arguments: tuple[Any, ...], options: dict) -> Corpus:
    parameters = list(inspect.signature(load).parameters)[len(arguments) :]
    known = ", ".join(parameters)
    for option in options:
        if option not in parameters:
            raise CorpusError(f"corpus {name!r} has no option {option!r}: it knows {known or 'none'}")
    return load(*arguments, **options)
