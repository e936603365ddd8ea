"""A name or a path -> documents, split into train, validation and test.

    load_corpus("shakespeare")                        packaged with onward
    load_corpus("my_books/")                          a folder of .txt, or of .jsonl / .jsonl.gz
    load_corpus("notes.jsonl", field="body")          one document per line
    load_corpus("papers/*.tex")                       text files of another ending; or pattern="*.tex"
    load_corpus("hub:owner/name:config#field")        a data set of the Hugging Face Hub; config and field if needed
    load_corpus("installed-code:torch,transformers")  source code, one document per package
    load_corpus("pg19"), load_corpus("wikitext-103")  the papers' data sets; source= reads local copies

To add a corpus, write one function with `@corpus("name")` on it that returns a `Corpus`, as in named.py.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .documents import Corpus
from .files import fingerprint, local_corpus
from .hub import hub_corpus
from .named import CORPORA
from .records import DataFieldError


def load_corpus(name_or_path: str, **options: Any) -> Corpus:
    """Loads a named corpus, a Hub data set, or a file or folder: see the top of this file.

    A folder may hold sub-folders train, validation and test. Otherwise, the last tenth of the documents, in the order
    of their file names, is held out: its first half is validation, its second half test. With fewer than three
    documents, the last one's text is split instead, at the ends of paragraphs near 80 % and 90 % of it (or of lines or
    words, if no paragraph ends near). No text is in two splits.
    """
    place = str(name_or_path)
    name, _, argument = place.partition(":")
    path = Path(place).expanduser()
    if name == "hub":
        return _call(hub_corpus, place, (argument,), options)
    if name in CORPORA:
        return _call(CORPORA[name], place, (argument,) if argument else (), options)
    if place.strip() and path.exists():
        return _call(local_corpus, place, (path,), options)
    if "*" in place and "pattern" not in options:
        folder, pattern = _folder_and_pattern(path)
        return _call(local_corpus, place, (folder,), options | {"pattern": pattern})
    if path.suffix or len(path.parts) > 1 or place.startswith((".", "~")):
        raise DataFieldError("corpus", place, "there is no file or folder of this name; check the path")
    close = difflib.get_close_matches(name, CORPORA, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    known = f"corpora are {', '.join(sorted(CORPORA))}; or give a path, or hub:owner/name"
    raise DataFieldError("corpus", place, f"there is no corpus, file or folder of this name: {hint}{known}")


def _call(load: Callable[..., Corpus], name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Corpus:
    parameters = list(inspect.signature(load).parameters)[len(arguments) :]
    for option, value in options.items():
        if option not in parameters:
            known = f"; its options are {', '.join(parameters)}" if parameters else ""
            raise DataFieldError(option, value, f"the corpus {name!r} has no such option{known}; leave it out")
    return load(*arguments, **options)


def fingerprint_of(name_or_path: str, but: Path | None = None) -> str | None:
    """A hash of the local files that this stands for, without those in the folder `but`. None if there are none."""
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
