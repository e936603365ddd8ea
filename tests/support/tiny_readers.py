"""Tiny question readers, and questions for them."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from tiny_models import WIDTH, recurrent_variant, tokens
from torch import Tensor, nn

from onward.data.questions import EncodedQuestion, Question
from onward_studies.questions.reader import (
    QuestionReader,
    collate,
)

WINDOW = 7


def reader(variant: str, family: str = "bert") -> QuestionReader:
    model = recurrent_variant(family, variant, "sequence-classification", window=WINDOW, num_labels=3)
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


def chunks_of(question: EncodedQuestion) -> list[tuple[Tensor, Tensor]]:
    """What is new in each window: ids and token types."""
    cuts = [0, *range(WINDOW, len(question), WINDOW - question.prefix), len(question)]
    rows = [torch.tensor(row).long()[None] for row in (question.input_ids, question.token_type_ids)]
    return [(rows[0][:, a:b], rows[1][:, a:b]) for a, b in itertools.pairwise(cuts)]


YES_NO = ("yes", "no")


def yes_no_questions() -> list[EncodedQuestion]:
    return [encoded(3, 18, None, "no", seed=1), encoded(2, 9, None, "yes", seed=2), encoded(4, 13, None, "no", seed=3)]


def yes_no_reader(variant: str) -> QuestionReader:
    model = recurrent_variant("bert", variant, "sequence-classification", window=WINDOW, num_labels=2)
    return QuestionReader(model, None, YES_NO)
