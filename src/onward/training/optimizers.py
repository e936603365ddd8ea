"""The papers' optimisers and schedules, where transformers' Trainer has no name for them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import Adafactor

# Steps as large as the parameters times the schedule's rate, and momentum: as the paper's authors set it.
ADAFACTOR: dict[str, Any] = {
    "scale_parameter": True,
    "relative_step": False,
    "warmup_init": False,
    "beta1": 0.9,
    "decay_rate": -0.8,
}


def adafactor(groups: list[dict[str, Any]]) -> Adafactor:
    return Adafactor(groups, **ADAFACTOR)


def inverse_sqrt_schedule(optimizer: Optimizer, warmup_steps: int, ramp_steps: int) -> LambdaLR:
    return LambdaLR(optimizer, partial(inverse_sqrt, warmup_steps=warmup_steps, ramp_steps=ramp_steps))


def inverse_sqrt(steps_done: int, warmup_steps: int, ramp_steps: int) -> float:
    """What the learning rate is multiplied by in the next step.

    `ramp_steps`, which a short run has fewer of, only says how fast the rate rises. How high, `warmup_steps` says:
    with fewer of those the peak of 1 / sqrt(warmup_steps) would be higher, and too high.
    """
    step = steps_done + 1
    return min(1.0, step / max(ramp_steps, 1)) / math.sqrt(max(step, warmup_steps))
