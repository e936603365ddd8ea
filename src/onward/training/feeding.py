"""How a kind of model is fed: all that training one kind does otherwise than training another."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import TrainingArguments

from .. import streams
from ..streams import TokenizedDocument
from .recipe import TrainingRecipe

if TYPE_CHECKING:
    from .trainer import RecurrentTrainer


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

    def __init__(self, model: Any, recipe: TrainingRecipe):
        recipe.refuse(self.foreign, self.kind)
        self.model, self.recipe = model, recipe
        self.rows = recipe.rows(self.length)
        """How many an update has, over all processes."""

    # -- data

    @property
    @abstractmethod
    def length(self) -> int:
        """How many tokens of a document one step reads."""

    @abstractmethod
    def data(self, documents: Sequence[TokenizedDocument]) -> tuple[Dataset, int]:
        """What is read in training, and how many epochs reading it once is."""

    def check_documents(self, documents: Sequence[TokenizedDocument]) -> None:  # noqa: B027
        """Refuses documents from which nothing can be learnt."""

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

        tokens = min(steps * tokens_per_step, recipe.epochs * sum(map(len, documents)))
        save = None if recipe.save_every_tokens is None else every(recipe.save_every_tokens)
        return Plan(steps, round(tokens), every(recipe.evaluate_every_tokens), save)

    def share(self, dataset: Any, step: int) -> float:
        """How much of a usual step this one, counted from 0, is; its learning rate is that much smaller."""
        return 1.0

    @abstractmethod
    def pieces(self, length: int) -> Iterator[tuple[int, int]]:
        """In which pieces a document of this length is read whole, each from one token up to another."""

    # -- the model

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


def collate(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """A batch with a mask even where nothing is padded: Trainer counts tokens by it."""
    batch = streams.collate(rows)
    batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
    return batch
