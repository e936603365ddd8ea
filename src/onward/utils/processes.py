"""The processes that were launched to work together; usually one.

accelerate is asked, not the environment: a variable such as RANK may be left over from something else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from accelerate import PartialState


def on_cpu() -> bool:
    """Whether there is no accelerator, or accelerate was told to use the CPU."""
    return not torch.accelerator.is_available() or os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"


def launched(timeout: timedelta | None = None) -> Any:
    """`num_processes`, `process_index`, `wait_for_everyone()`. The first call sets how long they wait."""
    return PartialState(cpu=on_cpu(), **({} if timeout is None else {"timeout": timeout}))


def refuse_several(what: str) -> None:
    """Refuses work that only one process can do right."""
    if (count := launched().num_processes) > 1:
        raise ValueError(f"{what} is done by one process, and {count} were launched: start it without a launcher")


def is_first() -> bool:
    return launched().process_index == 0


# --- what one process does for all -----------------------------------------------------------------


class FirstProcessFailed(RuntimeError):
    """The first process has failed, and says why; the others end with it."""


_FAILED = -1


def told_by_the_first(find: Callable[[], int]) -> int:
    """Calls `find` in the first process and tells all of them the number, at least 0, that it returns. If it fails,
    all processes fail, instead of waiting for it."""
    processes = launched()
    if processes.num_processes == 1:
        return find()
    found = torch.tensor(_FAILED, device=processes.device)
    try:
        if is_first():
            found.fill_(find())
    finally:
        torch.distributed.broadcast(found, 0)
    if not is_first() and found == _FAILED:
        raise FirstProcessFailed(f"process {processes.process_index} ends, since process 0 has: its message says why")
    return int(found)


# --- lost processes --------------------------------------------------------------------------------


class ProcessLost(RuntimeError):
    """One of several processes of a run has ended, and the others cannot continue without it."""


_OF_CONNECTIONS = re.compile(
    r"gloo|nccl|connection (was )?(closed|reset|refused)|broken pipe|peer|timed out|timeout", re.IGNORECASE
)


def is_loss(error: BaseException) -> bool:
    """Whether a communication library says with this that another process does not answer."""
    return (
        isinstance(error, RuntimeError)
        and not isinstance(error, ProcessLost)
        and launched().num_processes > 1
        and bool(_OF_CONNECTIONS.search(str(error)))
    )


@contextmanager
def losses_explained(advice: Callable[[], str]) -> Iterator[None]:
    """Adds to such an error which process was lost, as far as that is known, and what to do."""
    try:
        yield
    except RuntimeError as error:
        if not is_loss(error):
            raise
        here, count = launched().process_index, launched().num_processes
        lost = f"process {1 - here}" if count == 2 else f"one of the other {count - 1} processes"
        raise ProcessLost(
            f"{lost} of this run does not answer process {here}: it has probably ended, and its own output, or the "
            f"launcher's, tells why ({error}). {advice()}"
        ) from error
