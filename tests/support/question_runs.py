"""Runs of the studies of questions: one of them alone, and outcomes that were never run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onward_studies.engine.study import Study
from onward_studies.engine.work import Work
from onward_studies.questions.task import QuestionTask, carries, variants


def do(study: Study, setting: Any, name: str, folder: Path) -> Any:
    """The run of this name, alone."""
    runs = study.runs(setting)
    work = Work(folder, setting, runs)
    work.folder = folder
    (found,) = [found for found in runs if found.name == name]
    return found.do(work)


def made_up(
    task: QuestionTask, setting: Any, numbers: Mapping[str, float], scores: Callable[[float], dict[str, Any]]
) -> dict[str, Any]:
    """Two seeds, which differ by 1 in all. `numbers` are 40 if they are not told."""
    outcomes: dict[str, Any] = {}
    for seed, name in itertools.product((0, 1), variants(setting.sizes)):
        readings = ("true", "swapped") if carries(name) else ("true",)
        read = {reading: scores(numbers.get(f"{name} {reading}", 40.0) + seed) for reading in readings}
        left_out = {"train": 0, "test": 0}
        facts = {"read": read, "learning_rate": 1e-4, "validation_loss": 1.0, "left_out": left_out}
        outcomes[task.run_name(name, seed)] = facts
    return outcomes
