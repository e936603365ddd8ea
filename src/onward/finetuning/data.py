"""A task -> its rows, from the Hub or from files of the same form."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data import load_hub_data_set
from ..utils.hub import HubUnreachable
from .squad_files import json_questions, question_of
from .tables import ENDINGS, DataError, Record, records
from .tasks import Task

SUBSET_SEED = 0


@dataclass(frozen=True)
class TaskData:
    """Rows to learn from, and rows to be scored on, by their splits' names. `dropped` could not be used."""

    train: list[Record]
    evaluation: dict[str, list[Record]]
    dropped: int = 0

    def with_at_most(self, train_examples: int | None) -> TaskData:
        """The same for every run: fewer are always among more."""
        if train_examples is None or train_examples >= len(self.train):
            return self
        order = list(range(len(self.train)))
        random.Random(SUBSET_SEED).shuffle(order)
        chosen = [self.train[i] for i in sorted(order[:train_examples])]
        return TaskData(chosen, self.evaluation, self.dropped)

    @property
    def fingerprint(self) -> str:
        """By which sweeps tell whether they have the same data."""
        digest = hashlib.sha256()
        for rows in (self.train, *self.evaluation.values()):
            for row in rows:
                digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        held = " + ".join(f"{len(rows):,}" for rows in self.evaluation.values())
        return f"{len(self.train):,} examples, scored on {held}, {digest.hexdigest()[:16]}"


def read(task: Task, data: str | Path | None = None, split: str = "validation") -> TaskData:
    """From the Hub; or from a folder, or from a single file, whose last tenth is then held out."""
    if split not in ("validation", "test"):
        raise ValueError(f"split={split!r} is not known: models are scored on 'validation' or 'test'")
    if data is None:
        return _from_hub(task, split)
    path = Path(data).expanduser()
    if path.is_file():
        rows, dropped = _rows(task, [path], _file_records(path, task))
        return _hold_out(task, path, rows, dropped)
    if not path.is_dir():
        raise DataError(f"there is no file or folder {str(data)!r}: check the path")
    parts = {name: _files(path, task, name) for name in (*task.splits["train"], *task.splits[split])}
    read_parts = {name: _rows(task, files, _all_records(files, task)) for name, files in parts.items()}
    return _joined(task, split, read_parts)


def _joined(task: Task, split: str, parts: dict[str, tuple[list[Record], int]]) -> TaskData:
    train = [row for name in task.splits["train"] for row in parts[name][0]]
    evaluation = {name: parts[name][0] for name in task.splits[split]}
    return TaskData(train, evaluation, sum(dropped for _, dropped in parts.values()))


def _hold_out(task: Task, path: Path, rows: list[Record], dropped: int) -> TaskData:
    """The last tenth by the first column, so that no context or premise is in both parts."""
    texts = list(dict.fromkeys(row[task.texts[0]] for row in rows))
    if len(texts) < 2:
        raise DataError(
            f"{path} has {len(texts)} different {task.texts[0]} to learn from and to be scored on: give at least 2"
        )
    held = set(texts[len(texts) - max(1, len(texts) // 10) :])
    train = [row for row in rows if row[task.texts[0]] not in held]
    return TaskData(train, {"validation": [row for row in rows if row[task.texts[0]] in held]}, dropped)


# --- where rows come from --------------------------------------------------------------------------


def _from_hub(task: Task, split: str) -> TaskData:
    name, config = task.hub
    try:
        found = load_hub_data_set(name, config)
    except HubUnreachable as error:
        raise HubUnreachable(
            f"the data of {task.name} ({name}) is not in the local cache and the Hugging Face Hub cannot be reached: "
            f"connect to the network, or give a folder with its files by data="
        ) from error.__cause__
    wanted = (*task.splits["train"], *task.splits[split])
    for part in wanted:
        if part not in found:
            raise DataError(f"{name} has no split {part!r}, only {', '.join(found)}: choose another split=")
    parts = {part: f"{name}, {part}" for part in wanted}
    read_parts = {part: _rows(task, [place], _hub_records(found[part], place)) for part, place in parts.items()}
    return _joined(task, split, read_parts)


def _hub_records(rows: Iterable[Record], name: str) -> Iterator[tuple[str, Record]]:
    return ((f"{name}, row {number}", row) for number, row in enumerate(rows, start=1))


def _files(folder: Path, task: Task, split: str) -> list[Path]:
    """The files of one split, wherever distributions of the task have them."""
    inside = ("", *task.folders)
    places = [folder / name / inner for name in ("", task.name, task.title) for inner in inside]
    stems = list(dict.fromkeys((split, split.replace("validation", "dev"))))
    endings = ("json", "jsonl", "parquet") if task.has_spans else ENDINGS
    names = [f"{stem}.{ending}" for stem in stems for ending in endings]
    own = task.files.get(split, ())
    for place in places:
        if own and all((place / name).is_file() for name in own):
            return [place / name for name in own]
        if single := next((place / name for name in names if (place / name).is_file()), None):
            return [single]
        if pieces := [piece for stem in stems for piece in sorted(place.glob(f"{stem}-*-of-*.parquet"))]:
            return pieces
    sub_folders = ", ".join(dict.fromkeys(str(place.relative_to(folder)) for place in places[1:]))
    raise DataError(
        f"folder {str(folder)!r} has no {split} files of {task.name}: looked for {' with '.join(own)}"
        f"{', or ' if own else ''}{', '.join(names)}, there and in {sub_folders}"
    )


def _all_records(files: Sequence[Path], task: Task) -> Iterator[tuple[str, Record | None]]:
    for file in files:
        yield from _file_records(file, task)


def _file_records(path: Path, task: Task) -> Iterator[tuple[str, Record | None]]:
    known = (".json", ".jsonl", ".parquet") if task.has_spans else (".tsv", ".csv", ".jsonl", ".parquet", ".txt")
    if path.suffix not in known:
        raise DataError(f"{path}: a file of {task.name} ends in {' or '.join(known)}: rename it, or give another")
    return json_questions(path) if path.suffix == ".json" else records(path, task)


# --- rows ------------------------------------------------------------------------------------------


def _rows(
    task: Task, sources: Sequence[Path | str], found: Iterator[tuple[str, Record | None]]
) -> tuple[list[Record], int]:
    """And how many were dropped."""
    make = question_of if task.has_spans else _sentences_of
    rows: list[Record] = []
    dropped = 0
    for where, record in found:
        row = None if record is None else make(record, where, task)
        if row is None:
            dropped += 1
        else:
            rows.append(row)
    if not rows:
        listed = ", ".join(map(str, sources))
        raise DataError(f"{listed}: no examples of {task.name}, {dropped} left out: get it again, or give another")
    return rows, dropped


def _sentences_of(record: Record, where: str, task: Task) -> Record:
    row: Record = {}
    for name in task.texts:
        if not isinstance(record.get(name), str):
            raise DataError(f"{where}: {name!r} is {record.get(name)!r}, not text: {task.name} needs it")
        row[name] = record[name]
    if record.get("label") is None:
        raise DataError(f"{where}: no label: {task.name} can be learnt and scored only with labels")
    row["label"] = _label(record["label"], where, task)
    return row


def _label(value: Any, where: str, task: Task) -> int | float:
    if value in task.labels:
        return task.labels.index(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if number == -1:
        raise DataError(f"{where}: label {value!r} stands for one that is not public: score on the validation split")
    if task.is_regression and math.isfinite(number):
        return number
    if number in range(len(task.labels)):
        return int(number)
    known = f"{', '.join(task.labels)}, or 0 to {len(task.labels) - 1}" if task.labels else "numbers"
    raise DataError(f"{where}: label {value!r} is not known: {task.name} has {known}")
