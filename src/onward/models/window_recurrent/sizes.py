"""How many bytes a memory has, and how many kept tokens have as many: the control for every memory.

Nothing is reckoned twice: the memory itself is made, on the meta device, where tensors have shapes but no values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from .carriers import CARRIERS, Tensors, VectorCarrier
from .slots import Slots

if TYPE_CHECKING:
    from .configuration_window_recurrent import WindowRecurrenceConfig


def slots_in_equal_bytes(config: WindowRecurrenceConfig, carrier: str) -> int:
    """How many slots have the bytes of a document's memory with `carrier`; at least the sinks and one more."""
    least, kind = 1 + config.sinks, CARRIERS[carrier]
    if not issubclass(kind, VectorCarrier):
        return config.vector_count if kind.takes_slots else least
    if config.slot_shapes is None:
        raise ValueError(
            f"how many slots have the bytes of carrier={carrier!r} depends on the backbone: use the configuration of a "
            "model, add_recurrence(backbone, config).config"
        )
    like = torch.empty(0, dtype=cast(torch.dtype | None, config.dtype), device="meta")
    with torch.device("meta"):
        memory = kind(config).empty(1, like)
    shapes = (config.slot_shapes[layer - 1] for layer in config.insertion_layers)
    slot = sum(_bytes(Slots.empty(1, heads, 1, key, value, like)) for heads, key, value in shapes)
    return max(least, _bytes(memory) // slot)


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors)
