"""What holds for every study: scales, names of runs, and their settings."""

from __future__ import annotations

import json

from onward_studies import STUDIES


def test_every_study_has_all_scales() -> None:
    for name, study in STUDIES.items():
        assert study.name == name and set(study.corpora) == set(study.sizes) == {"smoke", "laptop", "paper"}
        for scale in study.sizes:
            runs = study.runs(study.setting(scale, seeds=2))
            names = [run.name for run in runs]
            assert len(set(names)) == len(names)
            assert all(need in names for run in runs for need in run.needs)
            json.dumps([dict(run.settings) for run in runs])
            fewer = study.runs(study.setting(scale, seeds=1))
            assert {run.name for run in fewer} <= set(names), "seeds only add runs"


def test_runs_of_one_name_are_the_same_in_all_studies() -> None:
    for scale in ("smoke", "laptop", "paper"):
        settings: dict[str, str] = {}
        for study in STUDIES.values():
            for run in study.runs(study.setting(scale, seeds=1)):
                described = json.dumps(dict(run.settings), sort_keys=True, default=str)
                assert settings.setdefault(run.name, described) == described, (run.name, study.name)


def test_how_often_a_training_is_validated_makes_it_another() -> None:
    """It decides which weights are kept."""
    for name, run in (("gates", "blocks2-books-slide-13l-seed0"), ("mlm", "mlm-bert-seed0"), ("backbone", "backbone")):
        study = STUDIES[name]
        settings = [
            {run.name: run.settings for run in study.runs(study.setting("smoke", changes=changes))}[run]
            for changes in ({}, {"evaluate_every": 77})
        ]
        assert settings[0] != settings[1] and settings[0] == settings[1] | {
            "evaluate_every": study.sizes["smoke"].evaluate_every
        }
