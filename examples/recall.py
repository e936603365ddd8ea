"""Trains a block-recurrent model on a task that no window can solve: recalling facts from far back.

A document has four parts: pairs of a key and a value; questions, each a key that its value must follow; a long stretch
of noise; and the same questions in another order. The first questions are easy, and teach the model what is asked for.
The second ones come after more than window * layers tokens of noise, which is further than attention reaches through
all layers together. There a sliding window can only guess, and a recurrent model must carry the pairs in its states.

    python examples/recall.py                      # Rec:fixed:skip learns it
    python examples/recall.py --preset Slide:13L   # stays at chance, 1 in 8
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM

KEYS, VALUES, NOISE = 8, 8, 8  # ids of each kind, in this order
WINDOW, LAYERS, PAIRS = 8, 2, 4
BETWEEN = WINDOW * (LAYERS + 2)  # out of reach even for the baseline, which has one more layer


def documents(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """input_ids and shift_labels [count, N]: only answers are scored."""
    keys = torch.rand(count, KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = KEYS + torch.randint(0, VALUES, (count, PAIRS), generator=generator)
    noise = KEYS + VALUES + torch.randint(0, NOISE, (count, BETWEEN), generator=generator)

    def shuffled() -> Tensor:
        order = torch.rand(count, PAIRS, generator=generator).argsort(1)
        return torch.stack([keys.gather(1, order), values.gather(1, order)], 2).flatten(1)

    ids = torch.cat([shuffled(), shuffled(), noise, shuffled()], 1)
    labels = torch.full_like(ids, -100)
    for start in (2 * PAIRS, 4 * PAIRS + BETWEEN):
        asked = torch.arange(start, start + 2 * PAIRS, 2)
        labels[:, asked] = ids[:, asked + 1]
    return ids, labels


def make_model(preset: str, seed: int) -> BlockRecurrentForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "window": WINDOW}
    more = {"vocab_size": KEYS + VALUES + NOISE, "dropout": 0.0, "initial_attention_scale": 8.0}
    return BlockRecurrentForCausalLM(BlockRecurrentConfig.preset(preset, **sizes, **more))


@torch.no_grad()
def accuracy(model: BlockRecurrentForCausalLM, seed: int, count: int = 512) -> float:
    """The share of late questions that are answered right in new documents."""
    model.eval()
    ids, labels = documents(count, torch.Generator().manual_seed(1_000_003 + seed))
    late = slice(4 * PAIRS + BETWEEN, None, 2)
    right = model(ids).logits[:, late].argmax(-1) == labels[:, late]
    model.train()
    return right.float().mean().item()


def train(preset: str, steps: int, seed: int = 0, batch: int = 32, rate: float = 2e-3, enough: float = 0.99) -> float:
    """Trains until the accuracy is `enough`, or for all steps; returns the last accuracy."""
    model = make_model(preset, seed).train()
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 100))
    generator, started, right = torch.Generator().manual_seed(seed), time.time(), 0.0
    for step in range(1, steps + 1):
        ids, labels = documents(batch, generator)
        loss = model(ids, shift_labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0 or step == steps:
            right, seconds = accuracy(model, seed), time.time() - started
            print(f"step {step}: loss {loss.item():.3f}, right {100 * right:.1f} %, {seconds:.0f} s", flush=True)
            if right >= enough:
                break
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="Rec:fixed:skip")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    train(given.preset, given.steps, given.seed)


if __name__ == "__main__":
    main()
