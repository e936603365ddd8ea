"""A task -> its examples: splits, labels and hold-out. The formats of files are known to onward.data alone."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data import DataError, load_hub_data_set
from ..data.question_files import QUESTION_ENDINGS, answers_of, find_answer, id_of, question_rows, text_of
from ..data.records import TABLE_ENDINGS, Columns, DataFieldError, Record, table_rows
from ..utils.hub import HubUnreachable
from .tasks import Task

SUBSET_SEED = 0
Found = Iterator[tuple[str, Record | None]]


@dataclass(frozen=True)
class TaskData:
    """Examples to train on, and those to be scored on, by the names of their splits. `dropped` counts unusable ones."""

    train: list[Record]
    evaluation: dict[str, list[Record]]
    dropped: int = 0

    def with_at_most(self, train_examples: int | None) -> TaskData:
        """A subset for training, the same in every run; a smaller one is part of a larger one."""
        if train_examples is None or train_examples >= len(self.train):
            return self
        order = list(range(len(self.train)))
        random.Random(SUBSET_SEED).shuffle(order)
        chosen = [self.train[i] for i in sorted(order[:train_examples])]
        return TaskData(chosen, self.evaluation, self.dropped)

    @property
    def fingerprint(self) -> str:
        """The same for the same data; sweeps compare it."""
        digest = hashlib.sha256()
        for rows in (self.train, *self.evaluation.values()):
            for row in rows:
                digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        held = " + ".join(f"{len(rows):,}" for rows in self.evaluation.values())
        return f"{len(self.train):,} examples, scored on {held}, {digest.hexdigest()[:16]}"


def read(task: Task, data: str | Path | None = None, split: str = "validation") -> TaskData:
    """A task's data from the Hub, from a folder, or from a single file, whose last tenth is then held out."""
    if split not in ("validation", "test"):
        raise DataFieldError("split", split, "models are scored on 'validation' or 'test'")
    wanted = (*task.splits["train"], *task.splits[split])
    if data is None:
        found = _from_hub(task, wanted)
    elif (path := Path(data).expanduser()).is_file():
        return _hold_out(task, path, *_examples(task, [path], _file_rows(task, [path])))
    elif path.is_dir():
        files = {name: _files(path, task, name) for name in wanted}
        found = {name: _examples(task, files[name], _file_rows(task, files[name])) for name in wanted}
    else:
        raise DataFieldError("data", str(data), "there is no file or folder of this name; check the path")
    train = [row for name in task.splits["train"] for row in found[name][0]]
    evaluation = {name: found[name][0] for name in task.splits[split]}
    return TaskData(train, evaluation, sum(dropped for _, dropped in found.values()))


def _hold_out(task: Task, path: Path, rows: list[Record], dropped: int) -> TaskData:
    """The last tenth by the first column, so that no context or premise is in both parts."""
    texts = list(dict.fromkeys(row[task.texts[0]] for row in rows))
    if len(texts) < 2:
        raise DataError(
            f"{path} has {len(texts)} different {task.texts[0]} to train on and to be scored on: give at least 2"
        )
    held = set(texts[len(texts) - max(1, len(texts) // 10) :])
    train = [row for row in rows if row[task.texts[0]] not in held]
    return TaskData(train, {"validation": [row for row in rows if row[task.texts[0]] in held]}, dropped)


# --- where rows come from --------------------------------------------------------------------------


def _from_hub(task: Task, wanted: Sequence[str]) -> dict[str, tuple[list[Record], int]]:
    name, config = task.hub
    try:
        splits = load_hub_data_set(name, config)
    except HubUnreachable as error:
        raise HubUnreachable(
            f"the data of {task.name} ({name}) is not in the local cache and the Hugging Face Hub cannot be reached: "
            "connect to the network, or give a folder with its files as data (--data)"
        ) from error.__cause__
    for part in wanted:
        if part not in splits:
            raise DataError(f"{name} has no split {part!r}, only {', '.join(splits)}: score on another split")
    return {part: _examples(task, [f"{name}, {part}"], _numbered(splits[part], f"{name}, {part}")) for part in wanted}


def _numbered(rows: Any, name: str) -> Found:
    return ((f"{name}, row {number}", row) for number, row in enumerate(rows, start=1))


def _files(folder: Path, task: Task, split: str) -> list[Path]:
    """The files of one split, wherever distributions of the task have them."""
    places = [folder / name / inner for name in ("", task.name, task.title) for inner in ("", *task.folders)]
    stems = list(dict.fromkeys((split, split.replace("validation", "dev"))))
    names = [f"{stem}.{ending}" for stem in stems for ending in (QUESTION_ENDINGS if task.has_spans else TABLE_ENDINGS)]
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


def _file_rows(task: Task, files: Sequence[Path]) -> Found:
    columns = Columns(task.name, (*task.texts, "label"), task.aliases, task.bare, task.broken_rows)
    for file in files:
        yield from question_rows(file) if task.has_spans else table_rows(file, columns)


# --- rows -> examples ------------------------------------------------------------------------------


def _examples(task: Task, sources: Sequence[Path | str], rows: Found) -> tuple[list[Record], int]:
    """Examples, and how many rows were dropped."""
    make = _span_example if task.has_spans else _labelled_example
    made = [None if row is None else make(row, where, task) for where, row in rows]
    examples = [example for example in made if example is not None]
    if not examples:
        listed = ", ".join(map(str, sources))
        raise DataError(f"{listed}: no examples of {task.name}, {len(made)} left out: get it again, or give another")
    return examples, len(made) - len(examples)


def _span_example(row: Record, where: str, task: Task) -> Record | None:
    """{id, context, question, answers}, with each answer's text and first character; None if none is in the context."""
    context, question = text_of(row, "context", where), text_of(row, "question", where)
    given = answers_of(row, where)
    if not given and not task.knows_no_answer:
        raise DataError(f"{where}: no answer, which SQuAD 1.1 does not allow: use the task squad_v2, or remove it")
    placed = [(text, find_answer(context, text, start)) for text, start in given]
    answers = [{"text": text, "start": start} for text, start in placed if start is not None]
    if given and not answers:
        return None
    return {"id": id_of(row, where), "context": context, "question": question, "answers": answers}


def _labelled_example(row: Record, where: str, task: Task) -> Record:
    for name in task.texts:
        if not isinstance(row.get(name), str):
            raise DataError(f"{where}: {name!r} is {row.get(name)!r}, not text: {task.name} needs it")
    if row.get("label") is None:
        raise DataError(f"{where}: no label: {task.name} can be trained and scored only with labels")
    return {name: row[name] for name in task.texts} | {"label": _label(row["label"], where, task)}


def _label(value: Any, where: str, task: Task) -> int | float:
    if value in task.labels:
        return task.labels.index(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if number == -1:
        raise DataError(f"{where}: label {value!r} means that the label is not public: score on the validation split")
    if task.is_regression and math.isfinite(number):
        return number
    if number in range(len(task.labels)):
        return int(number)
    known = f"{', '.join(task.labels)}, or 0 to {len(task.labels) - 1}" if task.labels else "numbers"
    raise DataError(f"{where}: label {value!r} is not known: {task.name} has {known}")
