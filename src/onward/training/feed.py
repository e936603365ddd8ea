"""`Feed`: everything that is particular to training one kind of model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase, TrainingArguments

from ..data import segments as streams
from ..data.segments import Segments
from ..data.tokens import TokenizedDocument
from ..ops.language_loss import IGNORED
from .recipe import TrainingRecipe

if TYPE_CHECKING:
    from .lanes import CarriedStates
    from .trainer import RecurrentTrainer

WINDOW_FIELDS = (
    "backbone_learning_rate",
    "carrier_learning_rate",
    "windows_per_segment",
    "train",
    "lora_rank",
    "teacher",
    "teacher_share",
    "random_slots",
)
MASKING_FIELDS = ("masked_share", "whole_words", "sequence_length")
"""Fields of a recipe that have a meaning for one kind of model only."""


@dataclass(frozen=True)
class DataLayout:
    """A run's data sets, and the recipe's counts of tokens as counts of steps."""

    train: Dataset
    validation: Dataset
    steps: int
    tokens: int
    evaluate_every: int
    save_every: int | None


class Feed(ABC):
    """One subclass for each kind of model. To train a further kind, write another, and add it to `run.FEEDS`.

    The defaults are those of models that are trained on documents and validated on whole ones, piece by piece.
    """

    kind: ClassVar[str]  # also the name of its recipe
    unused_fields: ClassVar[tuple[str, ...]] = ()  # fields of a recipe that have no meaning for it
    sampling: ClassVar[str]  # the order in which Trainer goes through the data set: "random" or "sequential"
    ends_documents: ClassVar[bool] = False  # whether texts get an end of text that the model learns
    every_gradient: ClassVar[bool] = False  # whether all parameters have a gradient in every step
    runs_piecewise: bool = False  # whether a step with more tokens goes through the layers more often
    loss: ClassVar[Callable[..., Tensor] | None] = None  # of outputs, labels and their number; None for the model's own

    def __init__(self, model: Any, recipe: TrainingRecipe, tokenizer: PreTrainedTokenizerBase | None = None):
        recipe.refuse(self.unused_fields, self.kind)
        self.model, self.recipe, self.tokenizer = model, recipe, tokenizer
        self.check()
        self.rows = recipe.rows(self.length)  # of an update, over all processes

    def check(self) -> None:  # noqa: B027
        """Refuses a model, a recipe and a tokenizer that do not go together."""

    # -- data

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens of a row in one step."""

    @abstractmethod
    def data(self, documents: Sequence[TokenizedDocument]) -> tuple[Dataset, int]:
        """The training data, and how many epochs going through it once is."""

    def validation_data(self, documents: Sequence[TokenizedDocument]) -> Dataset:
        # Documents of like length together, so that rows of a batch end together.
        return Segments(sorted(documents, key=len, reverse=True), max(map(len, documents)))

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """A batch, with a mask even where nothing is padded: Trainer counts tokens by it."""
        batch = streams.collate(rows)
        batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
        return batch

    def check_documents(self, documents: Sequence[TokenizedDocument]) -> None:
        """Refuses documents that the model cannot be trained on."""
        largest = max((int(document.ids.max()) for document in documents if len(document)), default=0)
        if largest >= self.model.config.vocab_size:
            raise ValueError(
                f"the documents have the id {largest}, and the model's vocabulary {self.model.config.vocab_size} ids, "
                "from 0: train with the tokenizer that the model was made for, or a config with a larger vocab_size"
            )

    def tokens(self, dataset: Any, documents: Sequence[TokenizedDocument]) -> int:
        """In one epoch."""
        return sum(map(len, documents))

    def tokens_per_step(self, dataset: Any, documents: Sequence[TokenizedDocument], epochs: int) -> float:
        """On average."""
        return epochs * sum(map(len, documents)) / math.ceil(len(dataset) / self.rows)

    def lay_out(self, training: Sequence[TokenizedDocument], validation: Sequence[TokenizedDocument]) -> DataLayout:
        dataset, epochs = self.data(training)
        recipe, tokens_per_step = self.recipe, self.tokens_per_step(dataset, training, epochs)
        steps = math.ceil(recipe.epochs / epochs * math.ceil(len(dataset) / self.rows))  # type: ignore[arg-type]
        if recipe.max_tokens is not None:
            steps = min(steps, math.ceil(recipe.max_tokens / tokens_per_step))

        def every(tokens: int) -> int:
            return min(max(1, round(tokens / tokens_per_step)), steps)

        return DataLayout(
            dataset,
            self.validation_data(validation),
            steps,
            tokens=round(min(steps * tokens_per_step, recipe.epochs * self.tokens(dataset, training))),
            evaluate_every=every(recipe.evaluate_every_tokens),
            save_every=None if recipe.save_every_tokens is None else every(recipe.save_every_tokens),
        )

    def share(self, dataset: Any, step: int) -> float:
        """The share of its rows that a step, counted from 0, has; its learning rate is that much smaller."""
        return 1.0

    # -- the model

    def losses(self, model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """The total loss and the number of labels of each row of a validation batch, [B, 2]."""
        return document_losses(model, batch, self.pieces(batch["input_ids"].shape[1]))

    def pieces(self, length: int) -> Iterator[tuple[int, int]]:
        """The pieces, from one token up to another, that a document of this length is validated in."""
        raise NotImplementedError

    def carried(self, arguments: TrainingArguments) -> CarriedStates | None:
        """The states that are carried from one step to the next; None where every row starts anew."""
        return None

    def trainable(self) -> AbstractContextManager[None]:
        """Prepares the model for training, and restores it at the end."""
        return nullcontext()

    def described(self) -> dict[str, Any]:
        """What else shapes a run's result, and must be the same when it resumes."""
        return {}

    def during(self, step: int) -> AbstractContextManager[None]:
        """Prepares the model for one step, counted from 0, and restores it."""
        return nullcontext()

    def prepared(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the model is called with for a batch."""
        return inputs

    def learning_rate(self, parameter: str) -> float:
        return self.recipe.learning_rate

    def decays(self, parameter: str) -> bool:
        """Whether a parameter that is neither a bias nor a norm's has weight decay."""
        return True

    def before_first_step(self, trainer: RecurrentTrainer) -> None:  # noqa: B027
        """Called when a run starts anew, not when it resumes."""


# -- validation on whole documents, with the state carried


def never_empty(mask: Tensor) -> Tensor:
    """A mask [B, N] with at least one token: models skip their layers for padding alone."""
    if mask.any():
        return mask
    mask = mask.clone()
    mask[0, 0] = 1
    return mask


@torch.no_grad()
def document_losses(model: Any, batch: Mapping[str, Tensor], pieces: Iterable[tuple[int, int]]) -> Tensor:
    """The total loss and the number of labels of each row, [B, 2].

    The model processes one piece (from one token up to another, of every row) after the other, so that only one
    piece's logits are in memory at a time, and rows that have ended are left out.
    """
    lengths = batch["attention_mask"].sum(1)
    totals = torch.zeros(len(lengths), 2, dtype=torch.float64, device=lengths.device)
    rows = torch.arange(len(lengths), device=lengths.device)
    state: Any = None
    for start, stop in pieces:
        alive = (lengths[rows] > start).nonzero()[:, 0]
        if not len(alive):  # other processes have longer documents, and would wait for this one
            alive = rows.new_zeros(1)
        if state is not None and len(alive) < len(rows):
            rows, state = rows[alive], state.select(alive)
        columns = slice(start, stop)
        mask, labels = (batch[name][rows, columns] for name in ("attention_mask", "shift_labels"))
        output = model(batch["input_ids"][rows, columns], never_empty(mask), state=state, use_cache=False)
        state = output.state
        losses = nn.functional.cross_entropy(
            output.logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
        )
        totals[rows, 0] += losses.double().sum(1)
        totals[rows, 1] += (labels != IGNORED).double().sum(1)
    return totals
