"""What reports of studies of questions have in common: rows of tables, claims, notes and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from ..engine.figures import mean_in_row, name_rows
from ..engine.intervals import ABOUT_INTERVALS, cell, over
from ..engine.outcomes import Outcomes
from ..engine.reporting import NOT_TESTED, Claim, Compared, Table, judged
from ..engine.study import Outcome, StudySetting
from .task import CONSTANT, DISJOINT, OURS, QuestionSizes, QuestionTask, variants


@dataclass(frozen=True)
class Measure:
    """A number of the scores: its name in outcomes, its name for a reader, and its digits."""

    value: str
    label: str
    digits: int = 2


class QuestionOutcomes(Outcomes):
    """Scores on test questions, of the models `names` that have been tested."""

    def __init__(self, task: QuestionTask, setting: StudySetting, outcomes: Mapping[str, Outcome]):
        super().__init__(setting, outcomes, task.run_name)
        self.kinds = task.kinds
        self.names = [name for name in variants(setting.sizes) if self.of(name, "read")]

    def score(self, name: str, value: str, read: str = "true") -> dict[int, float]:
        return self.of(name, f"read/{read}/{value}")


def model_rows(found: QuestionOutcomes, measures: Sequence[Measure], score: str) -> list[list[str]]:
    """Each model, and with swapped memories: learning rate, measures, and the gain in score over disjoint windows."""
    rows = []
    for name in found.names:
        rate = f"{found.first(name, 'learning_rate'):g}"
        for read, called in (("true", [name, rate]), ("swapped", [f"{name}, swapped", ""])):
            if scores := found.score(name, score, read):
                cells = [cell(found.score(name, measure.value, read), measure.digits) for measure in measures]
                gain = "" if name == DISJOINT else cell(over(scores, found.score(DISJOINT, score)), 2)
                rows.append([*called, *cells, gain])
    return rows


def kinds_table(found: QuestionOutcomes, measure: Measure) -> Table:
    rows = []
    for name in found.names:
        scores = [found.score(name, f"by_kind/{kind}/{measure.value}") for kind in found.kinds]
        rows.append([name, *(cell(of_kind, measure.digits) for of_kind in scores)])
    return Table(f"{measure.label.capitalize()} by kind of answer", ("model", *found.kinds), rows)


def points(compared: Sequence[Compared]) -> list[Claim]:
    return judged(compared, "points better", 2)


def own_claims(found: QuestionOutcomes, score: Measure, loss: Measure) -> list[Claim]:
    """About recurrence with residual vectors, beside its controls."""
    scores, losses = partial(found.score, value=score.value), partial(found.score, value=loss.value)
    ours, swapped = scores(OURS), scores(OURS, read="swapped")
    higher: list[Compared] = [
        (f"Recurrence with residual vectors raises {score.label} (ours)", NOT_TESTED, ours, scores(DISJOINT)),
        ("and over a constant in its place (ours)", NOT_TESTED, ours, scores(CONSTANT)),
        ("It is the memory's content: another question's is worse (ours)", NOT_TESTED, ours, swapped),
    ]
    lower, of_swapped = losses(OURS), losses(OURS, read="swapped")
    nats: list[Compared] = [
        (f"Recurrence with residual vectors lowers {loss.label} (ours)", NOT_TESTED, losses(DISJOINT), lower),
        ("and below another question's memory (ours)", NOT_TESTED, of_swapped, lower),
    ]
    return [*points(higher), *judged(nats, "nats better")]


ABOUT_SEEDS = f"{ABOUT_INTERVALS}, which have the same test questions; claims are about paired differences."
ABOUT_SWAPPED = "swapped: every window is read with the memory of another question's context."


def about_rates(sizes: QuestionSizes) -> list[str]:
    told = (
        "Learning rates were tried for disjoint windows and for recurrence with residual vectors; the paper's module "
        "and constants have what was best for the latter."
    )
    return [told] if len(sizes.rates) > 1 else []


def plot(found: QuestionOutcomes, measures: Sequence[Measure], trivial: Sequence[float] = ()) -> Figure:
    """A panel for each measure, with a dotted line at its `trivial` value, of a model that reads nothing."""
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    panels = figure.subplots(1, len(measures), sharey=True)
    for panel, measure in zip(panels, measures, strict=True):
        for row, name in enumerate(found.names):
            mean_in_row(panel, row, found.score(name, measure.value), marker="o")
            mean_in_row(panel, row + 0.25, found.score(name, measure.value, "swapped"), color="0.5", marker="x")
        panel.set_xlabel(measure.label)
    for panel, number in zip(panels, trivial, strict=False):
        panel.axvline(number, color="0.5", linestyle=":", linewidth=1)
    name_rows(panels[0], found.names)
    signs = ["×: swapped memories", *(["dotted: without reading anything"] if trivial else [])]
    figure.supxlabel("; ".join(signs), fontsize="small")
    return figure
