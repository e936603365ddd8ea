"""Questions in every form that they come in -> `Question`.

    HotpotQA's JSON               question, answer, context: [[title, [sentence, ...]], ...], supporting_facts
    a line for a question         question_text, answers_objects, contexts: [{paragraph_text, is_supporting}, ...]
    SQuAD's JSON, or a list       question, context, answers with or without their first characters
    BoolQ's JSON lines            question, passage, and an answer that is true or false
    ERASER's JSON lines           query, classification, and docids: the names of documents in other files

and HotpotQA, SQuAD and BoolQ also as the rows of the Hugging Face Hub.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..utils.files import DataError
from ..utils.safe_json import parse_json, shown
from .records import Record, as_record, json_lines, parquet_rows, read_text

QUESTION_ENDINGS = ("json", "jsonl", "parquet")
KINDS = SPAN, YES, NO = ("span", "yes", "no")
BETWEEN_PARAGRAPHS = " "
ID_FIELDS = ("annotation_id", "question_id", "_id", "id")


@dataclass(frozen=True)
class Question:
    """`supporting` are the numbers of the paragraphs that the answer follows from; None if that is not known."""

    id: str
    question: str
    paragraphs: tuple[str, ...]
    answer: str
    supporting: tuple[int, ...] | None = None

    @property
    def kind(self) -> str:
        return self.answer if self.answer in (YES, NO) else SPAN

    @property
    def context(self) -> str:
        return BETWEEN_PARAGRAPHS.join(self.paragraphs)

    def answer_in_context(self) -> tuple[int, int] | None:
        """The characters where it first occurs, if possible as whole words; only in the supporting paragraphs, if they
        are known. None if it does not occur, or is yes or no."""
        if self.kind != SPAN:
            return None
        begins = [0]
        for paragraph in self.paragraphs:
            begins.append(begins[-1] + len(paragraph) + len(BETWEEN_PARAGRAPHS))
        numbers = range(len(self.paragraphs)) if self.supporting is None else self.supporting
        for pattern in _patterns(self.answer):
            for number in numbers:
                if match := pattern.search(self.paragraphs[number]):
                    return begins[number] + match.start(), begins[number] + match.end()
        return None


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


def question_of(record: Record, where: str, documents: Mapping[str, str] | None = None) -> Question:
    """A question in any form; its fields tell which. ERASER's needs the `documents` by name."""
    paragraphs: Sequence[tuple[str, Any]]  # each with whether the answer follows from it; None if that is not known
    if "docids" in record:
        asked, answer = "query", _yes_or_no(record, "classification", where)
        paragraphs = [(text, None) for text in _named_documents(record["docids"], where, documents)]
    elif "passage" in record:
        asked, answer = "question", _yes_or_no(record, "answer", where)
        paragraphs = [(text_of(record, "passage", where).strip(), None)]
    elif "contexts" in record:
        asked, answer = "question_text", _first_span(record, where)
        with _parsing(record, "contexts", "a list of objects with 'paragraph_text'", where):
            paragraphs = [(one["paragraph_text"], one.get("is_supporting")) for one in record["contexts"]]
            "".join(text for text, _ in paragraphs)  # fails if one is not text
    elif isinstance(record.get("context"), str):
        answers = answers_of(record, where) or [("", None)]
        asked, answer = "question", text_of({"answer": answers[0][0]}, "answer", where)
        paragraphs = [(text_of(record, "context", where).strip(), True)]
    elif "context" in record:
        asked, answer = "question", text_of(record, "answer", where)
        paragraphs = _hotpotqas_paragraphs(record, where)
    else:
        raise DataError(
            f"{where}: neither 'context' nor 'contexts' (it has {', '.join(map(repr, record))}): give HotpotQA's form, "
            "question_text and contexts, one context or passage for a question, or ERASER's query and docids"
        )
    filled = [(text, supports) for text, supports in paragraphs if text.strip()]
    if not filled:
        raise DataError(f"{where}: no paragraph has text in it: remove the question")
    supporting = tuple(number for number, (_, supports) in enumerate(filled) if supports)
    name = id_of(record, where.rpartition(", ")[2])  # without the file, wherever that is
    question, texts = text_of(record, asked, where).strip(), tuple(text for text, _ in filled)
    return Question(name, question, texts, answer.strip(), supporting or None)


def answers_of(record: Record, where: str) -> list[tuple[str, int | None]]:
    """SQuAD's answers, of which there may be none: texts, and their first characters, if the file says them."""
    if "answers" not in record and "answer" not in record:
        raise DataError(f"{where}: neither 'answers' nor 'answer' (it has {', '.join(map(repr, record))}): add one")
    name = "answers" if "answers" in record else "answer"
    with _parsing(record, name, "a list of objects with 'text' and 'answer_start'", where):
        pairs = [] if record.get("is_impossible") else _texts_and_starts(record[name])
        return [_stripped(text, start) for text, start in pairs if text.strip()]


@contextmanager
def _parsing(record: Record, name: str, form: str, where: str) -> Iterator[None]:
    """Refuses a field if parsing it as this form fails."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise DataError(
            f"{where}: {name!r} is {shown(record.get(name))}, not {form}: correct it, or remove the question"
        ) from None


def id_of(record: Record, default: str) -> str:
    names = [name for name in ID_FIELDS if name in record]
    return str(record[names[0]]) if names else default


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
    return text_of(answer, "answer", where)


def _texts_and_starts(answers: Any) -> list[tuple[Any, Any]]:
    """Of one answer or several, as texts, as objects, or as the Hub's two lists side by side."""
    if answers is None:
        return []
    if isinstance(answers, dict) and isinstance(answers["text"], (list, tuple)):
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


def text_of(record: Record, name: str, where: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {name!r} is {shown(value)}, not text: correct it, or remove the question")
    return value


# --- where an answer is ----------------------------------------------------------------------------


def _patterns(answer: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """As whole words, and anywhere: to be tried in this order."""
    text = re.escape(answer)
    return re.compile(rf"(?<!\w){text}(?!\w)"), re.compile(text)


def find_answer(context: str, answer: str, start: int | None = None) -> int | None:
    """The answer's first character: `start`, if it is there; else where it first occurs, if possible as whole words."""
    if start is not None and context[start : start + len(answer)] == answer:
        return start
    matches = (pattern.search(context) for pattern in _patterns(answer))
    return next((match.start() for match in matches if match), None)
