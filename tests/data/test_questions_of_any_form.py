"""Data with something of another kind in any place: read, or refused by file and place, never a page of Python."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_questions import ABOUT_ARTICLE, ABOUT_PASSAGE, FLAT, HOTPOT, LINE, TEXTS

from onward.data.questions import read_questions
from onward.finetuning import DataError
from onward.finetuning.data import read
from onward.finetuning.tasks import task_of

OTHERS: list[Any] = [None, 3, -1.5, True, "", "x", [], {}, [None], [[]], [3], {"text": 3}, {"text": None}, "\ud800"]
SQUAD = {"data": [{"paragraphs": [{"context": "Rain in June.", "qas": [{"id": "1", "question": "When?"}]}]}]}
SQUAD["data"][0]["paragraphs"][0]["qas"][0]["answers"] = [{"text": "June", "answer_start": 8}]  # type: ignore[index]
ON_THE_HUB = FLAT | {"id": "s", "answers": {"text": ["June"], "answer_start": [23]}}
FORMS = {
    "hotpot": HOTPOT,
    "contexts": LINE,
    "flat": FLAT,
    "passage": ABOUT_PASSAGE,
    "article": ABOUT_ARTICLE,
    "hub": ON_THE_HUB,
}


def changed(content: Any) -> Iterator[Any]:
    """With every part of it, in turn, replaced by something else or gone."""
    places: list[tuple[Any, ...]] = [()]

    def walk(part: Any, place: tuple[Any, ...]) -> None:
        for key in part if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
            places.append((*place, key))
            walk(part[key], (*place, key))

    walk(content, ())
    for place in places:
        for other in OTHERS if place else []:
            whole = copy.deepcopy(content)
            inside = whole
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = other
            yield whole
            del inside[place[-1]]
            yield whole


@pytest.mark.parametrize("form", FORMS)
def test_questions(tmp_path: Path, form: str) -> None:
    file = tmp_path / "questions.jsonl"
    for record in changed(FORMS[form]):
        file.write_text(json.dumps(record))
        try:
            read_questions(file, documents=TEXTS)
        except DataError as error:
            assert str(file) in str(error)


def test_squad(tmp_path: Path) -> None:
    for name, content in (("train.json", SQUAD), ("train.json", [ON_THE_HUB, FLAT]), ("train.jsonl", ON_THE_HUB)):
        file = tmp_path / name
        for record in changed(content):
            file.write_text(json.dumps(record))
            for task in ("squad", "squad_v2"):
                try:
                    read(task_of(task), file)
                except DataError as error:
                    assert str(file) in str(error)


def test_glue(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    for record in changed({"sentence1": "a", "sentence2": "b", "label": 1}):
        file.write_text(json.dumps(record) + '\n{"sentence1": "c", "sentence2": "d", "label": 0}\n')
        try:
            read(task_of("rte"), file)
        except DataError as error:
            assert str(file) in str(error)
    table = tmp_path / "train.csv"
    table.write_text("sentence1,sentence2,label\n" + "x" * 200_000 + ",b,1\n")
    with pytest.raises(DataError, match=r"train.csv, line 2: field larger"):
        read(task_of("rte"), table)
