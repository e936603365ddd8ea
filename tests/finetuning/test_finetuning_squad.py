"""SQuAD: reading, windows over long contexts, and answers back at their characters."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_tasks import NAMES, PLACES, WORDS, tokenizer

from onward.finetuning import TASKS, DataError, FinetuningRecipe
from onward.finetuning.data import TaskData, read
from onward.finetuning.squad import Questions, features

SQUAD, SQUAD_2 = TASKS["squad"], TASKS["squad_v2"]


def example(context: str, answer: str | None, question: str = "Who went home?", number: int = 0) -> dict[str, Any]:
    answers = [] if answer is None else [{"text": answer, "start": context.index(answer)}]
    return {"id": str(number), "context": context, "question": question, "answers": answers}


def long_examples(count: int = 20) -> list[dict[str, Any]]:
    """Contexts of up to 60 words, with commas and capitals; answers of one to three words, anywhere."""
    draw = random.Random(1)
    made = []
    for number in range(count):
        words = [draw.choice([*WORDS, *NAMES, *PLACES]) for _ in range(draw.randint(4, 60))]
        words = [word.title() if draw.random() < 0.3 else word for word in words]
        first = draw.randrange(len(words) - 3)
        before, answer, after = words[:first], words[first : first + draw.randint(1, 3)], words[first + 3 :]
        context = ", ".join([*before, ""]) + " ".join(answer) + " . " + "  ".join(after)
        start = len(context) - len(" . " + "  ".join(after)) - len(" ".join(answer))
        answers = [{"text": " ".join(answer), "start": start}]
        made.append({"id": str(number), "context": context, "question": "Who was in Rome?", "answers": answers})
    return made


# --- windows


def test_every_answer_is_found_again_at_its_characters() -> None:
    rows = long_examples()
    found: dict[int, int] = {}
    windows = list(features(rows, tokenizer(), max_length=32, overlap=10))
    for window in windows:
        row = rows[window.question]
        answer = row["answers"][0]
        first, last = window.tokens_of(answer["start"], answer["start"] + len(answer["text"]))
        if first == window.no_answer:
            continue
        start, end = window.spans[first - window.first, 0], window.spans[last - window.first, 1]
        assert (start, row["context"][start:end]) == (answer["start"], answer["text"])
        found[window.question] = found.get(window.question, 0) + 1
    assert set(found) == set(range(len(rows))), "overlaps are longer than answers, so that each is whole somewhere"
    assert len(windows) > len(rows)


def test_an_answer_inside_of_a_word_is_that_word() -> None:
    (window,) = features([example("anna went home", "om")], tokenizer(), max_length=32, overlap=10)
    first, last = window.tokens_of(11, 13)
    assert first == last and window.spans[first - window.first].tolist() == [10, 14]


def test_windows_cover_the_context_and_share_the_overlap() -> None:
    row = max(long_examples(), key=lambda row: len(row["context"]))
    windows = list(features([row], tokenizer(), max_length=32, overlap=10))
    assert len(windows) > 2
    for before, after in zip(windows, windows[1:], strict=False):
        assert (before.spans[-10:] == after.spans[:10]).all()
    covered = {tuple(span) for window in windows for span in window.spans.tolist()}
    whole = tokenizer()(row["context"], add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert covered == set(whole)
    assert all(len(window.inputs["input_ids"]) <= 32 for window in windows)
    assert all(window.inputs["token_type_ids"][window.first] == 1 for window in windows)


def test_a_question_that_leaves_no_room() -> None:
    row = example("anna went home", "anna", "who was in the ship " * 5)
    with pytest.raises(ValueError, match="max_length=32: question '0' has 25 tokens, which leaves 4 for its context"):
        list(features([row], tokenizer(), max_length=32, overlap=10))


# --- answers


def questions(rows: list[dict[str, Any]], task: Any = SQUAD, **fields: Any) -> Questions:
    recipe = FinetuningRecipe(max_length=32, overlap=10, **fields).for_task(task)
    return Questions(task, TaskData(rows, {"validation": rows}), tokenizer(), recipe)


def logits_for_the_answers(prepared: Questions) -> tuple[np.ndarray, np.ndarray]:
    """As a model would give them that knows: the training targets, 5 above the rest."""
    longest = max(map(len, (row["input_ids"] for row in prepared.train.rows)))
    starts, ends = (np.zeros((len(prepared.train), longest)) for _ in range(2))
    for i, row in enumerate(prepared.train.rows):
        starts[i, row["start_positions"]] = ends[i, row["end_positions"]] = 5
    return starts, ends


def test_a_model_that_knows_is_right_everywhere() -> None:
    prepared = questions(long_examples())
    found = prepared.metrics({"validation": logits_for_the_answers(prepared)})
    assert found == {"exact_match": 1.0, "f1": 1.0}


def test_the_best_span_is_the_best_of_all_pairs() -> None:
    rows = long_examples(4)
    prepared = questions(rows, max_answer_length=4)
    rng = np.random.default_rng(0)
    starts, ends = rng.normal(size=(2, len(prepared.features), 32))
    for window, start, end in zip(prepared.features, starts, ends, strict=True):
        tokens = range(window.first, window.first + len(window.spans))
        pairs = [(start[i] + end[j], i, j) for i in tokens for j in tokens if i <= j < i + 4]
        score, i, j = max(pairs)
        characters = window.spans[i - window.first, 0], window.spans[j - window.first, 1]
        assert window.best_span(start, end, 4) == (pytest.approx(score), *characters)


def test_padding_and_question_are_never_the_answer() -> None:
    prepared = questions([example("anna went home", "home")])
    starts = ends = np.full((1, 32), -3.0)
    starts[0, :4] = starts[0, 12:] = 9.0
    assert prepared.answers(starts, ends)[0] in "anna went home"


def test_version_2_may_say_that_there_is_no_answer() -> None:
    rows = [example("anna went home", "home"), example("bert was in rome", None, number=1)]
    prepared = questions(rows, SQUAD_2)
    assert prepared.train.rows[1]["start_positions"] == prepared.train.rows[1]["end_positions"] == 0
    starts, ends = logits_for_the_answers(prepared)
    assert prepared.answers(starts, ends) == ["home", ""]
    assert prepared.metrics({"validation": (starts, ends)}) == {
        "exact_match": 1.0,
        "f1": 1.0,
        "answerable_f1": 1.0,
        "unanswerable_exact_match": 1.0,
    }
    assert prepared.trivial == 0.5, "half of the questions have no answer"
    starts[1, 0], starts[1, prepared.features[1].first] = 0, 6
    assert prepared.answers(starts, ends)[1] != ""


def test_no_answer_needs_every_window_to_say_so() -> None:
    row = long_examples()[0]
    prepared = questions([row | {"context": "the sea and the old ship " * 10, "answers": []}], SQUAD_2)
    assert len(prepared.features) > 1
    starts = np.zeros((len(prepared.features), 32))
    starts[:, 0] = 5
    assert prepared.answers(starts, starts) == [""]
    starts[1, 0], starts[1, prepared.features[1].first] = -5, 1  # one window has found something
    assert prepared.answers(starts, starts) != [""]


def test_without_a_model_the_whole_context_is_the_best_answer() -> None:
    prepared = questions([example("anna went home", "home")])
    assert prepared.trivial == pytest.approx(2 * (1 / 3) / (1 / 3 + 1))


# --- reading

CONTEXT = "In winter Anna was in Rome."


def own_form(version: str = "1.1") -> dict[str, Any]:
    qas = [
        {"id": "q1", "question": "Who?", "answers": [{"text": "Anna", "answer_start": 10}]},
        {"id": "q2", "question": "Where?", "answers": [{"text": " Rome", "answer_start": 21}]},
    ]
    if version == "2.0":
        impossible = {"id": "q3", "question": "Why?", "answers": [], "is_impossible": True}
        qas = [{**qa, "is_impossible": False} for qa in qas] + [impossible]
    return {"version": version, "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]}


READ = [
    {"id": "q1", "context": CONTEXT, "question": "Who?", "answers": [{"text": "Anna", "start": 10}]},
    {"id": "q2", "context": CONTEXT, "question": "Where?", "answers": [{"text": "Rome", "start": 22}]},
]


def test_squads_own_form(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}-v1.1.json").write_text(json.dumps(own_form()))
    assert read(SQUAD, tmp_path) == TaskData(READ, {"validation": READ})


def test_version_2_has_questions_without_an_answer(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}-v2.0.json").write_text(json.dumps(own_form("2.0")))
    found = read(SQUAD_2, tmp_path)
    assert found.train == [*READ, {"id": "q3", "context": CONTEXT, "question": "Why?", "answers": []}]
    (tmp_path / "train-v2.0.json").rename(tmp_path / "train.json")
    (tmp_path / "dev-v2.0.json").rename(tmp_path / "dev.json")
    with pytest.raises(DataError, match="question 'q3': no answer, which SQuAD 1.1 does not allow: .* squad_v2"):
        read(SQUAD, tmp_path)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_the_hubs_form(tmp_path: Path, ending: str) -> None:
    rows = [
        {**row, "title": "t", "answers": {"text": [answer["text"]], "answer_start": [answer["start"]]}}
        for row in READ
        for answer in row["answers"]
    ]
    for split in ("train", "validation"):
        if ending == "jsonl":
            (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{split}.parquet")
    assert read(SQUAD, tmp_path).train == READ


def test_a_flat_list_without_offsets(tmp_path: Path) -> None:
    """Contexts of the last tenth are held out; an answer that is not there is left out, and counted."""
    flat = [
        {"context": f"In winter Anna {i // 2} was in Rome.", "question": "Where?", "answer": "Rome"} for i in range(40)
    ]
    flat[3]["answer"] = "Paris"
    (tmp_path / "squad.json").write_text(json.dumps(flat))
    found = read(SQUAD, tmp_path / "squad.json")
    assert (len(found.train), len(found.evaluation["validation"]), found.dropped) == (35, 4, 1)
    contexts = [{row["context"] for row in rows} for rows in (found.train, found.evaluation["validation"])]
    assert not contexts[0] & contexts[1]
    row = found.train[0]
    start = row["answers"][0]["start"]
    assert row["context"][start : start + 4] == "Rome"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": [{"title": "t"}]}, r"squad.json: neither SQuAD's form .*'paragraphs'"),
        ([{"context": "a", "question": " ", "answer": "a"}], r"question 1: 'question' is \" \", not text"),
        ([{"context": "a", "question": "b"}], r"question 1: neither 'answers' nor 'answer'"),
        ([7], r"question 1: a int, not a JSON object"),
        ([{"context": "a", "question": "b", "answer": "c"}], r"squad.json: no examples of squad, 1 left out"),
    ],
)
def test_questions_that_cannot_be_read(tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / "squad.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        read(SQUAD, tmp_path / "squad.json")
