"""Locks on files, for processes that share a folder. A lock ends with its process, even if that is killed."""

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
    """Waits for the lock without a time limit, unlike the barriers of distributed training; or else raises
    BlockingIOError if another process holds it. Gives False where the system has no locks, and all go on."""
    if fcntl is None:
        yield False
        return
    with file.open("a") as opened:  # "a" leaves another process's lock file as it is
        is_alone = True
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:
            is_alone = False  # a file system without locks
        yield is_alone
