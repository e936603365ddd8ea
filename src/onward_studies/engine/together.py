"""Processes that were launched to work on the same runs, and those that were started by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from onward.training.folders import alone_in
from onward.utils.processes import FirstProcessFailed, is_first, launched


class Together:
    """The processes that were launched together; mostly it is one."""

    def __init__(self) -> None:
        # What the first does alone may take longer than the others would wait by themselves.
        self._state = launched(timeout=timedelta(days=7))
        self.count, self.is_first = self._state.num_processes, is_first()

    def wait(self) -> None:
        self._state.wait_for_everyone()


@contextmanager
def if_alone(folder: Path) -> Iterator[bool]:
    """False if a process that was started by itself is at work in the folder."""
    lock = alone_in(folder)
    try:
        lock.__enter__()
    except (FileExistsError, FirstProcessFailed):
        yield False
        return
    try:
        yield True
    finally:
        lock.__exit__(None, None, None)
