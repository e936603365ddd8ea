"""A training step with recurrence against the same windows without: the cost of the memory itself.

The plain windows are the same model with the carrier `none`, in the same loop and with the same checkpoints, so that
both sides pay for the extra forward pass of checkpointing.
"""

from __future__ import annotations

import torch
from common import gpt2_small, medians, verdict

WINDOW, WINDOWS, BATCH, ROUNDS = 300, 4, 1, 3


def main() -> None:
    torch.set_num_threads(1)
    ids = torch.randint(0, 50000, (BATCH, WINDOWS * WINDOW))

    def job(model):
        def run() -> None:
            model.zero_grad()
            model(ids, labels=ids).loss.backward()

        return run

    models = {name: gpt2_small(carrier=name, window=WINDOW).train() for name in ("none", "pooled", "spans")}
    for checkpointing in (False, True):
        for model in models.values():
            model.bottleneck_checkpointing = checkpointing
        seconds = medians({name: job(model) for name, model in models.items()}, ROUNDS)
        label = "with checkpoints" if checkpointing else "without checkpoints"
        print(f"{label}: " + ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items()))
        for name in ("pooled", "spans"):
            verdict(f"training step {label}, {name} against plain windows", seconds[name] / seconds["none"], 1.05)


if __name__ == "__main__":
    main()
