"""Questions over several paragraphs: read from the forms they come in, and encoded for an encoder of windows.

    load_questions("hotpot_train_v1.1.json")                  HotpotQA's own JSON
    load_questions("dev500.jsonl")                            a line for a question, with all its contexts
    load_questions("squad.json")                              one context for a question: SQuAD's form, or a list
    load_questions("boolq.jsonl")                             yes or no about a passage: BoolQ's form
    load_questions("hub:hotpotqa/hotpot_qa:distractor")       a data set of the Hugging Face Hub
    read_questions("val.jsonl", documents=load_texts("docs"))    yes or no about documents beside it: ERASER's form

Every window begins with the question, so that its tokens come first: [CLS] question [SEP], then all paragraphs.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..finetuning.squad_files import json_questions
from ..finetuning.tables import DataError, Record, as_record, read_json
from .files import load_documents, read_text
from .hub import load_hub_data_set

KINDS = SPAN, YES, NO = ("span", "yes", "no")
AT_ONCE = 100  # questions for the tokenizer
BETWEEN_PARAGRAPHS = " "


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
        """The characters where it first occurs, if possible as whole words; of the supporting paragraphs only, if they
        are known. None if it does not occur, or is yes or no."""
        if self.kind != SPAN:
            return None
        begins = [0]
        for paragraph in self.paragraphs:
            begins.append(begins[-1] + len(paragraph) + len(BETWEEN_PARAGRAPHS))
        numbers = range(len(self.paragraphs)) if self.supporting is None else self.supporting
        text = re.escape(self.answer)
        for pattern in (rf"(?<!\w){text}(?!\w)", text):
            for number in numbers:
                if match := re.search(pattern, self.paragraphs[number]):
                    return begins[number] + match.start(), begins[number] + match.end()
        return None


# --- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """`left_out`: so many more questions, whose documents are not there."""

    questions: list[Question]
    left_out: int = 0


def load_questions(place: str | Path, split: str = "train") -> list[Question]:
    """Of a file, .json or .jsonl, all questions; of `hub:owner/name[:config]`, those of a split."""
    return read_questions(place, split).questions


def read_questions(place: str | Path, split: str = "train", documents: Mapping[str, str] | None = None) -> Loaded:
    """As `load_questions`, of any form: some tell by name the `documents` that they are about."""
    questions: list[Question] = []
    missing: list[MissingDocument] = []
    for where, record in _records(place, split):
        try:
            questions.append(question_of(as_record(record, where), where, documents))
        except MissingDocument as error:
            missing.append(error)
    if questions:
        return Loaded(questions, len(missing))
    if missing:
        raise DataError(f"none of the documents that {place} asks about is there: {missing[0]}")
    raise DataError(f"{place} holds no questions: give it some")


def load_texts(place: str | Path) -> dict[str, str]:
    """By name, the documents of a .jsonl (.gz), whose lines tell titles, or of a folder with a file for each."""
    return {document.name.removesuffix(".txt"): document.text for document in load_documents(place, pattern="*")}


def _records(place: str | Path, split: str) -> Iterator[tuple[str, Any]]:
    if str(place).startswith("hub:"):
        return _hub_rows(str(place).removeprefix("hub:"), split)
    path = Path(place).expanduser()
    if not path.is_file():
        raise DataError(f"there is no file {str(place)!r}: check the path, or give hub:owner/name")
    if path.suffix not in (".json", ".jsonl"):
        raise DataError(f"{path}: questions are read from .json and .jsonl, not from {path.suffix!r}: convert it")
    return _json_lines(path) if path.suffix == ".jsonl" else json_questions(path)


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, read_json(line, where)


def _hub_rows(name: str, split: str) -> Iterator[tuple[str, Any]]:
    repository, _, config = name.partition(":")
    if not repository:
        raise DataError("'hub:' needs the name of a data set: write hub:owner/name[:config]")
    splits = load_hub_data_set(repository, config or None)
    if split not in splits:
        raise DataError(f"the data set {name!r} has no split {split!r}, only {', '.join(splits)}: give another one")
    for number, row in enumerate(splits[split]):
        yield f"{name} {split}, row {number}", row


class MissingDocument(DataError):
    """A question about a document that is not there."""


def question_of(record: Record, where: str, documents: Mapping[str, str] | None = None) -> Question:
    """From any of the forms, told apart by their fields."""
    if "docids" in record:
        return _of_eraser(record, where, documents)
    if "passage" in record:
        return _of_boolq(record, where)
    if "contexts" in record:
        return _with_contexts(record, where)
    if isinstance(record.get("context"), str):
        return _with_one_context(record, where)
    if "context" in record:
        return _of_hotpotqa(record, where)
    raise DataError(
        f"{where}: neither 'context' nor 'contexts' (it has {', '.join(map(repr, record))}): give HotpotQA's form, "
        "question_text and contexts, one context or passage for a question, or ERASER's query and docids"
    )


def _of_eraser(record: Record, where: str, documents: Mapping[str, str] | None) -> Question:
    """query, classification, and docids: the names of the documents that it is about."""
    names = record["docids"]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"{where}: 'docids' is {_shown(names)}, not a list of names of documents: correct it")
    if documents is None:
        raise DataError(f"{where}: it asks about {_shown(names)}, and no documents are given: give them beside it")
    for name in names:
        if name not in documents:
            raise MissingDocument(f"{where}: there is no document {name!r} among {len(documents)}: add it")
    marked = [(documents[name], None) for name in names]
    number, asked = record.get("annotation_id", _number(where)), _text(record, "query", where)
    return _question(number, asked, marked, _yes_or_no(record, "classification", where), where)


def _of_boolq(record: Record, where: str) -> Question:
    """question, passage, and an answer that is true or false."""
    marked = [(_text(record, "passage", where), None)]
    asked, answer = _text(record, "question", where), _yes_or_no(record, "answer", where)
    return _question(record.get("id", _number(where)), asked, marked, answer, where)


def _yes_or_no(record: Record, name: str, where: str) -> str:
    """The files have JSON's true, or the word."""
    value = record.get(name)
    answers = {"true": YES, "false": NO}
    if not isinstance(value, (bool, str)) or str(value).lower() not in answers:
        raise DataError(f"{where}: {name!r} is {_shown(value)}, not true or false: correct it, or remove the question")
    return answers[str(value).lower()]


def _of_hotpotqa(record: Record, where: str) -> Question:
    """context: [[title, [sentences]]], or the Hub's {title: [..], sentences: [[..]]}; facts alike."""
    context, facts = record["context"], record.get("supporting_facts")
    try:
        pairs = list(zip(context["title"], context["sentences"], strict=True)) if isinstance(context, dict) else context
        paragraphs = [(str(title), "".join(sentences)) for title, sentences in pairs]
    except (KeyError, TypeError, ValueError):
        raise DataError(
            f"{where}: 'context' is {_shown(context)}, not a list of [title, [sentence, ...]]: correct it"
        ) from None
    try:
        titles = None if not facts else set(facts["title"] if isinstance(facts, dict) else [fact[0] for fact in facts])
    except (KeyError, TypeError, IndexError):
        raise DataError(
            f"{where}: 'supporting_facts' is {_shown(facts)}, not a list of [title, sentence]: correct it, or leave it "
            "out"
        ) from None
    marked = [(text, None if titles is None else title in titles) for title, text in paragraphs]
    name = record.get("_id", record.get("id", _number(where)))
    return _question(name, _text(record, "question", where), marked, _text(record, "answer", where), where)


def _with_contexts(record: Record, where: str) -> Question:
    """question_text, contexts of paragraph_text and is_supporting, and the first of answers_objects."""
    try:
        marked = [(context["paragraph_text"], context.get("is_supporting")) for context in record["contexts"]]
        if not all(isinstance(text, str) for text, _ in marked):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise DataError(
            f"{where}: 'contexts' is {_shown(record['contexts'])}, not a list of objects with 'paragraph_text': "
            "correct it"
        ) from None
    try:
        answer = {"answer": record["answers_objects"][0]["spans"][0]}
    except (KeyError, TypeError, IndexError):
        raise DataError(
            f"{where}: 'answers_objects' is {_shown(record.get('answers_objects'))}, whose first has no 'spans': add "
            "its answer"
        ) from None
    name = record.get("question_id", _number(where))
    return _question(name, _text(record, "question_text", where), marked, _text(answer, "answer", where), where)


def _with_one_context(record: Record, where: str) -> Question:
    """As in SQuAD; of several answers the first."""
    answers: Any = record.get("answers", record.get("answer"))
    if isinstance(answers, dict):  # the Hub's
        answers = answers.get("text")
    first = answers[0] if isinstance(answers, (list, tuple)) and answers else answers
    answer = {"answer": first.get("text") if isinstance(first, dict) else first}
    marked = [(_text(record, "context", where), True)]
    name = record.get("id", _number(where))
    return _question(name, _text(record, "question", where), marked, _text(answer, "answer", where), where)


def _question(name: Any, question: str, marked: Sequence[tuple[str, bool | None]], answer: str, where: str) -> Question:
    filled = [(text, supports) for text, supports in marked if text.strip()]
    if not filled:
        raise DataError(f"{where}: no paragraph has text in it: remove the question")
    supporting = tuple(number for number, (_, supports) in enumerate(filled) if supports)
    return Question(str(name), question, tuple(text for text, _ in filled), answer, supporting or None)


def _number(where: str) -> str:
    """A name for a question that has none, which is the same wherever the file is."""
    return where.rpartition(", ")[2]


def _text(record: Record, name: str, where: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {name!r} is {_shown(value)}, not text: correct it, or remove the question")
    return value.strip()


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- making it harder ------------------------------------------------------------------------------


def with_distractors(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """To each question `count` paragraphs of others, all in a random order. What it says of one question does not
    depend on the order of the others."""
    if count < 0:
        raise ValueError(f"count={count}: a question cannot have fewer paragraphs than its own")
    pool = sorted({paragraph for question in questions for paragraph in question.paragraphs})
    return [_with_some(question, pool, count, random.Random(f"{seed} {question.question}")) for question in questions]


def _with_some(question: Question, pool: Sequence[str], count: int, draw: random.Random) -> Question:
    own = set(question.paragraphs)
    if len(pool) - len(own) < count:
        raise ValueError(
            f"question {question.id!r} can have {len(pool) - len(own)} paragraphs of other questions, not {count}: use "
            "fewer, or read more questions"
        )
    others = [paragraph for paragraph in draw.sample(pool, count + len(own)) if paragraph not in own][:count]
    paragraphs = [*question.paragraphs, *others]
    order = draw.sample(range(len(paragraphs)), len(paragraphs))
    supporting = question.supporting
    if supporting is not None:
        supporting = tuple(sorted(order.index(number) for number in supporting))
    return replace(question, paragraphs=tuple(paragraphs[number] for number in order), supporting=supporting)


# --- encoding --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncodedQuestion:
    """`input_ids` are `prefix` tokens of the question, then those of the context, whose `characters` [n, 2] are told.
    `answer` is its first and last token, counted in `input_ids`; None if it is not in the context."""

    question: Question
    prefix: int
    input_ids: np.ndarray
    token_type_ids: np.ndarray | None
    characters: np.ndarray
    answer: tuple[int, int] | None

    def __len__(self) -> int:
        return len(self.input_ids)

    def text_of(self, start: int, end: int) -> str:
        """What these tokens of the context, the last one included, were made of."""
        first, last = self.characters[start - self.prefix, 0], self.characters[end - self.prefix, 1]
        return self.question.context[first:last].strip()


def encode_questions(
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    longest_question: int | None = None,
    longest_context: int | None = None,
) -> list[EncodedQuestion]:
    """Questions of more than `longest_question` tokens are cut: they would leave no room in windows for a context. And
    so are contexts, which an answer may then be no part of."""
    name = type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise ValueError(
            f"{name} does not tell which characters a token is made of, and answers need it: use a fast tokenizer"
        )
    if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None:
        raise ValueError(f"{name} has no tokens that begin a text and separate two: use an encoder's tokenizer")
    has_types = "token_type_ids" in tokenizer.model_input_names
    encoded: list[EncodedQuestion] = []
    for begin in range(0, len(questions), AT_ONCE):
        some = questions[begin : begin + AT_ONCE]
        asked = tokenizer([question.question for question in some], add_special_tokens=False)["input_ids"]
        contexts = tokenizer(
            [question.context for question in some],
            add_special_tokens=False,
            return_offsets_mapping=True,
            truncation=longest_context is not None,
            max_length=longest_context,
        )
        for question, ids, of_context, characters in zip(
            some, asked, contexts["input_ids"], contexts["offset_mapping"], strict=True
        ):
            if not of_context:
                raise DataError(f"question {question.id!r}: its paragraphs have no token: remove it")
            prefix = [tokenizer.cls_token_id, *ids[:longest_question], tokenizer.sep_token_id]
            places = np.array(characters, np.int32)
            types = np.repeat(np.array([0, 1], np.int32), [len(prefix), len(of_context)]) if has_types else None
            found = _tokens_of(question.answer_in_context(), places)
            answer = None if found is None else (len(prefix) + found[0], len(prefix) + found[1])
            all_ids = np.array([*prefix, *of_context], np.int32)
            encoded.append(EncodedQuestion(question, len(prefix), all_ids, types, places, answer))
    return encoded


def _tokens_of(characters: tuple[int, int] | None, places: np.ndarray) -> tuple[int, int] | None:
    """The first and last token that has some of these characters."""
    if characters is None:
        return None
    inside = np.flatnonzero((places[:, 1] > characters[0]) & (places[:, 0] < characters[1]))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None
