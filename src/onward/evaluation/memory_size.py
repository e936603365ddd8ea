"""How many bytes a document's past takes: as a memory, and as all keys and values of a context."""

from __future__ import annotations

from typing import Any


def memory_bytes(model: Any) -> int:
    """Of one document's memory in the state of a window-recurrent model; its open window is not counted."""
    return sum(tensor.nbytes for tensor in model.reader.empty(1))


def context_bytes(model: Any) -> int:
    """Of all keys and values of a whole window of a window-recurrent model."""
    numbers = sum(heads * (key + value) for heads, key, value in model.config.slot_shapes)
    return model.config.window * numbers * model.dtype.itemsize
