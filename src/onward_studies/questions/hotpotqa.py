"""`hotpotqa`: Table 3 of "Adding Recurrence to Pretrained Transformers": ten paragraphs in windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from onward.data.questions import KINDS

from ..engine.reporting import Claim, Report, Table, summary_of
from ..engine.study import Outcome, Study, StudySetting
from . import tables
from .answering import LONGEST_ANSWER
from .runs import runs
from .scores import SpanScores
from .tables import Measure, QuestionOutcomes
from .task import DISJOINT, MADE_UP, PAPERS, Given, QuestionSizes, QuestionTask, questions_of
from .task import SCALES as QUESTION_SCALES

HOTPOTQA = "hub:hotpotqa/hotpot_qa:distractor"
CORPORA = {
    "smoke": {"train": MADE_UP, "test": MADE_UP},
    "laptop": {"train": "hub:rajpurkar/squad", "test": HOTPOTQA},
    "paper": {"train": HOTPOTQA, "test": HOTPOTQA},
}
PAPER = {DISJOINT: (48.17, 43.55), PAPERS: (49.12, 44.55)}  # F1 and exact match
SCALES = {
    "smoke": replace(QUESTION_SCALES["smoke"], distractors=1),
    "laptop": replace(QUESTION_SCALES["laptop"], distractors=2, tested=200, rates=(1e-4, 3e-4, 6e-4)),
    "paper": QUESTION_SCALES["paper"],
}


def read(setting: StudySetting) -> Given:
    return Given(questions_of(setting, "train"), questions_of(setting, "test"))


PARAGRAPH_TOKENS, QUESTION_TOKENS, PARAGRAPHS = 125, 25, 10
"""Of HotpotQA, about."""


def context_tokens(setting: StudySetting) -> int:
    sizes: QuestionSizes = setting.sizes
    return (1 + sizes.distractors if sizes.distractors else PARAGRAPHS) * PARAGRAPH_TOKENS


TASK = QuestionTask("hotpotqa", KINDS, read, SpanScores.of, QUESTION_TOKENS, context_tokens, HOTPOTQA)


# --- what its runs come to

F1, EXACT, SPAN_LOSS = Measure("f1", "F1"), Measure("exact_match", "exact match"), Measure("span_loss", "span loss", 3)


def report(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    found = QuestionOutcomes(TASK, setting, outcomes)
    rows = [[*row, *_told(row[0])] for row in tables.model_rows(found, (SPAN_LOSS, F1, EXACT), F1.value)]
    claims = _claims(found)
    panels = [Measure(measure.value, f"{measure.label} (%)") for measure in (F1, EXACT)]
    return Report(
        "Question answering over many windows",
        summary_of(claims),
        [Table("Table 3: HotpotQA", COLUMNS, rows), tables.kinds_table(found, F1)] if rows else [],
        {"f1_and_exact_match": tables.plot(found, panels)} if rows else {},
        claims,
        _notes(setting),
    )


MEASURED = ("learning rate", "span loss, nats", "F1", "exact match", "F1 over disjoint")
COLUMNS = ("model", *MEASURED, "paper, F1", "paper, exact match")


def _told(name: str) -> list[str]:
    return [f"{number:.2f}" for number in PAPER[name]] if name in PAPER else ["", ""]


def _claims(found: QuestionOutcomes) -> list[Claim]:
    saw = [" -> ".join(told) for told in zip(_told(DISJOINT), _told(PAPERS), strict=True)]
    f1s, exact = partial(found.score, value=F1.value), partial(found.score, value=EXACT.value)
    papers = [
        ("Recurrence as in the paper raises F1 over disjoint windows", saw[0], f1s(PAPERS), f1s(DISJOINT)),
        ("and exact match", saw[1], exact(PAPERS), exact(DISJOINT)),
    ]
    return [*tables.points(papers), *tables.own_claims(found, F1, Measure(SPAN_LOSS.value, "the loss of spans"))]


def _notes(setting: StudySetting) -> list[str]:
    sizes: QuestionSizes = setting.sizes
    notes = [
        f"{sizes.encoder}, windows of {sizes.window} tokens, each of which begins with the question; answers of at "
        f"most {LONGEST_ANSWER} tokens. The paper's columns are of RoBERTa-base on 30,000 questions of HotpotQA.",
        f"F1 and exact match as HotpotQA's official script has them, in percent. {tables.ABOUT_SEEDS}",
        "Span loss: how sure models are of the answer's first and last token, of test questions that have a span; it "
        "shows differences that scores cannot while most answers are wrong.",
        tables.ABOUT_SWAPPED,
        *tables.about_rates(sizes),
    ]
    if sizes.distractors:
        notes.append(
            f"Trained on {setting.corpora['train']} with {sizes.distractors} paragraphs of other questions added to "
            "each: where no answer is yes or no, models do not learn to say so, and such test questions count as wrong."
        )
    return notes


STUDIES = [Study("hotpotqa", CORPORA, SCALES, partial(runs, TASK), report, TASK.check)]
