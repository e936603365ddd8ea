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
from collections.abc import Iterator, Mapping
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
    if "docids" in record:
        return _about_documents(record, where, documents)
    if "passage" in record:
        return _about_a_passage(record, where)
    if "contexts" in record:
        return _with_contexts(record, where)
    if isinstance(record.get("context"), str):
        return with_one_context(record, where)
    if "context" in record:
        return _of_hotpotqa(record, where)
    raise DataError(
        f"{where}: neither 'context' nor 'contexts' (it has {', '.join(map(repr, record))}): give HotpotQA's form, "
        "question_text and contexts, one context or passage for a question, or ERASER's query and docids"
    )


def _with_one_answer(record: Record, id_field: str, question: str, paragraphs: Any, answer: str) -> QuestionRecord:
    number = str(record[id_field]) if id_field in record else None
    return QuestionRecord(number, question, tuple(paragraphs), ((answer, None),))


def _about_a_passage(record: Record, where: str) -> QuestionRecord:
    paragraphs = [(_text(record, "passage", where), None)]
    answer = _yes_or_no(record, "answer", where)
    return _with_one_answer(record, "id", _text(record, "question", where), paragraphs, answer)


def _about_documents(record: Record, where: str, documents: Mapping[str, str] | None) -> QuestionRecord:
    names = record["docids"]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"{where}: 'docids' is {shown(names)}, not a list of names of documents: correct it")
    if documents is None:
        raise DataError(f"{where}: it asks about {shown(names)}, and no documents are given: give them beside it")
    for name in names:
        if name not in documents:
            raise MissingDocument(f"{where}: there is no document {name!r} among {len(documents)}: add it")
    paragraphs = [(documents[name], None) for name in names]
    answer = _yes_or_no(record, "classification", where)
    return _with_one_answer(record, "annotation_id", _text(record, "query", where), paragraphs, answer)


def _of_hotpotqa(record: Record, where: str) -> QuestionRecord:
    """On the Hub, `context` is {title: [..], sentences: [[..]]}, and `supporting_facts` has such columns, too."""
    context, facts = record["context"], record.get("supporting_facts")
    try:
        pairs = list(zip(context["title"], context["sentences"], strict=True)) if isinstance(context, dict) else context
        titled = [(str(title), "".join(sentences)) for title, sentences in pairs]
    except (KeyError, TypeError, ValueError):
        raise DataError(
            f"{where}: 'context' is {shown(context)}, not a list of [title, [sentence, ...]]: correct it"
        ) from None
    try:
        titles = None if not facts else set(facts["title"] if isinstance(facts, dict) else [fact[0] for fact in facts])
    except (KeyError, TypeError, IndexError):
        raise DataError(
            f"{where}: 'supporting_facts' is {shown(facts)}, not a list of [title, sentence]: correct it, or leave it "
            "out"
        ) from None
    paragraphs = [(text, None if titles is None else title in titles) for title, text in titled]
    name = "_id" if "_id" in record else "id"
    return _with_one_answer(record, name, _text(record, "question", where), paragraphs, _text(record, "answer", where))


def _with_contexts(record: Record, where: str) -> QuestionRecord:
    """The answer is the first of `answers_objects`."""
    try:
        paragraphs = [(context["paragraph_text"], context.get("is_supporting")) for context in record["contexts"]]
        if not all(isinstance(text, str) for text, _ in paragraphs):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise DataError(
            f"{where}: 'contexts' is {shown(record['contexts'])}, not a list of objects with 'paragraph_text': "
            "correct it"
        ) from None
    try:
        answer = {"answer": record["answers_objects"][0]["spans"][0]}
    except (KeyError, TypeError, IndexError):
        raise DataError(
            f"{where}: 'answers_objects' is {shown(record.get('answers_objects'))}, whose first has no 'spans': add "
            "its answer"
        ) from None
    question = _text(record, "question_text", where)
    return _with_one_answer(record, "question_id", question, paragraphs, _text(answer, "answer", where))


def with_one_context(record: Record, where: str) -> QuestionRecord:
    """SQuAD's form. It may have several answers, or none."""
    context, question = _text(record, "context", where), _text(record, "question", where)
    number = str(record["id"]) if "id" in record else None
    return QuestionRecord(number, question, ((context, True),), _answers(record, where))


def _answers(record: Record, where: str) -> tuple[tuple[str, int | None], ...]:
    if record.get("is_impossible"):
        return ()
    if "answers" not in record and "answer" not in record:
        raise DataError(f"{where}: neither 'answers' nor 'answer' (it has {', '.join(map(repr, record))}): add one")
    answers = record.get("answers", record.get("answer"))
    try:
        return tuple(_stripped(text, start) for text, start in _texts_and_starts(answers) if text.strip())
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(
            f"{where}: answers are {shown(answers)}, not a list of objects with 'text' and 'answer_start': correct them"
        ) from None


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
    value = record.get(name)
    answers = {"true": YES, "false": NO}
    if not isinstance(value, (bool, str)) or str(value).lower() not in answers:
        raise DataError(f"{where}: {name!r} is {shown(value)}, not true or false: correct it, or remove the question")
    return answers[str(value).lower()]


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
