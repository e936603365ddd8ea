"""Looks up what runs have measured: by seed, for each run that has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .study import Outcome, StudySetting


class Outcomes:
    """`name_of`: from what a study calls a model, and a seed, to the name of the run."""

    def __init__(self, setting: StudySetting, outcomes: Mapping[str, Outcome], name_of: Callable[[Any, int], str]):
        self.setting, self.outcomes, self.name_of = setting, outcomes, name_of

    def ended(self, model: Any) -> dict[int, Outcome]:
        names = {seed: self.name_of(model, seed) for seed in range(self.setting.seeds)}
        return {seed: self.outcomes[name] for seed, name in names.items() if name in self.outcomes}

    def of(self, model: Any, path: str) -> dict[int, Any]:
        """The value at a path such as "read/test/true/loss", of all seeds that have one; null is none: it stands for
        infinity or NaN."""
        found = {seed: _value_at(path, outcome) for seed, outcome in self.ended(model).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def first(self, model: Any, path: str) -> Any:
        """For what all seeds have in common; None if no seed has it."""
        return next(iter(self.of(model, path).values()), None)


def _value_at(path: str, outcome: Any) -> Any:
    for name in path.split("/"):
        outcome = outcome.get(name) if isinstance(outcome, Mapping) else None
    return outcome
