"""What a question reader answers, with its own memories and with another question's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from onward.data.questions import SPAN, EncodedQuestion
from onward.models.state import where_rows
from onward.ops import windows

from .reader import QuestionOutput, QuestionReader, collate, inputs_in, span_losses
from .scores import Answers

LONGEST_ANSWER = 30


def answer(model: QuestionReader, questions: Sequence[EncodedQuestion], padding: int, rows: int) -> Answers:
    """The model's answers, and its loss as in training: that of kinds, and of spans where there are some."""

    def run(batch: Mapping[str, Tensor]) -> Outputs:
        return {"true": model(**inputs_in(batch, "attention_mask"))}

    return _answers(model, questions, padding, rows, run)["true"]


def answer_own_and_swapped(
    model: QuestionReader, questions: Sequence[EncodedQuestion], padding: int, rows: int
) -> dict[str, Answers]:
    """Answers with its own memories ("true"), and with another question's ("swapped")."""

    def run(batch: Mapping[str, Tensor]) -> Outputs:
        others = [*range(1, len(batch["kind"])), 0]
        return dict(zip(("true", "swapped"), own_and_swapped(model, batch, others), strict=True))

    return _answers(model, questions, padding, rows, run)


Outputs = Mapping[str, Any]
"""Of a batch, by the memories it was processed with."""


def own_and_swapped(
    model: QuestionReader, batch: Mapping[str, Tensor], others: Sequence[int]
) -> tuple[QuestionOutput, QuestionOutput]:
    """The outputs with its own memories; and with every window given the memory that row `others[r]`'s last window has
    left. Lent memories come from documents processed with their own: with swapped ones, a document would meet itself
    again."""
    number = _window_numbers(batch["attention_mask"], batch["prefix_length"], model.reader.config)
    own: Any = None
    swapped: Any = None
    lent: Any = None
    of_own: Any = 0
    of_swapped: Any = 0
    for current in range(int(number.max()) + 1):
        inside = number == current
        run = partial(model.reader, **inputs_in(batch), attention_mask=inside, output_hidden_states=True)
        if own is None:
            own = swapped = run()
        else:
            own = run(state=own.state)
            swapped = run(state=replace(swapped.state, memory=lent).swap_memories(others))
        # Hidden states of tokens in other windows are 0.
        of_own, of_swapped = of_own + own.hidden_states[-1], of_swapped + swapped.hidden_states[-1]
        lent = own.state.memory if lent is None else where_rows(inside.any(1), own.state.memory, lent)
    known = batch["attention_mask"], batch["prefix_length"]
    return model.scored(of_own, own.logits, *known), model.scored(of_swapped, swapped.logits, *known)


def _window_numbers(attention_mask: Tensor, prefix_length: Tensor, config: Any) -> Tensor:
    """[B, N]: the window in which each token is new; -1 for padding."""
    numbers = torch.full_like(attention_mask, -1, dtype=torch.long)
    for row, (length, prefix) in enumerate(zip(attention_mask.sum(1).tolist(), prefix_length.tolist(), strict=True)):
        planned = windows.plan(int(length), config.window, config.overlap, prefix=prefix)
        new = torch.tensor([window.new for window in planned])
        numbers[row, : int(length)] = torch.arange(len(new)).repeat_interleave(new)
    return numbers


def best_span(starts: Tensor, ends: Tensor, longest: int = LONGEST_ANSWER) -> tuple[int, int]:
    """The first and last token with the highest sum of logits, of at most `longest` tokens. starts, ends: [N]."""
    found, best = (0, 0), -torch.inf
    for more in range(min(longest, len(starts))):
        sums = starts[: len(starts) - more] + ends[more:]
        token = int(sums.argmax())
        if sums[token] > best:
            best, found = float(sums[token]), (token, token + more)
    return found


@torch.no_grad()
def _answers(
    model: QuestionReader,
    questions: Sequence[EncodedQuestion],
    padding: int,
    rows: int,
    run: Callable[[Mapping[str, Tensor]], Outputs],
) -> dict[str, Answers]:
    model.eval()
    device = next(model.parameters()).device
    order = sorted(range(len(questions)), key=lambda number: len(questions[number]))
    found: dict[str, _Collected] = {}
    for places in _batches(order, rows):
        some = [questions[place] for place in places]
        batch = {name: value.to(device) for name, value in collate(some, padding, model.kinds).items()}
        for memory, out in run(batch).items():
            found.setdefault(memory, _Collected(model.kinds, questions)).take(places, batch, out)
    return {memory: one.answers() for memory, one in found.items()}


class _Collected:
    """Answers and losses, batch by batch."""

    def __init__(self, kinds: Sequence[str], questions: Sequence[EncodedQuestion]):
        self.kinds, self.questions = kinds, questions
        self.texts = [""] * len(questions)
        self.sums = torch.zeros(3)

    def take(self, places: Sequence[int], batch: Mapping[str, Tensor], out: Any) -> None:
        of_spans, counted = span_losses(out, batch["start"], batch["end"])
        of_kinds = cross_entropy(out.kinds, batch["kind"], reduction="sum")
        self.sums += torch.stack([of_kinds, of_spans.sum(), counted.sum()]).float().cpu()
        for row, (place, kind) in enumerate(zip(places, out.kinds.argmax(-1).tolist(), strict=True)):
            self.texts[place] = self.kinds[kind]
            if self.kinds[kind] == SPAN:
                found = best_span(out.starts[row].float().cpu(), out.ends[row].float().cpu())
                self.texts[place] = self.questions[place].text_of(*found)

    def answers(self) -> Answers:
        span_loss = float(self.sums[1] / self.sums[2].clamp(min=1))
        loss = float(self.sums[0] / len(self.questions)) + span_loss
        return Answers([question.question for question in self.questions], self.texts, loss, span_loss)


def _batches(order: Sequence[int], rows: int) -> list[Sequence[int]]:
    """A last batch of one question joins the batch before it: alone it would have no memory to swap with."""
    batches = [order[start : start + rows] for start in range(0, len(order), rows)]
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [[*batches[-2], *batches[-1]]]
    return batches
