"""Peak memory, and returning freed memory to the system."""

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
    """Returns freed memory to the system. The C library would keep it in pieces too small for the next window, and the
    process would grow with every window although nothing is held."""
    if device.type == "cpu" and (library := _c_library()) is not None:
        library.malloc_trim(0)


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[Callable[[], int]]:
    """Gives a function that returns by how many bytes memory has grown at its highest since."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
        return
    with contextlib.suppress(OSError, AttributeError):
        give_memory_back(torch.device("cpu"))  # so that using free memory again shows
        _CLEAR.write_text("5")  # sets the peak back to the present, where the system allows it
    before = _resident_peak()
    yield lambda: max(0, _resident_peak() - before)


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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
