"""Learning rates: each kind of model tries them in short trial runs, and all its main runs have the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .planning import RunPlan
from .study import Outcome, Run
from .work import Work


@dataclass(frozen=True)
class Training:
    """A run that trains a model, for which only the learning rate is missing. Fields are those of `Run`; `settings`
    lack the `rate`, and a trial's `name` has it added."""

    name: str
    settings: Mapping[str, Any]
    train: Callable[[float, Work], Outcome]
    needs: tuple[str, ...] = ()
    size: int = 1
    plan: Callable[[], RunPlan] | None = None
    by: str = "all"


class Trials:
    """The trial runs of a study by kind of model, and main runs with the best rates. A single rate is not tried."""

    def __init__(self, rates: Sequence[float]):
        self.rates, self._of_kinds = rates, dict[str, list[Run]]()

    @property
    def runs(self) -> list[Run]:
        return [run for of_kind in self._of_kinds.values() for run in of_kind]

    def add(self, kind: str, trial: Training) -> None:
        """A kind is tried once: by the first model of it."""
        if len(self.rates) > 1 and kind not in self._of_kinds:
            self._of_kinds[kind] = [_run(trial, rate) for rate in self.rates]

    def main(self, kind: str, main: Training) -> Run:
        tried = [run.name for run in self._of_kinds.get(kind, ())]

        def do(work: Work) -> Outcome:
            best = work.outcome_of(work.best_of(tried))["learning_rate"] if tried else self.rates[0]
            return main.train(best, work)

        settings = {**main.settings, "rate": f"the best of {self.rates}"}
        return Run(main.name, settings, do, (*main.needs, *tried), main.size, plan=main.plan, by=main.by)


def _run(trial: Training, rate: float) -> Run:
    name, settings = f"{trial.name}-{rate:g}", {**trial.settings, "rate": rate}
    do = partial(trial.train, rate)
    return Run(name, settings, do, trial.needs, trial.size, by=trial.by, outcome_only=True)
