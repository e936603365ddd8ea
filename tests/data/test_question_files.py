"""Questions in every form that they come in, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from changed_records import changed
from question_forms import ABOUT_ARTICLE, ABOUT_PASSAGE, FLAT, FROM_HOTPOT, HOTPOT, LINE, TEXTS, saved

from onward.data import DataError
from onward.data.question_files import find_answer
from onward.data.questions import Loaded, Question, load_questions, load_texts, question_of, read_questions
from onward.finetuning.data import read
from onward.finetuning.tasks import task_of


def test_hotpotqas_own_form(tmp_path: Path) -> None:
    found = load_questions(saved(tmp_path, [HOTPOT]))
    assert found == [FROM_HOTPOT] and found[0].kind == "span"
    start, end = found[0].answer_in_context() or (0, 0)
    before = FROM_HOTPOT.paragraphs[0] + " Othello is a Moor. "
    assert start == len(before), "not in the paragraph that supports nothing"
    assert found[0].context[start:end] == "William Shakespeare"


def test_lines_with_contexts(tmp_path: Path) -> None:
    found = load_questions(saved(tmp_path, [LINE, LINE | {"question_id": "78"}], "dev.jsonl"))
    assert found[0] == Question("77", "Is the sea long?", ("The sea is wide.", "The sea is long."), "yes", (1,))
    assert found[1].id == "78" and found[0].kind == "yes" and found[0].answer_in_context() is None


def test_one_context(tmp_path: Path) -> None:
    (found,) = load_questions(saved(tmp_path, [FLAT]))
    assert found == Question("question 1", "When does it fall?", (FLAT["context"],), "July and June", (0,))
    of_squad = {"id": "q9", "question": "When?", "answers": [{"text": "July", "answer_start": 14}, {"text": "x"}]}
    nested = {"data": [{"title": "t", "paragraphs": [{"context": FLAT["context"], "qas": [of_squad]}]}]}
    (found,) = load_questions(saved(tmp_path, nested))
    assert (found.id, found.answer, found.paragraphs) == ("q9", "July", (FLAT["context"],))


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hotpot = {name: value for name, value in HOTPOT.items() if name != "_id"} | {
        "id": "5a8b",
        "context": {"title": [t for t, _ in HOTPOT["context"]], "sentences": [s for _, s in HOTPOT["context"]]},
        "supporting_facts": {"title": ["Othello", "Globe"], "sent_id": [0, 0]},
    }
    squad = FLAT | {"id": "s", "answers": {"text": ["June"], "answer_start": [23]}}
    rows = {"hotpotqa/hotpot_qa": hotpot, "rajpurkar/squad": squad, "google/boolq": ABOUT_PASSAGE}
    asked = []

    def load_dataset(name: str, config: str | None = None) -> dict[str, Any]:
        name = name.removeprefix("hf://datasets/")
        asked.append((name, config))
        return {"validation": datasets.Dataset.from_list([rows[name]])}

    monkeypatch.setattr("onward.utils.hub.hub_is_reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_questions("hub:hotpotqa/hotpot_qa:distractor", "validation") == [FROM_HOTPOT]
    assert load_questions("hub:rajpurkar/squad", "validation")[0].answer == "June"
    (about_passage,) = load_questions("hub:google/boolq", "validation")
    assert about_passage == Question("row 0", "is the sea long", ("The sea is long.",), "yes")
    assert asked == [("hotpotqa/hotpot_qa", "distractor"), ("rajpurkar/squad", None), ("google/boolq", None)]
    with pytest.raises(DataError, match="split='train': the data set 'rajpurkar/squad' has only validation"):
        load_questions("hub:rajpurkar/squad")
    with pytest.raises(DataError, match="'hub:' needs the name"):
        load_questions("hub:")


def test_yes_or_no_about_a_passage(tmp_path: Path) -> None:
    found = load_questions(saved(tmp_path, [ABOUT_PASSAGE, ABOUT_PASSAGE | {"answer": False}], "boolq.jsonl"))
    assert found[0] == Question("line 1", "is the sea long", ("The sea is long.",), "yes")
    assert found[1].answer == found[1].kind == "no" and found[1].answer_in_context() is None


def test_yes_or_no_about_documents(tmp_path: Path) -> None:
    rows = [
        ABOUT_ARTICLE,
        ABOUT_ARTICLE | {"annotation_id": 1, "classification": "True", "docids": ["wiki_13", "wiki_12"]},
        ABOUT_ARTICLE | {"docids": ["wiki_14"]},
        ABOUT_ARTICLE | {"docids": ["wiki_12", "wiki_15"]},
    ]
    place = saved(tmp_path, rows, "val.jsonl")
    found = read_questions(place, documents=TEXTS)
    first = Question("9180", "is the sea wide", (TEXTS["wiki_12"],), "no")
    second = Question("1", "is the sea wide", (TEXTS["wiki_13"], TEXTS["wiki_12"]), "yes")
    assert found == Loaded([first, second], left_out=2)
    with pytest.raises(DataError, match=r"line 1: it asks about \[\"wiki_12\"\], and no documents are given"):
        load_questions(place)
    with pytest.raises(
        DataError,
        match="all questions of .* are about missing documents: .*, line 1: there is no document 'wiki_12' among 1",
    ):
        read_questions(place, documents={"sea": "wide"})


def test_documents_by_name(tmp_path: Path) -> None:
    lines = [{"title": name, "text": text} for name, text in TEXTS.items()]
    assert load_texts(saved(tmp_path, lines, "articles.jsonl")) == TEXTS
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "wiki_12").write_text(TEXTS["wiki_12"])  # as ERASER has them
    (folder / "wiki_13.txt").write_text(TEXTS["wiki_13"])
    assert load_texts(folder) == TEXTS


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"question": "q"}, r"neither 'context' nor 'contexts' \(it has 'question'\): give HotpotQA's form"),
        (HOTPOT | {"answer": None}, "'answer' is null, not text: correct it, or remove the question"),
        (HOTPOT | {"question": " "}, "'question' is \" \", not text"),
        (HOTPOT | {"context": [["only a title"]]}, r"'context' is \[\[\"only a title\"\]\], not a list of \[title"),
        (HOTPOT | {"context": {"title": ["a"], "sentences": []}}, "'context' is .*, not a list"),
        (HOTPOT | {"context": [["t", [" "]]]}, "no paragraph has text in it: remove the question"),
        (HOTPOT | {"supporting_facts": [3]}, r"'supporting_facts' is \[3\], not a list of \[title, sentence\]"),
        (LINE | {"contexts": [{"text": "t"}]}, "'contexts' is .*, not a list of objects with 'paragraph_text'"),
        (LINE | {"contexts": [{"paragraph_text": 3}]}, "'contexts' is .*, not a list of objects"),
        (LINE | {"answers_objects": []}, r"'answers_objects' is \[\], not a list of objects with 'spans'"),
        (FLAT | {"answer": ""}, "'answer' is \"\", not text"),
        (FLAT | {"answers": []}, "'answer' is .*, not text"),
        (ABOUT_PASSAGE | {"answer": "yes"}, "'answer' is \"yes\", not true or false: correct it, or remove"),
        (ABOUT_PASSAGE | {"answer": 1}, "'answer' is 1, not true or false"),
        (ABOUT_PASSAGE | {"passage": " "}, "'passage' is \" \", not text"),
        (ABOUT_ARTICLE | {"classification": "POS"}, "'classification' is \"POS\", not true or false"),
        (ABOUT_ARTICLE | {"docids": None}, "'docids' is null, not a list of names of documents: correct it"),
        (ABOUT_ARTICLE | {"docids": []}, r"'docids' is \[\], not a list of names"),
        (ABOUT_ARTICLE | {"query": None}, "'query' is null, not text"),
    ],
)
def test_what_is_wrong_is_said(record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        question_of(record, "here", TEXTS)


def test_bad_files(tmp_path: Path) -> None:
    for content, message in (
        ("[1]", "question 1: a int, not a JSON object"),
        ("[]", "holds no questions"),
        ("{", "not valid JSON"),
        ('{"questions": []}', "neither SQuAD's form .* nor a list of questions"),
    ):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(DataError, match=message):
            load_questions(tmp_path / "bad.json")
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{')
    with pytest.raises(DataError, match="line 1: neither 'context' nor"):
        load_questions(tmp_path / "bad.jsonl")
    (tmp_path / "bad.txt").write_text("x")
    for place, message in (
        ("bad.txt", "from .json, .jsonl and .parquet, not from '.txt'"),
        ("none.json", "there is no file"),
    ):
        with pytest.raises(DataError, match=message):
            load_questions(tmp_path / place)


# --- anything in any place

SQUAD = {"data": [{"paragraphs": [{"context": "Rain in June.", "qas": [{"id": "1", "question": "When?"}]}]}]}
SQUAD["data"][0]["paragraphs"][0]["qas"][0]["answers"] = [{"text": "June", "answer_start": 8}]  # type: ignore[index]
ON_THE_HUB = FLAT | {"id": "s", "answers": {"text": ["June"], "answer_start": [23]}}
FORMS = {
    "hotpot": HOTPOT,
    "contexts": LINE,
    "flat": FLAT,
    "passage": ABOUT_PASSAGE,
    "article": ABOUT_ARTICLE,
    "hub": ON_THE_HUB,
}


@pytest.mark.parametrize("form", FORMS)
def test_questions(tmp_path: Path, form: str) -> None:
    file = tmp_path / "questions.jsonl"
    for record in changed(FORMS[form]):
        file.write_text(json.dumps(record))
        try:
            read_questions(file, documents=TEXTS)
        except DataError as error:
            assert str(file) in str(error)


def test_squad(tmp_path: Path) -> None:
    for name, content in (("train.json", SQUAD), ("train.json", [ON_THE_HUB, FLAT]), ("train.jsonl", ON_THE_HUB)):
        file = tmp_path / name
        for record in changed(content):
            file.write_text(json.dumps(record))
            for task in ("squad", "squad_v2"):
                try:
                    read(task_of(task), file)
                except DataError as error:
                    assert str(file) in str(error)


# --- where an answer stands


def test_an_answer_is_looked_for_as_a_whole_word_first() -> None:
    assert find_answer("winter in rome", "in") == 7
    assert find_answer("winter", "in") == 1
    assert find_answer("rome, rome", "rome", 6) == 6, "where it is said to be"
    assert find_answer("rome, rome", "rome", 5) == 0, "or not, if it is not there"
    assert find_answer("rome", "oslo") is None
