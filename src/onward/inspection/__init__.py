"""What is in a model, and what a trained one does with the text that it reads."""

from __future__ import annotations

from typing import Any

from ..models.block_recurrent import BlockRecurrentForCausalLM
from .blocks import block_facts
from .diagnostics import Diagnostics, diagnose
from .windows import memory_attention, window_facts

__all__ = ["Diagnostics", "diagnose", "facts", "memory_attention"]


def facts(model: Any) -> dict[str, str]:
    """Name and value of everything worth knowing, in reading order."""
    return block_facts(model) if isinstance(model, BlockRecurrentForCausalLM) else window_facts(model)
