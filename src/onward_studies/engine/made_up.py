"""Small tasks for the smoke scale, which needs no network: enough to run everything, too easy to show anything."""

from __future__ import annotations

import random
from pathlib import Path

from onward.data.questions import NO, YES, Question
from onward.utils.files import make_folder, write_text

WORDS = ("the", "a", "king", "queen", "lord", "sea", "ship", "night", "old", "long", "was", "is", "went", "to", "in")
GOOD, BAD = ("good", "sweet", "noble"), ("bad", "foul", "false")


def made_up_glue(folder: Path, train: int = 64, held: int = 32) -> Path:
    """GLUE's files for sst2 (one word of a sentence decides) and rte (is the second sentence in the first?)."""
    draw = random.Random(0)
    for task, head, line in (
        ("sst2", "sentence\tlabel", _sentiment),
        ("rte", "index\tsentence1\tsentence2\tlabel", _entailment),
    ):
        make_folder(folder / task)
        for split, count in (("train", train), ("dev", held)):
            lines = [head, *(line(draw, number) for number in range(count))]
            write_text(folder / task / f"{split}.tsv", "\n".join(lines) + "\n")  # another process may be loading it
    return folder


def _sentiment(draw: random.Random, number: int) -> str:
    words = draw.choices(WORDS, k=draw.randint(2, 7))
    words.insert(draw.randint(0, len(words)), draw.choice(GOOD if number % 2 else BAD))
    return f"{' '.join(words)}\t{number % 2}"


def _entailment(draw: random.Random, number: int) -> str:
    words = draw.choices(WORDS, k=6)
    second = words[2:5] if number % 2 else draw.choices(GOOD + BAD, k=3)
    return f"{number}\t{' '.join(words)}\t{' '.join(second)}\t{'entailment' if number % 2 else 'not_entailment'}"


PLACES, NAMES = ("athens", "rome", "troy", "venice", "verona", "egypt"), ("cassio", "duncan", "viola", "portia")


def made_up_questions(count: int, seed: int, paragraphs: int = 4, yes_or_no_every: int = 3) -> list[Question]:
    """Who rules a place, or whether its ruler is good. Each paragraph is about another place."""
    draw = random.Random(seed)
    return [
        _made_up_question(draw, f"{seed}-{number}", number % yes_or_no_every == 0, paragraphs)
        for number in range(count)
    ]


def _made_up_question(draw: random.Random, name: str, yes_or_no: bool, paragraphs: int) -> Question:
    places = draw.sample(PLACES, paragraphs)
    rulers = [draw.choice(NAMES) for _ in places]
    good = [draw.random() < 0.5 for _ in places]
    words = [draw.choice(GOOD if is_good else BAD) for is_good in good]
    texts = tuple(
        f"{' '.join(draw.choices(WORDS, k=6))} in {place} {ruler} is lord , a {word} lord ."
        for place, ruler, word in zip(places, rulers, words, strict=True)
    )
    about = draw.randrange(paragraphs)
    if yes_or_no:
        answer = YES if good[about] else NO
        return Question(name, f"is the lord in {places[about]} good ?", texts, answer, (about,))
    return Question(name, f"who is lord in {places[about]} ?", texts, rulers[about], (about,))
