"""Folders of fine-tuning: what is refused leaves them as they were, and damaged files are named."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from damage import damage
from tiny_tasks import SHORT, Killed, save_encoder, save_sentiment

from onward.finetuning import FinetuningRecipe, compare, finetune, sweep
from onward.finetuning.preparation import prepare
from onward.finetuning.results import RESULT
from onward.finetuning.run import _arguments, run
from onward.training.checkpoints import all_checkpoints
from onward.training.folders import alone_in
from onward.utils.files import DamagedFile


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folders")
    save_encoder(folder / "bert", hidden_size=16)
    save_sentiment(folder / "sst2", held=24)
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def go(place: Path, out: Any, **changes: Any) -> Any:
    recipe = FinetuningRecipe(epochs=1, batch_size=8, max_length=16, train_examples=16)
    options = {"learning_rates": [1e-4], "seeds": 1, "recipe": recipe, "data": place / "sst2", "progress": False}
    return sweep(place / "bert", "sst2", out, **{**options, **changes})


def test_a_models_own_folder_is_refused(place: Path, tmp_path: Path) -> None:
    before = contents(place / "bert")
    (tmp_path / "link").symlink_to(place / "bert")
    for out in (place / "bert", tmp_path / "link"):
        with pytest.raises(FileExistsError, match=r"bert holds config.json, which is no run of onward's"):
            go(place, out)
        with pytest.raises(FileExistsError, match=r"bert holds config.json"):
            finetune(place / "bert", "sst2", out, recipe=SHORT, data=place / "sst2")
    assert contents(place / "bert") == before


@pytest.mark.parametrize("name", ["table.md", "results.json", "scores.svg"])
def test_results_of_something_else_are_left_alone(place: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match=f"holds {name}"):
        go(place, tmp_path)
    assert contents(tmp_path) == {tmp_path / name: b"mine"}


def test_a_comparison_writes_over_no_other_results(place: Path, tmp_path: Path) -> None:
    go(place, tmp_path / "sweep")
    for _ in range(2):  # its own, it does
        compare([tmp_path / "sweep"], tmp_path / "all")
    (tmp_path / "all" / "results.json").write_text('{"rows": []}')
    with pytest.raises(FileExistsError, match=r"all/results.json is not of sweeps"):
        compare([tmp_path / "sweep"], tmp_path / "all")


def test_no_folder_at_all(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="out='': it names no folder"):
        go(place, "")
    with pytest.raises(ValueError, match="out='': it names no folder"):
        finetune(place / "bert", "sst2", "", recipe=SHORT, data=place / "sst2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rank", [None, "1"])
def test_a_second_sweep_changes_nothing(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str | None
) -> None:
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with alone_in(tmp_path):
        with pytest.raises(FileExistsError, match="another process is training in"):
            go(place, tmp_path)
        with pytest.raises(FileExistsError, match="another process is training in"):
            finetune(place / "bert", "sst2", tmp_path, recipe=SHORT, data=place / "sst2")
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert len(go(place, tmp_path).results) == 1


def test_damaged_records_are_named(place: Path, tmp_path: Path) -> None:
    found = go(place, tmp_path)
    result = found.results[0].path / RESULT
    for file, message in (
        (result, "delete it, and run the same command again"),
        (tmp_path / "sweep.json", "put a copy"),
    ):
        saved = file.read_text()
        for content in ("", "[]", "null", "{"):
            file.write_text(content)
            with pytest.raises(DamagedFile, match=f"{file} is damaged.*{message}"):
                go(place, tmp_path)
        file.write_text("{}")
        with pytest.raises(DamagedFile, match=f"{file} is damaged: it has no field"):
            go(place, tmp_path)
        file.write_text(saved)
    assert go(place, tmp_path).results == found.results


def test_a_damaged_checkpoint_is_passed_over(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.finetuning.run.MINUTES_BETWEEN_CHECKPOINTS", 0)
    recipe = FinetuningRecipe(epochs=2.5, batch_size=8, max_length=32, train_examples=16, group_by_length=True)
    setting = prepare(place / "bert", "sst2", recipe, data=place / "sst2")
    expected = run(setting, 1e-3, 1, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(setting, 1e-3, 1, tmp_path / "killed", [Killed(3)])
    for name in ("order.safetensors", "scheduler.pt"):
        copy = tmp_path / name
        shutil.copytree(tmp_path / "killed", copy)
        damage(all_checkpoints(copy)[-1] / name, "flip", random.Random(0))
        with pytest.warns(UserWarning, match=f"checkpoint-3/{name} is damaged.*resumes from checkpoint-2"):
            assert run(setting, 1e-3, 1, copy).history == expected.history


def test_accelerate_is_told_to_use_the_cpu(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = prepare(place / "bert", "sst2", SHORT, data=place / "sst2")
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert _arguments(setting, 1e-3, 0, tmp_path).use_cpu is True
