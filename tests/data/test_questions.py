"""Questions over several paragraphs: answers in contexts, distractors, and tokens that give answers back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from question_forms import FROM_HOTPOT
from transformers import RobertaTokenizer

from onward.data import DataError, Document
from onward.data.questions import Question, encode_questions, with_distractors
from onward.data.vocabularies import byte_tokenizer, train_vocabulary


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
