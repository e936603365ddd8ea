"""What a task is: facts to hide in a long text, a question about them, and the answers.

To add one, write a function that draws `Hidden` from random numbers, with `@task("name")` on it, in a file that
`__init__.py` imports; the shared tests pick it up.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Hidden:
    """Knows nothing of the text in which it is hidden."""

    facts: tuple[str, ...]  # sentences, in the order in which they stand in the text
    question: str  # is asked after the text
    answers: tuple[str, ...]  # all of them must be given
    wrong: tuple[str, ...] = ()  # other possible answers, none of which may be given
    needed: int = 0  # the first of the facts without which nobody can know the answer
    lead: str = ""  # how the answer begins, for models that are not trained to answer questions


Task = Callable[[random.Random], Hidden]

TASKS: dict[str, Task] = {}


def task(name: str) -> Callable[[Task], Task]:
    def register(draw: Task) -> Task:
        TASKS[name] = draw
        return draw

    return register
