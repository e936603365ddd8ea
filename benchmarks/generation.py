"""Time per generated token, and memory, at 10,000 tokens against 1,000: both should stay flat."""

from __future__ import annotations

import statistics
import time

import torch
from common import megabytes_held, verdict
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.generation.streamers import BaseStreamer

import onward

WINDOW, OVERLAP, TOKENS = 128, 16, 10_000


class Clock(BaseStreamer):
    """Records the CPU time of every token, and the memory held."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.memory: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.process_time())
        self.memory.append(megabytes_held())

    def end(self) -> None:
        pass


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # A small model, because only the work beside matrix products could grow with the length.
    backbone = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=256, n_head=4, vocab_size=8000, eos_token_id=None))
    for carrier in ("pooled", "spans"):
        model = onward.add_recurrence(backbone, carrier=carrier, window=WINDOW, overlap=OVERLAP).eval()
        clock = Clock()
        model.generate(
            torch.randint(0, 8000, (1, 8)), max_new_tokens=TOKENS, do_sample=False, streamer=clock, pad_token_id=0
        )
        # Medians over whole windows around both places, so that window edges weigh the same.
        stride = WINDOW - OVERLAP

        def per_token(end: int, clock: Clock = clock, stride: int = stride) -> float:
            windows = [clock.times[e] - clock.times[e - stride] for e in range(end - 7 * stride, end + 1, stride)]
            return statistics.median(windows) / stride

        early, late = per_token(1_000), per_token(TOKENS)
        print(f"{carrier}: {1000 * early:.2f} ms per token at 1,000, {1000 * late:.2f} ms at {TOKENS:,}")
        verdict(f"time per generated token, {carrier}", late / early, 1.1)
        print(f"{carrier}: memory {clock.memory[1000]:.0f} MB at 1,000, {clock.memory[-1]:.0f} MB at {TOKENS:,}")
        verdict(f"memory of generation, {carrier}", clock.memory[-1] / clock.memory[1000], 1.02)


if __name__ == "__main__":
    main()
