"""Carriers of one's own, beside `spans`: what the field suggests for a memory, each of them one class.

- `weighted`: learned pooling. Of a span not the mean, but a mean weighted by a learned key.
- `gated`: gated state cells, as in Block-Recurrent Transformers. What grows old is not dropped: it goes into state
  vectors by a gate that looks at both.
- `summaries`: summary tokens. Every window ends with tokens of their own kind, and only these are remembered.

    python examples/own_carriers.py gated --corpus my_books/               # on SmolLM2-135M, which stays as it is
    python examples/own_carriers.py summaries --corpus my_books/ --backbone my_model/ --train all --rate 3e-4

It trains on 40,000 tokens, reads held-out documents, and says how well, with true memories and with swapped ones.
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
from onward.models.window_recurrent.carriers import Defaults, Spans, Tensors, carrier, coarser
from onward.training import TrainingRecipe, train

TEXT, SUMMARIES = 64, 15  # tokens of a window, and those that `summaries` adds to it


@carrier("weighted")
class Weighted(Spans):
    """Starts as `spans`: the keys are zero, and all tokens of a span weigh the same."""

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        self.key = nn.Parameter(torch.zeros(len(self.layers), self.width))

    def summarise(self, hidden: Sequence[Tensor], keep: Tensor, index: Tensor) -> Tensors:
        weighted = list(hidden)
        for layer, key in zip(self.layers, self.key, strict=True):
            taken_in = hidden[layer - 1]
            weight = torch.exp((taken_in @ key / math.sqrt(self.width)).clamp(-10, 10))[..., None]
            weighted[layer - 1] = torch.cat([taken_in * weight, weight], -1)  # summed beside what they weigh
        return super().summarise(weighted, keep, index)

    def carry(self, summary: Tensors, previous: Tensors, has_previous: Tensor) -> Tensors:
        sums, counts = summary
        means = sums[..., :-1] / sums[..., -1:].clamp(min=1e-6)
        return super().carry((means * counts[:, None, :, None], counts), previous, has_previous)


@carrier("gated")
class Gated(Spans):
    """`history` lists the spans of the last windows, and at its end how many state vectors there are."""

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        layers, states = len(self.layers), self.by_age[-1]
        self.keep = nn.Parameter(torch.ones(layers, states, self.width))  # at first, sigmoid(1) = 73 % stay
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
    """Of the window's tokens only the document's first and the last ones are kept, each as it is."""

    @classmethod
    def defaults(cls, config: WindowRecurrenceConfig) -> Defaults:
        return Defaults(space="attention", insert_at="all", vectors=1 + SUMMARIES, at_least=2)

    def summarise(self, hidden: Sequence[Tensor], keep: Tensor, index: Tensor) -> Tensors:
        kept = keep & ((index == 0) | (index >= TEXT))
        # As if the window were as long as its summary: every token of it is then a span.
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
    added = torch.arange(vocabulary, vocabulary + SUMMARIES, dtype=document.ids.dtype)
    windows = [torch.cat([ids, added]) if len(ids) == TEXT else ids for ids in document.ids.split(TEXT)]
    return replace(document, ids=torch.cat(windows))


def loss_of_text(read: Measures) -> float:
    """Nats per token of the text: summary tokens stand at the end of their window, and are not text."""
    added = read.window - TEXT
    sums, counts = (
        sum(by_place) - sum(by_place[TEXT - 1 : TEXT - 1 + added])  # a token is predicted at the place before its own
        for by_place in (read.by_position.sums, read.by_position.counts)
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
    """Nats per token of the text, with true and with swapped memories."""
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
    return {memory: loss_of_text(read) for memory, read in found.items()}


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
    parser.add_argument("--skip", type=int, default=0, help="leave out so many training documents before each one")
    asked = parser.parse_args()
    if asked.trial == "summaries" and asked.train == "carrier":
        parser.error("summary tokens are rows of the backbone's embeddings: give --train all")
    backbone, tokenizer = load_backbone(asked.backbone)
    corpus = load_corpus(asked.corpus)
    recipe = TrainingRecipe(
        learning_rate=asked.rate,
        batch_size=asked.rows,
        windows_per_segment=10,
        epochs=1000,
        max_tokens=asked.tokens,
        schedule="linear",
        warmup_steps=4,
        patience=None,
        gradient_checkpointing=False,
        train=asked.train,
        seed=asked.seed,
    )
    # Of books every second one, since the others are what the backbone of the studies was pretrained on.
    training = tokenize(corpus.train[asked.skip :: 1 + asked.skip][:12], tokenizer, 40_000)
    held = tokenize([*corpus.validation[:8], *corpus.test[: 8 - len(corpus.validation[:8])]], tokenizer, 1_500)
    found = trial(asked.trial, backbone, training, held, recipe, tokenizer)
    print(f"{asked.trial}: {found['true']:.4f} nats per token, with swapped memories {found['swapped']:.4f}")


if __name__ == "__main__":
    main()
