"""`boolq` (ours): yes or no, to questions about whole articles of Wikipedia read in windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from onward.data.questions import NO, SPAN, YES, Loaded, Question, load_texts, read_questions
from onward.finetuning import DataError

from ..engine.made_up import made_up_questions
from ..engine.reporting import NOT_TESTED, Claim, Report, Table, summary_of
from ..engine.study import Outcome, Study, StudySetting
from . import tables
from .runs import runs
from .scores import YesNoScores
from .tables import Measure, QuestionOutcomes
from .task import (
    DISJOINT,
    MADE_UP,
    PAPERS,
    Given,
    QuestionSizes,
    QuestionTask,
    not_about,
    questions_of,
    questions_tested,
)
from .task import SCALES as QUESTION_SCALES

BOOLQ, NO_DOCUMENTS = "hub:google/boolq", "none"
ON_THE_HUB = {"train": BOOLQ, "test": BOOLQ, "documents": NO_DOCUMENTS}
CORPORA = {
    "smoke": {"train": MADE_UP, "test": MADE_UP, "documents": NO_DOCUMENTS},
    "laptop": ON_THE_HUB,
    "paper": ON_THE_HUB,
}
SCALES = {
    "smoke": replace(QUESTION_SCALES["smoke"], longest=40),
    "laptop": replace(QUESTION_SCALES["laptop"], longest=384, tested=250, probe_questions=200, rates=(5e-5, 2e-4)),
    # No paper has it: sizes of Table 3, with windows so short that most passages of the Hub fill more than one.
    "paper": QuestionSizes(window=128, longest=4096, questions=9000, held=400),
}


# --- questions


def read(setting: StudySetting) -> Given:
    """No article is tested twice, so that a swapped memory is of another one; no tested article is trained on."""
    place = setting.corpora["documents"]
    load = partial(read_questions, documents=None if place == NO_DOCUMENTS else load_texts(place))
    made_up = partial(made_up_questions, yes_or_no_every=1)
    train, test = (_yes_or_no(questions_of(setting, name, load, made_up)) for name in ("train", "test"))
    tested = questions_tested(setting.sizes, one_for_each_article(test.questions))
    learned = not_about(tested, train.questions)
    return Given(replace(train, questions=learned), replace(test, questions=tested))


def _yes_or_no(loaded: Loaded) -> Loaded:
    for question in loaded.questions:
        if question.kind == SPAN:
            raise DataError(
                f"question {question.id!r} has the answer {question.answer!r}, not yes or no: remove it, or use the "
                "study hotpotqa"
            )
    return loaded


def one_for_each_article(questions: Sequence[Question]) -> list[Question]:
    return list({question.paragraphs: question for question in reversed(questions)}.values())[::-1]


PASSAGE_TOKENS, ARTICLE_TOKENS, QUESTION_TOKENS = 140, 3500, 12
"""Of BoolQ and of the articles that it asks about, about."""


def context_tokens(setting: StudySetting) -> int:
    whole = PASSAGE_TOKENS if setting.corpora["documents"] == NO_DOCUMENTS else ARTICLE_TOKENS
    return min(whole, setting.sizes.longest or whole)


TASK = QuestionTask("boolq", (YES, NO), read, YesNoScores.of, QUESTION_TOKENS, context_tokens, BOOLQ)


# --- what its runs come to

ACCURACY, LOSS = Measure("accuracy", "accuracy"), Measure("loss", "loss", 3)
TRIVIAL = "always the commoner answer"


def report(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    found = QuestionOutcomes(TASK, setting, outcomes)
    rows = tables.model_rows(found, (LOSS, ACCURACY), ACCURACY.value)
    claims = _claims(found)
    shown, figures = [], {}
    if rows:
        # These are the same for all runs, which have the same test questions.
        share, loss = (found.first(found.names[0], f"read/true/{value}") for value in ("majority", "majority_loss"))
        rows.insert(0, [TRIVIAL, "", f"{loss:.3f}", f"{share:.2f}", ""])
        panels = (Measure(ACCURACY.value, "accuracy (%)"), Measure(LOSS.value, "loss (nats)"))
        shown = [Table("Yes or no about whole articles", COLUMNS, rows), tables.kinds_table(found, ACCURACY)]
        figures = {"accuracy_and_loss": tables.plot(found, panels, (share, loss))}
    notes = [*_notes(setting), *_left_out(outcomes)]
    return Report("Yes or no over many windows", summary_of(claims), shown, figures, claims, notes)


COLUMNS = ("model", "learning rate", "loss, nats", "accuracy", "accuracy over disjoint")


def _claims(found: QuestionOutcomes) -> list[Claim]:
    accuracy = partial(found.score, value=ACCURACY.value)
    disjoint, trivial = accuracy(DISJOINT), found.score(DISJOINT, "majority")
    compared = [
        ("Disjoint windows answer better than always the commoner answer (ours)", NOT_TESTED, disjoint, trivial),
        ("Recurrence as in the paper raises accuracy (ours)", NOT_TESTED, accuracy(PAPERS), disjoint),
    ]
    return [*tables.points(compared), *tables.own_claims(found, ACCURACY, LOSS_OF_ANSWERS)]


LOSS_OF_ANSWERS = Measure(LOSS.value, "the loss of answers")


def _notes(setting: StudySetting) -> list[str]:
    sizes: QuestionSizes = setting.sizes
    cut = "" if sizes.longest is None else f", of the first {sizes.longest:,} tokens of an article"
    notes = [
        f"{sizes.encoder}, windows of {sizes.window} tokens{cut}, each of which begins with the question.",
        f"Accuracy in percent. {tables.ABOUT_SEEDS}",
        f"{TRIVIAL}: what is right without reading; its loss is that of knowing how common answers are. A model that "
        "is no better has not learned to answer, and its memory shows nothing either.",
        "Loss: how sure models are of the right answer, of all test questions; it shows differences that accuracy "
        "cannot.",
        tables.ABOUT_SWAPPED,
        *tables.about_rates(sizes),
    ]
    if BOOLQ in (setting.corpora["train"], setting.corpora["test"]):
        notes.append(
            f"{BOOLQ} has passages, most of which fill one window or two. Whole articles need ERASER's files: give "
            "train, test and documents."
        )
    return notes


def _left_out(outcomes: Mapping[str, Outcome]) -> list[str]:
    """The same for all runs, which load the same files."""
    counts: Mapping[str, int] = next(iter(outcomes.values()))["left_out"] if outcomes else {}
    if not any(counts.values()):
        return []
    listed = " and ".join(f"{number} of {name}" for name, number in counts.items())
    return [f"Questions whose articles are missing were left out: {listed}."]


STUDIES = [Study("boolq", CORPORA, SCALES, partial(runs, TASK), report, TASK.check)]
