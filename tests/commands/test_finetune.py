"""`onward finetune`, as a person would use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_tasks import save_encoder, save_sentiment
from typer.testing import CliRunner

from onward.cli import app

SMALL = "--epochs 1 --batch-size 8 --max-length 16 --train-examples 16 --learning-rates 1e-4,1e-3 --seeds 1"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command")
    for kind in ("bert", "recurrent"):
        save_encoder(folder / kind, kind, hidden_size=16)
    save_sentiment(folder / "sst2", held=24)
    return folder


def run(line: str) -> str:
    result = CliRunner().invoke(app, ["finetune", *line.split()], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_two_sweeps_and_their_comparison(place: Path) -> None:
    for kind in ("bert", "recurrent"):
        said = run(f"{place}/{kind} --task sst2 --data {place}/sst2 {SMALL} --out {place}/runs/{kind}")
        assert f"| {kind} | sst2 | all | 2 |" in said and f"{place}/runs/{kind}" in said
        assert len(list((place / "runs" / kind).glob("runs/*/result.json"))) == 2
    said = run(f"--compare {place}/runs/bert {place}/runs/recurrent --out {place}/runs/both")
    assert said.count("| sst2 | all |") == 2
    assert json.loads((place / "runs" / "both" / "results.json").read_text())["summaries"]
    assert (place / "runs" / "both" / "scores.png").is_file()


def test_a_name_of_its_own_and_saved_models(place: Path) -> None:
    options = "--learning-rates 1e-4 --name ours --save-models --margin 0.3"
    said = run(f"{place}/bert --task SST-2 --data {place}/sst2 {SMALL} {options} --out {place}/runs/named")
    assert "| ours | sst2 | 0.0001 | 1 |" in said and "failed at 80.0 or less" in said
    assert (place / "runs/named/runs/0.0001-0/model/model.safetensors").is_file()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{0}/bert", "--task is missing: choose one of cola, sst2"),
        ("{0}/bert {0}/recurrent --task sst2", "2 models are given"),
        ("{0}/bert --task sst3", "no task 'sst3': did you mean 'sst2'"),
        ("{0}/bert --task sst2 --learning-rates fast", "--learning-rates fast: write numbers"),
        ("{0}/bert --task sst2 --learning-rates 0", "--learning-rates 0.0: it must be a number above 0"),
        ("{0}/bert --task sst2 --seeds 0", "--seeds 0: it says how many runs each learning rate has, at least 1"),
        (
            "{0}/bert --task sst2 --max-length 100 --data {0}/sst2",
            "--max-length 100: it is more than the 64 positions of bert; choose at most 64",
        ),
        ("{0}/bert --task rte --max-length 16 --data {0}/nowhere", "no file or folder"),
        ("{0}/bert --task rte --max-length 16", "nyu-mll/glue.*cannot be reached.*--data"),
        ("--compare {0}/sst2", "holds no sweep"),
        ("--compare {0}/sst2 --seeds 3", "--seeds is for runs, .*: leave --seeds out"),
        ("--compare {0}/sst2 --save-models", "leave --save-models out"),
    ],
)
def test_what_cannot_be_done(place: Path, line: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(place / "no-cache"))
    with pytest.raises((ValueError, OSError), match=message):
        CliRunner().invoke(
            app, ["finetune", *line.format(place).split(), "--out", str(place / "x")], catch_exceptions=False
        )
