"""Cost per token and memory held, from 4 thousand to 64 thousand tokens: both should stay flat."""

from __future__ import annotations

import statistics
import time

import torch
from common import megabytes_held, verdict

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM

LENGTHS, SEGMENT, ROUNDS = (4096, 16_384, 65_536), 2048, 3


@torch.no_grad()
def seconds_per_token(model: BlockRecurrentForCausalLM, length: int) -> float:
    """Runs over a document of this length in segments, passing the state on."""
    ids = torch.randint(0, model.config.vocab_size, (1, length))
    state, start = None, time.perf_counter()
    for piece in ids.split(SEGMENT, 1):
        state = model(piece, state=state, logits_to_keep=1).state
    return (time.perf_counter() - start) / length


def main() -> None:
    sizes = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "window": 128}
    for preset in ("Rec:fixed:skip", "Slide:13L", "Feedback:fixed:skip"):
        torch.manual_seed(0)
        model = BlockRecurrentForCausalLM(BlockRecurrentConfig.preset(preset, **sizes, vocab_size=20_000)).eval()
        seconds_per_token(model, LENGTHS[0])
        times: dict[int, list[float]] = {length: [] for length in LENGTHS}
        held = {}
        for _ in range(ROUNDS):
            for length in LENGTHS:
                times[length].append(seconds_per_token(model, length))
                held[length] = megabytes_held()
        cost = {length: statistics.median(values) for length, values in times.items()}
        for length in LENGTHS:
            print(f"{preset} {length:6} tokens: {1e6 * cost[length]:.0f} us per token, {held[length]:.0f} MiB held")
        verdict(
            f"{preset}: a token of {LENGTHS[-1]} against one of {LENGTHS[0]}", cost[LENGTHS[-1]] / cost[LENGTHS[0]], 1.1
        )


if __name__ == "__main__":
    main()
