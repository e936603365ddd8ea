"""What studies of questions over many windows have in common: sizes, variants, and how questions are chosen."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from onward import WindowRecurrenceConfig
from onward.data.questions import EncodedQuestion, Loaded, Question, encode_questions, load_questions, with_distractors

from ..engine.made_up import made_up_questions
from ..engine.study import Setting, Work
from ..engine.training_runs import ORDER_SEED
from .scores import Answers

MADE_UP = "made-up"
DISJOINT, PAPERS, OURS, CONSTANT = "disjoint windows", "recurrent, the paper's", "recurrent", "constant"


@dataclass(frozen=True)
class Sizes:
    """Of the training questions, `distractors` paragraphs added to each, `held` are for validation and `questions`
    others are learned from; `tested`, so many of the test questions. Contexts are cut after `longest` tokens. `rates`
    are tried on `probe_questions`, for disjoint windows and for recurrence, and the best on validation are taken.
    `carrier_rate`: of the carrier, if it is not that of all. How many `rows` are in a step the paper does not tell."""

    encoder: str = "roberta-base"
    window: int = 512
    distractors: int = 0
    longest: int | None = None
    questions: int = 30_000
    held: int = 1000
    tested: int | None = None
    epochs: int = 4
    rows: int = 16
    rates: tuple[float, ...] = (2e-5,)
    carrier_rate: float | None = None
    probe_questions: int = 0
    warmup: float = 0.1
    checkpoint_every: int = 500
    checkpointing: bool = False


SMOKE = Sizes(
    encoder=MADE_UP,
    window=24,
    questions=60,
    held=12,
    tested=18,
    epochs=1,
    rows=6,
    rates=(1e-3, 3e-3),
    probe_questions=18,
    checkpoint_every=50,
)
LAPTOP = Sizes(
    encoder="minilm-l6",
    window=128,
    held=100,
    tested=500,
    epochs=1,
    rows=4,
    carrier_rate=1e-3,
    probe_questions=300,
    checkpoint_every=25,
)


def variants(sizes: Sizes) -> dict[str, WindowRecurrenceConfig]:
    ours = WindowRecurrenceConfig(window=sizes.window)
    return {
        DISJOINT: WindowRecurrenceConfig(carrier="none", window=sizes.window),
        CONSTANT: ours.with_carrier("constant"),
        PAPERS: WindowRecurrenceConfig.preset("encoder", window=sizes.window),
        OURS: ours,
    }


def carries(name: str) -> bool:
    return name in (PAPERS, OURS)


@dataclass(frozen=True)
class Given:
    """What there is to learn from and to be tested on."""

    train: Loaded
    test: Loaded


@dataclass(frozen=True)
class Task:
    """What is a study's own: its `name`, with which those of its runs begin; the `kinds` of answers; how its questions
    are `read`; and what answers come to, its `scores`. How many tokens a question and its context have, about, is for
    the time left and for plans, where the training questions are those of `planned_for`."""

    name: str
    kinds: tuple[str, ...]
    read: Callable[[Setting], Given]
    scores: Callable[[Answers], Any]
    question_tokens: int
    context_tokens: Callable[[Setting], int]
    planned_for: str

    def run_name(self, variant: str, seed: int) -> str:
        return f"{self.name}-{slug(variant)}-seed{seed}"

    def tokens(self, setting: Setting, questions: int) -> int:
        return questions * (self.context_tokens(setting) + self.question_tokens)

    def check(self, work: Work) -> None:
        """Questions that cannot be read are found before hours are spent."""
        chosen_questions(work.setting, self.read(work.setting).train.questions)


def slug(variant: str) -> str:
    return variant.replace(", the ", "-").replace("'s", "").replace(" ", "-")


# --- questions -------------------------------------------------------------------------------------


def questions_of(
    setting: Setting,
    name: str,
    load: Callable[[str, str], Loaded] = lambda place, split: Loaded(load_questions(place, split)),
    made_up: Callable[[int, int], list[Question]] = made_up_questions,
) -> Loaded:
    """Of the corpus "train" or "test"."""
    place, sizes = setting.corpora[name], setting.sizes
    if place == MADE_UP:
        return Loaded(made_up(sizes.questions + sizes.held, 0) if name == "train" else made_up(100, 1))
    return load(place, "train" if name == "train" else "validation")


def chosen_questions(setting: Setting, read: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """To learn from, and for validation: a random part, the same for every run. No paragraph is in both."""
    sizes: Sizes = setting.sizes
    shuffled = random.Random(ORDER_SEED).sample(read, len(read))
    held = shuffled[: sizes.held]
    train = not_about(held, shuffled[sizes.held :])
    if not train:
        place = setting.corpora["train"]
        raise ValueError(
            f"{place} has {len(read)} questions: held={sizes.held} of them leave none to learn from; hold fewer"
        )
    train = train[: sizes.questions]
    if sizes.distractors:
        train, held = (with_distractors(some, sizes.distractors, ORDER_SEED) for some in (train, held))
    return train, held


def questions_tested(sizes: Sizes, read: Sequence[Question]) -> list[Question]:
    """A random part, the same for every run: files may be sorted by the kind of question."""
    if sizes.tested is None or sizes.tested >= len(read):
        return list(read)
    return random.Random(ORDER_SEED).sample(read, sizes.tested)


def not_about(others: Sequence[Question], questions: Sequence[Question]) -> list[Question]:
    """Those of the questions that share no paragraph with the others."""
    theirs = {paragraph for question in others for paragraph in question.paragraphs}
    return [question for question in questions if theirs.isdisjoint(question.paragraphs)]


@dataclass(frozen=True)
class Prepared:
    """Encoded questions: to learn from, for validation, and to be scored on. `left_out` of the corpora are questions
    whose documents are not there."""

    train: list[EncodedQuestion]
    held: list[EncodedQuestion]
    test: list[EncodedQuestion]
    left_out: dict[str, int]


def prepare(task: Task, setting: Setting, tokenizer: PreTrainedTokenizerBase) -> Prepared:
    sizes: Sizes = setting.sizes
    encode = partial(
        encode_questions, tokenizer=tokenizer, longest_question=sizes.window // 2, longest_context=sizes.longest
    )
    given = task.read(setting)
    train, held = chosen_questions(setting, given.train.questions)
    left_out = {"train": given.train.left_out, "test": given.test.left_out}
    return Prepared(encode(train), encode(held), encode(questions_tested(sizes, given.test.questions)), left_out)
