"""Numbers to find again: a pass key, and needles of one key or several, with one value or several."""

from __future__ import annotations

import random

from .task import Hidden, task

MORE = 4  # other keys, or values of a key
KEYS = """
amber anchor banner barley beacon bramble bronze candle canyon cedar chapel cinder clover cobalt copper coral crystal
dagger ember falcon feather fennel garnet ginger glacier granite hammer harbour hazel ivory jasper kettle lantern
laurel ledger linen magnet maple marble meadow mirror nutmeg onyx orchard oyster paddle pebble pepper pewter pigeon
quarry ribbon saddle saffron sapphire satchel silver sparrow spindle sulphur tallow thimble thistle timber topaz
trumpet tulip turnip umber velvet violet walnut willow zephyr
"""


@task("passkey")
def pass_key(rng: random.Random) -> Hidden:
    """A number of five digits that stands once in the text."""
    key = _number(rng, 5)
    return Hidden(
        facts=(f"The pass key is {key}. Remember it. {key} is the pass key.",),
        question="What is the pass key?",
        answers=(key,),
        lead="The pass key is",
    )


@task("needle")
def needle(rng: random.Random) -> Hidden:
    """The number of a key."""
    (key,), (value,) = rng.sample(KEYS.split(), 1), _numbers(rng, 1)
    return _asked(key, [(key, value)])


@task("needles-keys")
def needle_among_keys(rng: random.Random) -> Hidden:
    """The number of one key, among other keys with numbers of their own."""
    keys, values = rng.sample(KEYS.split(), 1 + MORE), _numbers(rng, 1 + MORE)
    pairs = list(zip(keys, values, strict=True))
    asked, _ = pairs[0]
    rng.shuffle(pairs)
    return _asked(asked, pairs)


@task("needles-values")
def needles_of_one_key(rng: random.Random) -> Hidden:
    """All numbers of a key that has several, at different places."""
    (key,) = rng.sample(KEYS.split(), 1)
    return _asked(key, [(key, value) for value in _numbers(rng, MORE)])


def _asked(key: str, pairs: list[tuple[str, str]]) -> Hidden:
    values = tuple(value for other, value in pairs if other == key)
    numbers = f"numbers for {key} are" if len(values) > 1 else f"number for {key} is"
    return Hidden(
        facts=tuple(f"One of the secret numbers for {other} is {value}." for other, value in pairs),
        question=f"Which secret {numbers} in the text?",
        answers=values,
        wrong=tuple(value for other, value in pairs if other != key),
        needed=next(place for place, (other, _) in enumerate(pairs) if other == key),
        lead=f"The secret {numbers}",
    )


def _number(rng: random.Random, digits: int) -> str:
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def _numbers(rng: random.Random, count: int, digits: int = 7) -> list[str]:
    """Different ones."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[_number(rng, digits)] = None
    return list(found)
