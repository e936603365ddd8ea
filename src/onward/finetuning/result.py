"""What a run leaves, and when it has failed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from ..utils.safe_json import field_of, read_json

RESULT = "result.json"


@dataclass(frozen=True)
class RunResult:
    """`score` is the task's main metric on the model after its last step; None where the loss became NaN, which
    `ended` then tells. `trivial` is the best score without a model, `margin` how much better a run must be."""

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
        """Whether the model has learnt nothing that can be told from chance."""
        return self.score is None or self.score <= self.trivial + (self.margin if margin is None else margin)

    @classmethod
    def read(cls, folder: Path) -> RunResult:
        file = folder / RESULT
        saved = read_json(file, "what a run has come to", "delete it, and its run is done again")
        names = [field.name for field in fields(cls) if field.name != "path"]
        return cls(path=folder, **{name: field_of(saved, file, name) for name in names})
