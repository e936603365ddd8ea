"""Scores of answers: F1 and exact match as HotpotQA has them, or the share of yes and no that is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onward.data.questions import KINDS, Question
from onward.finetuning.squad import exact_match, f1, normalize


@dataclass(frozen=True)
class Answers:
    """`loss`, in nats, is as in training: the loss of kinds, plus `span_loss` where answers are spans."""

    questions: list[Question]
    texts: list[str]
    loss: float
    span_loss: float


@dataclass(frozen=True)
class SpanScores:
    """In percent, of all questions and by kind of answer; and the loss of spans, which shows differences that scores
    cannot while most answers are wrong."""

    f1: float
    exact_match: float
    by_kind: dict[str, dict[str, float]]
    span_loss: float

    @classmethod
    def of(cls, answers: Answers) -> SpanScores:
        scored = [score(text, q.answer) for q, text in zip(answers.questions, answers.texts, strict=True)]
        f1s, exact = [row[0] for row in scored], [row[1] for row in scored]
        return cls(_percent(f1s), _percent(exact), _by_kind(answers, "f1", f1s), answers.span_loss)

    def __str__(self) -> str:
        return f"F1 {self.f1:.2f}, exact match {self.exact_match:.2f}"


@dataclass(frozen=True)
class YesNoScores:
    """In percent, of all questions and by the right answer; `majority` is the accuracy of always giving the commoner
    one, and `majority_loss` the loss of knowing only how common it is."""

    accuracy: float
    majority: float
    by_kind: dict[str, dict[str, float]]
    loss: float
    majority_loss: float

    @classmethod
    def of(cls, answers: Answers) -> YesNoScores:
        right = [float(text == q.answer) for q, text in zip(answers.questions, answers.texts, strict=True)]
        by_kind = _by_kind(answers, "accuracy", right)
        shares = [found["questions"] / len(right) for found in by_kind.values()]
        entropy = -sum(share * math.log(share) for share in shares)
        return cls(_percent(right), 100 * max(shares), by_kind, answers.loss, entropy)

    def __str__(self) -> str:
        return f"accuracy {self.accuracy:.2f}, where the commoner answer has {self.majority:.2f}"


def _by_kind(answers: Answers, name: str, scores: Sequence[float]) -> dict[str, dict[str, float]]:
    by_kind = {}
    for kind in KINDS:
        of_kind = [found for q, found in zip(answers.questions, scores, strict=True) if q.kind == kind]
        if of_kind:
            by_kind[kind] = {name: _percent(of_kind), "questions": len(of_kind)}
    return by_kind


def _percent(values: Sequence[float]) -> float:
    return 100 * sum(values) / len(values)


def score(answer: str, right: str) -> tuple[float, float]:
    """F1 and exact match as HotpotQA's official script has them: yes and no share no words with a span."""
    exact = exact_match(answer, right)
    alone = {"yes", "no", "noanswer"} & {normalize(answer), normalize(right)}
    if alone or not normalize(answer) or not normalize(right):
        return (exact if alone else 0.0), exact
    return f1(answer, right), exact
