"""Data sets of the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..utils.files import DataError
from .documents import SPLITS, Corpus, Document, LazyDocuments, from_splits
from .records import DataFieldError


def load_hub_data_set(name: str, config: str | None) -> Mapping[str, Any]:
    """From the Hub, or from its local cache; never from a local folder of the same name."""
    import datasets
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as FILE_READERS

    from ..utils.hub import HubUnreachable, hub_is_reachable, is_hub_name

    if not is_hub_name(name) or name in FILE_READERS:  # `datasets` would take "csv" for its reader of such files
        raise DataError(
            f"{name!r} is no name of a data set on the Hugging Face Hub: write it as owner/name; local files and "
            "folders are given by their path, without hub:"
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
            "connect to the network, or use local files (a folder of .txt or .jsonl, pg19:FOLDER or "
            "wikitext-103:FOLDER), or the corpora 'shakespeare' and 'installed-code', which need no download"
        ) from (error if reachable else None)
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline


def load_hub_splits(name: str) -> tuple[str, Mapping[str, Any]]:
    """owner/name[:config] -> owner/name, and the splits."""
    repository, _, config = name.partition(":")
    if not repository:
        raise DataError("'hub:' needs the name of a data set: write hub:owner/name[:config]")
    return repository, load_hub_data_set(repository, config or None)


def hub_corpus(name: str, field: str = "text") -> Corpus:
    name, _, named_field = name.partition("#")
    repository, splits = load_hub_splits(name)
    field = named_field or field
    found = {split: _rows(f"{repository} {split}", splits[split], field) for split in SPLITS if split in splits}
    return from_splits(f"hub:{name}", found)


def _rows(name: str, rows: Any, field: str) -> LazyDocuments:
    """The rows with text in them. Data sets of lines use empty rows as separators."""
    if field not in rows.column_names:
        problem = f"data set {name!r} has only {', '.join(rows.column_names)}; name the column that holds the text"
        raise DataFieldError("field", field, problem)
    texts = rows.select_columns([field])
    if (other := next((row[field] for row in texts if row[field] is not None), "")) and not isinstance(other, str):
        problem = f"in data set {name!r} it holds a {type(other).__name__}, not text; name another column"
        raise DataFieldError("field", field, problem)
    filled = [number for number, row in enumerate(texts) if row[field] and row[field].strip()]
    return LazyDocuments(filled, lambda number: Document(f"{name} {number}", texts[number][field]))
