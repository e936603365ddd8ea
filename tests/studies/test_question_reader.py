"""Questions over many windows: the model beside plain references, its answers, and what they come to."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import WIDTH, recurrent, tokens
from torch import Tensor, nn
from torch.testing import assert_close

from onward.data.questions import EncodedQuestion, Question
from onward.finetuning.run import FineTuner
from onward.models.window_recurrent import CARRIERS
from onward_studies.questions import reader as question_reader
from onward_studies.questions.answering import _batches, answer, answer_own_and_swapped, best_span, own_and_swapped
from onward_studies.questions.plans import roberta
from onward_studies.questions.reader import (
    MODEL_INPUTS,
    NO_TOKEN,
    InOrder,
    QuestionReader,
    Recipe,
    collate,
    learn,
    span_head,
)
from onward_studies.questions.scores import Answers, SpanScores, YesNoScores, score

WINDOW = 7


# --- the model -------------------------------------------------------------------------------------


def reader(variant: str, family: str = "bert") -> QuestionReader:
    model = recurrent(family, variant, "sequence-classification", window=WINDOW, num_labels=3)
    torch.manual_seed(5)
    return QuestionReader(model, nn.Linear(WIDTH, 2).double())


def encoded(prefix: int, length: int, span: tuple[int, int] | None, right: str = "x", seed: int = 0) -> EncodedQuestion:
    ids = tokens(length, seed=seed).numpy().astype(np.int32)
    places = np.stack([np.arange(length - prefix), np.arange(length - prefix) + 1], 1)
    types = np.repeat(np.array([0, 1], np.int32), [prefix, length - prefix])
    question = Question(str(seed), "q", ("abcdefghijklmnopqrstuvwxyz"[: length - prefix],), right)
    return EncodedQuestion(question, prefix, ids, types, places, span)


def some_questions() -> list[EncodedQuestion]:
    return [encoded(3, 18, (5, 8), seed=1), encoded(2, 9, None, "yes", seed=2), encoded(4, 13, (12, 12), seed=3)]


def batch_of(questions: list[EncodedQuestion]) -> dict[str, Tensor]:
    return collate(questions, 0)


def test_disjoint_windows_are_each_read_alone() -> None:
    model = reader("none")
    backbone = model.reader.backbone
    batch = batch_of(some_questions())
    seen = model(**batch)
    wanted_kinds, wanted_loss, spans = [], 0.0, 0
    for row, question in enumerate(some_questions()):
        ids = torch.tensor(question.input_ids).long()
        types = torch.tensor(question.token_type_ids).long()
        prefix, room = question.prefix, WINDOW - question.prefix
        hidden, firsts = [], []
        for begin in range(prefix, len(ids), room):
            window = torch.cat([ids[:prefix], ids[begin : begin + room]])[None]
            of_window = torch.cat([types[:prefix], types[begin : begin + room]])[None]
            out = backbone.bert(window, token_type_ids=of_window).last_hidden_state[0]
            hidden.append(out[prefix:])
            firsts.append(out[0])
        logits = model.spans(torch.cat(hidden))  # of the context only
        for place, mine in enumerate((seen.starts, seen.ends)):
            assert_close(mine[row, prefix : len(ids)], logits[:, place])
            assert (mine[row, :prefix] == -torch.inf).all() and (mine[row, len(ids) :] == -torch.inf).all()
        pooled = torch.stack(firsts).amax(0)
        wanted_kinds.append(backbone.classifier(backbone.bert.pooler(pooled[None, None]))[0])
        if question.answer is not None:
            start, end = (token - prefix for token in question.answer)
            chances = logits.softmax(0)
            wanted_loss = wanted_loss - (chances[start, 0].log() + chances[end, 1].log()) / 2
            spans += 1
    kinds = torch.stack(wanted_kinds)
    assert_close(seen.kinds, kinds)
    of_kinds = -sum(kinds[row].log_softmax(0)[kind] for row, kind in enumerate((0, 1, 0))) / 3
    wanted = of_kinds + wanted_loss / spans
    assert_close(seen.loss, wanted)
    parameters = [p for p in model.parameters() if p.requires_grad]
    for ours, theirs in zip(
        torch.autograd.grad(seen.loss, parameters, allow_unused=True),
        torch.autograd.grad(wanted, parameters, allow_unused=True),
        strict=True,
    ):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert_close(ours, theirs)


def test_a_batch_without_spans_has_a_loss() -> None:
    model = reader("pooled")
    batch = batch_of([encoded(2, 9, None, "yes", seed=1), encoded(2, 12, None, "no", seed=2)])
    found = model(**batch)
    assert (batch["start"] == NO_TOKEN).all()
    assert_close(found.loss, nn.functional.cross_entropy(found.kinds, torch.tensor([1, 2])))
    found.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("variant", ["paper", "pooled", "constant", "none"])
def test_rows_do_not_see_each_other(variant: str, family: str) -> None:
    model = reader(variant, family)
    questions = [q if family == "bert" else replace(q, token_type_ids=None) for q in some_questions()]
    together = model(**batch_of(questions))
    for row, question in enumerate(questions):
        alone = model(**batch_of([question]))
        assert_close(together.kinds[row], alone.kinds[0])
        assert_close(together.starts[row, : len(question)], alone.starts[0])


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


def test_a_constant_begins_where_memories_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def stop(trainer: Any, *given: Any, **more: Any) -> None:
        drawn.append(torch.get_rng_state())
        raise KeyboardInterrupt

    monkeypatch.setattr(FineTuner, "train", stop)
    questions = InOrder(some_questions(), 2, 1, seed=0)
    model, other = reader("constant"), reader("pooled")
    for begun in (model, other):
        with pytest.raises(KeyboardInterrupt):
            learn(begun, questions, batch_of, Recipe(1e-3, None, 2, 0.1, 0, 10), tmp_path)
    real = other.reader.eval()
    real.carrier = CARRIERS["pooled"](real.config).double()  # as new as one is before training
    batch = batch_of([some_questions()[2], some_questions()[0]])  # the longest
    batch = {name: batch[name] for name in (*MODEL_INPUTS, "attention_mask")}
    with torch.no_grad():
        memory = real(**batch).state.memory
    means = [part.mean(0, keepdim=True) for part in memory if part.is_floating_point()]
    assert means and all(map(torch.allclose, model.reader.carrier.learned, means))
    assert means[0].abs().max() > 0.01
    assert torch.equal(*drawn), "dropout is the same as for other carriers"


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


def chunks_of(question: EncodedQuestion) -> list[tuple[Tensor, Tensor]]:
    """What is new in each window: ids and token types."""
    cuts = [0, *range(WINDOW, len(question), WINDOW - question.prefix), len(question)]
    rows = [torch.tensor(row).long()[None] for row in (question.input_ids, question.token_type_ids)]
    return [(rows[0][:, a:b], rows[1][:, a:b]) for a, b in itertools.pairwise(cuts)]


def test_heads_are_drawn_as_the_encoders() -> None:
    torch.manual_seed(0)
    head = span_head(roberta(("span", "yes", "no")))
    assert head.weight.shape == (2, 768) and head.weight.detach().std() == pytest.approx(0.02, rel=0.1)
    assert not head.bias.any()


YES_NO = ("yes", "no")


def yes_no_questions() -> list[EncodedQuestion]:
    return [encoded(3, 18, None, "no", seed=1), encoded(2, 9, None, "yes", seed=2), encoded(4, 13, None, "no", seed=3)]


def yes_no_reader(variant: str) -> QuestionReader:
    model = recurrent("bert", variant, "sequence-classification", window=WINDOW, num_labels=2)
    return QuestionReader(model, None, YES_NO)


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


# --- scores ----------------------------------------------------------------------------------------


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


# --- learning --------------------------------------------------------------------------------------


def test_every_question_once_in_batches_of_like_length() -> None:
    lengths = torch.randint(10, 1000, (403,), generator=torch.Generator().manual_seed(0)).tolist()
    questions = [encoded(2, 4, None, seed=number) for number in range(len(lengths))]
    ordered = InOrder(questions, 4, 2, seed=0)
    ordered.order = order = question_reader._order(lengths, 4, 2, seed=0)
    assert len(ordered) == 806 and ordered[3] is questions[order[3]]
    assert sorted(order) == sorted([*range(403), *range(403)]) and order[:400] != order[400:800]
    assert len(set(order[:400])) == len(set(order[400:800])) == 400, "what fills no batch comes at the very end"
    for epoch in (0, 400):
        batches = [[lengths[n] for n in order[i : i + 4]] for i in range(epoch, epoch + 400, 4)]
        assert sum(max(batch) - min(batch) for batch in batches) / len(batches) < 100, "of 990"
    assert question_reader._order(lengths, 4, 2, seed=0) == order != question_reader._order(lengths, 4, 2, seed=1)
