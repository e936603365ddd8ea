"""Questions over several paragraphs: loaded, made harder by distractors, and encoded.

    load_questions("hotpot_train_v1.1.json")                  a file in any form: see question_files.py
    load_questions("hub:hotpotqa/hotpot_qa:distractor")       a data set of the Hugging Face Hub
    read_questions("val.jsonl", documents=load_texts("docs"))    ERASER's form: its documents are in other files

An encoded question is [CLS] question [SEP], then all paragraphs. Models put the question in front of every window.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..utils.fields import FieldError
from ..utils.files import DataError
from .files import load_documents
from .hub import load_hub_splits
from .question_files import KINDS as KINDS
from .question_files import NO as NO
from .question_files import SPAN as SPAN
from .question_files import YES as YES
from .question_files import MissingDocument, Question, question_of, question_rows
from .records import DataFieldError, Record

QUESTIONS_AT_ONCE = 100  # for the tokenizer


# --- loading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """`left_out` counts the questions whose documents are missing."""

    questions: list[Question]
    left_out: int = 0


def load_questions(place: str | Path, split: str = "train") -> list[Question]:
    """All questions of a file, .json, .jsonl or .parquet, or those in a split of `hub:owner/name[:config]`."""
    return read_questions(place, split).questions


def read_questions(place: str | Path, split: str = "train", documents: Mapping[str, str] | None = None) -> Loaded:
    """As `load_questions`, with the `documents` that some forms name in their questions."""
    questions: list[Question] = []
    missing: list[MissingDocument] = []
    for where, record in _rows(place, split):
        try:
            questions.append(question_of(record, where, documents))
        except MissingDocument as error:
            missing.append(error)
    if questions:
        return Loaded(questions, len(missing))
    if missing:
        raise DataError(f"all questions of {place} are about missing documents: {missing[0]}")
    raise DataError(f"{place} holds no questions: give it some")


def _rows(place: str | Path, split: str) -> Iterator[tuple[str, Record]]:
    if not str(place).startswith("hub:"):
        path = Path(place).expanduser()
        if not path.is_file():
            raise DataError(f"there is no file {str(place)!r}: check the path, or give hub:owner/name")
        return question_rows(path)
    name = str(place).removeprefix("hub:")
    _, splits = load_hub_splits(name)
    if split not in splits:
        raise DataFieldError("split", split, f"the data set {name!r} has only {', '.join(splits)}; choose another one")
    return ((f"{name} {split}, row {number}", row) for number, row in enumerate(splits[split]))


def load_texts(place: str | Path) -> dict[str, str]:
    """Documents by name: of a .jsonl (.gz) file whose lines have titles, or of a folder with a file for each."""
    return {document.name.removesuffix(".txt"): document.text for document in load_documents(place, pattern="*")}


# --- distractors -----------------------------------------------------------------------------------


def with_distractors(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """Adds `count` paragraphs of other questions to each, all in random order. The result for a question does not
    depend on the order of the others."""
    if count < 0:
        raise FieldError("count", count, "a question cannot have fewer paragraphs than its own")
    pool = sorted({paragraph for question in questions for paragraph in question.paragraphs})
    return [_with_some(question, pool, count, random.Random(f"{seed} {question.question}")) for question in questions]


def _with_some(question: Question, pool: Sequence[str], count: int, draw: random.Random) -> Question:
    own = set(question.paragraphs)
    if len(pool) - len(own) < count:
        raise ValueError(
            f"question {question.id!r} can have {len(pool) - len(own)} paragraphs of other questions, not {count}: use "
            "fewer, or load more questions"
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
    """`input_ids` are `prefix` tokens of the question, then those of the context. `characters` [n, 2] are the context's
    tokens' first and one past their last. `answer` is its first and last token in `input_ids`, or None if it is not in
    the context."""

    question: Question
    prefix: int
    input_ids: np.ndarray
    token_type_ids: np.ndarray | None
    characters: np.ndarray
    answer: tuple[int, int] | None

    def __len__(self) -> int:
        return len(self.input_ids)

    def text_of(self, start: int, end: int) -> str:
        """The text of these tokens of the context, the last one included."""
        first, last = self.characters[start - self.prefix, 0], self.characters[end - self.prefix, 1]
        return self.question.context[first:last].strip()


def encode_questions(
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    longest_question: int | None = None,
    longest_context: int | None = None,
) -> list[EncodedQuestion]:
    """Cuts questions, which must leave room in windows for a context, to `longest_question` tokens, and contexts to
    `longest_context`. An answer that is cut off is None."""
    name = type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise ValueError(
            f"{name} does not tell which characters a token is made of, and answers need it: use a fast tokenizer"
        )
    if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None:
        raise ValueError(f"{name} has no tokens that begin a text and separate two: use an encoder's tokenizer")
    has_types = "token_type_ids" in tokenizer.model_input_names
    encoded: list[EncodedQuestion] = []
    for begin in range(0, len(questions), QUESTIONS_AT_ONCE):
        some = questions[begin : begin + QUESTIONS_AT_ONCE]
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
