"""`boolq`: what it reads and leaves out, the smallest scale whole, and what made-up scores come to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from question_runs import do, made_up
from study_command import run

from onward.data.questions import Question
from onward.finetuning import DataError
from onward.models.window_recurrent import WindowRecurrentForSequenceClassification
from onward_studies import STUDIES
from onward_studies.engine.conducting import conduct
from onward_studies.engine.folders import MODEL
from onward_studies.engine.intervals import FAILS, HOLDS, UNSEEN
from onward_studies.questions import boolq
from onward_studies.questions.boolq import TASK, TRIVIAL
from onward_studies.questions.runs import build, load_encoder
from onward_studies.questions.task import (
    CONSTANT,
    DISJOINT,
    OURS,
    PAPERS,
    chosen_questions,
    prepare,
    questions_tested,
    variants,
)

STUDY = STUDIES["boolq"]
run_name = TASK.run_name


# --- what it reads ---------------------------------------------------------------------------------


def erasers_files(folder: Path, train: str, test: str, articles: str = "abcdefgh") -> dict[str, str]:
    """A question for each letter, which names its article; the answer of every third is no."""
    places = {name: str(folder / f"{name}.jsonl") for name in ("train", "test", "documents")}
    for name, letters in (("train", train), ("test", test)):
        rows = [
            {
                "annotation_id": number,
                "query": f"is it good in {letter}",
                "classification": str(number % 3 > 0),
                "docids": [f"wiki_{letter}"],
                "evidences": [],
            }
            for number, letter in enumerate(letters)
        ]
        Path(places[name]).write_text("\n".join(map(json.dumps, rows)))
    texts = [{"title": f"wiki_{letter}", "text": f"in {letter} the lord is good . " * 20} for letter in articles]
    Path(places["documents"]).write_text("\n".join(map(json.dumps, texts)))
    return places


def test_tested_questions_are_drawn_from_all_of_a_file() -> None:
    questions = [Question(str(n), "is it", (f"article {n}",), "yes" if n < 50 else "no") for n in range(100)]
    sizes = STUDY.sizes["laptop"]
    some = questions_tested(replace(sizes, tested=30), questions)
    assert len(set(some)) == 30 and some == questions_tested(replace(sizes, tested=30), questions)
    assert 5 < sum(question.answer == "no" for question in some) < 25, "files may be sorted"
    assert questions_tested(replace(sizes, tested=None), questions) == questions


def test_articles_beside_questions(tmp_path: Path) -> None:
    places = erasers_files(tmp_path, train="aabbccddxx", test="eefghxa")
    setting = STUDY.setting("smoke", corpora=places, changes={"held": 2, "questions": 2, "tested": 4})
    whole = boolq.read(STUDY.setting("smoke", corpora=places, changes={"tested": 5}))
    assert [q.question[-1] for q in whole.test.questions] == list("efgha"), "an article is not tested twice"
    assert [q.id for q in whole.test.questions] == ["0", "2", "3", "4", "6"], "the first question about it"
    assert [q.question[-1] for q in whole.train.questions] == list("bbccdd"), "none of them is learned from"
    assert [q.answer for q in whole.train.questions] == ["yes", "no", "yes", "yes", "no", "yes"]
    found = boolq.read(setting)
    tested = {q.question[-1] for q in found.test.questions}
    assert len(found.test.questions) == len(tested) == 4 and tested < set("efgha")
    assert {q.question[-1] for q in found.train.questions} == set("abcd") - tested
    assert (found.train.left_out, found.test.left_out) == (2, 1)
    train, held = chosen_questions(setting, found.train.questions)
    assert (len(train), len(held)) == (2, 2)
    assert {q.question[-1] for q in train}.isdisjoint(q.question[-1] for q in held)
    prepared = prepare(TASK, setting, load_encoder(setting.sizes, TASK.kinds)[1])
    assert prepared.left_out == {"train": 2, "test": 1} and len(prepared.test) == 4
    for encoded in (*prepared.train, *prepared.held, *prepared.test):
        assert len(encoded) == encoded.prefix + 40 and encoded.answer is None


def test_what_cannot_be_read_is_found_first(tmp_path: Path) -> None:
    places = erasers_files(tmp_path, train="abcd", test="efgh")
    spans = tmp_path / "spans.json"
    spans.write_text(json.dumps([{"context": "It is here.", "question": "where?", "answer": "here", "id": "q7"}]))
    for corpora, message in (
        (places | {"documents": "none"}, "asks about .* and no documents are given: give them beside it"),
        (places | {"documents": str(tmp_path / "nothing")}, "there is no file or folder"),
        (places | {"train": str(spans)}, "question 'q7' has the answer 'here', not yes or no: .* hotpotqa"),
        (
            erasers_files(tmp_path, "wxyz", "efgh"),
            "all questions of .* missing documents: .* no document 'wiki_w' among 8",
        ),
    ):
        setting = STUDY.setting("smoke", corpora=corpora)
        with pytest.raises((DataError, ValueError), match=message):
            conduct(STUDY, setting, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_missing_articles_are_told(tmp_path: Path) -> None:
    places = erasers_files(tmp_path, train="aabbccddxx", test="eefghx")
    setting = STUDY.setting("smoke", seeds=1, corpora=places, changes={"held": 2, "rates": (1e-3,)})
    outcome = do(STUDY, setting, run_name(OURS, 0), tmp_path / "run")
    assert outcome["left_out"] == {"train": 2, "test": 1} and outcome["questions"] == 6
    notes = boolq.report(setting, {run_name(OURS, 0): outcome}).notes
    assert "Questions whose articles are missing were left out: 2 of train and 1 of test." in notes


# --- the study -------------------------------------------------------------------------------------


def test_variants_answer_yes_or_no() -> None:
    sizes = STUDY.setting("smoke").sizes
    models = {name: build(sizes, TASK.kinds, name, 0)[0] for name in variants(sizes)}
    base = models[DISJOINT].state_dict()
    for name, model in models.items():
        assert model.spans is None and model.kinds == ("yes", "no") and model.reader.backbone.num_labels == 2
        state = model.state_dict()
        assert all(torch.equal(state[key], base[key]) for key in base), name


def test_smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run(f"study boolq --scale smoke --seeds 1 --out {tmp_path}")
    for row in (f"{TRIVIAL} |  | 0.6", "disjoint windows | 0.00", "constant | 0.00", "recurrent, swapped |  | "):
        assert f"| {row}" in said
    assert "So small a scale says nothing" in said and "paper, F1" not in said and "Ended with NaN" not in said
    place = tmp_path / "smoke"
    assert (place / "boolq" / "accuracy_and_loss.svg").is_file()
    saved = json.loads((place / "boolq" / "results.json").read_text())
    outcomes = saved["outcomes"]
    assert saved["runs"] == "8 of 8 have ended" and len(saved["claims"]) == 7
    assert outcomes[run_name(OURS, 0)]["settings"]["longest"] == 40
    assert set(outcomes[run_name(OURS, 0)]["read"]) == {"true", "swapped"}
    assert set(outcomes[run_name(CONSTANT, 0)]["read"]) == {"true"}
    # The answers come to what the outcome says.
    folder = place / "runs" / run_name(OURS, 0)
    answers = json.loads((folder / "answers.json").read_text())["answer"]
    questions = boolq.read(STUDY.setting("smoke")).test.questions[:18]
    right = [answers[question.id] == question.answer for question in questions]
    scores = outcomes[folder.name]["read"]["true"]
    assert scores["accuracy"] == pytest.approx(100 * sum(right) / 18)
    yes = sum(question.answer == "yes" for question in questions)
    assert scores["majority"] == pytest.approx(100 * max(yes, 18 - yes) / 18)
    model = WindowRecurrentForSequenceClassification.from_pretrained(folder / MODEL)
    assert model.backbone.config.num_labels == 2 and not (folder / MODEL / "spans.safetensors").exists()
    monkeypatch.setattr("onward_studies.engine.conducting._do", None)
    again = run(f"study boolq --scale smoke --seeds 1 --out {tmp_path}")
    assert again.startswith("# Yes or no") and said.endswith(again), "nothing is left to do"


def scores_of(accuracy: float) -> dict[str, Any]:
    by_kind = {"yes": {"accuracy": accuracy + 9, "questions": 3}, "no": {"accuracy": 7.0, "questions": 1}}
    loss = 1 - accuracy / 100
    return {"accuracy": accuracy, "majority": 38.0, "by_kind": by_kind, "loss": loss, "majority_loss": 0.66}


def test_what_scores_come_to() -> None:
    setting = STUDY.setting("laptop", seeds=2)
    numbers = {f"{PAPERS} true": 39.0, f"{OURS} true": 42.0, f"{OURS} swapped": 42.0, f"{CONSTANT} true": 41.5}
    outcomes = made_up(TASK, setting, numbers, scores_of)
    found = boolq.report(setting, outcomes)
    table = found.markdown()
    assert f"| {TRIVIAL} |  | 0.660 | 38.00 |  |" in table
    assert "| disjoint windows | 0.0001 | 0.595 ± 0.064 | 40.50 ± 6.35 |  |" in table
    assert "| recurrent, the paper's | 0.0001 | 0.605 ± 0.064 | 39.50 ± 6.35 | -1.00 ± 0.00 |" in table
    assert "| recurrent, swapped |  | 0.575 ± 0.064 | 42.50 ± 6.35 | 2.00 ± 0.00 |" in table
    assert "### Accuracy by kind of answer" in table and "| recurrent | 51.50 ± 6.35 | 7.00 ± 0.00 |" in table
    assert [(claim.verdict, claim.we_saw) for claim in found.claims] == [
        (UNSEEN, "2.50 ± 6.35 points better"),
        (FAILS, "-1.00 ± 0.00 points better"),
        (HOLDS, "2.00 ± 0.00 points better"),
        (HOLDS, "0.50 ± 0.00 points better"),
        (UNSEEN, "0.00 ± 0.00 points better"),
        (HOLDS, "0.0200 ± 0.0000 nats better"),
        (UNSEEN, "0.0000 ± 0.0000 nats better"),
    ]
    assert {claim.paper_saw for claim in found.claims} == {"not tested"}
    assert any("hub:google/boolq has passages" in note for note in found.notes)
    of_files = STUDY.setting("laptop", corpora={"train": "a.jsonl", "test": "b.jsonl", "documents": "c.jsonl"})
    assert not any("passages" in note for note in boolq.report(of_files, outcomes).notes)
    assert "Too little" in boolq.report(setting, {}).summary and not boolq.report(setting, {}).tables


def test_a_line_is_where_the_commoner_answer_is() -> None:
    setting = STUDY.setting("laptop", seeds=2)
    figure = boolq.report(setting, made_up(TASK, setting, {}, scores_of)).figures["accuracy_and_loss"]
    dotted = [[line.get_xdata()[0] for line in panel.lines if line.get_linestyle() == ":"] for panel in figure.axes]
    assert dotted == [[38.0], [0.66]]


def test_a_plan_without_a_span_head() -> None:
    setting = STUDY.setting("paper", seeds=1)
    plans = {run.name: run.plan() for run in STUDY.runs(setting) if run.plan is not None}
    assert list(plans) == [run_name(name, 0) for name in variants(setting.sizes)]
    plain = plans[run_name(DISJOINT, 0)]
    assert plain.parameters == 124_055_040 + (768 * 768 + 768) + (2 * 768 + 2)
    assert plain.tokens == 4 * 9000 * (140 + 12)
    articles = {"train": "train.jsonl", "test": "test.jsonl", "documents": "docs"}
    of_articles = [run.plan for run in STUDY.runs(STUDY.setting("paper", seeds=1, corpora=articles))][0]
    assert of_articles is not None and of_articles().tokens is None
    assert of_articles().kept == 31 * plain.kept / 2, "3,500 tokens are 31 windows, and a passage is 2"
