"""Trials of learning rates, and the main runs that have the best of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onward_studies.engine.conducting import conduct
from onward_studies.engine.reporting import Report
from onward_studies.engine.study import Outcome, Run, Study, StudySetting
from onward_studies.engine.trials import Training, Trials
from onward_studies.engine.work import Work


@dataclass(frozen=True)
class Nothing:
    """No size differs between scales."""


def training(name: str, **more: Any) -> Training:
    """Its loss is lowest with a rate of 0.3; with 3 it ends with NaN."""

    def train(rate: float, work: Work) -> Outcome:
        return {"learning_rate": rate, "validation_loss": None if rate == 3 else abs(rate - 0.3)}

    return Training(name, {"name": name}, train, **more)


def runs_with(*rates: float) -> list[Run]:
    trials = Trials(rates)
    for kind in ("plain", "recurrent", "plain"):
        trials.add(kind, training(f"rate-{kind}"))
    mains = [trials.main(kind, training(f"main-{kind}", needs=("vocabulary",), size=7)) for kind in ("plain", "other")]
    return [*trials.runs, *mains]


def test_every_kind_tries_all_rates_once() -> None:
    *trials, plain, other = runs_with(0.1, 0.3)
    assert [run.name for run in trials] == [f"rate-{k}-{rate}" for k in ("plain", "recurrent") for rate in (0.1, 0.3)]
    assert all(run.outcome_only and run.plan is None for run in trials)
    assert trials[1].settings == {"name": "rate-plain", "rate": 0.3}
    assert plain.needs == ("vocabulary", "rate-plain-0.1", "rate-plain-0.3") and other.needs == ("vocabulary",)
    assert plain.settings["rate"] == "the best of (0.1, 0.3)" and plain.size == 7 and not plain.outcome_only
    assert [run.name for run in runs_with(0.1)] == ["main-plain", "main-other"], "a single rate is not tried"


@pytest.mark.parametrize(("rates", "best"), [((0.1, 0.3, 3.0), 0.3), ((0.2,), 0.2)])
def test_main_runs_have_the_best_rate(rates: tuple[float, ...], best: float, tmp_path: Path) -> None:
    def runs(setting: StudySetting) -> list[Run]:
        vocabulary = Run("vocabulary", {}, lambda work: {})
        return [vocabulary, *(run for run in runs_with(*rates) if run.name != "main-other")]

    scales = ("smoke", "laptop", "paper")
    found: dict[str, Outcome] = {}

    def report(setting: StudySetting, outcomes: Any) -> Report:
        found.update(outcomes)
        return Report("Trials", "done", [])

    study = Study("trials", dict.fromkeys(scales, {}), dict.fromkeys(scales, Nothing()), runs, report)
    conduct(study, study.setting(), tmp_path, progress=False)
    assert found["main-plain"]["learning_rate"] == best
