"""How much memory something takes at its highest, and giving back what is free."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[Callable[[], int]]:
    """Gives a function that says by how many bytes memory has grown at its highest since."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
        return
    before = _start_resident_peak()
    yield lambda: max(0, _resident_peak() - before)


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _start_resident_peak() -> int:
    """Sets the process's highest memory back to the present one, where the system allows it; returns it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # gives back what is free, so that using it again shows
        _CLEAR.write_text("5")
    return _resident_peak()


def _resident_peak() -> int:
    if _STATUS.is_file():
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        if "VmHWM" in lines:
            return int(lines["VmHWM"].split()[0]) * 1024
    if sys.platform == "win32":
        import psutil  # accelerate brings it

        return psutil.Process().memory_info().peak_wset
    import resource  # Windows has none

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
