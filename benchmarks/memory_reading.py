"""What a memory of keys and values costs: reading a long document, a generated token, and a training step.

    python benchmarks/memory_reading.py [matched recent ...]

Reading stands beside the plain model on the same windows as one batch, beside a sliding cache of transformers' own
kind that is fed the same pieces, and beside full attention. All without the language model head, in CPU seconds of one
thread, with the packaged SmolLM2-135M.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from common import medians, verdict
from transformers import DynamicCache

import onward
from onward.models.pretrained import load_backbone

LENGTH, SINKS, ROUNDS = 16_384, 1, 3
SIZES = ((64, 127), (256, 255))  # windows and slots
TOKENS = 256  # generated: several windows are closed
TRAINED = 1_280


class SlidingCache(DynamicCache):
    """Sinks and the last tokens, as keys and values that keep their positions."""

    def __init__(self, slots: int):
        super().__init__()
        self.slots = slots

    def slide(self) -> None:
        for layer in self.layers:
            for name in ("keys", "values"):
                x = getattr(layer, name)
                if x.shape[2] > self.slots:
                    setattr(layer, name, torch.cat([x[:, :, :SINKS], x[:, :, -(self.slots - SINKS) :]], dim=2))


@torch.no_grad()
def read_with_sliding_cache(base, ids, window: int, slots: int) -> None:
    cache = SlidingCache(slots)
    for start in range(0, ids.shape[1], window):
        seen = cache.get_seq_length()
        places = torch.arange(seen, seen + window)[None]
        base(ids[:, start : start + window], past_key_values=cache, use_cache=True, position_ids=places)
        cache.slide()


@torch.no_grad()
def reading(base, models, ids, window: int, slots: int) -> None:
    jobs = {
        "plain windows": lambda: base(ids.view(-1, window)[: 2048 // window], use_cache=False),
        "sliding cache": lambda: read_with_sliding_cache(base, ids[:, :2048], window, slots),
        **{name: lambda model=model: model(ids[:, :2048], use_cache=False) for name, model in models.items()},
    }
    seconds = medians(jobs, ROUNDS)
    for name, value in seconds.items():
        print(f"2,048 tokens, windows of {window}, {slots} slots, {name}: {value:.2f} s")
    for name in models:
        verdict(f"reading, {name}, against plain windows of {window}", seconds[name] / seconds["plain windows"], 1.15)
        verdict(f"reading, {name}, against a sliding cache", seconds[name] / seconds["sliding cache"], 1.0)
    once = medians(
        {"full": lambda: base(ids, use_cache=False)}
        | {name: lambda model=model: model(ids, use_cache=False) for name, model in models.items()},
        1,
    )
    for name in models:
        print(
            f"{ids.shape[1]:,} tokens: {name} {once[name]:.1f} s, full attention {once['full']:.1f} s, "
            f"ratio {once[name] / once['full']:.3f}"
        )


@torch.no_grad()
def generating(backbone, models, ids, slots: int) -> None:
    """Token by token, each model in turn, so that noise affects them equally."""

    def plain(tokens):
        cache = DynamicCache()
        output = backbone(tokens[:, : slots + 32], past_key_values=cache)
        while True:
            yield
            output = backbone(output.logits[:, -1:].argmax(-1), past_key_values=cache, logits_to_keep=1)
            cache.crop(-1)

    def ours(model, tokens):
        output = model(tokens, logits_to_keep=1)
        while True:
            yield
            output = model(output.logits[:, -1:].argmax(-1), state=output.state, logits_to_keep=1)

    runs = {"plain": plain(ids), **{name: ours(model, ids) for name, model in models.items()}}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        next(run)
    for _ in range(TOKENS):
        for name, run in runs.items():
            start = time.process_time()
            next(run)
            times[name].append(time.process_time() - start)
    found = {name: statistics.fmean(values) for name, values in times.items()}  # closing a window makes the memory
    for name in models:
        print(f"a token: {name} {1000 * found[name]:.1f} ms, plain with as long a cache {1000 * found['plain']:.1f} ms")
        verdict(f"a generated token, {name}", found[name] / found["plain"], 1.05)


def training(models, ids) -> None:
    def job(model):
        def run() -> None:
            model.zero_grad()
            model(ids, labels=ids).loss.backward()

        return run

    for model in models.values():
        model.train()
    seconds = medians({name: job(model) for name, model in models.items()}, ROUNDS)
    for name in models:
        if name != "none":
            verdict(f"training step, {name}, against plain windows", seconds[name] / seconds["none"], 1.05)
        models[name].eval()


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    backbone, tokenizer = load_backbone("smollm2-135m")
    backbone.eval()
    ids = torch.randint(0, len(tokenizer), (1, LENGTH), generator=torch.Generator().manual_seed(0))
    for window, slots in SIZES:
        base = backbone.base_model
        readers = {name: onward.add_recurrence(base, carrier=name, window=window, slots=slots).eval() for name in names}
        reading(base, readers, ids, window, slots)
        if window == SIZES[0][0]:
            models = {
                name: onward.add_recurrence(backbone, carrier=name, window=window, slots=slots).eval() for name in names
            }
            generating(backbone, models, ids[:, : 4 * window], slots)
            plain = onward.add_recurrence(backbone, carrier="none", window=window)
            training({"none": plain, **models}, ids[:, :TRAINED])


if __name__ == "__main__":
    main(sys.argv[1:] or ["recent", "matched"])
