"""Questions in every form that they come in -> one record.

    HotpotQA's JSON               question, answer, context: [[title, [sentence, ...]], ...], supporting_facts
    a line for a question         question_text, answers_objects, contexts: [{paragraph_text, is_supporting}, ...]
    SQuAD's JSON, or a list       question, context, answers with or without their first characters
    BoolQ's JSON lines            question, passage, and an answer that is true or false
    ERASER's JSON lines           query, classification, and docids: the names of documents in other files

and HotpotQA, SQuAD and BoolQ also as the rows of the Hugging Face Hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..utils.files import DataError
from ..utils.safe_json import parse_json
from .records import Record, as_record, json_lines, parquet_rows, read_text

QUESTION_ENDINGS = ("json", "jsonl", "parquet")
KINDS = SPAN, YES, NO = ("span", "yes", "no")


@dataclass(frozen=True)
class QuestionRecord:
    """A question as its file has it; its texts are not blank, and nothing is stripped from them.

    Args:
        id: None if the file has none.
        paragraphs: each with whether the answer follows from it, or None if that is not known.
        answers: each with its first character in the only paragraph, if the file says it. May be empty.
    """

    id: str | None
    question: str
    paragraphs: tuple[tuple[str, bool | None], ...]
    answers: tuple[tuple[str, int | None], ...]


class MissingDocument(DataError):
    """A question is about a document that was not given."""


# --- files -----------------------------------------------------------------------------------------


def question_rows(path: Path) -> Iterator[tuple[str, Record]]:
    """The objects of a file of questions, in any form, each with its place."""
    if path.suffix == ".json":
        return _json_questions(path)
    if path.suffix in (".jsonl", ".parquet"):
        return json_lines(path) if path.suffix == ".jsonl" else parquet_rows(path)
    raise DataError(f"{path}: questions are read from .json, .jsonl and .parquet, not from {path.suffix!r}: convert it")


def _json_questions(path: Path) -> Iterator[tuple[str, Record]]:
    """SQuAD's own form, data > paragraphs > qas, or a list of questions."""
    content = parse_json(read_text(path), str(path))
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


# --- forms -----------------------------------------------------------------------------------------


def parse_question(record: Record, where: str, documents: Mapping[str, str] | None = None) -> QuestionRecord:
    """A question in any form; its fields tell which. ERASER's needs the `documents` by name."""
    paragraphs: Sequence[tuple[str, bool | None]]
    if "docids" in record:
        question, answer = "query", _yes_or_no(record, "classification", where)
        paragraphs = [(text, None) for text in _named_documents(record["docids"], where, documents)]
    elif "passage" in record:
        question, answer = "question", _yes_or_no(record, "answer", where)
        paragraphs = [(_text(record, "passage", where), None)]
    elif "contexts" in record:
        question, answer = "question_text", _first_span(record, where)
        with _parsing(record, "contexts", "a list of objects with 'paragraph_text'", where):
            paragraphs = [(one["paragraph_text"], one.get("is_supporting")) for one in record["contexts"]]
            "".join(text for text, _ in paragraphs)  # fails if one is no text
    elif isinstance(record.get("context"), str):
        return with_one_context(record, where)
    elif "context" in record:
        question, answer = "question", _text(record, "answer", where)
        paragraphs = _hotpotqas_paragraphs(record, where)
    else:
        raise DataError(
            f"{where}: neither 'context' nor 'contexts' (it has {', '.join(map(repr, record))}): give HotpotQA's form, "
            "question_text and contexts, one context or passage for a question, or ERASER's query and docids"
        )
    return QuestionRecord(_id(record), _text(record, question, where), tuple(paragraphs), ((answer, None),))


def with_one_context(record: Record, where: str) -> QuestionRecord:
    """SQuAD's form. It may have several answers, or none."""
    context, question = _text(record, "context", where), _text(record, "question", where)
    if "answers" not in record and "answer" not in record:
        raise DataError(f"{where}: neither 'answers' nor 'answer' (it has {', '.join(map(repr, record))}): add one")
    name = "answers" if "answers" in record else "answer"
    with _parsing(record, name, "a list of objects with 'text' and 'answer_start'", where):
        pairs = [] if record.get("is_impossible") else _texts_and_starts(record[name])
        answers = tuple(_stripped(text, start) for text, start in pairs if text.strip())
    return QuestionRecord(_id(record), question, ((context, True),), answers)


@contextmanager
def _parsing(record: Record, name: str, form: str, where: str) -> Iterator[None]:
    """Refuses a field if parsing it as this form fails."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise DataError(
            f"{where}: {name!r} is {shown(record.get(name))}, not {form}: correct it, or remove the question"
        ) from None


def _id(record: Record) -> str | None:
    return next((str(record[name]) for name in ("annotation_id", "question_id", "_id", "id") if name in record), None)


def _named_documents(names: Any, where: str, documents: Mapping[str, str] | None) -> list[str]:
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"{where}: 'docids' is {shown(names)}, not a list of names of documents: correct it")
    if documents is None:
        raise DataError(f"{where}: it asks about {shown(names)}, and no documents are given: give them beside it")
    for name in names:
        if name not in documents:
            raise MissingDocument(f"{where}: there is no document {name!r} among {len(documents)}: add it")
    return [documents[name] for name in names]


def _hotpotqas_paragraphs(record: Record, where: str) -> list[tuple[str, bool | None]]:
    """On the Hub, `context` is {title: [..], sentences: [[..]]}, and `supporting_facts` has such columns, too."""
    context, facts = record["context"], record.get("supporting_facts")
    with _parsing(record, "context", "a list of [title, [sentence, ...]]", where):
        pairs = list(zip(context["title"], context["sentences"], strict=True)) if isinstance(context, dict) else context
        paragraphs = [(str(title), "".join(sentences)) for title, sentences in pairs]
    if not facts:
        return [(text, None) for _, text in paragraphs]
    with _parsing(record, "supporting_facts", "a list of [title, sentence]", where):
        titles = set(facts["title"] if isinstance(facts, dict) else [fact[0] for fact in facts])
    return [(text, title in titles) for title, text in paragraphs]


def _first_span(record: Record, where: str) -> str:
    with _parsing(record, "answers_objects", "a list of objects with 'spans'", where):
        answer = {"answer": record["answers_objects"][0]["spans"][0]}
    return _text(answer, "answer", where)


def _texts_and_starts(answers: Any) -> list[tuple[Any, Any]]:
    """Of one answer or several, as texts, as objects, or as the Hub's two lists side by side."""
    if answers is None:
        return []
    if isinstance(answers, dict) and not isinstance(answers["text"], str):
        starts = answers.get("answer_start") or [None] * len(answers["text"])
        return list(zip(answers["text"], starts, strict=True))
    several = [answers] if isinstance(answers, (str, dict)) else answers
    return [(one, None) if isinstance(one, str) else (one["text"], one.get("answer_start")) for one in several]


def _stripped(text: str, start: Any) -> tuple[str, int | None]:
    """Some answers begin or end with a space, which is no token."""
    if start is not None and (isinstance(start, bool) or not isinstance(start, int) or start < 0):
        raise TypeError(start)
    return text.strip(), None if start is None else start + len(text) - len(text.lstrip())


def _yes_or_no(record: Record, name: str, where: str) -> str:
    """Files have JSON's true, or the word."""
    answers = {"true": YES, "false": NO}
    with _parsing(record, name, "true or false", where):
        return answers[str(record[name]).lower()]


def _text(record: Record, name: str, where: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {name!r} is {shown(value)}, not text: correct it, or remove the question")
    return value


def shown(value: Any) -> str:
    """A value in an error, cut to 80 characters."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- where an answer stands ------------------------------------------------------------------------


def answer_patterns(answer: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """As whole words, and anywhere: to be tried in this order."""
    text = re.escape(answer)
    return re.compile(rf"(?<!\w){text}(?!\w)"), re.compile(text)


def find_answer(context: str, answer: str, start: int | None = None) -> int | None:
    """The answer's first character: `start`, if it is there; else where it first occurs, if possible as whole words."""
    if start is not None and context[start : start + len(answer)] == answer:
        return start
    matches = (pattern.search(context) for pattern in answer_patterns(answer))
    return next((match.start() for match in matches if match), None)
