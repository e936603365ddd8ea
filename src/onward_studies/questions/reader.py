"""An encoder that answers questions over many windows: its model, how it learns, and what it answers.

Every window begins with the question. A span head scores each token of all paragraphs as the answer's first and last;
the first token's vectors, pooled over windows, tell whether the answer is a span, yes or no. Where every answer is yes
or no, there is no span head.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from transformers import TrainerCallback
from transformers.modeling_outputs import ModelOutput

from onward.data.questions import KINDS, SPAN, EncodedQuestion
from onward.finetuning.trainer import FineTuner
from onward.models.state import where_rows
from onward.models.window_recurrent import WindowRecurrentForSequenceClassification
from onward.training.arguments import base_arguments
from onward.training.run import forward_restored
from onward.training.segments import real_memories

from .scores import Answers

LONGEST_ANSWER = 30
NO_TOKEN = -100  # what cross_entropy leaves out


@dataclass
class Reading(ModelOutput):
    """Logits of the answer's kind [B, kinds], and of its first and last token [B, N]: -inf where there is no context,
    None without a span head."""

    loss: Tensor | None = None
    kinds: Tensor | None = None
    starts: Tensor | None = None
    ends: Tensor | None = None


class QuestionReader(nn.Module):
    """A window-recurrent classifier of documents by `kinds` of answers, whose last layer feeds a span head."""

    def __init__(
        self,
        reader: WindowRecurrentForSequenceClassification,
        spans: nn.Linear | None,
        kinds: Sequence[str] = KINDS,
    ):
        super().__init__()
        self.reader, self.spans, self.kinds = reader, spans, tuple(kinds)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        prefix_length: Tensor,
        token_type_ids: Tensor | None = None,
        kind: Tensor | None = None,
        start: Tensor | None = None,
        end: Tensor | None = None,
    ) -> Reading:
        """kind, start, end: [B]; where the answer is no span, start and end are NO_TOKEN."""
        read = self.reader(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            prefix_length=prefix_length,
            labels=kind,
            output_hidden_states=True,
        )
        reading = self.scored(read.hidden_states[-1], read.logits, attention_mask, prefix_length)
        if kind is not None:
            losses, counted = span_losses(reading, start, end)
            reading.loss = read.loss + losses.sum() / counted.sum().clamp(min=1)
        return reading

    def scored(self, hidden: Tensor, kinds: Tensor, attention_mask: Tensor, prefix_length: Tensor) -> Reading:
        """hidden: [B, N, k], of the whole document."""
        if self.spans is None:
            return Reading(kinds=kinds)
        places = torch.arange(hidden.shape[1], device=hidden.device)
        context = attention_mask.bool() & (places >= prefix_length[:, None])
        starts, ends = self.spans(hidden).masked_fill(~context[..., None], -torch.inf).unbind(-1)
        return Reading(kinds=kinds, starts=starts, ends=ends)


def span_head(encoder: Any) -> nn.Linear:
    """Scores of a token as the first and as the last, drawn as the encoder's configuration says of its own heads."""
    head = nn.Linear(encoder.hidden_size, 2)
    nn.init.normal_(head.weight, std=encoder.initializer_range)
    nn.init.zeros_(head.bias)
    return head


def span_losses(reading: Any, start: Any, end: Any) -> tuple[Tensor, Tensor]:
    """Of every row the mean of its first and last token's, normalised over the whole document; and which rows have
    a span at all."""
    if reading.starts is None:
        return torch.zeros(start.shape, device=start.device), torch.zeros_like(start, dtype=torch.bool)
    of_starts = cross_entropy(reading.starts, start, ignore_index=NO_TOKEN, reduction="none")
    of_ends = cross_entropy(reading.ends, end, ignore_index=NO_TOKEN, reduction="none")
    return (of_starts + of_ends) / 2, start != NO_TOKEN


def best_span(starts: Tensor, ends: Tensor, longest: int = LONGEST_ANSWER) -> tuple[int, int]:
    """The first and last token with the highest sum of logits, of at most `longest` tokens. starts, ends: [N]."""
    found, best = (0, 0), -torch.inf
    for more in range(min(longest, len(starts))):
        sums = starts[: len(starts) - more] + ends[more:]
        token = int(sums.argmax())
        if sums[token] > best:
            best, found = float(sums[token]), (token, token + more)
    return found


READ = ("input_ids", "token_type_ids", "prefix_length")


def read_own_and_swapped(
    model: QuestionReader, batch: Mapping[str, Tensor], others: Sequence[int]
) -> tuple[Reading, Reading]:
    """As it is; and every window with the memory that row `others[r]`'s last window has left, instead of its own. What
    is lent comes from reading a document with its own memories: made with swapped ones, a document would meet itself
    again."""
    given = {name: batch[name] for name in READ if name in batch}
    mask, window = batch["attention_mask"].bool(), model.reader.config.window
    prefix = batch["prefix_length"][:, None]
    # Window 0 begins with the prefix; the others have so much less room for what is new.
    number = ((torch.arange(mask.shape[1], device=mask.device) - prefix) // (window - prefix)).clamp(min=0)
    own: Any = None
    swapped: Any = None
    lent: Any = None
    of_own: Any = 0
    of_swapped: Any = 0
    for current in range(int(number[mask].max()) + 1):
        inside = mask & (number == current)
        read = partial(model.reader, **given, attention_mask=inside, output_hidden_states=True)
        if own is None:
            own = swapped = read()
        else:
            own = read(state=own.state)
            swapped = read(state=replace(swapped.state, memory=lent).swap_memories(others))
        of_own, of_swapped = of_own + own.hidden_states[-1], of_swapped + swapped.hidden_states[-1]  # 0 if not read
        lent = own.state.memory if lent is None else where_rows(inside.any(1), own.state.memory, lent)
    known = batch["attention_mask"], batch["prefix_length"]
    return model.scored(of_own, own.logits, *known), model.scored(of_swapped, swapped.logits, *known)


# --- learning --------------------------------------------------------------------------------------


def collate(questions: Sequence[EncodedQuestion], padding: int, kinds: Sequence[str] = KINDS) -> dict[str, Tensor]:
    width = max(map(len, questions))

    def padded(rows: Sequence[Any], fill: int) -> Tensor:
        result = torch.full((len(rows), width), fill)
        for place, row in enumerate(rows):
            result[place, : len(row)] = torch.as_tensor(row)
        return result

    spans = [question.answer or (NO_TOKEN, NO_TOKEN) for question in questions]
    batch = {
        "input_ids": padded([question.input_ids for question in questions], padding),
        "attention_mask": padded([torch.ones(len(question)) for question in questions], 0),
        "prefix_length": torch.tensor([question.prefix for question in questions]),
        "kind": torch.tensor([kinds.index(question.question.kind) for question in questions]),
        "start": torch.tensor([start for start, _ in spans]),
        "end": torch.tensor([end for _, end in spans]),
    }
    if questions[0].token_type_ids is not None:
        batch["token_type_ids"] = padded([question.token_type_ids for question in questions], 0)
    return batch


class InOrder(Dataset):
    """Every question once in an epoch, in batches of like length: a batch has as many windows as its longest document.

    The order depends on nothing but the seed, so that runs are paired, and a killed one finds its place again.
    """

    def __init__(self, questions: Sequence[EncodedQuestion], rows: int, epochs: int, seed: int):
        self.questions = questions
        self.order = _order([len(question) for question in questions], rows, epochs, seed)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> EncodedQuestion:
        return self.questions[self.order[index]]


BATCHES_SORTED = 20


def _order(lengths: Sequence[int], rows: int, epochs: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    found: list[int] = []
    left: list[int] = []  # a batch that is not full would shift all after it, so these come at the very end
    for _ in range(epochs):
        shuffled = draw.sample(range(len(lengths)), len(lengths))
        some = rows * BATCHES_SORTED
        parts = [sorted(shuffled[i : i + some], key=lengths.__getitem__) for i in range(0, len(shuffled), some)]
        batches = [part[i : i + rows] for part in parts for i in range(0, len(part), rows)]
        whole = [batch for batch in batches if len(batch) == rows]
        draw.shuffle(whole)
        found += [number for batch in whole for number in batch]
        left += [number for batch in batches if len(batch) < rows for number in batch]
    return found + left


class Learner(FineTuner):
    """Carriers have a learning rate of their own."""

    carrier_rate: float | None = None

    def start(self) -> None:
        """A constant starts from the memories that it stands for, of the longest documents."""
        model: Any = self.model
        reader = model.reader
        if reader.config.carrier == "constant":
            learned: Any = self.train_dataset
            longest = sorted(learned.questions, key=len)[-self.args.per_device_train_batch_size :]
            batch = self._prepare_inputs(self.data_collator(longest))
            given = {name: batch[name] for name in (*READ, "attention_mask") if name in batch}
            with torch.random.fork_rng():
                memories = real_memories(reader, partial(reader, **given))
            if len(memories[0]):
                reader.carrier.start_from(tuple(memories))
        super().start()

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            reader: Any = self.model if model is None else model
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, reader)
            self.optimizer = kind(self._groups(reader), **options)
        return self.optimizer

    def _groups(self, model: nn.Module) -> list[dict[str, Any]]:
        decayed = set(self.get_decay_parameter_names(model))
        groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            groups.setdefault((name in decayed, "carrier." in name), []).append(parameter)
        return [
            {
                "params": parameters,
                "weight_decay": self.args.weight_decay if decays else 0.0,
                "lr": self.carrier_rate if added and self.carrier_rate is not None else self.args.learning_rate,
            }
            for (decays, added), parameters in groups.items()
        ]


@dataclass(frozen=True)
class Recipe:
    """`carrier_rate`: of the carrier, if it is not that of all; `warmup`: the share of steps in which rates rise."""

    rate: float
    carrier_rate: float | None
    rows: int
    warmup: float
    seed: int
    checkpoint_every: int
    bf16: bool = False


def learn(
    model: QuestionReader,
    questions: InOrder,
    collator: Callable[[Any], dict[str, Tensor]],
    recipe: Recipe,
    folder: Path,
    callbacks: Sequence[TrainerCallback] = (),
) -> list[tuple[int, float]]:
    """Every question of the data set once, in its order. Goes on from the last checkpoint in `folder`. Returns the mean
    training loss of every ten steps, by how many questions have been read."""
    arguments = base_arguments(
        folder,
        recipe.seed,
        num_train_epochs=1,
        per_device_train_batch_size=recipe.rows,
        train_sampling_strategy="sequential",
        learning_rate=recipe.rate,
        lr_scheduler_type="linear",
        warmup_steps=recipe.warmup,  # a share
        weight_decay=0.01,
        bf16=recipe.bf16,
        save_strategy="steps",
        save_steps=recipe.checkpoint_every,
        eval_strategy="no",
        logging_steps=1,
    )
    learner = Learner(
        model,  # type: ignore[arg-type]  # Trainer takes any module that returns a loss
        arguments,
        data_collator=collator,
        train_dataset=questions,
        callbacks=callbacks,
    )
    learner.carrier_rate = recipe.carrier_rate
    with forward_restored(model):  # or answers would be in bfloat16, but for those with swapped memories
        learner.start_or_resume()
    losses = [entry["loss"] for entry in learner.state.log_history if "loss" in entry]  # of checkpoints before, too
    tens = [losses[start : start + 10] for start in range(0, len(losses), 10)]
    read = [min(recipe.rows * (10 * i + len(ten)), len(questions)) for i, ten in enumerate(tens)]
    return [(count, sum(ten) / len(ten)) for count, ten in zip(read, tens, strict=True)]


# --- answering -------------------------------------------------------------------------------------


def answer(model: QuestionReader, questions: Sequence[EncodedQuestion], padding: int, rows: int) -> Answers:
    """What the model answers, and its loss as in training: that of kinds, and that of spans where there are some."""

    def read(batch: Mapping[str, Tensor]) -> Readings:
        return {"true": model(**{name: v for name, v in batch.items() if name not in ("kind", "start", "end")})}

    return _answers(model, questions, padding, rows, read)["true"]


def answer_own_and_swapped(
    model: QuestionReader, questions: Sequence[EncodedQuestion], padding: int, rows: int
) -> dict[str, Answers]:
    """And what it answers with another's memories."""

    def read(batch: Mapping[str, Tensor]) -> Readings:
        others = [*range(1, len(batch["kind"])), 0]
        return dict(zip(("true", "swapped"), read_own_and_swapped(model, batch, others), strict=True))

    return _answers(model, questions, padding, rows, read)


Readings = Mapping[str, Any]


@torch.no_grad()
def _answers(
    model: QuestionReader,
    questions: Sequence[EncodedQuestion],
    padding: int,
    rows: int,
    read: Callable[[Mapping[str, Tensor]], Readings],
) -> dict[str, Answers]:
    model.eval()
    device = next(model.parameters()).device
    order = sorted(range(len(questions)), key=lambda number: len(questions[number]))
    found: dict[str, _Found] = {}
    for places in _batches(order, rows):
        some = [questions[place] for place in places]
        batch = {name: value.to(device) for name, value in collate(some, padding, model.kinds).items()}
        for memory, reading in read(batch).items():
            found.setdefault(memory, _Found(model.kinds, questions)).take(places, batch, reading)
    return {memory: one.answers() for memory, one in found.items()}


class _Found:
    """The answers of batch after batch."""

    def __init__(self, kinds: Sequence[str], questions: Sequence[EncodedQuestion]):
        self.kinds, self.questions = kinds, questions
        self.texts = [""] * len(questions)
        self.sums = torch.zeros(3)

    def take(self, places: Sequence[int], batch: Mapping[str, Tensor], reading: Any) -> None:
        of_spans, counted = span_losses(reading, batch["start"], batch["end"])
        of_kinds = cross_entropy(reading.kinds, batch["kind"], reduction="sum")
        self.sums += torch.stack([of_kinds, of_spans.sum(), counted.sum()]).float().cpu()
        for row, (place, kind) in enumerate(zip(places, reading.kinds.argmax(-1).tolist(), strict=True)):
            self.texts[place] = self.kinds[kind]
            if self.kinds[kind] == SPAN:
                found = best_span(reading.starts[row].float().cpu(), reading.ends[row].float().cpu())
                self.texts[place] = self.questions[place].text_of(*found)

    def answers(self) -> Answers:
        span_loss = float(self.sums[1] / self.sums[2].clamp(min=1))
        loss = float(self.sums[0] / len(self.questions)) + span_loss
        return Answers([question.question for question in self.questions], self.texts, loss, span_loss)


def _batches(order: Sequence[int], rows: int) -> list[Sequence[int]]:
    """A last one of a single question goes with those before it: alone it would have no other's memory to swap."""
    batches = [order[start : start + rows] for start in range(0, len(order), rows)]
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [[*batches[-2], *batches[-1]]]
    return batches
