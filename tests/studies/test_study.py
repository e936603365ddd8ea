"""Studies: every run once, whatever interrupts them, and what they leave."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from scipy.stats import t

import onward
from onward.training.checkpoints import alone_in
from onward.training.many_runs import RunsProgress
from onward.utils.files import DamagedFile
from onward_studies import STUDIES
from onward_studies.engine.conducting import conduct, report
from onward_studies.engine.folders import MODEL
from onward_studies.engine.intervals import FAILS, HOLDS, UNSEEN, Interval, differences, over, students_t, verdict
from onward_studies.engine.reporting import Claim, Report, Table
from onward_studies.engine.study import Run, Setting, Study
from onward_studies.engine.work import Work


@dataclass(frozen=True)
class Sizes:
    base: int = 2


def squares(done: list[str], before: Callable[[str], None] = lambda name: None) -> Study:
    """Runs that square a number, and one that needs them all."""

    def square(number: int, work: Work) -> dict[str, Any]:
        before(f"square-{number}")
        done.append(f"square-{number}")
        (work.folder / MODEL / "checkpoint-1").mkdir(parents=True)
        return {"validation_loss": float(number**2) if number < 3 else None, "said": f"{number**2}"}

    def total(work: Work) -> dict[str, Any]:
        done.append("total")
        losses = [work.outcome_of(f"square-{n}")["validation_loss"] for n in (1, 2)]
        return {"total": sum(losses), "best": work.best_of(["square-2", "square-1", "square-3"])}

    def runs(setting: Setting) -> list[Run]:
        numbers = (1, 2, 3)
        singles = [
            Run(
                f"square-{n}",
                {"number": n, "base": setting.sizes.base, "text": setting.corpora["text"]},
                lambda work, n=n: square(n, work),
                size=n,
            )
            for n in numbers
        ]
        return [Run("total", {}, total, tuple(run.name for run in singles)), *singles]

    def told(setting: Setting, outcomes: Mapping[str, Any]) -> Report:
        figure = Figure()
        figure.subplots().plot([1, 2], label="<squares>")
        rows = [[name, str(outcome.get("validation_loss"))] for name, outcome in outcomes.items()]
        table = Table("Squares", ["run", "loss"], rows)
        claim = Claim("squares < cubes", "yes", "yes & no", HOLDS)
        return Report("Squares", f"{len(outcomes)} are done.", [table], {"squares": figure}, [claim], ["a note"])

    corpora = {scale: {"text": "shakespeare"} for scale in ("smoke", "laptop", "paper")}
    sizes = {scale: Sizes() for scale in corpora}
    return Study("squares", corpora, sizes, runs, told)


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

    def only_outcomes(setting: Setting) -> list[Run]:
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


def test_models_of_something_else_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "laptop" / "runs" / "square-3" / MODEL
    mine.mkdir(parents=True)
    study = squares(done := [])
    with pytest.raises(FileExistsError, match=r"square-3 holds model, which is no run of onward's"):
        conduct(study, study.setting(), tmp_path, progress=False)
    monkeypatch.chdir(tmp_path / "laptop")
    with pytest.raises(ValueError, match="out='' names no folder"):
        conduct(study, study.setting(), "", progress=False)
    assert not done and not list(mine.iterdir())


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
        displays.append((self, self.done_before, self.tokens_before))
        real(self, *given)

    monkeypatch.setattr(RunsProgress, "start_run", start_run)
    done: list[str] = []
    study = squares(done, elsewhere)
    conduct(study, study.setting(), tmp_path)
    assert done == ["square-1", "square-3", "total"]
    # Sizes are 1, 2, 3, and 1 of the total: 2 were done elsewhere, at no one's speed.
    assert [(before, not_ours) for _, before, not_ours in displays] == [(0, 0), (3, 2), (6, 2)]
    assert displays[0][0].done_before == displays[0][0].total == 7


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


def more_squares(study: Study, setting: Setting) -> list[Run]:
    first, *others = study.runs(setting)[1:]
    return [replace(first, settings={**first.settings, "more": 1}), *others]


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


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '""', '{"outcomes": []}', '{"outcomes": {"a": {}}}'])
def test_broken_results_of_elsewhere_are_named(content: str, tmp_path: Path) -> None:
    study = squares([])
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=r"results.json.* is (broken|damaged)"):
        conduct(study, study.setting(), tmp_path / "out", progress=False, known=[tmp_path])


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '""', '{"bf16": 3}'])
def test_a_broken_precision_is_named(content: str, tmp_path: Path) -> None:
    study = squares([])
    work = Work(tmp_path, study.setting(), study.runs(study.setting()))
    (work.folder / MODEL / "checkpoint-1").mkdir(parents=True)
    (work.folder / "precision.json").write_text(content)
    with pytest.raises(ValueError, match=r"precision.json is broken .*: delete .*, and start anew"):
        work.in_bf16(fastest=True)


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


def test_the_report_needs_nothing_beside_it(tmp_path: Path) -> None:
    study = squares([])
    conduct(study, study.setting(seeds=1), tmp_path, progress=False)
    page = (tmp_path / "laptop" / "squares" / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "squares &lt; cubes" in page and "yes &amp; no" in page and "<li>a note</li>" in page
    assert not re.search(r'(src|href)="(?!#)', page), "no other files"
    table = (tmp_path / "laptop" / "squares" / "table.md").read_text(encoding="utf-8")
    assert "| square-2 | 4.0 |" in table and "| squares < cubes | yes | yes & no | holds |" in table
    saved = json.loads((tmp_path / "laptop" / "squares" / "results.json").read_text())
    assert saved["scale"] == "laptop" and saved["seeds"] == 1 and saved["runs"] == "4 of 4 have ended"
    assert saved["outcomes"]["square-1"]["validation_loss"] == 1 and saved["sizes"] == {"base": 2}
    assert all((tmp_path / "laptop" / "squares" / f"squares.{ending}").is_file() for ending in ("svg", "png"))


def test_mixed_precisions_are_told(tmp_path: Path) -> None:
    study = squares([])
    assert "bfloat16" not in conduct(study, study.setting(), tmp_path, progress=False).markdown()
    file = tmp_path / "laptop" / "runs" / "square-1" / "outcome.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bf16": True}))
    told = report(study, study.setting(), tmp_path).markdown()
    assert "Of 3 trainings 1 were in bfloat16, the others in float32" in told


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


def test_progress_is_one_display(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = squares([])
    conduct(study, study.setting(), tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("squares, laptop scale: 4 of 4 runs are left to do")
    assert lines[1] == "run 2/4, square-1: 1" and lines[-1] == "run 1/4, total: ended"


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    study = squares([])
    assert study.setting(corpora={"": "a/path"}).corpora == {"text": "a/path"}
    for changes, message in (
        ({"scale": "huge"}, "scale='huge': choose one of smoke, laptop, paper"),
        ({"seeds": 0}, "seeds=0: a study needs at least one"),
        ({"corpora": {"books": "x"}}, "study squares reads no corpus 'books': it reads text"),
        ({"changes": {"base": 1.5}}, "base=1.5: it must be of the kind of 2"),
        ({"changes": {"base": True}}, "base=True"),
        ({"changes": {"bass": 1}}, "Sizes has no field 'bass' .*: did you mean 'base'?"),
    ):
        with pytest.raises(ValueError, match=message):
            study.setting(**changes)
    with pytest.raises(ValueError, match="no run of squares has ended"):
        report(study, study.setting(), tmp_path / "nowhere")


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


# --- intervals


def test_intervals_are_students() -> None:
    interval = Interval.of([1.0, 2.0, 4.0])
    assert interval.mean == pytest.approx(7 / 3)
    assert interval.half == pytest.approx(4.302653 * 1.527525 / math.sqrt(3), rel=1e-5)
    assert interval.text(2) == "2.33 ± 3.79" and Interval.of([1.5]).text(1) == "1.5"
    gap = over({0: 3.0, 1: 5.0, 3: 9.0}, {1: 3.0, 0: 1.0, 2: 7.0})
    assert gap is not None and gap.half == 0 and gap.values == (2.0, 2.0), "of the seeds that both have"
    assert differences({0: 1.0}, {1: 1.0}) == {} and over({0: 1.0}, {1: 1.0}) is None
    with pytest.raises(ValueError, match="no values"):
        Interval.of([])


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 30, 99, 1000])
def test_student_is_right(freedom: int) -> None:
    for confidence in (0.5, 0.9, 0.95, 0.999):
        assert students_t(freedom, confidence) == pytest.approx(t.ppf((1 + confidence) / 2, freedom), rel=1e-9)


def test_nothing_here_needs_scipy() -> None:
    """It comes with scikit-learn only: a study would end after hours with its name."""
    sources = Path(onward.__file__).parent.rglob("*.py")
    assert not [file for file in sources if re.search(r"^\s*(from|import) scipy", file.read_text(), re.MULTILINE)]


def test_a_verdict_leaves_out_nothing_or_says_so() -> None:
    assert verdict(Interval.of([1.0, 1.1, 0.9])) == HOLDS
    assert verdict(Interval.of([-1.0, -1.1, -0.9])) == FAILS
    assert verdict(Interval.of([-1.0, 1.1, 0.9])) == UNSEEN
    assert verdict(Interval.of([5.0])) == UNSEEN, "one seed shows nothing"
    assert verdict(replace(Interval.of([1.0, 2.0]), half=0.1)) == HOLDS


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
