"""Scores of answers."""

from __future__ import annotations

import math

import pytest

from onward.data.questions import Question
from onward_studies.questions.scores import Answers, SpanScores, YesNoScores, score


@pytest.mark.parametrize(
    ("given", "right", "f1", "exact"),
    [
        ("The Cat!", "cat", 1, 1),
        ("a black cat", "cat", 2 / 3, 0),
        ("dog", "cat", 0, 0),
        ("yes", "yes", 1, 1),
        ("Yes.", "yes", 1, 1),
        ("yes", "no", 0, 0),
        ("yes we can", "yes", 0, 0),  # words in common do not count
        ("no", "no way", 0, 0),
        ("the", "a", 0, 1),  # as the official script: nothing in common, and yet equal
    ],
)
def test_scores_are_the_official_scripts(given: str, right: str, f1: float, exact: float) -> None:
    assert score(given, right) == (pytest.approx(f1), exact)


def test_scores_by_kind() -> None:
    questions = [Question(str(n), "q", ("p",), right) for n, right in enumerate(("black cat", "yes", "yes", "dog"))]
    found = SpanScores.of(Answers(questions, ["cat", "yes", "no", "dog"], 2.0, 1.5))
    assert str(found) == "F1 66.67, exact match 50.00"
    assert found.exact_match == 50 and found.span_loss == 1.5
    assert found.f1 == pytest.approx(100 * (2 / 3 + 1 + 0 + 1) / 4)
    assert found.by_kind == {
        "span": {"f1": pytest.approx(100 * (2 / 3 + 1) / 2), "questions": 2},
        "yes": {"f1": 50, "questions": 2},
    }


def test_yes_and_no_beside_the_commoner_answer() -> None:
    questions = [Question(str(n), "q", ("p",), right) for n, right in enumerate(("yes", "no", "yes", "yes"))]
    found = YesNoScores.of(Answers(questions, ["yes", "yes", "no", "yes"], 0.7, 0.0))
    assert (found.accuracy, found.majority, found.loss) == (50, 75, 0.7)
    assert found.majority_loss == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert found.by_kind["yes"] == {"accuracy": pytest.approx(100 * 2 / 3), "questions": 3}
    assert found.by_kind["no"] == {"accuracy": 0, "questions": 1}
    assert str(found) == "accuracy 50.00, where the commoner answer has 75.00"
    alike = YesNoScores.of(Answers(questions[2:], ["yes", "yes"], 0.7, 0.0))
    assert (alike.majority, alike.majority_loss) == (100, 0)
