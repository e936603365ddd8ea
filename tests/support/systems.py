"""One tiny model for every head of the three systems, with training examples: for tests of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from block_models import SIZES
from tiny_models import recurrent, tokens
from torch import Tensor

from onward import (
    BlockRecurrentConfig,
    BlockRecurrentForCausalLM,
    RecurrentBertConfig,
    RecurrentBertForMaskedLM,
    RecurrentBertForMultipleChoice,
    RecurrentBertForQuestionAnswering,
    RecurrentBertForSequenceClassification,
    RecurrentBertForTokenClassification,
)

BERT: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
NO_DROPOUT: dict[str, dict[str, Any]] = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "classifier_dropout": 0.0},
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}
REGRESSION, ONE, MANY = "regression", "single_label_classification", "multi_label_classification"


def window(family: str, head: str, **backbone: Any) -> Any:
    return recurrent(family, head, window=8, backbone={**NO_DROPOUT[family], **backbone})


def block() -> Any:
    torch.manual_seed(0)
    return BlockRecurrentForCausalLM(BlockRecurrentConfig.preset("Rec:fixed:skip", **SIZES)).eval()


def bert(kind: Any, **fields: Any) -> Any:
    torch.manual_seed(0)
    return kind(RecurrentBertConfig(**{**BERT, **fields})).eval()


HEADS: dict[str, tuple[Callable[[], Any], str]] = {
    "window causal": (lambda: window("gpt2", "causal-lm"), "next"),
    "window masked": (lambda: window("bert", "masked-lm"), "masked"),
    "window tokens": (lambda: window("bert", "token-classification", num_labels=3), "tokens"),
    "window decoder tokens": (lambda: window("gpt2", "token-classification", num_labels=3), "tokens"),
    "window answers": (lambda: window("bert", "question-answering"), "answers"),
    "window classes": (lambda: window("bert", "sequence-classification", num_labels=3), ONE),
    "window decoder classes": (lambda: window("gpt2", "sequence-classification", num_labels=3), ONE),
    "window many": (lambda: window("bert", "sequence-classification", num_labels=3, problem_type=MANY), MANY),
    "window number": (lambda: window("bert", "sequence-classification", num_labels=1), REGRESSION),
    "block causal": (block, "next"),
    "bert masked": (lambda: bert(RecurrentBertForMaskedLM), "masked"),
    "bert tokens": (lambda: bert(RecurrentBertForTokenClassification, num_labels=3), "tokens"),
    "bert answers": (lambda: bert(RecurrentBertForQuestionAnswering), "answers"),
    "bert choices": (lambda: bert(RecurrentBertForMultipleChoice), "choices"),
    "bert classes": (lambda: bert(RecurrentBertForSequenceClassification, num_labels=3), ONE),
    "bert many": (lambda: bert(RecurrentBertForSequenceClassification, num_labels=3, problem_type=MANY), MANY),
    "bert number": (lambda: bert(RecurrentBertForSequenceClassification, num_labels=1), REGRESSION),
}
SYSTEMS = {"window": "window causal", "block": "block causal", "bert": "bert masked"}


def examples(task: str, count: int = 8, length: int = 20) -> list[dict[str, Tensor]]:
    """Rows for a task; for labels of tokens, each row has another number of labels."""
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Tensor]] = []
    for number, ids in enumerate(tokens(count, length)):
        row = {"input_ids": ids}
        if task in ("next", "masked", "tokens"):
            labels = torch.randint(3, (length,), generator=generator) if task == "tokens" else ids.clone()
            labels[: 2 * number] = -100
            row["labels"] = labels
        elif task == "answers":
            row |= {"start_positions": torch.tensor(number), "end_positions": torch.tensor(number + 3)}
        elif task == "choices":
            row = {"input_ids": torch.stack([ids, ids.flip(0)]), "labels": torch.tensor(number % 2)}
        elif task == MANY:
            row["labels"] = torch.randint(2, (3,), generator=generator).float()
        else:
            row["labels"] = torch.tensor(number % 3) if task == ONE else torch.tensor(number / 3)
        rows.append(row)
    return rows
