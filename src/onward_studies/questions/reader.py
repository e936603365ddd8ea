"""An encoder that answers questions over many windows: its model, and how it is trained.

Every window begins with the question. A span head scores each context token as the answer's first and as its last; a
classifier of the first token's vectors, pooled over windows, tells whether the answer is a span, yes or no. Where every
answer is yes or no, there is no span head.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import TrainerCallback
from transformers.modeling_outputs import ModelOutput

from onward.data.questions import KINDS, EncodedQuestion
from onward.finetuning.trainer import FineTuner
from onward.models.window_recurrent import WindowRecurrentForSequenceClassification
from onward.ops.language_loss import IGNORED
from onward.training.arguments import base_arguments
from onward.training.run import forward_restored
from onward.training.segments import real_memories


@dataclass
class QuestionOutput(ModelOutput):
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
    ) -> QuestionOutput:
        """kind, start, end: [B]; where the answer is no span, start and end are IGNORED."""
        out = self.reader(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            prefix_length=prefix_length,
            labels=kind,
            output_hidden_states=True,
        )
        scored = self.scored(out.hidden_states[-1], out.logits, attention_mask, prefix_length)
        if kind is not None:
            losses, counted = span_losses(scored, start, end)
            scored.loss = out.loss + losses.sum() / counted.sum().clamp(min=1)
        return scored

    def scored(self, hidden: Tensor, kinds: Tensor, attention_mask: Tensor, prefix_length: Tensor) -> QuestionOutput:
        """hidden: [B, N, k], of the whole document."""
        if self.spans is None:
            return QuestionOutput(kinds=kinds)
        places = torch.arange(hidden.shape[1], device=hidden.device)
        context = attention_mask.bool() & (places >= prefix_length[:, None])
        starts, ends = self.spans(hidden).masked_fill(~context[..., None], -torch.inf).unbind(-1)
        return QuestionOutput(kinds=kinds, starts=starts, ends=ends)


def span_head(encoder: Any) -> nn.Linear:
    """Two scores of a token, as the first and as the last; initialized as the encoder's own heads are."""
    head = nn.Linear(encoder.hidden_size, 2)
    nn.init.normal_(head.weight, std=encoder.initializer_range)
    nn.init.zeros_(head.bias)
    return head


def span_losses(out: Any, start: Any, end: Any) -> tuple[Tensor, Tensor]:
    """Per row, the mean of the losses of its first and last token, each over the whole document; and which rows have a
    span at all."""
    if out.starts is None:
        return torch.zeros(start.shape, device=start.device), torch.zeros_like(start, dtype=torch.bool)
    of_starts = cross_entropy(out.starts, start, ignore_index=IGNORED, reduction="none")
    of_ends = cross_entropy(out.ends, end, ignore_index=IGNORED, reduction="none")
    return (of_starts + of_ends) / 2, start != IGNORED


MODEL_INPUTS = ("input_ids", "token_type_ids", "prefix_length")


def inputs_in(batch: Mapping[str, Tensor], *more: str) -> dict[str, Tensor]:
    return {name: batch[name] for name in (*MODEL_INPUTS, *more) if name in batch}


# --- learning


def collate(questions: Sequence[EncodedQuestion], padding: int, kinds: Sequence[str] = KINDS) -> dict[str, Tensor]:
    def padded(rows: Sequence[Any], fill: int) -> Tensor:
        return pad_sequence([torch.as_tensor(row).long() for row in rows], batch_first=True, padding_value=fill)

    spans = [question.answer or (IGNORED, IGNORED) for question in questions]
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
    """Every question once in an epoch, in batches of like length, since a batch has as many windows as its longest
    document. The order depends on nothing but the seed, so that runs are paired and can be resumed."""

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
    left: list[int] = []  # batches that are not full would shift all others, so these come at the very end
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
            with torch.random.fork_rng():
                memories = real_memories(reader, partial(reader, **inputs_in(batch, "attention_mask")))
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
    """`carrier_rate`: the carrier's, if it has another; `warmup`: the share of steps in which rates rise."""

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
