"""Recurrent BERT against a BERT with as many parameters: a training step and a forward pass, at two lengths and widths.

All models take turns in one process; the ratios are of median CPU times. The vocabulary is small, so that layers
dominate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from common import medians, verdict
from transformers import BertConfig, BertForMaskedLM

from onward import RecurrentBertConfig, RecurrentBertForMaskedLM
from onward.ops.recurrence import gated_recurrence

BATCH, LAYERS, VOCABULARY, ROUNDS = 8, 4, 4096, 7
GOAL = 1.05


def models(width: int) -> dict[str, torch.nn.Module]:
    sizes = {
        "hidden_size": width,
        "num_attention_heads": width // 64,
        "intermediate_size": 4 * width,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY,
    }
    torch.manual_seed(0)
    return {"BERT": BertForMaskedLM(BertConfig(**sizes))} | {
        f"recurrent, stride {stride}": RecurrentBertForMaskedLM(RecurrentBertConfig(**sizes, stride=stride))
        for stride in (1, 2)
    }


def training(model: torch.nn.Module, ids: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()

    return step


def forward(model: torch.nn.Module, ids: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        with torch.inference_mode():
            model(ids)

    return step


def recurrence_alone(width: int, length: int) -> Callable[[], None]:
    size = RecurrentBertConfig(intermediate_size=4 * width).recurrence_size
    x, grad = torch.randn(length, BATCH, 2 * size, requires_grad=True), torch.randn(length, BATCH, size)
    start = torch.zeros(size, requires_grad=True)

    def step() -> None:
        for _ in range(LAYERS):
            gated_recurrence(x, start).backward(grad)

    return step


def main() -> None:
    widths = [int(given) for given in sys.argv[1:]] or [256, 768]
    for width in widths:
        for length in (128, 512):
            ids = torch.randint(0, VOCABULARY, (BATCH, length))
            made = models(width)
            jobs = {name: training(model.train(), ids) for name, model in made.items()}
            seconds = medians({**jobs, "alone": recurrence_alone(width, length)}, ROUNDS)
            alone = seconds.pop("alone")
            print(f"\nwidth {width}, {BATCH} x {length} tokens, {LAYERS} layers, {torch.get_num_threads()} threads")
            for name, time in seconds.items():
                print(f"  training, {name}: {1000 * time:.0f} ms")
            print(f"  the recurrences alone: {100 * alone / seconds['recurrent, stride 1']:.0f} % of a step")
            for stride in (1, 2):
                verdict(f"  training, stride {stride}", seconds[f"recurrent, stride {stride}"] / seconds["BERT"], GOAL)
            passes = medians({name: forward(model.eval(), ids) for name, model in made.items()}, ROUNDS)
            for stride in (1, 2):
                verdict(f"  forward, stride {stride}", passes[f"recurrent, stride {stride}"] / passes["BERT"], GOAL)


if __name__ == "__main__":
    main()
