"""Far questions: texts have their length, facts stand where they should, and who reads the text knows the answer."""

from __future__ import annotations

import random
import re

import pytest

from onward.data import byte_tokenizer
from onward.tasks import TASKS, FarQuestion, Haystack, Hidden, far_question
from onward.tasks.haystack import LONGEST, sentences_of
from onward.utils.fields import FieldError

WORDS = "the old house by the river had no lights that night and nobody came to the door"
STORY = " ".join(" ".join(WORDS.split()[: 3 + n % 13]).capitalize() + f" {n}." for n in range(300))
LONGEST_SENTENCE = 90  # tokens of bytes


@pytest.fixture(scope="module")
def haystack() -> Haystack:
    return Haystack([STORY], byte_tokenizer())


def length_of(text: str) -> int:
    return len(byte_tokenizer()(text, add_special_tokens=False).input_ids)


# -- texts


@pytest.mark.parametrize("tokens", [1_500, 8_000, 100_000])
@pytest.mark.parametrize("name", TASKS)
def test_texts_have_their_length_and_hold_every_fact_in_its_place(haystack: Haystack, name: str, tokens: int) -> None:
    question = far_question(name, haystack, tokens, seed=tokens)
    assert tokens - LONGEST_SENTENCE <= question.tokens <= tokens
    assert abs(length_of(question.text) - question.tokens) <= 1  # no space before the first sentence
    assert list(question.places) == sorted(question.places)
    for place, fact in zip(question.places, question.hidden.facts, strict=True):
        assert question.text[max(0, place - 1) :].lstrip().startswith(fact)
        assert question.text.count(fact) >= 1


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("name", TASKS)
def test_the_first_fact_that_is_needed_stands_at_its_depth(haystack: Haystack, name: str, depth: float) -> None:
    question = far_question(name, haystack, 20_000, depth=depth, seed=3)
    facts = sum(map(length_of, question.hidden.facts))
    assert abs(question.depth - depth) * 20_000 <= facts + LONGEST_SENTENCE
    needed = question.hidden.needed
    assert all(place <= question.places[needed] for place in question.places[:needed])


def test_facts_stand_between_sentences(haystack: Haystack) -> None:
    text = far_question("needles-values", haystack, 3_000, seed=1).text
    assert all(re.fullmatch(r"(One of the secret numbers for \w+ is \d+|[A-Z].* \d+)\.", s) for s in sentences_of(text))


def test_a_text_that_is_too_short_begins_again(haystack: Haystack) -> None:
    assert far_question("passkey", haystack, 3 * length_of(STORY), seed=0).text.count(" 17. ") >= 2


def test_sentences_are_short_even_where_a_text_has_none() -> None:
    assert sentences_of('He came.  "Who?" she asked!\n\nNobody') == ["He came.", '"Who?', "she asked!", "Nobody"]
    found = sentences_of("chapter " * 1_000 + "x" * 2_500)
    assert max(map(len, found)) <= LONGEST and "".join(found).count("x") == 2_500
    with pytest.raises(ValueError, match="without a sentence"):
        Haystack(["  "], byte_tokenizer())


# -- the same question always, and many different ones


def test_the_same_arguments_give_the_same_question(haystack: Haystack) -> None:
    once, again = (far_question("two-facts", haystack, 5_000, depth=0.5, seed=7) for _ in range(2))
    assert once == again
    others = {far_question("two-facts", haystack, 5_000, depth=0.5, seed=seed).text for seed in range(20)}
    assert len(others) == 20
    assert far_question("passkey", haystack, 5_000, seed=0).answers == ("23635",), "as in results that people have"


@pytest.mark.parametrize("name", TASKS)
def test_answers_differ_from_seed_to_seed(haystack: Haystack, name: str) -> None:
    answers = [far_question(name, haystack, 1_500, seed=seed).answers for seed in range(60)]
    most = max(answers.count(answer) for answer in answers)
    assert most <= (20 if "fact" in name else 1), "no answer is a good guess"


# -- who reads the text knows the answer


def solved(text: str, question: str) -> set[str] | None:
    """The answers, read off the text alone, in another way than the tasks make them; None if it does not tell."""
    if "pass key" in question:
        return set(re.findall(r"The pass key is (\d+)", text)) or None
    if key := re.search(r"Which secret numbers? for (\w+) (?:is|are)", question):
        return set(re.findall(rf"secret numbers for {key[1]} is (\d+)", text)) or None
    if value := re.search(r"have the value (\d+)", question):
        values: dict[str, str | None] = {}
        for name, given in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", text):
            values[name] = given if given.isdigit() else values.get(given)
        return {name for name, given in values.items() if given == value[1]} or None
    return _placed(text, question)


def _placed(text: str, question: str) -> set[str] | None:
    where: dict[str, list[str]] = {}
    holds: dict[str, str] = {}
    journeys: dict[str, list[str]] = {}
    for who, _, what in re.findall(r"([A-Z]\w+) (went to|walked to|hurried to|took|picked up) the (\w+)\.", text):
        if _ in ("took", "picked up"):
            holds[what] = who
            journeys[what] = where.get(who, [])[-1:]
        else:
            where.setdefault(who, []).append(what)
            for thing, holder in holds.items():
                if holder == who:
                    journeys[thing].append(what)
    if person := re.fullmatch(r"Where is ([A-Z]\w+)\?", question):
        return {where[person[1]][-1]} if person[1] in where else None
    if thing := re.fullmatch(r"Where is the (\w+)\?", question):
        return {journeys[thing[1]][-1]} if journeys.get(thing[1]) else None
    thing = re.fullmatch(r"Where was the (\w+) before it came to the (\w+)\?", question)
    assert thing is not None, question
    journey = journeys.get(thing[1], [])
    return {journey[journey.index(thing[2]) - 1]} if thing[2] in journey[1:] else None


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("name", TASKS)
def test_the_answer_is_in_the_text(haystack: Haystack, name: str, seed: int) -> None:
    question = far_question(name, haystack, 2_500, seed=seed)
    assert solved(question.text, question.question) == set(question.answers)
    assert not set(question.answers) & set(question.hidden.wrong)
    assert solved(haystack.sentences[0], question.question) is None


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("name", TASKS)
def test_nobody_knows_it_without_the_first_fact_that_is_needed(name: str, seed: int) -> None:
    hidden = TASKS[name](random.Random(seed))
    facts = list(hidden.facts)
    assert solved(" ".join(facts), hidden.question) == set(hidden.answers)
    assert solved(" ".join(facts[hidden.needed :]), hidden.question) == set(hidden.answers), (
        "facts before are not needed"
    )
    del facts[hidden.needed]
    assert solved(" ".join(facts), hidden.question) != set(hidden.answers)


# -- what counts as an answer


def question_with(answers: tuple[str, ...], wrong: tuple[str, ...] = ()) -> FarQuestion:
    return FarQuestion("any", 0, "text", 10, (0,), Hidden(("fact",), "What?", answers, wrong))


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("12345", 1),
        (" It is 12345.", 1),
        ("123456", 0),
        ("A12345", 0),
        ("", 0),
        ("12345, or else 99999", 0),
        ("12345\nWhat is 99999?", 1),  # base models go on with questions of their own
    ],
)
def test_scores_of_one_answer(answer: str, score: float) -> None:
    assert question_with(("12345",), wrong=("99999",)).score(answer) == score


def test_scores_of_several_answers() -> None:
    question = question_with(("ab1", "cd2", "ef3", "gh4"))
    assert question.score("AB1 and ef3") == 0.5
    assert question.score("ab1, cd2, ef3, gh4") == 1


@pytest.mark.parametrize("name", TASKS)
def test_prompts_end_where_the_answer_begins(haystack: Haystack, name: str) -> None:
    question = far_question(name, haystack, 1_500, seed=2)
    assert question.prompt.startswith(question.text) and question.prompt.endswith(question.hidden.lead)
    assert question.question in question.prompt and question.score(question.hidden.lead) == 0


# -- errors


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"name": "pass-key"}, "choose among passkey"),
        ({"tokens": 20}, "the facts of 'passkey' alone have"),
        ({"depth": 1.5}, "from 0, the beginning"),
    ],
)
def test_what_cannot_be_made_is_refused(haystack: Haystack, arguments: dict, problem: str) -> None:
    with pytest.raises(FieldError, match=problem):
        far_question(**{"name": "passkey", "haystack": haystack, "tokens": 2_000, **arguments})
