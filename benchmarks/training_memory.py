"""Peak memory of a training step on 40 windows against 5 windows: flat with checkpoints at the bottleneck."""

from __future__ import annotations

import subprocess
import sys

import torch
from common import gpt2_small, peak_megabytes, verdict

WINDOW = 300


def step(windows: int, carrier: str) -> float:
    torch.set_num_threads(1)
    model = gpt2_small(carrier=carrier, window=WINDOW).train()
    model.gradient_checkpointing_enable()
    ids = torch.randint(0, 50000, (1, windows * WINDOW))
    model(ids, labels=ids).loss.backward()
    return peak_megabytes()


def main() -> None:
    for carrier in ("pooled", "spans"):
        # Each in its own process, since the peak of a process never falls.
        peaks = {
            windows: float(subprocess.check_output([sys.executable, __file__, str(windows), carrier], text=True))
            for windows in (5, 40)
        }
        print(f"{carrier}: 5 windows {peaks[5]:.0f} MB, 40 windows {peaks[40]:.0f} MB")
        verdict(f"training memory, {carrier}, 40 windows against 5", peaks[40] / peaks[5], 1.05)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(step(int(sys.argv[1]), sys.argv[2]))
    else:
        main()
