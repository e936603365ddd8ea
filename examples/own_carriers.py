"""Writes three new carriers, each one class, and compares them with the built-in `spans`.

- `weighted`: learned pooling. Summarises a span by a mean that is weighted by a learned key.
- `gated`: gated state cells, as in Block-Recurrent Transformers. The oldest window is not dropped: a gate, which sees
  both, mixes it into state vectors.
- `summaries`: summary tokens. Every window ends with special tokens, and only these are remembered.

    python examples/own_carriers.py gated --corpus my_books/               # on SmolLM2-135M, which stays frozen
    python examples/own_carriers.py summaries --corpus my_books/ --backbone my_model/ --train all --rate 3e-4

Trains on 40,000 tokens, and prints the loss on held-out documents with true and with swapped memories.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, set_seed

from onward import WindowRecurrenceConfig, add_recurrence
from onward.data import load_corpus
from onward.data.tokens import TokenizedDocument, tokenize
from onward.evaluation import Measures, measure_memories
from onward.models.pretrained import load_backbone
from onward.models.window_recurrent.carriers import Defaults, Spans, Tensors, carrier
from onward.models.window_recurrent.carriers.spans import coarser
from onward.training import TrainingRecipe, train

TEXT, SUMMARIES = 64, 15  # tokens of text in a window, and the tokens that `summaries` adds to it


@carrier("weighted")
class Weighted(Spans):
    """Starts out equal to `spans`: the keys are zero, so all tokens of a span have the same weight."""

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        self.key = nn.Parameter(torch.zeros(len(self.layers), self.width))

    def summarise(self, hidden: Sequence[Tensor], keep: Tensor, index: Tensor) -> Tensors:
        weighted = list(hidden)
        for layer, key in zip(self.layers, self.key, strict=True):
            vectors = hidden[layer - 1]
            weight = torch.exp((vectors @ key / math.sqrt(self.width)).clamp(-10, 10))[..., None]
            weighted[layer - 1] = torch.cat([vectors * weight, weight], -1)  # weights are summed, too
        return super().summarise(weighted, keep, index)

    def carry(self, summary: Tensors, previous: Tensors, has_previous: Tensor) -> Tensors:
        sums, counts = summary
        means = sums[..., :-1] / sums[..., -1:].clamp(min=1e-6)
        return super().carry((means * counts[:, None, :, None], counts), previous, has_previous)


@carrier("gated")
class Gated(Spans):
    """`history` lists the number of spans of the last windows, and then the number of state vectors."""

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        layers, states = len(self.layers), self.by_age[-1]
        self.keep = nn.Parameter(torch.ones(layers, states, self.width))  # at first, sigmoid(1) = 73 % is kept
        self.gate_down = nn.Parameter(torch.randn(layers, 2 * self.width, config.rank) / math.sqrt(2 * self.width))
        self.gate_up = nn.Parameter(torch.zeros(layers, config.rank, self.width))

    def aged(self, means: Tensor, seen: Tensor) -> Tensors:
        ages = self.by_age[::-1]
        (state, known), *older = zip(means.split(ages, 2), seen.split(ages, 1), strict=True)
        (new, arrived), *aged = [coarser(*window, spans) for window, spans in zip(older, ages, strict=False)]
        gate = torch.sigmoid(self.keep + (torch.cat([state, new], -1) @ self.gate_down) @ self.gate_up)
        mixed = (gate * state + (1 - gate) * new).where(arrived[:, None, :, None], state)
        state = mixed.where(known[:, None, :, None], new)
        parts = [(state, known | arrived), *aged]
        return torch.cat([part for part, _ in parts], dim=2), torch.cat([flags for _, flags in parts], dim=1)


@carrier("summaries")
class Summaries(Spans):
    """Remembers only the document's first token and the summary tokens of the window, each as its own span."""

    @classmethod
    def defaults(cls, config: WindowRecurrenceConfig) -> Defaults:
        return Defaults(space="attention", insert_at="all", vectors=1 + SUMMARIES, at_least=2)

    def summarise(self, hidden: Sequence[Tensor], keep: Tensor, index: Tensor) -> Tensors:
        kept = keep & ((index == 0) | (index >= TEXT))
        # Stretch the summary over the whole window, so that each of its tokens becomes a span.
        place = torch.where(index >= TEXT, (index - TEXT) * self.window // self.spans + 1, index)
        return super().summarise(hidden, kept, place)


TRIALS: dict[str, dict[str, object]] = {
    "plain": {"carrier": "none"},
    "spans": {"carrier": "spans", "history": [15]},
    "two windows": {"carrier": "spans", "history": [15, 15]},
    "weighted": {"carrier": "weighted", "history": [15]},
    "gated": {"carrier": "gated", "history": [15, 15]},
    "summaries": {"carrier": "summaries"},
}


def with_summaries(document: TokenizedDocument, vocabulary: int) -> TokenizedDocument:
    """Adds the summary tokens, whose ids follow the vocabulary, to every whole window."""
    added = torch.arange(vocabulary, vocabulary + SUMMARIES, dtype=document.ids.dtype)
    windows = [torch.cat([ids, added]) if len(ids) == TEXT else ids for ids in document.ids.split(TEXT)]
    return replace(document, ids=torch.cat(windows))


def loss_of_text(measures: Measures) -> float:
    """Nats per token of the text alone, without the summary tokens at the end of each window."""
    added, curve = measures.window - TEXT, measures.by_position
    sums, counts = (
        sum(values) - sum(values[TEXT - 1 : TEXT - 1 + added])  # a token is predicted at the position before its own
        for values in (curve.sums, curve.counts)
    )
    return sums / counts


def trial(
    name: str,
    backbone: PreTrainedModel,
    training: list[TokenizedDocument],
    held: list[TokenizedDocument],
    recipe: TrainingRecipe,
    tokenizer: object,
) -> dict[str, float]:
    """Trains one carrier; returns nats per token of the text with true and with swapped memories."""
    window = TEXT
    if name == "summaries":
        vocabulary, window = backbone.config.vocab_size, TEXT + SUMMARIES
        backbone.resize_token_embeddings(vocabulary + SUMMARIES)
        training, held = ([with_summaries(d, vocabulary) for d in documents] for documents in (training, held))
        recipe = replace(recipe, max_tokens=recipe.max_tokens * window // TEXT)
    set_seed(recipe.seed)
    model = add_recurrence(backbone, WindowRecurrenceConfig(**TRIALS[name], window=window))
    with tempfile.TemporaryDirectory() as folder:
        train(model, training, held[:2], tokenizer, Path(folder) / "model", recipe)
    found = measure_memories(model.eval(), held, memories=["true", "swapped"])
    return {memory: loss_of_text(measures) for memory, measures in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trial", choices=TRIALS)
    parser.add_argument("--corpus", default="shakespeare")
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--train", default="carrier", choices=("carrier", "all"))
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--tokens", type=int, default=40_000)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="documents to leave out before each training document")
    given = parser.parse_args()
    if given.trial == "summaries" and given.train == "carrier":
        parser.error("summary tokens add rows to the backbone's embeddings: give --train all")
    backbone, tokenizer = load_backbone(given.backbone)
    corpus = load_corpus(given.corpus)
    recipe = TrainingRecipe(
        learning_rate=given.rate,
        batch_size=given.rows,
        windows_per_segment=10,
        epochs=1000,
        max_tokens=given.tokens,
        schedule="linear",
        warmup_steps=4,
        patience=None,
        gradient_checkpointing=False,
        train=given.train,
        seed=given.seed,
    )
    # --skip 1 takes every second book: the backbone of the studies was pretrained on the others.
    training = tokenize(corpus.train[given.skip :: 1 + given.skip][:12], tokenizer, 40_000)
    held = tokenize([*corpus.validation[:8], *corpus.test[: 8 - len(corpus.validation[:8])]], tokenizer, 1_500)
    found = trial(given.trial, backbone, training, held, recipe, tokenizer)
    print(f"{given.trial}: {found['true']:.4f} nats per token, with swapped memories {found['swapped']:.4f}")


if __name__ == "__main__":
    main()
