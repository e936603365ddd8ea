"""What studies of questions over many windows share: sizes, variants, and how questions are chosen."""

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
from ..engine.sizes import CountOrZero, LearningRate, LearningRates, ShareOrZero, by_scale, scales_of
from ..engine.study import StudySetting
from ..engine.texts import ORDER_SEED
from ..engine.work import Work
from .scores import Answers

MADE_UP = "made-up"
DISJOINT, PAPERS, OURS, CONSTANT = "disjoint windows", "recurrent, the paper's", "recurrent", "constant"


@dataclass(frozen=True)
class QuestionSizes:
    """Each training question has `distractors` paragraphs added; `held` are for validation, and `questions` others are
    trained on. Models are evaluated on `tested` test questions, or all. Contexts are cut after `longest` tokens.
    `rates` are tried on `probe_questions`, for disjoint windows and for recurrence, and the best on validation are
    taken. `carrier_rate`: the carrier's, if it has another. The paper does not tell how many `rows` a step has."""

    encoder: str = by_scale(MADE_UP, "minilm-l6", "roberta-base")
    window: int = by_scale(24, 128, 512)
    distractors: CountOrZero = 0
    longest: int | None = None
    questions: int = by_scale(60, 800, 30_000)
    held: int = by_scale(12, 100, 1000)
    tested: int | None = by_scale(18, 500, None)
    epochs: int = by_scale(1, 1, 4)
    rows: int = by_scale(6, 4, 16)
    rates: LearningRates = by_scale((1e-3, 3e-3), (5e-5, 1e-4), (2e-5,))
    carrier_rate: LearningRate | None = by_scale(None, 1e-3, None)
    probe_questions: int = by_scale(18, 300, 0)
    warmup: ShareOrZero = 0.1
    checkpoint_every: int = by_scale(50, 25, 500)
    checkpointing: bool = False


SCALES: dict[str, QuestionSizes] = scales_of(QuestionSizes)


def variants(sizes: QuestionSizes) -> dict[str, WindowRecurrenceConfig]:
    ours = WindowRecurrenceConfig(carrier="pooled", window=sizes.window)
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
    """The questions that a study has loaded."""

    train: Loaded
    test: Loaded


@dataclass(frozen=True)
class QuestionTask:
    """What differs between studies: a `name`, with which names of runs begin; the `kinds` of answers; how its questions
    are `read`; and the `scores` of answers. How many tokens a question and its context have, about, is for the time
    left and for plans, which know the number of training questions of `planned_for` only."""

    name: str
    kinds: tuple[str, ...]
    read: Callable[[StudySetting], Given]
    scores: Callable[[Answers], Any]
    question_tokens: int
    context_tokens: Callable[[StudySetting], int]
    planned_for: str

    def run_name(self, variant: str, seed: int) -> str:
        return f"{self.name}-{slug(variant)}-seed{seed}"

    def tokens(self, setting: StudySetting, questions: int) -> int:
        return questions * (self.context_tokens(setting) + self.question_tokens)

    def check(self, work: Work) -> None:
        """Refuses unusable questions before hours are spent."""
        chosen_questions(work.setting, self.read(work.setting).train.questions)


def slug(variant: str) -> str:
    return variant.replace(", the ", "-").replace("'s", "").replace(" ", "-")


# --- questions


def questions_of(
    setting: StudySetting,
    name: str,
    load: Callable[[str, str], Loaded] = lambda place, split: Loaded(load_questions(place, split)),
    made_up: Callable[[int, int], list[Question]] = made_up_questions,
) -> Loaded:
    """The questions of the corpus "train" or "test"."""
    place, sizes = setting.corpora[name], setting.sizes
    if place == MADE_UP:
        return Loaded(made_up(sizes.questions + sizes.held, 0) if name == "train" else made_up(100, 1))
    return load(place, "train" if name == "train" else "validation")


def chosen_questions(setting: StudySetting, read: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """For training and for validation: a random part, the same for every run. No paragraph is in both."""
    sizes: QuestionSizes = setting.sizes
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


def questions_tested(sizes: QuestionSizes, read: Sequence[Question]) -> list[Question]:
    """A random part, the same for every run, since files may be sorted by the kind of question."""
    if sizes.tested is None or sizes.tested >= len(read):
        return list(read)
    return random.Random(ORDER_SEED).sample(read, sizes.tested)


def not_about(others: Sequence[Question], questions: Sequence[Question]) -> list[Question]:
    """The questions that share no paragraph with the others."""
    theirs = {paragraph for question in others for paragraph in question.paragraphs}
    return [question for question in questions if theirs.isdisjoint(question.paragraphs)]


@dataclass(frozen=True)
class PreparedQuestions:
    """Encoded questions for training, validation and test; `left_out`, by corpus: how many have no document."""

    train: list[EncodedQuestion]
    held: list[EncodedQuestion]
    test: list[EncodedQuestion]
    left_out: dict[str, int]


def prepare(task: QuestionTask, setting: StudySetting, tokenizer: PreTrainedTokenizerBase) -> PreparedQuestions:
    sizes: QuestionSizes = setting.sizes
    encode = partial(
        encode_questions, tokenizer=tokenizer, longest_question=sizes.window // 2, longest_context=sizes.longest
    )
    given = task.read(setting)
    train, held = chosen_questions(setting, given.train.questions)
    left_out = {"train": given.train.left_out, "test": given.test.left_out}
    return PreparedQuestions(
        encode(train), encode(held), encode(questions_tested(sizes, given.test.questions)), left_out
    )
