"""What fine-tuning leaves: the result of a run, all results of a sweep, and their summary."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..training.results import result_in
from ..utils.safe_json import field_of, read_json

RESULT, SWEEP, RUNS = "result.json", "sweep.json", "runs"


@dataclass(frozen=True)
class RunResult:
    """`score` is the task's main metric of the model after its last step; None where the loss became NaN, as `ended`
    then says. `trivial` is the best score without a model, `margin` how much better a run must be."""

    path: Path
    task: str
    model: str
    learning_rate: float
    seed: int
    score: float | None
    metrics: dict[str, float]
    trivial: float
    margin: float
    ended: str | None
    examples: int
    steps: int
    tokens: int
    seconds: float
    history: list[dict[str, float]]

    def failed(self, margin: float | None = None) -> bool:
        """Whether the score cannot be told from chance."""
        return self.score is None or self.score <= self.trivial + (self.margin if margin is None else margin)

    @classmethod
    def read(cls, folder: Path) -> RunResult:
        return result_in(folder / RESULT, cls)


@dataclass(frozen=True)
class Sweep:
    """All finished runs of a folder, by learning rate and seed."""

    folder: Path
    name: str
    settings: dict[str, Any]
    results: list[RunResult]

    @property
    def task(self) -> str:
        return self.settings["task"]

    @property
    def learning_rates(self) -> list[float]:
        return sorted({result.learning_rate for result in self.results})

    @property
    def seeds(self) -> list[int]:
        return sorted({result.seed for result in self.results})

    @classmethod
    def read(cls, folder: str | Path) -> Sweep:
        folder = Path(folder).expanduser()
        if not (folder / SWEEP).is_file():
            raise FileNotFoundError(f"folder {str(folder)!r} holds no sweep ({SWEEP} is missing): check the path")
        saved = read_json(folder / SWEEP, "the settings of a sweep")
        name, settings = (field_of(saved, folder / SWEEP, *field) for field in (("name", str), ("settings", dict)))
        found = [RunResult.read(file.parent) for file in folder.glob(f"{RUNS}/*/{RESULT}")]
        if not found:
            raise ValueError(f"{folder}: no run of this sweep has ended yet: run it again")
        results = sorted(found, key=lambda result: (result.learning_rate, result.seed))
        return cls(folder, name, settings, results)


@dataclass(frozen=True)
class Summary:
    """Scores of several runs. One that ended with NaN has the trivial score, which is what its model is worth.

    `learning_rate` is None for all of them together; `deviation` is that of a sample, None for a single run.
    """

    model: str
    task: str
    learning_rate: float | None
    runs: int
    mean: float
    deviation: float | None
    best: float
    worst: float
    failed: float
    mean_of_others: float | None

    @classmethod
    def of(cls, sweep: Sweep, learning_rate: float | None = None, margin: float | None = None) -> Summary:
        results = [r for r in sweep.results if learning_rate is None or r.learning_rate == learning_rate]
        scores = scores_of(results)
        others = scores_of([result for result in results if not result.failed(margin)])
        return cls(
            sweep.name,
            sweep.task,
            learning_rate,
            len(scores),
            statistics.fmean(scores),
            statistics.stdev(scores) if len(scores) > 1 else None,
            max(scores),
            min(scores),
            1 - len(others) / len(scores),
            statistics.fmean(others) if others else None,
        )


def scores_of(results: Sequence[RunResult]) -> list[float]:
    return [result.trivial if result.score is None else result.score for result in results]


def summarize(sweep: Sweep, margin: float | None = None) -> list[Summary]:
    """One for each learning rate, then one for all runs together."""
    return [Summary.of(sweep, rate, margin) for rate in sweep.learning_rates] + [Summary.of(sweep, None, margin)]
