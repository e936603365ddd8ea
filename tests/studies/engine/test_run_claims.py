"""The folders of runs: what may be begun, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from squares import more_squares, squares

from onward_studies.engine.conducting import conduct, report
from onward_studies.engine.folders import MODEL


def test_models_of_something_else_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "laptop" / "runs" / "square-3" / MODEL
    mine.mkdir(parents=True)
    study = squares(done := [])
    with pytest.raises(FileExistsError, match=r"square-3 holds model, which is no run of onward's"):
        conduct(study, study.setting(), tmp_path, progress=False)
    monkeypatch.chdir(tmp_path / "laptop")
    with pytest.raises(ValueError, match="out='': it names no folder"):
        conduct(study, study.setting(), "", progress=False)
    assert not done and not list(mine.iterdir())


def test_a_run_of_other_settings_is_refused(tmp_path: Path) -> None:
    study = squares([])
    conduct(study, study.setting(), tmp_path, progress=False)
    for do in (conduct, report):  # nor is what was found with other settings reported as these
        with pytest.raises(FileExistsError, match="base: 2 there, 3 here"):
            do(study, study.setting(changes={"base": 3}), tmp_path)
    # What a run needs is part of what it is.
    (tmp_path / "laptop" / "runs" / "square-1" / "outcome.json").unlink()
    changed = replace(study, runs=lambda setting: [*study.runs(setting)[:1], *more_squares(study, setting)])
    with pytest.raises(FileExistsError, match="what it needs, square-1"):
        conduct(changed, study.setting(), tmp_path, progress=False)


def test_a_run_on_other_texts_is_refused(tmp_path: Path) -> None:
    """Their path is the same: what it holds counts."""
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("some text")
    done: list[str] = []
    study = squares(done)
    setting = study.setting(corpora={"text": str(texts)})
    conduct(study, setting, tmp_path / "out", progress=False)
    runs = tmp_path / "out" / "laptop" / "runs"
    kept = json.loads((runs / "square-1" / "outcome.json").read_text())
    assert kept["texts"]["text"].startswith("1 file, ")
    assert json.loads((runs / "total" / "outcome.json").read_text())["texts"] == {}, "it reads none"
    conduct(study, setting, tmp_path / "out", progress=False)
    (texts / "a.txt").write_text("same text")
    refused = "text of 'text': '1 file, .* there, '1 file, .* here.: choose another"
    for again in (conduct, report):
        with pytest.raises(FileExistsError, match=refused):
            again(study, setting, tmp_path / "out")
    with pytest.raises(FileExistsError, match="text of 'text'"):
        conduct(study, setting, tmp_path / "new", progress=False, known=[tmp_path / "out" / "laptop" / "squares"])
    # One that was begun has lost nothing before it has saved something; then it is refused, too.
    (runs / "square-1" / "outcome.json").rename(kept_aside := tmp_path / "outcome.json")
    for number in (2, 3):
        (runs / f"square-{number}" / "outcome.json").unlink()
    (runs / "square-1" / MODEL / "checkpoint-1").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="text of 'text'"):
        conduct(study, setting, tmp_path / "out", progress=False)
    kept_aside.rename(runs / "square-1" / "outcome.json")
    assert len(done) == 4
    (texts / "a.txt").unlink()
    texts.rmdir()
    assert report(study, setting, tmp_path / "out").summary == "2 are done.", "where texts are gone, results are not"


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"settings"', '{"settings": 3}'])
def test_a_broken_outcome_is_named(content: str, tmp_path: Path) -> None:
    done: list[str] = []
    study = squares(done)
    conduct(study, study.setting(), tmp_path, progress=False)
    file = tmp_path / "laptop" / "runs" / "square-2" / "outcome.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=rf"{re.escape(str(file))} is broken .*: delete it, and its run is done again"):
        conduct(study, study.setting(), tmp_path, progress=False)
    file.unlink()
    (file.parent / MODEL / "checkpoint-1").mkdir(parents=True)
    claimed = (file.parent / "settings.json").read_text()
    (file.parent / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"settings.json is broken .*: delete .*square-2, and start anew"):
        conduct(study, study.setting(), tmp_path, progress=False)
    (file.parent / "settings.json").write_text(claimed)
    (file.parent / MODEL / "checkpoint-1").rmdir()
    conduct(study, study.setting(), tmp_path, progress=False)
    assert done[4:] == ["square-2"]


def test_two_processes_of_other_settings_do_not_mix(tmp_path: Path) -> None:
    def other(name: str) -> None:
        if name == "square-1" and len(done) == 0:
            done.append("other begins")
            quick = squares(done)
            with pytest.raises(FileExistsError, match="base: 2 there, 3 here"):
                conduct(quick, quick.setting(changes={"base": 3}), tmp_path, progress=False)

    done: list[str] = []
    study = squares(done, other)
    (tmp_path / "laptop" / "runs" / "square-2").mkdir(parents=True)
    conduct(study, study.setting(), tmp_path, progress=False)
    assert done == ["other begins", "square-1", "square-2", "square-3", "total"]
