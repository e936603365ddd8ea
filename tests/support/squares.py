"""A study that takes no time: runs that square a number, and one that needs them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from onward_studies.engine.folders import MODEL
from onward_studies.engine.intervals import HOLDS
from onward_studies.engine.reporting import Claim, Report, Table
from onward_studies.engine.study import Run, Study, StudySetting
from onward_studies.engine.work import Work


@dataclass(frozen=True)
class Sizes:
    base: int = 2


def squares(done: list[str], before: Callable[[str], None] = lambda name: None) -> Study:
    """Runs that square a number, and one that needs them all."""

    def square(number: int, work: Work) -> dict[str, Any]:
        before(f"square-{number}")
        done.append(f"square-{number}")
        (work.folder / MODEL / "checkpoint-1").mkdir(parents=True)
        return {"validation_loss": float(number**2) if number < 3 else None, "said": f"{number**2}"}

    def total(work: Work) -> dict[str, Any]:
        done.append("total")
        losses = [work.outcome_of(f"square-{n}")["validation_loss"] for n in (1, 2)]
        return {"total": sum(losses), "best": work.best_of(["square-2", "square-1", "square-3"])}

    def runs(setting: StudySetting) -> list[Run]:
        numbers = (1, 2, 3)
        singles = [
            Run(
                f"square-{n}",
                {"number": n, "base": setting.sizes.base, "text": setting.corpora["text"]},
                lambda work, n=n: square(n, work),
                size=n,
            )
            for n in numbers
        ]
        return [Run("total", {}, total, tuple(run.name for run in singles)), *singles]

    def told(setting: StudySetting, outcomes: Mapping[str, Any]) -> Report:
        figure = Figure()
        figure.subplots().plot([1, 2], label="<squares>")
        rows = [[name, str(outcome.get("validation_loss"))] for name, outcome in outcomes.items()]
        table = Table("Squares", ["run", "loss"], rows)
        claim = Claim("squares < cubes", "yes", "yes & no", HOLDS)
        return Report("Squares", f"{len(outcomes)} are done.", [table], {"squares": figure}, [claim], ["a note"])

    corpora = {scale: {"text": "shakespeare"} for scale in ("smoke", "laptop", "paper")}
    sizes = {scale: Sizes() for scale in corpora}
    return Study("squares", corpora, sizes, runs, told)


def more_squares(study: Study, setting: StudySetting) -> list[Run]:
    first, *others = study.runs(setting)[1:]
    return [replace(first, settings={**first.settings, "more": 1}), *others]
