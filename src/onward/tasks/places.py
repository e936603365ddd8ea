"""People, places and things: where somebody or something is, from one, two or three facts that stand far apart.

BABILong-style: a small world is simulated, and what happens in it is told sentence by sentence, far apart in a long
text. The simulation and its words are our own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from .task import Hidden, task

PEOPLE = ("Ottilie", "Bartolo", "Yevgenia", "Caspian", "Zuleika", "Thaddeus")
PLACES = ("kitchen", "garden", "cellar", "attic", "stable", "library", "nursery", "orchard")
THINGS = ("lantern", "violin", "teapot", "compass", "umbrella", "telescope")


@dataclass
class World:
    """What has happened so far; each event is a sentence."""

    rng: random.Random
    told: list[str] = field(default_factory=list)
    moves: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # by person: event and place
    taken: dict[str, tuple[int, str]] = field(default_factory=dict)  # by thing: event and person

    def move(self, person: str) -> None:
        """To a place where they have not been, as long as there is one."""
        visited = [place for _, place in self.moves.setdefault(person, [])]
        new = [place for place in PLACES if place not in visited] or [p for p in PLACES if p != visited[-1]]
        self.moves[person].append((len(self.told), self.rng.choice(new)))
        verb = self.rng.choice(("went", "walked", "hurried"))
        self.told.append(f"{person} {verb} to the {self.moves[person][-1][1]}.")

    def take(self, person: str, thing: str) -> None:
        self.taken[thing] = len(self.told), person
        self.told.append(f"{person} {self.rng.choice(('took', 'picked up'))} the {thing}.")

    def asked(self, question: str, lead: str, place: str, needed: int) -> Hidden:
        wrong = tuple(other for other in PLACES if other != place)
        return Hidden(tuple(self.told), question, (place,), wrong, needed, lead)


@task("one-fact")
def where_is_somebody(rng: random.Random) -> Hidden:
    """Where a person is: the last place they went to."""
    world, people = World(rng), rng.sample(PEOPLE, 4)
    for person in [*people, *rng.choices(people, k=8)]:
        world.move(person)
    person = rng.choice(people)
    event, place = world.moves[person][-1]
    return world.asked(f"Where is {person}?", f"{person} is in the", place, needed=event)


@task("two-facts")
def where_is_something(rng: random.Random) -> Hidden:
    """Where a thing is: who took it, and the last place they went to."""
    world, people, thing = _everybody_takes_something(rng)
    for person in [*rng.sample(people, len(people)), *rng.choices(people, k=2)]:
        world.move(person)
    taken, person = world.taken[thing]
    return world.asked(f"Where is the {thing}?", f"The {thing} is in the", world.moves[person][-1][1], needed=taken)


@task("three-facts")
def where_was_something(rng: random.Random) -> Hidden:
    """Where a thing was before it came to a place: who took it, where they went, and where they were before."""
    world, people, thing = _everybody_takes_something(rng)
    for person in [*rng.sample(people, len(people)), *rng.sample(people, len(people))]:
        world.move(person)
    taken, person = world.taken[thing]
    (_, before), (_, last) = world.moves[person][-2:]
    question = f"Where was the {thing} before it came to the {last}?"
    return world.asked(question, f"Before it came to the {last}, the {thing} was in the", before, needed=taken)


def _everybody_takes_something(rng: random.Random) -> tuple[World, list[str], str]:
    """A world, the people in it, and a thing that one of them has."""
    world, people, things = World(rng), rng.sample(PEOPLE, 4), rng.sample(THINGS, 4)
    for person, thing in zip(people, things, strict=True):
        world.move(person)
        world.take(person, thing)
    return world, people, rng.choice(things)
