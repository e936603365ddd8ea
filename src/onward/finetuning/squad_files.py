"""SQuAD's questions from the forms they come in: SQuAD's own JSON, the Hub's rows, and flat lists without offsets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..data import read_text
from .tables import DataError, Record, as_record, read_json
from .tasks import Task


def json_questions(path: Path) -> Iterator[tuple[str, Record]]:
    """Of SQuAD's own form, data > paragraphs > qas, or of a list of questions."""
    content = read_json(read_text(path), str(path))
    if isinstance(content, list):
        for number, item in enumerate(content, start=1):
            where = f"{path}, question {number}"
            yield where, as_record(item, where)
        return
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    where = f"{path}, question {question.get('id', question['question'])!r}"
                    yield where, {**question, "context": paragraph["context"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: neither SQuAD's form (data > paragraphs > qas; {error!r}) nor a list of questions with context, "
            "question and answer: give one of them"
        ) from None


def question_of(record: Record, where: str, task: Task) -> Record | None:
    """{id, context, question, answers}, with each answer's text and first character; None if none is in the context."""
    row: Record = {"id": str(record.get("id", where))}
    for name in task.texts:
        value = record.get(name)
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: {name!r} is {value!r}, not text: correct it")
        row[name] = value
    given = _answers(record, where)
    if not given and not task.knows_no_answer:
        raise DataError(f"{where}: no answer, which SQuAD 1.1 does not know: use the task squad_v2, or remove it")
    found = [(text, place(row["context"], text, start)) for text, start in given]
    row["answers"] = [{"text": text, "start": start} for text, start in found if start is not None]
    return None if given and not row["answers"] else row


def _answers(record: Record, where: str) -> list[tuple[str, int | None]]:
    """Texts, and where they are said to start."""
    if record.get("is_impossible"):
        return []
    answers: Any = record.get("answers", record.get("answer"))
    if answers is None:
        if "answers" in record or "answer" in record:
            return []
        raise DataError(f"{where}: neither 'answers' nor 'answer' (it has {', '.join(map(repr, record))}): add one")
    try:
        if isinstance(answers, str):
            pairs = [(answers, None)]
        elif isinstance(answers, dict):  # the Hub's: lists side by side
            starts = answers.get("answer_start") or [None] * len(answers["text"])
            pairs = list(zip(answers["text"], starts, strict=True))
        else:
            pairs = [(answer["text"], answer.get("answer_start")) for answer in answers]
        return [_stripped(text, start) for text, start in pairs if text.strip()]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(
            f"{where}: answers are {answers!r}, not a list of objects with 'text' and 'answer_start': correct them"
        ) from None


def _stripped(text: str, start: int | None) -> tuple[str, int | None]:
    """Some answers begin or end with a space, which is no token."""
    if start is not None and (isinstance(start, bool) or not isinstance(start, int) or start < 0):
        raise TypeError(start)
    return text.strip(), None if start is None else start + len(text) - len(text.lstrip())


def place(context: str, answer: str, start: int | None = None) -> int | None:
    """Where the answer starts: as said, if it is there; else where it first occurs, if possible as a whole word."""
    if start is not None and context[start : start + len(answer)] == answer:
        return start
    if match := re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", context):
        return match.start()
    found = context.find(answer)
    return None if found < 0 else found
