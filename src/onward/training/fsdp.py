"""FSDP: processes that share the parameters must go through every layer equally often, together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..ops.language_loss import IGNORED
from ..utils.fields import FieldError
from .feed import Feed


def check_fsdp(feed: Feed, plugin: Any) -> None:
    """Refuses settings that would fail later, or let processes wait for each other forever."""
    if plugin.fsdp_version != 2:
        raise ValueError(f"fsdp_version={plugin.fsdp_version} is not supported: set it to 2 in accelerate's file")
    if "FULL_STATE_DICT" not in str(plugin.state_dict_type):
        raise ValueError(
            f"fsdp_state_dict_type={plugin.state_dict_type} leaves no whole model in a checkpoint: set it to "
            "FULL_STATE_DICT in accelerate's file"
        )
    if feed.recipe.optimizer == "adafactor":
        problem = "it needs whole parameters, and FSDP leaves each process a part; use 'adamw', or do without FSDP"
        raise FieldError("optimizer", "adafactor", problem)
    if feed.runs_piecewise:
        raise ValueError(
            "window recurrence, feedback and gradient_checkpointing go through the layers once for each window or "
            "block, and under FSDP a process with fewer of them would keep the others waiting: train without FSDP"
        )


def as_long_everywhere(batch: dict[str, Tensor], accelerator: Any) -> dict[str, Tensor]:
    """The batch, padded to the longest of all processes."""
    length = batch["input_ids"].shape[1]
    longest = int(accelerator.gather(torch.tensor([length], device=accelerator.device)).max())
    return {
        name: nn.functional.pad(tensor, (0, longest - length), value=IGNORED if "labels" in name else 0)
        for name, tensor in batch.items()
        if tensor.dim() == 2
    }
