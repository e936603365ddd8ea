"""Variables to track: names that get a number, or the number of another name."""

from __future__ import annotations

import random

from .task import Hidden, task

HOPS = 4
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


@task("variables")
def variables(rng: random.Random) -> Hidden:
    """All names that have a number, through several hops; another chain of names has another number."""
    names = _names(rng, 2 * (HOPS + 1))
    value, other = rng.sample(range(10_000, 100_000), 2)
    chain, decoy = names[: HOPS + 1], names[HOPS + 1 :]
    facts, needed = _interleaved(rng, _assigned(chain, value), _assigned(decoy, other))
    return Hidden(
        facts=facts,
        question=f"Which variables have the value {value}? Name all {len(chain)} of them.",
        answers=tuple(chain),
        wrong=tuple(decoy),
        needed=needed,
        lead=f"The variables with the value {value} are",
    )


def _assigned(names: list[str], value: int) -> list[str]:
    lines = [f"VAR {names[0]} = {value}."]
    return lines + [f"VAR {later} = VAR {earlier}." for earlier, later in zip(names, names[1:], strict=False)]


def _interleaved(rng: random.Random, ours: list[str], theirs: list[str]) -> tuple[tuple[str, ...], int]:
    """Both in their own order, and where the first of ours is."""
    turns = [True] * len(ours) + [False] * len(theirs)
    rng.shuffle(turns)
    left, right = iter(ours), iter(theirs)
    return tuple(next(left if mine else right) for mine in turns), turns.index(True)


def _names(rng: random.Random, count: int) -> list[str]:
    """Different ones, none of which is a word."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices(LETTERS, k=3)) + str(rng.randrange(10, 100))] = None
    return list(found)
