"""A task for one tokenizer: inputs as ids, and logits as a score. `Questions` in squad.py is the other kind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from .data import TaskData
from .metrics import measure
from .recipe import FinetuningRecipe
from .tasks import Task

SMALLEST_MARGIN = 0.02
ROWS_AT_ONCE = 1000  # rows for the tokenizer

Logits = tuple[np.ndarray, ...]


class Encoded(Dataset):
    """Inputs of a model, not padded yet; in 32 bits, since MNLI has 400,000 of them."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]):
        self.rows = [
            {name: np.asarray(value, np.int32) if isinstance(value, list) else value for name, value in row.items()}
            for row in rows
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}


class TaskInputs(ABC):
    """Inputs to train on and to score, shared by all runs of a sweep.

    `trivial` is the best score that needs no model. A run that is not better by more than `margin` has failed.
    """

    auto_class: Any
    train: Encoded
    evaluation: dict[str, Encoded]
    trivial: float
    margin: float

    def __init__(self, task: Task, data: TaskData):
        self.task = task
        self.fingerprint, self.dropped = data.fingerprint, data.dropped
        self.train_examples = len(data.train)
        self.evaluation_examples = sum(map(len, data.evaluation.values()))

    @abstractmethod
    def metrics(self, logits: Mapping[str, Logits]) -> dict[str, float]:
        """logits: the model's outputs for each of `evaluation`, row by row."""


class Sentences(TaskInputs):
    """One sentence or two, and a label or a number."""

    auto_class = AutoModelForSequenceClassification

    def __init__(self, task: Task, data: TaskData, tokenizer: PreTrainedTokenizerBase, recipe: FinetuningRecipe):
        super().__init__(task, data)
        self.train = Encoded(self._encode(data.train, tokenizer, recipe))
        self.evaluation, self.labels = {}, {}
        for split, rows in data.evaluation.items():
            # Sorted by length, which needs less padding; the order does not matter for scores.
            encoded = sorted(self._encode(rows, tokenizer, recipe), key=lambda row: len(row["input_ids"]), reverse=True)
            self.evaluation[split] = Encoded(encoded)
            self.labels[split] = np.array([row["label"] for row in encoded])
        answers = range(max(1, len(task.labels)))
        self.trivial = max(task.score(self._measures(self._always(answer))) for answer in answers)
        self.margin = max(SMALLEST_MARGIN, 2 * self._chance_error())

    def _encode(
        self, rows: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, recipe: FinetuningRecipe
    ) -> list[dict[str, Any]]:
        encoded: list[dict[str, Any]] = []
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            texts = [[row[name] for row in some] for name in self.task.texts]
            found = tokenizer(*texts, truncation=True, max_length=recipe.max_length, return_attention_mask=False)
            encoded += [
                {**{name: found[name][i] for name in found}, "label": row["label"]} for i, row in enumerate(some)
            ]
        return encoded

    def metrics(self, logits: Mapping[str, Logits]) -> dict[str, float]:
        def answers(values: np.ndarray) -> np.ndarray:  # [N, labels], or [N, 1] for a number
            return values[:, 0] if self.task.is_regression else values.argmax(-1)

        return self._measures({split: answers(values[0]) for split, values in logits.items()})

    def _measures(self, answers: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {
            metric if len(answers) == 1 else f"{metric}_{split.rpartition('_')[2]}": value
            for split, given in answers.items()
            for metric, value in measure(self.task.metrics, given, self.labels[split]).items()
        }

    def _always(self, answer: int) -> dict[str, np.ndarray]:
        """Predictions without a model."""
        return {split: np.full(len(labels), answer) for split, labels in self.labels.items()}

    def _chance_error(self) -> float:
        """The standard error of the score that guessing earns; of a correlation it is 1 / sqrt(N)."""
        spread = 1.0 if self.trivial == 0 else math.sqrt(self.trivial * (1 - self.trivial))
        return spread / math.sqrt(self.evaluation_examples)
