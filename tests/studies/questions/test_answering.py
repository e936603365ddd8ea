"""Answers with a reader's own memories and with others', beside plain references."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_readers import (
    YES_NO,
    batch_of,
    chunks_of,
    reader,
    some_questions,
    yes_no_questions,
    yes_no_reader,
)
from torch import nn
from torch.testing import assert_close

from onward_studies.questions.answering import _batches, answer, answer_own_and_swapped, best_span, own_and_swapped
from onward_studies.questions.reader import (
    InOrder,
    QuestionReader,
    Recipe,
    collate,
    learn,
)


@torch.no_grad()
@pytest.mark.parametrize("variant", ["paper", "pooled"])
def test_swapped_memories(variant: str) -> None:
    model, questions, others = reader(variant), some_questions(), [1, 2, 0]
    batch = batch_of(questions)
    whole = model(**batch)
    own, swapped = own_and_swapped(model, batch, others)
    for same in (own, *own_and_swapped(model, batch, [0, 1, 2])):
        for name in ("kinds", "starts", "ends"):
            assert_close(same[name], whole[name])
    chunks = [chunks_of(question) for question in questions]

    @cache
    def read(row: int, window: int, lender: int | None = None) -> Any:
        """One row, one window, after its own one before, or with what the lender's has left, or the lender's last."""
        state = read(row, window - 1, lender).state if window else None
        if window and lender is not None:
            left = read(lender, min(window, len(chunks[lender])) - 1).state  # read with its own memories
            state = replace(state, memory=left.memory)
        ids, types = chunks[row][window]
        prefix = questions[row].prefix
        return model.reader(ids, token_type_ids=types, prefix_length=prefix, state=state, output_hidden_states=True)

    for row, question in enumerate(questions):
        windows = [read(row, window, others[row]) for window in range(len(chunks[row]))]
        scores = model.spans(torch.cat([window.hidden_states[-1][0] for window in windows]))
        assert_close(swapped.starts[row, question.prefix : len(question)], scores[question.prefix :, 0])
        assert_close(swapped.kinds[row], windows[-1].logits[0])
    assert not torch.allclose(swapped.kinds[0], whole.kinds[0])


def test_answers_are_in_the_models_own_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    scored = QuestionReader.scored

    def spy(model: QuestionReader, *given: Any) -> Any:
        seen.append(torch.is_autocast_enabled("cpu"))
        return scored(model, *given)

    monkeypatch.setattr(QuestionReader, "scored", spy)
    model = reader("pooled").float()
    recipe = Recipe(1e-3, None, 3, 0.1, 0, 10, bf16=True)
    learn(model, InOrder(some_questions(), 3, 1, seed=0), batch_of, recipe, tmp_path)
    assert seen == [True], "it learns in bfloat16"
    for answered in (answer, answer_own_and_swapped):
        answered(model, some_questions(), 0, rows=3)
    assert seen == [True, False, False, False]


@torch.no_grad()
def test_without_spans_it_is_the_classifier() -> None:
    model, questions = yes_no_reader("pooled"), yes_no_questions()
    batch = collate(questions, 0, YES_NO)
    assert batch["kind"].tolist() == [1, 0, 1]
    seen = model(**batch)
    given = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids", "prefix_length")}
    wanted = model.reader(**given, labels=batch["kind"])
    assert_close(seen.kinds, wanted.logits)
    assert_close(seen.loss, wanted.loss)
    assert seen.starts is None and seen.ends is None
    found = answer(model.eval(), questions, 0, rows=2)
    assert found.texts == [YES_NO[number] for number in wanted.logits.argmax(-1)]
    assert found.loss == pytest.approx(float(wanted.loss), rel=1e-5) and found.span_loss == 0
    for same in own_and_swapped(model, batch, [0, 1, 2]):
        assert_close(same.kinds, seen.kinds)
    both = answer_own_and_swapped(model, questions, 0, rows=3)
    assert both["true"].loss == pytest.approx(found.loss) and both["swapped"].loss != pytest.approx(found.loss)


def test_the_best_span_is_the_best_of_all() -> None:
    draw = torch.Generator().manual_seed(0)
    for length, longest in ((1, 5), (6, 1), (12, 3), (12, 30)):
        starts, ends = (torch.randn(length, generator=draw) for _ in range(2))
        starts[: length // 3] = ends[: length // 3] = -torch.inf
        every = [(a, b) for a in range(length) for b in range(a, min(length, a + longest))]
        assert best_span(starts, ends, longest) == max(every, key=lambda span: float(starts[span[0]] + ends[span[1]]))
    # The best end is before the best start, and one further away than an answer may be long.
    starts, ends = torch.tensor([0.0, 0.0, 5.0, 0.0, 0.0]), torch.tensor([5.0, 0.0, 0.0, 1.0, 2.0])
    assert best_span(starts, ends, 2) == (2, 3) and best_span(starts, ends, 3) == (2, 4)


@torch.no_grad()
@pytest.mark.parametrize("likeliest", [0, 1, 2])
def test_answers_are_the_models(likeliest: int) -> None:
    model = reader("pooled").eval()
    model.reader.backbone.classifier.bias[likeliest] += 9
    questions = some_questions()
    found = answer(model, questions, 0, rows=2)
    assert found.questions == [question.question for question in questions]
    logits = [model(**batch_of([question])) for question in questions]
    for question, text, reading in zip(questions, found.texts, logits, strict=True):
        kind = int(reading.kinds.argmax())
        assert kind == likeliest
        start, end = best_span(reading.starts[0], reading.ends[0])
        letters = question.question.context[start - question.prefix : end - question.prefix + 1]
        assert text == (letters if kind == 0 else ("span", "yes", "no")[kind])
    whole = model(**batch_of(questions))
    assert found.loss == pytest.approx(float(whole.loss), rel=1e-5)
    of_kinds = nn.functional.cross_entropy(whole.kinds, torch.tensor([0, 1, 0]))
    assert found.span_loss == pytest.approx(float(whole.loss - of_kinds), rel=1e-5)
    both = answer_own_and_swapped(model, questions, 0, rows=2)
    assert both["true"].texts == found.texts and both["true"].loss == pytest.approx(found.loss)
    assert both["swapped"].loss != pytest.approx(found.loss)


def test_a_question_is_never_alone_in_a_batch() -> None:
    assert _batches(range(5), 2) == [range(0, 2), [2, 3, 4]]
    assert _batches(range(4), 2) == [range(0, 2), range(2, 4)]
    assert _batches(range(1), 2) == [range(0, 1)]
