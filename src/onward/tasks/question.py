"""A question whose answer is far: facts hidden in a text of any length, at any depth."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..utils.fields import FieldError
from .haystack import Haystack
from .task import TASKS, Hidden


@dataclass(frozen=True)
class FarQuestion:
    """A text, what is asked about it, and what counts as an answer."""

    task: str
    seed: int
    text: str
    tokens: int  # of the text
    places: tuple[int, ...]  # the token at which each fact begins
    hidden: Hidden

    @property
    def question(self) -> str:
        return self.hidden.question

    @property
    def answers(self) -> tuple[str, ...]:
        return self.hidden.answers

    @property
    def depth(self) -> float:
        """Where in the text the first fact stands that is needed, from 0 to 1."""
        return self.places[self.hidden.needed] / self.tokens

    @property
    def prompt(self) -> str:
        """For models that continue a text. Those with a chat template are given the text and the question in it."""
        return f"{self.text}\n\nQuestion: {self.question}\nAnswer: {self.hidden.lead}"

    def score(self, answer: str) -> float:
        """The share of the answers that were given; 0 if the first line gives a wrong one, too."""
        first = answer.strip().split("\n")[0]
        if any(_says(first, wrong) for wrong in self.hidden.wrong):
            return 0.0
        return sum(_says(answer, right) for right in self.answers) / len(self.answers)


def far_question(
    name: str, haystack: Haystack, tokens: int, *, depth: float | None = None, seed: int = 0
) -> FarQuestion:
    """Hides the facts of a task in at most `tokens` tokens of text, a sentence less at the most.

    depth: where the first fact stands that is needed, from 0, the beginning, to 1; None for anywhere. Facts before it
    lie before, those after it after, each anywhere. The same arguments give the same question.
    """
    if name not in TASKS:
        raise FieldError("task", name, f"choose among {', '.join(TASKS)}")
    if depth is not None and not 0 <= depth <= 1:
        raise FieldError("depth", depth, "it must be from 0, the beginning of the text, to 1, its end, or None")
    rng = random.Random(f"{name} {tokens} {seed}")  # Python guarantees its numbers in all versions
    hidden = TASKS[name](rng)
    facts = list(hidden.facts)
    room = tokens - sum(counts := haystack.count(facts))
    if room < 0:
        raise FieldError("tokens", tokens, f"the facts of {name!r} alone have {tokens - room}: ask for more")
    straw = haystack.stretch(rng.randrange(len(haystack.sentences)), room)
    gaps = _gaps(rng, [haystack.counts[number] for number in straw], len(facts), hidden.needed, depth)
    text: list[str] = []
    places: list[int] = []
    at = done = 0
    for gap, fact, count in zip(gaps, facts, counts, strict=True):
        text += [haystack.sentences[number] for number in straw[done:gap]]
        at += sum(haystack.counts[number] for number in straw[done:gap])
        places.append(at)
        text.append(fact)
        at, done = at + count, gap
    text += [haystack.sentences[number] for number in straw[done:]]
    at += sum(haystack.counts[number] for number in straw[done:])
    return FarQuestion(name, seed, " ".join(text), at, tuple(places), hidden)


def _gaps(rng: random.Random, counts: Sequence[int], facts: int, needed: int, depth: float | None) -> list[int]:
    """For each fact, how many sentences of the text stand before it."""
    total = sum(counts)
    if depth is None:
        wanted = sorted(rng.random() for _ in range(facts))
    else:
        before = sorted(rng.uniform(0, depth) for _ in range(needed))
        after = sorted(rng.uniform(depth, 1) for _ in range(facts - needed - 1))
        wanted = [*before, depth, *after]
    gaps, passed, number = [], 0, 0
    for share in wanted:
        # the edge between two sentences that is nearest
        while number < len(counts) and passed + counts[number] / 2 <= share * total:
            passed += counts[number]
            number += 1
        gaps.append(number)
    return gaps


def _says(text: str, words: str) -> bool:
    """As words of their own: 12345 is not in 123456."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE) is not None
