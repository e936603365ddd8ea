"""Memory that is free again goes back to the system."""

from __future__ import annotations

import ctypes
import functools
import sys

import torch


@functools.cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libc.so.6") if sys.platform == "linux" else None
    except OSError:
        return None


def give_memory_back(device: torch.device) -> None:
    """Lets the C library return freed memory to the system: it keeps it in pieces too small for the next window,
    and a process would grow with every window although nothing is held."""
    if device.type == "cpu" and (library := _c_library()) is not None:
        library.malloc_trim(0)
