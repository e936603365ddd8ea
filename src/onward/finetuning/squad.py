"""SQuAD: contexts in overlapping windows behind their question, logits as answers, and how answers are scored."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import AutoModelForQuestionAnswering, PreTrainedTokenizerBase

from ..data.records import Record
from ..utils.fields import FieldError
from .data import TaskData
from .inputs import SMALLEST_MARGIN, Encoded, Logits, TaskInputs
from .recipe import FinetuningRecipe
from .tasks import Task

QUESTIONS_AT_ONCE = 100  # questions for the tokenizer


@dataclass(frozen=True)
class Feature:
    """One window of a context, behind its question."""

    question: int  # its row
    inputs: dict[str, list[int]]
    first: int  # the context's first token in the input
    spans: np.ndarray  # [n, 2], the characters of each of the context's tokens
    no_answer: int  # the token that stands for it

    def tokens_of(self, start: int, end: int) -> tuple[int, int]:
        """The first and last token of these characters, counted in the whole input; no answer if not all are here."""
        if start < self.spans[0, 0] or end > self.spans[-1, 1]:
            return self.no_answer, self.no_answer
        first = int(np.searchsorted(self.spans[:, 0], start, side="right")) - 1
        last = int(np.searchsorted(self.spans[:, 1], end, side="left"))
        return self.first + first, self.first + last

    def best_span(self, start: np.ndarray, end: np.ndarray, longest: int) -> tuple[float, int, int]:
        """The highest sum of two logits for an answer of at most `longest` tokens, and its characters.

        start, end: the logits of the whole input [L].
        """
        inside = slice(self.first, self.first + len(self.spans))
        starts, ends = start[inside], end[inside]
        found = (-math.inf, 0, 0)
        for length in range(min(longest, len(starts))):
            sums = starts[: len(starts) - length] + ends[length:]
            token = int(sums.argmax())
            if sums[token] > found[0]:
                found = float(sums[token]), int(self.spans[token, 0]), int(self.spans[token + length, 1])
        return found


def features(
    questions: Sequence[Record], tokenizer: PreTrainedTokenizerBase, max_length: int, overlap: int
) -> Iterator[Feature]:
    """All windows of all contexts, in order; neighbours share `overlap` tokens."""
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} does not tell which characters a token is made of, and SQuAD needs it: use a "
            "model with a fast tokenizer"
        )
    for begin in range(0, len(questions), QUESTIONS_AT_ONCE):
        some = questions[begin : begin + QUESTIONS_AT_ONCE]
        _check_room(some, tokenizer, max_length, overlap)
        encoded = tokenizer(
            [row["question"] for row in some],
            [row["context"] for row in some],
            truncation="only_second",
            max_length=max_length,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for i, row in enumerate(encoded["overflow_to_sample_mapping"]):
            ids = encoded["input_ids"][i]
            of_context = [j for j, part in enumerate(encoded.sequence_ids(i)) if part == 1]
            if not of_context:  # only characters that the tokenizer drops
                raise ValueError(f"question {some[row]['id']!r}: its context has no token: remove it")
            yield Feature(
                begin + row,
                {name: encoded[name][i] for name in ("input_ids", "token_type_ids") if name in encoded},
                of_context[0],
                np.array([encoded["offset_mapping"][i][j] for j in of_context], np.int32),
                ids.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids else 0,
            )


def _check_room(questions: Sequence[Record], tokenizer: PreTrainedTokenizerBase, max_length: int, overlap: int) -> None:
    """A window must hold the question, what it repeats of the window before, and something new."""
    special = tokenizer.num_special_tokens_to_add(pair=True)
    lengths = map(len, tokenizer([row["question"] for row in questions], add_special_tokens=False)["input_ids"])
    for row, length in zip(questions, lengths, strict=True):
        room = max_length - special - length
        if room <= overlap:
            problem = (
                f"question {row['id']!r} has {length} tokens, which leaves {max(room, 0)} for its context, of which "
                f"overlap={overlap} are repeated; choose a larger max_length, or less overlap"
            )
            raise FieldError("max_length", max_length, problem)


class Questions(TaskInputs):
    """Questions whose answers are spans of their contexts; in SQuAD 2.0 some have none."""

    auto_class = AutoModelForQuestionAnswering

    def __init__(self, task: Task, data: TaskData, tokenizer: PreTrainedTokenizerBase, recipe: FinetuningRecipe):
        super().__init__(task, data)
        assert recipe.max_length is not None and recipe.overlap is not None
        sizes = recipe.max_length, recipe.overlap
        self.longest = recipe.max_answer_length
        self.train = Encoded(
            [
                {**feature.inputs, **_targets(feature, data.train[feature.question])}
                for feature in features(data.train, tokenizer, *sizes)
            ]
        )
        ((split, self.questions),) = data.evaluation.items()
        self.features = list(features(self.questions, tokenizer, *sizes))
        self.evaluation = {split: Encoded([feature.inputs for feature in self.features])}
        nothing, everything = [""] * len(self.questions), [row["context"] for row in self.questions]
        self.trivial = max(task.score(self._compare(answers)) for answers in (nothing, everything))
        error = math.sqrt(self.trivial * (1 - self.trivial) / len(self.questions))
        self.margin = max(SMALLEST_MARGIN, 2 * error)

    def metrics(self, logits: Mapping[str, Logits]) -> dict[str, float]:
        (values,) = logits.values()
        return self._compare(self.answers(*values[:2]))

    def answers(self, starts: np.ndarray, ends: np.ndarray) -> list[str]:
        """The best span over all windows of a context; "" where every window scores no answer higher.

        starts, ends: [features, L]
        """
        spans = [(-math.inf, 0, 0)] * len(self.questions)
        none = [math.inf] * len(self.questions)
        for feature, start, end in zip(self.features, starts, ends, strict=True):
            i = feature.question
            spans[i] = max(spans[i], feature.best_span(start, end, self.longest), key=lambda span: span[0])
            none[i] = min(none[i], float(start[feature.no_answer] + end[feature.no_answer]))
        return [
            "" if self.task.knows_no_answer and none[i] > score else self.questions[i]["context"][first:last]
            for i, (score, first, last) in enumerate(spans)
        ]

    def _compare(self, answers: Sequence[str]) -> dict[str, float]:
        rights = [[answer["text"] for answer in row["answers"]] for row in self.questions]
        pairs = list(zip(answers, rights, strict=True))
        found = {
            "exact_match": _mean([best(exact_match, answer, right) for answer, right in pairs]),
            "f1": _mean([best(f1, answer, right) for answer, right in pairs]),
        }
        if self.task.knows_no_answer:
            found["answerable_f1"] = _mean([best(f1, answer, right) for answer, right in pairs if right])
            found["unanswerable_exact_match"] = _mean([float(not answer) for answer, right in pairs if not right])
        return found


def _targets(feature: Feature, row: Record) -> dict[str, Any]:
    """Of several answers the first; for a window without it, the token for no answer."""
    if not row["answers"]:
        start = end = feature.no_answer
    else:
        answer = row["answers"][0]
        start, end = feature.tokens_of(answer["start"], answer["start"] + len(answer["text"]))
    return {"start_positions": start, "end_positions": end}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


# -- how SQuAD's official script compares answers: in lower case, without punctuation, articles and extra spaces. Both
# versions are scored as 2.0's script does it; 1.1's differs only for answers that consist of an article alone.

PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(answer: str) -> str:
    without_articles = re.sub(r"\b(a|an|the)\b", " ", answer.lower().translate(PUNCTUATION))
    return " ".join(without_articles.split())


def exact_match(answer: str, right: str) -> float:
    return float(normalize(answer) == normalize(right))


def f1(answer: str, right: str) -> float:
    """Of the words in common. An empty answer is right only where the right one is empty."""
    given, wanted = normalize(answer).split(), normalize(right).split()
    if not given or not wanted:
        return float(given == wanted)
    shared = (Counter(given) & Counter(wanted)).total()
    return 2 * shared / (len(given) + len(wanted))


def best(metric: Callable[[str, str], float], answer: str, rights: Sequence[str]) -> float:
    """Compared with the nearest of several right answers; where there is none, "" is right."""
    return max(metric(answer, right) for right in [text for text in rights if normalize(text)] or [""])
