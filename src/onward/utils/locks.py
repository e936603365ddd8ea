"""Locks on files, for processes that share a folder. They end with their process, however it is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(file: Path, wait: bool) -> Iterator[bool]:
    """Waits as long as it takes, unlike the barriers of distributed training; or else refuses with BlockingIOError.
    Where there are no locks, all go on: gives whether one is really alone."""
    if fcntl is None:
        yield False
        return
    with file.open("a") as opened:  # a lock of someone else's is not even written to
        alone = True
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:
            alone = False  # a file system without locks
        yield alone
