"""What processes that share the parameters (FSDP) need: to go through every layer equally often, together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..ops.language_loss import IGNORED
from .feeding import Feeding


def check_fsdp(feeding: Feeding, plugin: Any) -> None:
    """Refuses what would fail later, or let processes wait for each other for ever."""
    if plugin.fsdp_version != 2:
        raise ValueError(f"fsdp_version={plugin.fsdp_version} is not supported: set it to 2 in accelerate's file")
    if "FULL_STATE_DICT" not in str(plugin.state_dict_type):
        raise ValueError(
            f"fsdp_state_dict_type={plugin.state_dict_type} leaves no whole model in a checkpoint: set it to "
            "FULL_STATE_DICT in accelerate's file"
        )
    if feeding.recipe.optimizer == "adafactor":
        raise ValueError(
            "optimizer='adafactor' looks at whole parameters, of which FSDP leaves each process a part: use "
            "optimizer='adamw', or processes without FSDP"
        )
    if feeding.reads_piecewise:
        raise ValueError(
            "window recurrence, feedback and gradient_checkpointing go through the layers once for each window or "
            "block, and under FSDP a process with fewer of them would keep the others waiting: use processes without it"
        )


def is_sharded(model: nn.Module) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def as_long_everywhere(batch: dict[str, Tensor], accelerator: Any) -> dict[str, Tensor]:
    """The batch, padded to the longest of all processes."""
    length = batch["input_ids"].shape[1]
    longest = int(accelerator.gather(torch.tensor([length], device=accelerator.device)).max())
    return {
        name: nn.functional.pad(tensor, (0, longest - length), value=IGNORED if "labels" in name else 0)
        for name, tensor in batch.items()
        if tensor.dim() == 2
    }
