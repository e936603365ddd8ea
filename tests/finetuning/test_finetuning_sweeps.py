"""Sweeps: no run twice, whatever interrupts them; what they come to; several side by side."""

from __future__ import annotations

import io
import json
import shutil
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tiny_tasks import save_encoder, save_sentiment

from onward.finetuning import FinetuningRecipe, Summary, Sweep, compare, summarize, sweep
from onward.finetuning.report import markdown
from onward.finetuning.results import RESULT
from onward.training.progress import RunsProgress

RECIPE = FinetuningRecipe(epochs=1, batch_size=8, max_length=16, train_examples=16)
RATES = (1e-4, 1e-3)
SWEEPING = sys.modules["onward.finetuning.sweep"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps")
    save_encoder(folder / "bert", hidden_size=16)
    save_encoder(folder / "other", "recurrent", hidden_size=16)
    save_sentiment(folder / "sst2", held=24)
    return folder


@pytest.fixture(scope="module")
def whole(place: Path) -> Sweep:
    """Uninterrupted: two learning rates, two seeds."""
    return go(place, place / "whole")


def go(place: Path, out: Path, model: str = "bert", **changes: Any) -> Sweep:
    options: dict[str, Any] = {"learning_rates": RATES, "seeds": 2, "recipe": RECIPE, "data": place / "sst2"}
    return sweep(place / model, "sst2", out, **{**options, "progress": False, **changes})


def count_runs(monkeypatch: pytest.MonkeyPatch, killed_at: int | None = None) -> list[tuple[float, int]]:
    """Which runs are started; of them, one may be killed in its middle."""
    started: list[tuple[float, int]] = []
    real = SWEEPING.run

    def run(setting: Any, rate: float, seed: int, folder: Path, callbacks: Any) -> Any:
        started.append((rate, seed))
        if len(started) == killed_at:
            folder.mkdir(parents=True)  # what a run in its middle leaves
            raise KeyboardInterrupt
        return real(setting, rate, seed, folder, callbacks)

    monkeypatch.setattr(SWEEPING, "run", run)
    return started


def outcome(found: Sweep) -> list[Any]:
    return [(r.learning_rate, r.seed, r.score, [entry["loss"] for entry in r.history]) for r in found.results]


# --- interrupted and taken up again


def test_a_killed_sweep_goes_on_and_ends_as_if_nothing_had_been(
    place: Path, whole: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = count_runs(monkeypatch, killed_at=3)
    with pytest.raises(KeyboardInterrupt):
        go(place, tmp_path)
    assert started == [(1e-4, 0), (1e-3, 0), (1e-4, 1)]
    started.clear()
    started += [(0.0, 0)] * 3  # so that none is the third any more
    found = go(place, tmp_path)
    assert started[3:] == [(1e-4, 1), (1e-3, 1)]
    assert outcome(found) == outcome(whole)


def test_more_rates_and_seeds_run_only_what_is_missing(
    place: Path, whole: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole.folder, tmp_path / "copy")
    started = count_runs(monkeypatch)
    assert outcome(go(place, tmp_path / "copy")) == outcome(whole)
    assert started == []
    found = go(place, tmp_path / "copy", learning_rates=[1e-4, 1e-3, 1e38], seeds=3)
    assert started == [(1e38, 0), (1e38, 1), (1e-4, 2), (1e-3, 2), (1e38, 2)]
    assert len(found.results) == 9 and outcome(found)[:2] == outcome(whole)[:2]
    assert [row.failed for row in summarize(found)][2] == 1.0, "NaN has not ended the sweep"


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"recipe": replace(RECIPE, epochs=2)}, "recipe.epochs: 1 there, 2 here"),
        ({"model": "other"}, "model: 'a model with the digest"),
        ({"recipe": replace(RECIPE, train_examples=None)}, "data: '16 examples, scored on 24,"),
    ],
)
def test_another_sweeps_folder_is_refused(place: Path, whole: Sweep, changes: dict[str, Any], difference: str) -> None:
    with pytest.raises(FileExistsError, match=difference):
        go(place, whole.folder, **changes)


def test_a_folder_without_a_result_gives_way(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count_runs(monkeypatch, killed_at=1)
    with pytest.raises(KeyboardInterrupt):
        go(place, tmp_path, recipe=FinetuningRecipe(max_length=16))
    found = go(place, tmp_path, learning_rates=[1e-4], seeds=1)
    assert found.settings["recipe.epochs"] == 1


def test_listed_seeds_shown_by_a_display_for_more(place: Path, whole: Sweep, tmp_path: Path) -> None:
    out = io.StringIO()
    shown = RunsProgress(100, "tokens", "all of them", Console(file=out, width=120), seconds_between_lines=0)
    shown.start_run("a sweep", 100, parts=2)
    found = go(place, tmp_path, seeds=[1], progress=shown)
    shown.end_run("ended")
    same = [result for result in whole.results if result.seed == 1]
    assert [(r.learning_rate, r.seed, r.score) for r in found.results] == [
        (r.learning_rate, r.seed, r.score) for r in same
    ]
    lines = out.getvalue().splitlines()
    assert lines[0] == "all of them" and lines[-1] == "a sweep: ended"
    assert lines[1].startswith("a sweep, step 1/2") and lines[-2].startswith("a sweep, step 2/2")
    assert lines[-2].endswith("0:00:00 left"), "both parts are behind it"


def test_weights_that_were_not_saved_cannot_be_had_later(place: Path, whole: Sweep) -> None:
    with pytest.raises(ValueError, match="save_models=True: 4 of the runs had ended without it"):
        go(place, whole.folder, save_models=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 0}, "seeds=0: .* at least 1"),
        ({"learning_rates": []}, "learning_rates=\\[\\]: it is empty"),
        ({"learning_rates": [1e-5, -1e-5]}, "learning_rates=-1e-05: it must be a number above 0"),
    ],
)
def test_sweeps_that_cannot_be(place: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        go(place, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


# --- what they come to


def made_up(folder: Path, scores: dict[float, list[float | None]], name: str = "bert", task: str = "rte") -> Path:
    """A finished sweep with these scores; the trivial one is 0.5, and 0.52 has failed."""
    for rate, of_rate in scores.items():
        for seed, score in enumerate(of_rate):
            run = folder / "runs" / f"{rate}-{seed}"
            run.mkdir(parents=True)
            facts = {"task": task, "model": name, "learning_rate": rate, "seed": seed, "score": score, "metrics": {}}
            facts |= {"trivial": 0.5, "margin": 0.02, "ended": None if score else "NaN", "history": []}
            facts |= dict.fromkeys(("examples", "steps", "tokens", "seconds"), 1)
            (run / RESULT).write_text(json.dumps(facts))
    (folder / "sweep.json").write_text(json.dumps({"name": name, "settings": {"task": task, "model": name}}))
    return folder


def test_mean_spread_and_failures(tmp_path: Path) -> None:
    found = Sweep.read(made_up(tmp_path, {1e-5: [0.7, 0.8, 0.51], 1e-4: [0.52, None, 0.521]}))
    low, high, over_all = summarize(found)
    assert (low.learning_rate, low.runs, low.best, low.worst) == (1e-5, 3, 0.8, 0.51)
    assert low.mean == pytest.approx(0.67) and low.deviation == pytest.approx(statistics.stdev([0.7, 0.8, 0.51]))
    assert low.failed == pytest.approx(1 / 3) and low.mean_of_others == pytest.approx(0.75)
    assert high.failed == pytest.approx(2 / 3) and high.mean == pytest.approx((0.52 + 0.5 + 0.521) / 3)
    assert high.worst == 0.5, "NaN is worth what no model is"
    assert (over_all.learning_rate, over_all.runs, over_all.failed) == (None, 6, pytest.approx(0.5))
    assert Summary.of(found, margin=0.25).failed == pytest.approx(5 / 6)


def test_of_one_run_there_is_no_deviation(tmp_path: Path) -> None:
    (row, _) = summarize(Sweep.read(made_up(tmp_path, {1e-5: [None]})))
    assert (row.deviation, row.failed, row.mean_of_others) == (None, 1.0, None)
    assert "| bert | rte | 1e-05 | 1 | 50.0 |  | 50.0 | 50.0 | 100% |  |" in markdown([Sweep.read(tmp_path)])


def test_a_sweep_leaves_table_numbers_and_picture(whole: Sweep) -> None:
    table = (whole.folder / "table.md").read_text()
    assert table.count("| bert | sst2 |") == 3 and "| bert | sst2 | all | 4 |" in table
    assert "a run has failed at" in table
    numbers = json.loads((whole.folder / "results.json").read_text())
    assert len(numbers["summaries"]) == 3 and len(numbers["runs"][0]["runs"]) == 4
    assert {"command", "versions", "machine"} <= set(numbers)
    picture = (whole.folder / "scores.svg").read_text()
    assert "learning rate" in picture and "score (%)" in picture and ">bert<" in picture
    assert (whole.folder / "scores.png").read_bytes().startswith(b"\x89PNG")


# --- several side by side


def test_models_and_tasks_side_by_side(tmp_path: Path) -> None:
    folders = [
        made_up(tmp_path / f"{name}-{task}", {1e-5: [0.6, 0.7], 1e-4: [score, score]}, name, task)
        for name, score in (("bert", 0.5), ("recurrent", 0.9))
        for task in ("rte", "cola")
    ]
    compare(folders, tmp_path / "all")
    rows = [line for line in (tmp_path / "all" / "table.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert [tuple(row.split(" | ")[:4]) for row in rows] == [
        ("| bert", "rte", "1e-05", "2"),
        ("| bert", "rte", "all", "4"),
        ("| recurrent", "rte", "0.0001", "2"),
        ("| recurrent", "rte", "all", "4"),
        ("| bert", "cola", "1e-05", "2"),
        ("| bert", "cola", "all", "4"),
        ("| recurrent", "cola", "0.0001", "2"),
        ("| recurrent", "cola", "all", "4"),
    ]
    assert "differ" not in (tmp_path / "all" / "table.md").read_text()
    assert len(json.loads((tmp_path / "all" / "results.json").read_text())["summaries"]) == 12
    picture = (tmp_path / "all" / "scores.svg").read_text()
    assert all(f">{word}<" in picture for word in ("rte", "cola", "bert", "recurrent", "failed"))


def test_sweeps_that_are_not_comparable_are_marked(tmp_path: Path) -> None:
    first = made_up(tmp_path / "a", {1e-5: [0.6, 0.7]}, "a")
    second = made_up(tmp_path / "b", {1e-5: [0.6, 0.7], 1e-4: [0.8, 0.9]}, "b")
    assert "differ in learning rates**" in markdown(compare([first, second], tmp_path / "out"))


def test_sweeps_that_cannot_be_compared(tmp_path: Path) -> None:
    first = made_up(tmp_path / "a", {1e-5: [0.6]})
    second = made_up(tmp_path / "b", {1e-5: [0.6]})
    with pytest.raises(ValueError, match=r"/a and .*/b are both sweeps of 'bert' on rte"):
        compare([first, second], tmp_path / "out")
    with pytest.raises(FileNotFoundError, match=r"nowhere' holds no sweep \(sweep.json is missing\)"):
        compare([tmp_path / "nowhere"], tmp_path / "out")
    with pytest.raises(FileExistsError, match="a table of its own"):
        compare([first], second)
    shutil.rmtree(first / "runs")
    with pytest.raises(ValueError, match="no run of this sweep has ended"):
        compare([first], tmp_path / "out")


# --- what is shown


def show(terminal: bool, seconds: float = 0.0) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120)
    shown = RunsProgress(200, "examples", "2 of 3 runs", console, seconds_between_lines=seconds)
    for number in (1, 2):
        shown.start_run(f"run {number + 1}/3, rte, 2e-05, seed {number}", 100)
        for step in range(1, 5):
            shown.on_step_end(None, SimpleNamespace(global_step=step, max_steps=4), None)
        shown.on_train_end(None, None, None)
        shown.end_run("score 0.7")
    shown.close()
    return out.getvalue()


def test_without_a_terminal_there_are_lines() -> None:
    plan, *lines = show(terminal=False).splitlines()
    assert plan == "2 of 3 runs"
    assert lines[0].startswith("run 2/3, rte, 2e-05, seed 1, step 1/4, ") and "examples/s" in lines[0]
    assert lines[0].endswith(" left")
    assert lines[4] == "run 2/3, rte, 2e-05, seed 1: score 0.7"
    assert len(lines) == 10
    assert len(show(terminal=False, seconds=30).splitlines()) == 3


def test_in_a_terminal_there_is_one_bar() -> None:
    text = show(terminal=True)
    assert "run 3/3, rte, 2e-05, seed 2" in text and "100%" in text
