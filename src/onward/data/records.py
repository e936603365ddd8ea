"""Files -> records, each with the place it comes from: plain text, JSON lines, tables and Parquet.

This file knows the formats and not what the records mean. Errors name the file, the place in it, and what to do.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..utils.fields import FieldError
from ..utils.files import DataError
from ..utils.safe_json import parse_json

TABLE_ENDINGS = ("tsv", "csv", "jsonl", "parquet")

Record = dict[str, Any]


class DataFieldError(FieldError, DataError):
    """An argument that does not fit the data."""


def as_record(value: Any, where: str) -> Record:
    if not isinstance(value, dict):
        raise DataError(f"{where}: a {type(value).__name__}, not a JSON object with names and values: correct it")
    return value


# --- text ------------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    """A UTF-8 file, which must not be empty."""
    text = _decoded(path.read_bytes(), str(path))
    if not text.strip():
        raise DataError(f"{path} is empty: remove it, or put text into it")
    return text.replace("\r\n", "\n")


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not UTF-8: byte {error.object[error.start]:#04x} at position {error.start}; "
            "save it as UTF-8 (iconv -f OLD -t UTF-8)"
        ) from None


# --- one object per line, or per row ---------------------------------------------------------------


def json_lines(path: Path) -> Iterator[tuple[str, Record]]:
    """The objects of a .jsonl or .jsonl.gz file, one line at a time."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number in itertools.count(1):
            where = f"{path}, line {number}"
            try:
                line = file.readline()
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(f"{where}: not a whole gzip file ({error}); make it again") from None
            if not line:
                return
            if line.strip():
                yield where, as_record(parse_json(_decoded(line, where), where), where)


def parquet_rows(path: Path) -> Iterator[tuple[str, Record]]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path} is no parquet file ({error}): get it again") from None
    if not table.num_rows:
        raise DataError(f"{path} is empty: get it again, or remove it")
    rows = (row for batch in table.to_batches(max_chunksize=10_000) for row in batch.to_pylist())
    return ((f"{path}, row {number}", row) for number, row in enumerate(rows, start=1))


# --- tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """The columns that are wanted of tables, and how distributions name them.

    Args:
        owner: whose data it is, for errors.
        aliases: other names of columns, and the wanted names that they stand for.
        without_header: the columns of files that have no header.
        broken_rows: whether the official files have rows that are too short; they are given as None.
    """

    owner: str
    wanted: Sequence[str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    without_header: Sequence[str] = ()
    broken_rows: bool = False

    def renamed(self, name: str) -> str:
        return self.aliases.get(name, name)


def table_rows(path: Path, columns: Columns) -> Iterator[tuple[str, Record | None]]:
    """The rows of a .tsv, .csv, .txt, .jsonl or .parquet file under the wanted names."""
    if path.suffix in (".jsonl", ".parquet"):
        rows = json_lines(path) if path.suffix == ".jsonl" else parquet_rows(path)
        return ((where, {columns.renamed(name): value for name, value in row.items()}) for where, row in rows)
    if path.suffix in (".tsv", ".csv", ".txt"):
        return _text_table(path, columns)
    endings = " or ".join(f".{ending}" for ending in (*TABLE_ENDINGS, "txt"))
    raise DataError(f"{path}: a file of {columns.owner} ends in {endings}: rename it, or give another")


def _text_table(path: Path, columns: Columns) -> Iterator[tuple[str, Record | None]]:
    lines = _lines(path)
    header = next(lines)
    names = [columns.renamed(name) for name in header[1]]
    missing = [name for name in columns.wanted if name not in names]
    if missing and columns.without_header:
        names, lines = list(columns.without_header), itertools.chain([header], lines)
    elif missing:
        raise DataError(
            f"{path} has no column {missing[0]!r}, only {', '.join(map(repr, header[1]))}: a file of {columns.owner} "
            f"has {', '.join(map(repr, columns.wanted))}"
        )
    places = {name: names.index(name) for name in columns.wanted}
    least = max(places.values()) + 1
    for number, row in lines:
        where = f"{path}, line {number}"
        if len(row) >= least:
            yield where, {name: row[place] for name, place in places.items()}
        elif columns.broken_rows:
            yield where, None
        else:
            raise DataError(
                f"{where}: {len(row)} columns, but {columns.owner} has at least {least} ({', '.join(names[:least])}): "
                "correct the line"
            )


def _lines(path: Path) -> Iterator[tuple[int, Sequence[str]]]:
    """Rows that are not empty. In tab-separated files, which some distributions call .csv, quotes are plain characters,
    and only \\n ends a line: sentences hold other line separators."""
    text = read_text(path)
    if path.suffix != ".csv" or "\t" in text.partition("\n")[0]:
        yield from ((i, line.split("\t")) for i, line in enumerate(text.split("\n"), start=1) if line.strip())
        return
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}; correct the line") from None
