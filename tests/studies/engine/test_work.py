"""What a run has at hand: models as they were written, and the precision it was begun in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from squares import squares

from onward.utils.files import DamagedFile
from onward_studies import STUDIES
from onward_studies.engine.conducting import conduct
from onward_studies.engine.folders import MODEL
from onward_studies.engine.work import Work


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '""', '{"bf16": 3}'])
def test_a_broken_precision_is_named(content: str, tmp_path: Path) -> None:
    study = squares([])
    work = Work(tmp_path, study.setting(), study.runs(study.setting()))
    (work.folder / MODEL / "checkpoint-1").mkdir(parents=True)
    (work.folder / "precision.json").write_text(content)
    with pytest.raises(ValueError, match=r"precision.json is broken .*: delete .*, and start anew"):
        work.in_bf16(fastest=True)


def test_what_ended_in_another_precision_is_refused_if_one_is_chosen(tmp_path: Path) -> None:
    study = squares([])
    conduct(study, study.setting(), tmp_path, progress=False)
    file = tmp_path / "laptop" / "runs" / "square-1" / "outcome.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bf16": True}))
    for bf16 in (None, True):
        conduct(study, study.setting(bf16=bf16), tmp_path, progress=False)
    with pytest.raises(FileExistsError, match=r"square-1 .*--precision: 'bfloat16' there, 'float32' here"):
        conduct(study, study.setting(bf16=False), tmp_path, progress=False)


@pytest.mark.parametrize("begun", [True, False])
def test_a_training_goes_on_in_the_precision_it_was_begun_in(begun: bool, tmp_path: Path) -> None:
    study = squares([])

    def work(bf16: bool | None = None) -> Work:
        return Work(tmp_path, study.setting(bf16=bf16), [])

    assert work(begun).in_bf16(not begun) == begun
    assert work(not begun).in_bf16(begun) != begun, "nothing is lost yet"
    assert work().in_bf16(begun) == begun
    (tmp_path / "laptop" / "model" / "checkpoint-1").mkdir(parents=True)
    assert work().in_bf16(not begun) == begun, "as on another machine"
    assert work(begun).in_bf16(not begun) == begun
    with pytest.raises(FileExistsError, match="holds a training with other settings.*--precision"):
        work(not begun).in_bf16(begun)


def test_models_that_have_changed_are_not_built_on(tmp_path: Path) -> None:
    study = STUDIES["backbone"]
    setting = study.setting("smoke", seeds=1)
    runs = study.runs(setting)
    conduct(study, setting, tmp_path, progress=False)
    work = Work(tmp_path, setting, runs)
    vocabulary = runs[0].name
    for run, part, name in (
        ("backbone", "backbone", "model.safetensors"),
        ("backbone", "", "model.safetensors"),
        (vocabulary, "", "tokenizer.json"),
    ):
        file = work.model_of(run, part) / name
        saved = file.read_bytes()
        file.write_bytes(saved[:-9] + bytes([saved[-9] ^ 1]) + saved[-8:])
        with pytest.raises(DamagedFile, match=rf"{file} is damaged: .*or delete .*{run}, and its run is done again"):
            work.model_of(run, part)
        file.write_bytes(saved)
        work.model_of(run, part)
