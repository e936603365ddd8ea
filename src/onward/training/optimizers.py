"""The papers' optimizers and schedules, where transformers' Trainer has no name for them."""

from __future__ import annotations

import math
from typing import Any

# Steps relative to the size of each parameter, and momentum, as the paper's authors set them.
ADAFACTOR: dict[str, Any] = {
    "scale_parameter": True,
    "relative_step": False,
    "warmup_init": False,
    "beta1": 0.9,
    "decay_rate": -0.8,
}


def inverse_sqrt(steps_done: int, warmup_steps: int, ramp_steps: int) -> float:
    """The factor of the learning rate in the next step.

    `ramp_steps`, fewer than `warmup_steps` in a short run, only say how fast the rate rises. The peak stays at
    1 / sqrt(warmup_steps): with fewer of those it would be too high.
    """
    step = steps_done + 1
    return min(1.0, step / max(ramp_steps, 1)) / math.sqrt(max(step, warmup_steps))
