"""Questions over several paragraphs: every form they come in, distractors, and tokens that give answers back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from transformers import RobertaTokenizer

from onward.data import Document
from onward.data.questions import (
    Loaded,
    Question,
    encode_questions,
    load_questions,
    load_texts,
    question_of,
    read_questions,
    with_distractors,
)
from onward.data.vocabularies import byte_tokenizer, train_vocabulary
from onward.finetuning import DataError
from onward.models import pretrained

HOTPOT: dict[str, Any] = {
    "_id": "5a8b",
    "question": "Who wrote the play about a Moor? ",
    "answer": "William Shakespeare",
    "type": "bridge",
    "context": [
        ["Moors", ["Moors were not William Shakespeare."]],
        ["Othello", ["Othello is a Moor.", " William Shakespeare wrote of him."]],
        ["Empty", []],
        ["Globe", ["The Globe was a theatre."]],
    ],
    "supporting_facts": [["Othello", 0], ["Globe", 0]],
}
LINE: dict[str, Any] = {
    "question_id": "77",
    "question_text": "Is the sea long?",
    "answers_objects": [{"number": "", "spans": ["yes"]}],
    "contexts": [
        {"title": "A", "paragraph_text": "The sea is wide.", "is_supporting": False},
        {"title": "B", "paragraph_text": "The sea is long.", "is_supporting": True},
    ],
}
FLAT: dict[str, Any] = {
    "context": "Rain falls in July and June.",
    "question": "When does it fall?",
    "answer": "July and June",
}
ABOUT_PASSAGE: dict[str, Any] = {"question": "is the sea long", "passage": "The sea is long.", "answer": True}
ABOUT_ARTICLE: dict[str, Any] = {
    "annotation_id": 9180,
    "query": "is the sea wide",
    "classification": "False",
    "docids": ["wiki_12"],
    "evidences": [[{"docid": "wiki_12", "start_token": 0, "end_token": 4, "text": "The sea is long"}]],
    "query_type": None,
}
TEXTS = {"wiki_12": "The sea is long.\nIt is deep .", "wiki_13": "Land ."}
FROM_HOTPOT = Question(
    "5a8b",
    "Who wrote the play about a Moor?",
    (
        "Moors were not William Shakespeare.",
        "Othello is a Moor. William Shakespeare wrote of him.",
        "The Globe was a theatre.",
    ),
    "William Shakespeare",
    (1, 2),
)


def saved(folder: Path, content: Any, name: str = "questions.json") -> Path:
    lines = content if name.endswith("jsonl") else [content]
    (folder / name).write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return folder / name


# --- reading ---------------------------------------------------------------------------------------


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

    monkeypatch.setattr(pretrained, "hub_is_reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_questions("hub:hotpotqa/hotpot_qa:distractor", "validation") == [FROM_HOTPOT]
    assert load_questions("hub:rajpurkar/squad", "validation")[0].answer == "June"
    (about_passage,) = load_questions("hub:google/boolq", "validation")
    assert about_passage == Question("row 0", "is the sea long", ("The sea is long.",), "yes")
    assert asked == [("hotpotqa/hotpot_qa", "distractor"), ("rajpurkar/squad", None), ("google/boolq", None)]
    with pytest.raises(DataError, match="has no split 'train', only validation"):
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
    with pytest.raises(DataError, match="none of the documents .*: .*, line 1: there is no document 'wiki_12' among 1"):
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
        (LINE | {"answers_objects": []}, r"'answers_objects' is \[\], whose first has no 'spans'"),
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
    for place, message in (("bad.txt", "from .json and .jsonl, not from '.txt'"), ("none.json", "there is no file")):
        with pytest.raises(DataError, match=message):
            load_questions(tmp_path / place)


def test_whole_words_come_first() -> None:
    question = Question("1", "q", ("The start.", "An artist made art."), "art")
    start, end = question.answer_in_context() or (0, 0)
    assert question.context[:start].endswith("An artist made ") and question.context[start:end] == "art"
    assert Question("1", "q", ("The start.",), "art").answer_in_context() == (6, 9), "rather than none"
    assert Question("1", "q", ("The art.", "x"), "art", (1,)).answer_in_context() is None


# --- distractors -----------------------------------------------------------------------------------


def singles(count: int) -> list[Question]:
    return [Question(str(n), f"what is {n}?", (f"It is number {n} .",), f"number {n}", (0,)) for n in range(count)]


def test_distractors() -> None:
    questions = singles(9)
    found = with_distractors(questions, 4, seed=0)
    places = set()
    for before, after in zip(questions, found, strict=True):
        assert len(set(after.paragraphs)) == 5 and set(before.paragraphs) < set(after.paragraphs)
        assert after.supporting is not None and after.paragraphs[after.supporting[0]] == before.paragraphs[0]
        places.add(after.supporting[0])
    assert len(places) > 1, "the order is random"
    assert with_distractors(questions[::-1], 4, seed=0)[::-1] == found, "whatever the order of the others is"
    assert with_distractors(questions, 4, seed=1) != found
    assert with_distractors(questions, 0, seed=0) == questions
    unknown = with_distractors([Question("u", "q", ("one", "two"), "one"), *questions], 2, seed=0)[0]
    assert unknown.supporting is None and {"one", "two"} < set(unknown.paragraphs)


def test_distractors_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="can have 2 paragraphs of other questions, not 3: use fewer"):
        with_distractors(singles(3), 3, seed=0)
    with pytest.raises(ValueError, match="count=-1"):
        with_distractors(singles(3), -1, seed=0)


# --- encoding --------------------------------------------------------------------------------------


def wordpieces() -> Any:
    texts = [Document("t", f"{q.question} {q.context}") for q in [*singles(30), FROM_HOTPOT]]
    return train_vocabulary(texts, 300, "wordpiece")


def test_tokens_give_answers_back() -> None:
    tokenizer = wordpieces()
    no_spaces = Question("n", "what is it?", ("It (number 3) is it.",), "number 3")
    # More than the tokenizer takes at once.
    questions = [*with_distractors(singles(120), 3, seed=0), FROM_HOTPOT, no_spaces]
    found = encode_questions(questions, tokenizer)
    assert [encoded.question for encoded in found] == questions
    for encoded in found:
        assert encoded.answer is not None
        assert encoded.text_of(*encoded.answer) == encoded.question.answer
        start, end = encoded.answer
        tokens = tokenizer.decode(encoded.input_ids[start : end + 1])
        assert tokens == encoded.question.answer.lower()
        ids = encoded.input_ids.tolist()
        assert ids[0] == tokenizer.cls_token_id and ids[encoded.prefix - 1] == tokenizer.sep_token_id
        assert ids[: encoded.prefix] == tokenizer(encoded.question.question)["input_ids"]
        assert ids[encoded.prefix :] == tokenizer(encoded.question.context, add_special_tokens=False)["input_ids"]
        assert encoded.token_type_ids is not None
        assert encoded.token_type_ids.tolist() == [0] * encoded.prefix + [1] * (len(encoded) - encoded.prefix)
        assert encoded.input_ids.dtype == np.int32 and len(encoded.characters) == len(encoded) - encoded.prefix


def test_byte_pairs() -> None:
    """As RoBERTa has them: no token types, and spaces inside of tokens."""
    letters = byte_tokenizer().get_vocab()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokens = [*special, *(letter for letter in letters if letter != "<end>"), "Ġn", "um"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = RobertaTokenizer(vocab=vocabulary, merges=[("Ġ", "n"), ("u", "m")])
    for encoded in encode_questions(with_distractors(singles(5), 2, seed=0), tokenizer):
        assert encoded.token_type_ids is None and encoded.answer is not None
        assert encoded.text_of(*encoded.answer) == encoded.question.answer
        assert encoded.input_ids[encoded.answer[0]] == vocabulary["Ġn"]


def test_long_questions_are_cut_and_answers_may_be_missing() -> None:
    tokenizer = wordpieces()
    question = Question("1", "what is what is what is", ("It is number 3 .",), "no")
    missing = Question("2", "what", ("It is number 3 .",), "number 4")
    cut, none = encode_questions([question, missing], tokenizer, longest_question=3)
    assert cut.prefix == 5 and cut.input_ids[4] == tokenizer.sep_token_id
    assert cut.answer is None and none.answer is None


def test_long_contexts_are_cut() -> None:
    tokenizer = wordpieces()
    questions = [Question("1", "what is 7?", ("It is number 7 .", "It is number 8 ."), right) for right in ("7", "8")]
    whole = encode_questions(questions, tokenizer)
    room = len(whole[0]) - whole[0].prefix - 3
    for before, after in zip(whole, encode_questions(questions, tokenizer, longest_context=room), strict=True):
        assert len(after) == len(before) - 3 and after.prefix == before.prefix
        assert after.input_ids.tolist() == before.input_ids[:-3].tolist()
        assert after.characters.tolist() == before.characters[:-3].tolist()
        assert after.token_type_ids is not None and len(after.token_type_ids) == len(after)
    first, second = encode_questions(questions, tokenizer, longest_context=room)
    assert first.answer == whole[0].answer and first.text_of(*first.answer) == "7"
    assert whole[1].answer is not None and second.answer is None, "it was cut off"
    assert encode_questions(questions, tokenizer)[0].input_ids.tolist() == whole[0].input_ids.tolist()


def test_tokenizers_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="has no tokens that begin a text and separate two"):
        encode_questions(singles(1), byte_tokenizer())

    class Slow:
        is_fast = False

    with pytest.raises(ValueError, match="Slow does not tell which characters .* use a fast tokenizer"):
        encode_questions(singles(1), Slow())  # type: ignore[arg-type]
    with pytest.raises(DataError, match="question '1': its paragraphs have no token"):
        encode_questions([Question("1", "q", ("\u200b",), "a")], wordpieces())
