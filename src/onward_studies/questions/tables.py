"""What runs of questions come to: rows of tables, claims and pictures that their studies share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from ..engine.intervals import Interval, cell, over, verdict
from ..engine.reporting import Claim, Table
from ..engine.study import Outcome, Setting
from .task import CONSTANT, DISJOINT, OURS, Sizes, Task, variants


class Found:
    """Looks up scores on test questions: a number for each seed that has ended."""

    def __init__(self, task: Task, setting: Setting, outcomes: Mapping[str, Outcome]):
        self.task, self.seeds, self.outcomes = task, setting.seeds, outcomes
        self.names = [name for name in variants(setting.sizes) if self.ended(name)]

    def ended(self, name: str) -> dict[int, Outcome]:
        names = {seed: self.task.run_name(name, seed) for seed in range(self.seeds)}
        return {seed: self.outcomes[run] for seed, run in names.items() if "read" in self.outcomes.get(run, {})}

    def of(self, name: str, value: str, read: str = "true") -> dict[int, float]:
        return {s: o["read"][read][value] for s, o in self.ended(name).items() if read in o["read"]}

    def of_kind(self, name: str, value: str, kind: str) -> dict[int, float]:
        by_kind = {seed: outcome["read"]["true"]["by_kind"] for seed, outcome in self.ended(name).items()}
        return {seed: found[kind][value] for seed, found in by_kind.items() if kind in found}


@dataclass(frozen=True)
class Measure:
    """A number of the scores: what they call it, what a reader does, and how many digits of it are told."""

    value: str
    label: str
    digits: int = 2


def model_rows(found: Found, measures: Sequence[Measure], score: str) -> list[list[str]]:
    """Of each model, and of its swapped memories: learning rate, measures, and how much better its score is than that
    of disjoint windows."""
    rows = []
    for name in found.names:
        rate = next(iter(found.ended(name).values()))["learning_rate"]
        for read, called in (("true", [name, f"{rate:g}"]), ("swapped", [f"{name}, swapped", ""])):
            if scores := found.of(name, score, read):
                cells = [cell(found.of(name, measure.value, read), measure.digits) for measure in measures]
                gain = "" if name == DISJOINT else cell(over(scores, found.of(DISJOINT, score)), 2)
                rows.append([*called, *cells, gain])
    return rows


def kinds_table(found: Found, measure: Measure) -> Table:
    rows = [
        [name, *(cell(found.of_kind(name, measure.value, kind), measure.digits) for kind in found.task.kinds)]
        for name in found.names
    ]
    return Table(f"{measure.label.capitalize()} by kind of answer", ("model", *found.task.kinds), rows)


# --- claims ----------------------------------------------------------------------------------------

NOT_TESTED = "not tested"
Compared = tuple[str, str, Mapping[int, float], Mapping[int, float]]
"""A claim, what the paper saw of it, and by seed what should be the larger and the smaller number."""


def judged(compared: Sequence[Compared], unit: str, digits: int) -> list[Claim]:
    claims = []
    for claim, saw, larger, smaller in compared:
        gain = over(larger, smaller)
        if gain is not None:
            claims.append(Claim(claim, saw, f"{gain.text(digits)} {unit} better", verdict(gain)))
    return claims


def own_claims(found: Found, score: Measure, loss: Measure) -> list[Claim]:
    """About recurrence with residual vectors, beside its controls."""
    scores, losses = partial(found.of, value=score.value), partial(found.of, value=loss.value)
    ours, swapped = scores(OURS), scores(OURS, read="swapped")
    points: list[Compared] = [
        (f"Recurrence with residual vectors raises {score.label} (ours)", NOT_TESTED, ours, scores(DISJOINT)),
        ("and over a constant in its place (ours)", NOT_TESTED, ours, scores(CONSTANT)),
        ("It is the memory's content: another question's is worse (ours)", NOT_TESTED, ours, swapped),
    ]
    lower, of_swapped = losses(OURS), losses(OURS, read="swapped")
    nats: list[Compared] = [
        (f"Recurrence with residual vectors lowers {loss.label} (ours)", NOT_TESTED, losses(DISJOINT), lower),
        ("and below another question's memory (ours)", NOT_TESTED, of_swapped, lower),
    ]
    return [*judged(points, "points", 2), *judged(nats, "nats", 4)]


# --- notes and pictures ----------------------------------------------------------------------------

ABOUT_SEEDS = (
    "± is half a 95 % interval over seeds (Student), which have the same test questions; claims are about paired "
    "differences."
)
ABOUT_SWAPPED = "swapped: every window is read with the memory of another question's context."


def about_rates(sizes: Sizes) -> list[str]:
    told = (
        "Learning rates were tried for disjoint windows and for recurrence with residual vectors; the paper's module "
        "and constants have what was best for the latter."
    )
    return [told] if len(sizes.rates) > 1 else []


def plot(found: Found, measures: Sequence[Measure], trivial: Sequence[float] = ()) -> Figure:
    """A panel for each measure, in which a dotted line may be where one is without reading anything."""
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    panels = figure.subplots(1, len(measures), sharey=True)
    for panel, measure in zip(panels, measures, strict=True):
        for place, name in enumerate(found.names):
            for read, marker, color, below in (("true", "o", "0.0", 0.0), ("swapped", "x", "0.5", 0.25)):
                if scores := found.of(name, measure.value, read):
                    mean = Interval.of(list(scores.values()))
                    style = {"color": color, "marker": marker, "capsize": 3}
                    panel.errorbar(mean.mean, place + below, xerr=mean.half or 0, **style)
        panel.set_yticks(range(len(found.names)), found.names)
        panel.set_xlabel(measure.label)
    for panel, number in zip(panels, trivial, strict=False):
        panel.axvline(number, color="0.5", linestyle=":", linewidth=1)
    panels[0].invert_yaxis()
    signs = ["×: swapped memories", *(["dotted: without reading anything"] if trivial else [])]
    figure.supxlabel("; ".join(signs), fontsize="small")
    return figure
