"""How a kind of model is fed: all that training one kind does otherwise than training another."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase, TrainingArguments

from ..data import segments as streams
from ..data.segments import Segments
from ..data.tokens import TokenizedDocument
from .recipe import TrainingRecipe
from .validation import document_losses

if TYPE_CHECKING:
    from .trainer import RecurrentTrainer


OF_CARRIERS = ("backbone_learning_rate", "carrier_learning_rate", "windows_per_segment", "train", "lora_rank")
OF_MASKS = ("masked_share", "whole_words", "sequence_length")
"""Fields of a recipe that mean something to one kind of model only."""


@dataclass(frozen=True)
class Plan:
    """A recipe in steps of its data."""

    steps: int
    tokens: int
    evaluate_every: int
    save_every: int | None


class Carried:
    """What goes on from one step to the next: here nothing, since every row starts anew."""

    def before(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch with the state that its rows are read on from."""
        return batch

    def after(self, state: Any) -> None:
        """Takes the state that the batch has left."""

    def save(self, checkpoint: Path) -> None:
        """Writes what this process carries."""

    def load(self, checkpoint: Path) -> None:
        """Goes on from what the processes of an earlier run wrote."""


class Feeding(ABC):
    """One for each kind of model. To train a further kind, write another, and name it in `run.FEEDINGS`."""

    kind: ClassVar[str]  # also the name of its recipe
    foreign: ClassVar[tuple[str, ...]] = ()  # fields of a recipe that mean nothing to it
    sampling: ClassVar[str]  # in which order Trainer reads the data set: "random" or "sequential"
    ends_documents: ClassVar[bool] = False  # whether texts get an end of text that the model learns
    every_gradient: ClassVar[bool] = False  # whether the model makes one for every parameter on several processes

    def __init__(self, model: Any, recipe: TrainingRecipe, tokenizer: PreTrainedTokenizerBase | None = None):
        recipe.refuse(self.foreign, self.kind)
        self.model, self.recipe, self.tokenizer = model, recipe, tokenizer
        self.check()
        self.rows = recipe.rows(self.length)
        """How many an update has, over all processes."""

    def check(self) -> None:  # noqa: B027
        """Refuses a model, a recipe and a tokenizer that do not go together."""

    # -- data

    @property
    @abstractmethod
    def length(self) -> int:
        """How many tokens of a document one step reads."""

    @abstractmethod
    def data(self, documents: Sequence[TokenizedDocument]) -> tuple[Dataset, int]:
        """What is read in training, and how many epochs reading it once is."""

    @abstractmethod
    def validation_data(self, documents: Sequence[TokenizedDocument]) -> Dataset:
        """What is read in validation, all of it each time."""

    @abstractmethod
    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """A batch, with a mask even where nothing is padded: Trainer counts tokens by it."""

    def check_documents(self, documents: Sequence[TokenizedDocument]) -> None:
        """Refuses documents from which nothing can be learnt."""
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

    def plan(self, dataset: Any, documents: Sequence[TokenizedDocument], epochs: int) -> Plan:
        """Everything that the recipe counts in tokens, counted in steps."""
        recipe, tokens_per_step = self.recipe, self.tokens_per_step(dataset, documents, epochs)
        steps = math.ceil(recipe.epochs / epochs * math.ceil(len(dataset) / self.rows))
        if recipe.max_tokens is not None:
            steps = min(steps, math.ceil(recipe.max_tokens / tokens_per_step))

        def every(tokens: int) -> int:
            return min(max(1, round(tokens / tokens_per_step)), steps)

        tokens = min(steps * tokens_per_step, recipe.epochs * self.tokens(dataset, documents))
        save = None if recipe.save_every_tokens is None else every(recipe.save_every_tokens)
        return Plan(steps, round(tokens), every(recipe.evaluate_every_tokens), save)

    def share(self, dataset: Any, step: int) -> float:
        """How much of a usual step this one, counted from 0, is; its learning rate is that much smaller."""
        return 1.0

    # -- the model

    loss: ClassVar[Callable[..., Tensor] | None] = None
    """Of a model's outputs and labels, and of how many labels an update has; None for the model's own."""

    @abstractmethod
    def losses(self, model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Per row of a batch of validation data, the total loss and the number of labels, [B, 2]."""

    @property
    def reads_piecewise(self) -> bool:
        """Whether a step goes through the layers more often, the more it has to read."""
        return False

    def carried(self, arguments: TrainingArguments) -> Carried:
        return Carried()

    def trainable(self) -> AbstractContextManager[None]:
        """While this is entered, only what is to be trained is."""
        return nullcontext()

    def learning_rate(self, parameter: str) -> float:
        return self.recipe.learning_rate

    def decays(self, parameter: str) -> bool:
        """Whether weight decay is for this parameter, which transformers takes neither for a bias nor a norm's."""
        return True

    def start(self, trainer: RecurrentTrainer) -> None:  # noqa: B027
        """The last thing before the first step of a run that is not taken up again."""


class DocumentFeeding(Feeding):
    """For models that read whole documents, piece by piece."""

    def validation_data(self, documents: Sequence[TokenizedDocument]) -> Dataset:
        # Documents of like length together, so that rows of a batch end together.
        return Segments(sorted(documents, key=len, reverse=True), max(map(len, documents)))

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = streams.collate(rows)
        batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
        return batch

    def losses(self, model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        return document_losses(model, batch, self.pieces(batch["input_ids"].shape[1]))

    @abstractmethod
    def pieces(self, length: int) -> Iterator[tuple[int, int]]:
        """In which pieces a document of this length is read whole, each from one token up to another."""
