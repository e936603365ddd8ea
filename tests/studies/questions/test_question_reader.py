"""A reader of questions over many windows beside plain references, and how it is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_readers import (
    WINDOW,
    batch_of,
    encoded,
    reader,
    some_questions,
)
from torch import nn
from torch.testing import assert_close

from onward.finetuning.trainer import FineTuner
from onward.models.window_recurrent import CARRIERS
from onward.ops.language_loss import IGNORED
from onward_studies.questions import reader as question_reader
from onward_studies.questions.reader import (
    MODEL_INPUTS,
    InOrder,
    Recipe,
    learn,
    span_head,
)
from onward_studies.questions.runs import roberta


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
    assert (batch["start"] == IGNORED).all()
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


def test_heads_are_drawn_as_the_encoders() -> None:
    torch.manual_seed(0)
    head = span_head(roberta(("span", "yes", "no")))
    assert head.weight.shape == (2, 768) and head.weight.detach().std() == pytest.approx(0.02, rel=0.1)
    assert not head.bias.any()


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
