"""A file -> records under the Hub's names of columns, each with the place it comes from."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..data import CorpusError, parse_json, read_text
from .tasks import Task

ENDINGS = ("tsv", "csv", "jsonl", "parquet")

Record = dict[str, Any]


class DataError(ValueError):
    """Data that cannot be read; the message says which file, where in it, and what to do."""


def records(path: Path, task: Task) -> Iterator[tuple[str, Record | None]]:
    """Place and record; None for a broken row of a file that is known to have some."""
    kind = path.suffix.lstrip(".")
    if kind == "jsonl":
        found = _json_lines(path)
    elif kind == "parquet":
        found = _parquet(path)
    else:
        yield from _table(path, task)
        return
    for where, record in found:
        yield where, {task.aliases.get(name, name): value for name, value in record.items()}


def _table(path: Path, task: Task) -> Iterator[tuple[str, Record | None]]:
    lines = _lines(path)
    _, first = next(lines)
    names = [task.aliases.get(name, name) for name in first]
    wanted = [*task.texts, "label"]
    if set(wanted) <= set(names):
        rows: Iterator[tuple[int, Sequence[str]]] = lines
    elif task.bare:
        names, rows = list(task.bare), _lines(path)
    else:
        raise DataError(
            f"{path} has no column {next(name for name in wanted if name not in names)!r}, only "
            f"{', '.join(map(repr, first))}: a file of {task.name} has {', '.join(map(repr, wanted))}"
        )
    places = {name: names.index(name) for name in wanted}
    least = max(places.values()) + 1
    for number, row in rows:
        where = f"{path}, line {number}"
        if len(row) >= least:
            yield where, {name: row[place] for name, place in places.items()}
        elif task.broken_rows:
            yield where, None
        else:
            raise DataError(
                f"{where}: {len(row)} columns, but {task.name} has at least {least} ({', '.join(names[:least])}): "
                "correct the line"
            )


def _lines(path: Path) -> Iterator[tuple[int, Sequence[str]]]:
    """Rows that are not empty. In tab-separated files, which some distributions call .csv, quotes are plain characters,
    and nothing but \\n ends a line: sentences hold other line separators."""
    text = read_text(path)
    if path.suffix == ".csv" and "\t" not in text.partition("\n")[0]:
        reader = csv.reader(io.StringIO(text, newline=""))
        try:
            yield from ((reader.line_num, row) for row in reader if row)
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: {error}; correct the line") from None
    else:
        yield from ((i, line.split("\t")) for i, line in enumerate(text.split("\n"), start=1) if line.strip())


def _json_lines(path: Path) -> Iterator[tuple[str, Record]]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, as_record(read_json(line, where), where)


def _parquet(path: Path) -> Iterator[tuple[str, Record]]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path} is no parquet file ({error}): get it again") from None
    if not table.num_rows:
        raise DataError(f"{path} is empty: get it again, or remove it")
    number = 0
    for batch in table.to_batches(max_chunksize=10_000):
        for record in batch.to_pylist():
            number += 1
            yield f"{path}, row {number}", record


def read_json(text: str, where: str) -> Any:
    try:
        return parse_json(text, where)
    except CorpusError as error:
        raise DataError(str(error)) from None


def as_record(value: Any, where: str) -> Record:
    if not isinstance(value, dict):
        raise DataError(f"{where}: a {type(value).__name__}, not a JSON object with names and values: correct it")
    return value
