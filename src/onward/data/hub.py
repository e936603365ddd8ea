"""Data sets of the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .documents import SPLITS, Corpus, CorpusError, Document, LazyDocuments, from_splits


def load_hub_data_set(name: str, config: str | None) -> Mapping[str, Any]:
    """Of the Hub, or of what was fetched from it before; never a folder here that has the same name."""
    import datasets
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as FILE_READERS

    from ..utils.hub import HubUnreachable, hub_is_reachable, is_hub_name

    if not is_hub_name(name) or name in FILE_READERS:  # `datasets` would take "csv" for its reader of such files
        raise CorpusError(
            f"{name!r} is no name of a data set on the Hugging Face Hub: write it as owner/name; a folder or a file of "
            "your own is given by its path, without hub:"
        )
    reachable = hub_is_reachable()
    was_offline = datasets.config.HF_HUB_OFFLINE
    # Offline, `datasets` looks into its cache at once; otherwise it first retries the network for 23 seconds.
    datasets.config.HF_HUB_OFFLINE = was_offline or not reachable
    try:
        return datasets.load_dataset(f"hf://datasets/{name}", config)
    except ConnectionError as error:
        raise HubUnreachable(
            f"the data set {name!r} is not in the local cache and the Hugging Face Hub cannot be reached: "
            "connect to the network, or use local files (a folder of .txt or .jsonl, or source= for pg19 and "
            "wikitext-103), or the corpora 'shakespeare' and 'installed-code', which need no download"
        ) from (error if reachable else None)
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline


def hub_corpus(name: str, field: str = "text") -> Corpus:
    name, _, named = name.partition("#")
    field = named or field
    repository, _, config = name.partition(":")
    if not repository:
        raise CorpusError("'hub:' needs the name of a data set: write hub:owner/name[:config]")
    splits = load_hub_data_set(repository, config or None)
    found = {name: _rows(f"{repository} {name}", splits[name], field) for name in SPLITS if name in splits}
    return from_splits(f"hub:{name}", found)


def _rows(name: str, rows: Any, field: str) -> LazyDocuments:
    """The rows with text in them; data sets of lines use empty rows as separators."""
    if field not in rows.column_names:
        raise CorpusError(
            f"data set {name!r} has no column {field!r} (its columns are {', '.join(rows.column_names)}): "
            "name the one that holds the text with field="
        )
    texts = rows.select_columns([field])
    if (other := next((row[field] for row in texts if row[field] is not None), "")) and not isinstance(other, str):
        raise CorpusError(
            f"column {field!r} of data set {name!r} holds a {type(other).__name__}, not text: name another with field="
        )
    filled = [number for number, row in enumerate(texts) if row[field] and row[field].strip()]
    return LazyDocuments(filled, lambda number: Document(f"{name} {number}", texts[number][field]))
