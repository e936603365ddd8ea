"""The rows of the study `memory`, each a text read with a memory of some size, and what was measured of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from ..engine.intervals import Interval, differences
from ..engine.study import Outcome, StudySetting

PLAIN, FULL = "plain windows", "full context"
KEPT, CONSTANT = "recent", "constant"


def fields_of(memory: str) -> dict[str, Any]:
    """The fields of a memory's configuration, by its name in the tables: a carrier, or a carrier and its score."""
    if memory in (PLAIN, FULL):
        return {"carrier": "none"}
    if memory == CONSTANT:
        return {"carrier": CONSTANT, "stands_for": KEPT}
    carrier, score = memory.partition("-")[::2]
    return {"carrier": carrier} | ({"score": score} if score else {})


@dataclass(frozen=True)
class Reading:
    """A text read in windows with a memory of so many slots; plain windows and the full context have none. With
    `trained`, by the trained model of every seed."""

    text: str
    window: int
    memory: str
    slots: int | None = None
    trained: bool = False

    def run(self, seed: int | None = None) -> str:
        slots = "" if self.slots is None else f"-{self.slots}"
        return f"memory-{self._of_model('' if seed is None else 'trained-')}{slots}" + _of(seed)

    def training(self, seed: int) -> str:
        return f"memory-{self._of_model('training-')}{_of(seed)}"

    def _of_model(self, kind: str) -> str:
        return f"{self.text}-{kind}window{self.window}-{self.memory.replace(' ', '-')}"

    @property
    def kept(self) -> Reading:
        """Kept tokens in as many slots."""
        return replace(self, memory=KEPT)

    def full(self, length: int) -> Reading:
        return replace(self, memory=FULL, window=length, slots=None)


def _of(seed: int | None) -> str:
    return "" if seed is None else f"-seed{seed}"


class Measured:
    """What was measured of the rows: by document if they are untrained, by seed if they are trained."""

    def __init__(self, setting: StudySetting, outcomes: Mapping[str, Outcome]):
        self.length: int = setting.sizes.length
        self.seeds, self.outcomes = range(setting.seeds), outcomes

    def losses(self, row: Reading, split: str = "test", memory: str = "true") -> dict[int, float]:
        if not row.trained:
            read = self._read(row.run(), split, memory)
            return dict(enumerate(loss for _, loss in read.get("documents", ())))
        by_seed = {seed: self._read(row.run(seed), split, memory).get("loss") for seed in self.seeds}
        return {seed: loss for seed, loss in by_seed.items() if loss is not None}

    def _read(self, run: str, split: str, memory: str) -> Mapping[str, Any]:
        return self.outcomes.get(run, {}).get("read", {}).get(split, {}).get(memory, {})

    def facts(self, row: Reading, name: str) -> float | None:
        """The mean of a number that a run has measured of its model."""
        runs = [row.run(seed) for seed in self.seeds] if row.trained else [row.run()]
        found = [self.outcomes[run][name] for run in runs if name in self.outcomes.get(run, {})]
        return fmean(found) if found else None

    def gain(self, row: Reading, split: str = "test") -> dict[int, float]:
        """Over kept tokens in as many slots; of kept tokens themselves, nothing."""
        if row.slots is None or row.memory == KEPT:
            return {}
        return differences(self.losses(row.kept, split), self.losses(row, split))

    def room(self, row: Reading) -> dict[int, float]:
        """What lies between kept tokens in as many slots and the full context."""
        return differences(self.losses(row.kept), self.losses(row.full(self.length)))

    def content(self, row: Reading) -> dict[int, float]:
        """How much worse it is with the memory of another document."""
        return differences(self.losses(row, memory="swapped"), self.losses(row))

    def won_back(self, row: Reading) -> dict[int, float]:
        """The gain in percent of the room: of means over documents, or seed by seed. Empty where the room may be none
        by its interval; a single value has no interval."""
        gain, room = self.gain(row), self.room(row)
        if not gain or not room or max(Interval.of([*room.values()]).low, _only(room)) <= 0:
            return {}
        if not row.trained:
            return {0: 100 * fmean(gain.values()) / fmean(room.values())}
        return {seed: 100 * gain[seed] / room[seed] for seed in gain if room[seed] > 0}


def _only(values: Mapping[int, float]) -> float:
    return next(iter(values.values())) if len(values) == 1 else -math.inf
