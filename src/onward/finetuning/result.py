"""What a run leaves, and when it has failed."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

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
        saved = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        return cls(path=folder, **{f.name: saved[f.name] for f in fields(cls) if f.name != "path"})
