"""Every run once, whatever interrupts a study, and what it reports."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from squares import squares

from onward.training.folders import alone_in
from onward.training.progress import RunsProgress
from onward_studies.engine.conducting import conduct, report
from onward_studies.engine.study import Run, StudySetting
from onward_studies.engine.work import Work


def test_runs_are_done_once_after_those_they_need(tmp_path: Path) -> None:
    done: list[str] = []
    study = squares(done)
    found = conduct(study, study.setting(), tmp_path, progress=False)
    assert done == ["square-1", "square-2", "square-3", "total"] and found.summary == "4 are done."
    conduct(study, study.setting(), tmp_path, progress=False)
    assert len(done) == 4
    outcome = json.loads((tmp_path / "laptop" / "runs" / "total" / "outcome.json").read_text())
    assert outcome["total"] == 5 and outcome["best"] == "square-1", "without a loss there is no best"
    assert {"name", "settings", "seconds", "circumstances"} <= set(outcome)
    assert {"command", "versions", "machine"} <= set(outcome["circumstances"])
    assert not list(tmp_path.glob("*/runs/*/model/checkpoint-*")), "a run that has ended needs none"


def test_a_killed_study_goes_on(tmp_path: Path) -> None:
    def kill(name: str) -> None:
        if name == "square-2":
            raise KeyboardInterrupt

    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        conduct(squares(done, kill), squares(done).setting(), tmp_path, progress=False)
    assert done == ["square-1"]
    study = squares(done)
    assert report(study, study.setting(), tmp_path).summary == "1 are done."
    conduct(study, study.setting(), tmp_path, progress=False)
    assert done == ["square-1", "square-2", "square-3", "total"]


def test_what_has_ended_elsewhere_is_known(tmp_path: Path) -> None:
    """All of it, or what ended of it before something happened to that machine."""
    there, done = tmp_path / "there", list[str]()
    study = squares(done)
    conduct(study, study.setting(), there, progress=False)
    kept = there / "laptop" / "squares"
    found = conduct(squares(again := []), study.setting(), tmp_path / "all", progress=False, known=[kept])
    assert not again and found.summary == "4 are done."
    (tmp_path / "all" / "laptop" / "runs" / "total" / "outcome.json").unlink()
    conduct(squares(again := []), study.setting(), tmp_path / "all", progress=False)
    assert len(again) == 4, "what was known is not whole, and is done again when something needs it"

    saved = json.loads((kept / "results.json").read_text())
    del saved["outcomes"]["total"]
    (kept / "results.json").write_text(json.dumps(saved))
    conduct(squares(again := []), study.setting(), tmp_path / "most", progress=False, known=[kept])
    assert again == ["square-1", "square-2", "square-3", "total"], "it may need their models, which are not there"

    def only_outcomes(setting: StudySetting) -> list[Run]:
        return [replace(run, outcome_only=run.name != "total") for run in study.runs(setting)]

    trials = replace(study, runs=only_outcomes)
    done.clear()
    conduct(trials, study.setting(), tmp_path / "trials", progress=False, known=[kept])
    assert done == ["total"]

    other = study.setting(changes={"base": 3})
    with pytest.raises(FileExistsError, match="run square-1 with other settings .*base: 2 there, 3 here"):
        conduct(trials, other, tmp_path / "other", progress=False, known=[kept])
    assert not list((tmp_path / "other").glob("laptop/runs/*/outcome.json"))
    with pytest.raises(ValueError, match="holds no results.json of a study"):
        conduct(study, study.setting(), tmp_path / "none", progress=False, known=[tmp_path])


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '""', '{"outcomes": []}', '{"outcomes": {"a": {}}}'])
def test_broken_results_of_elsewhere_are_named(content: str, tmp_path: Path) -> None:
    study = squares([])
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=r"results.json.* is (broken|damaged)"):
        conduct(study, study.setting(), tmp_path / "out", progress=False, known=[tmp_path])


def test_what_another_process_has_in_hand_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward_studies.engine.conducting.SECONDS_BETWEEN_LOOKS", 0.01)
    done: list[str] = []
    study = squares(done)
    folder = tmp_path / "laptop" / "runs" / "square-1"
    folder.mkdir(parents=True)
    with alone_in(folder):
        other = threading.Thread(target=conduct, args=(study, study.setting(), tmp_path, False), daemon=True)
        other.start()
        while len(done) < 2:
            other.join(0.01)
        other.join(0.2)
        assert done == ["square-2", "square-3"] and other.is_alive(), "it waits for what it needs"
    other.join(30)
    assert done == ["square-2", "square-3", "square-1", "total"], "and takes over what was left"


def test_a_variable_of_another_launcher_does_not_make_it_the_second_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    study = squares(done := [])
    conduct(study, study.setting(), tmp_path, progress=False)
    assert done == ["square-1", "square-2", "square-3", "total"]
    assert (tmp_path / "laptop" / "squares" / "results.json").is_file()


def test_what_is_done_elsewhere_is_not_left_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(name: str) -> None:
        if name == "square-1":
            folder = tmp_path / "laptop" / "runs" / "square-2"
            folder.mkdir()
            ended = {"validation_loss": 4, "settings": {"number": 2, "base": 2, "text": "shakespeare"}}
            (folder / "outcome.json").write_text(json.dumps(ended))

    displays = []
    real = RunsProgress.start_run

    def start_run(self: RunsProgress, *given: Any) -> None:
        displays.append((self, self.done_before_run, self.done_at_start))
        real(self, *given)

    monkeypatch.setattr(RunsProgress, "start_run", start_run)
    done: list[str] = []
    study = squares(done, elsewhere)
    conduct(study, study.setting(), tmp_path)
    assert done == ["square-1", "square-3", "total"]
    # Sizes are 1, 2, 3, and 1 of the total: 2 were done elsewhere, at no one's speed.
    assert [(before, not_ours) for _, before, not_ours in displays] == [(0, 0), (3, 2), (6, 2)]
    assert displays[0][0].done_before_run == displays[0][0].total == 7


def test_scales_do_not_share_a_folder(tmp_path: Path) -> None:
    done: list[str] = []
    study = squares(done)
    for scale in ("smoke", "laptop"):
        conduct(study, study.setting(scale), tmp_path, progress=False)
    assert len(done) == 8 and (tmp_path / "smoke" / "squares" / "table.md").is_file()


def test_what_is_read_is_looked_at_first(tmp_path: Path) -> None:
    def check(work: Work) -> None:
        raise ValueError(f"{work.setting.corpora['text']} is no text")

    done: list[str] = []
    study = replace(squares(done), check=check)
    with pytest.raises(ValueError, match="shakespeare is no text"):
        conduct(study, study.setting(), tmp_path, progress=False)
    assert not done


def test_progress_is_one_display(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = squares([])
    conduct(study, study.setting(), tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("squares, laptop scale: 4 of 4 runs are left to do")
    assert lines[1] == "run 2/4, square-1: 1" and lines[-1] == "run 1/4, total: ended"


def test_what_ended_with_nan_is_told(tmp_path: Path) -> None:
    study = squares([])
    conduct(study, study.setting(), tmp_path, progress=False)
    assert not any("NaN" in note for note in report(study, study.setting(), tmp_path).notes)
    file = tmp_path / "laptop" / "runs" / "square-3" / "outcome.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"ended": "the loss is nan"}))
    assert "Ended with NaN, and in no figure: square-3." in report(study, study.setting(), tmp_path).notes
    tuned = [{"ended": "no numbers"}, {"ended": None}]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"results": tuned}))
    assert any(note.startswith("Of 2 fine-tunings 1 ended") for note in report(study, study.setting(), tmp_path).notes)


def test_mixed_precisions_are_told(tmp_path: Path) -> None:
    study = squares([])
    assert "bfloat16" not in conduct(study, study.setting(), tmp_path, progress=False).markdown()
    file = tmp_path / "laptop" / "runs" / "square-1" / "outcome.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bf16": True}))
    told = report(study, study.setting(), tmp_path).markdown()
    assert "Of 3 trainings 1 were in bfloat16, the others in float32" in told
