"""`overlap-wikipedia` and `overlap-books`: Tables 1 and 2 of "Adding Recurrence to Pretrained Transformers"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from matplotlib.figure import Figure

from onward.evaluation import plots
from onward.utils.fields import FieldError

from ..engine.figures import one_panel
from ..engine.intervals import Interval, cell
from ..engine.outcomes import Outcomes
from ..engine.reporting import NOT_TESTED, NOT_TOLD, Claim, Report, Table, judged, summary_of
from ..engine.study import Outcome, Run, Study, StudySetting
from ..engine.texts import check_texts
from .backbone import CORPORA
from .runs import measure, window_outcomes, window_runs
from .variants import (
    CLAIMS_PAIRED,
    OVER_SEEDS,
    SCALES,
    Variant,
    WindowSizes,
    about_recurrent,
    baseline,
    constant,
    recurrent,
)

PAPER_OVERLAPS = (0, 5, 10, 30, 50, 75, 100, 150, 200)
# Validation and test word-level perplexity, by overlap.
PAPER: dict[str, dict[str, list[tuple[float, float]]]] = {
    "wikipedia": {
        "plain": [(29.00, 30.47), (27.99, 29.36), (27.58, 28.88), (26.72, 27.96), (26.17, 27.31)],
        "recurrent": [(27.70, 29.01), (26.88, 28.12), (26.51, 27.77), (25.90, 27.12), (25.53, 26.73)],
    },
    "books": {
        "plain": [
            (172.25, 147.71), (165.93, 142.30), (162.66, 139.49), (156.21, 134.30), (152.64, 131.25),
            (149.54, 128.46), (147.05, 126.51), (143.62, 123.53), (141.14, 121.40),
        ],
        "recurrent": [(155.27, 133.02), (150.00, 128.78), (147.53, 127.05), (142.35, 122.22), (140.10, 119.93)],
    },
}  # fmt: skip
TITLES = {"wikipedia": "Table 1: Wikipedia", "books": "Table 2: books"}


def runs(corpus: str, setting: StudySetting) -> list[Run]:
    sizes: WindowSizes = setting.sizes
    if not sizes.overlaps or sizes.overlaps[0] != 0:
        raise FieldError("overlaps", sizes.overlaps, "they begin with 0, which all others are compared with")
    recurrent_ones = [recurrent(sizes, sizes.window, overlap) for overlap in sizes.overlaps]
    return window_runs(setting, corpus, [baseline(sizes), *recurrent_ones, constant(sizes, sizes.window)])


def report(corpus: str, setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    sizes: WindowSizes = setting.sizes
    found = window_outcomes(setting, outcomes, corpus)
    rows: list[dict[str, str]] = []
    points: dict[str, list[tuple[float, float, int]]] = {"plain": [], "recurrent": [], "swapped": []}
    for label, variant, overlap, read in _evaluations(sizes):
        scores = {split: found.of(variant, measure("word_perplexity", read, split)) for split in ("validation", "test")}
        if not scores["test"]:
            continue
        flops, counted = (found.first(variant, f"{kind}/{overlap}") for kind in ("flops", "counted_flops"))
        paper, place = PAPER[corpus].get(label, []), place_in_paper(sizes, overlap)
        told = paper[place] if place is not None and place < len(paper) else None
        cells = {
            "model": label,
            "overlap": str(overlap),
            "validation perplexity": cell(scores["validation"], 2),
            "test perplexity": cell(scores["test"], 2),
            "FLOPs/token": "" if flops is None else f"{flops:.3g}",
            "FLOPs/token, counted": "" if counted is None else f"{counted:.3g}",
            "paper, validation": f"{told[0]:.2f}" if told else "",
            "paper, test": f"{told[1]:.2f}" if told else "",
        }
        rows.append(cells)
        if label in points and counted is not None:
            points[label].append((counted, Interval.of(list(scores["test"].values())).mean, overlap))
    claims = _claims(found, sizes, corpus)
    return Report(
        f"Overlap, {corpus}",
        summary_of(claims),
        [Table.of(TITLES[corpus], rows)],
        {"perplexity_by_flops": plot(points)} if rows else {},
        claims,
        _notes(sizes, bool(points["swapped"])),
    )


def _evaluations(sizes: WindowSizes) -> Iterator[tuple[str, Variant, int, str]]:
    """Label, variant, overlap, and what outcomes call the evaluation."""
    base = baseline(sizes)
    for overlap in (*sizes.overlaps, *sizes.more_overlaps):
        yield "plain", base, overlap, base.read_with(overlap)
    yield "constant", constant(sizes, sizes.window), 0, "true"
    for label, read in (("recurrent", "true"), ("swapped", "swapped")):
        for overlap in sizes.overlaps:
            yield label, recurrent(sizes, sizes.window, overlap), overlap, read


def _claims(found: Outcomes, sizes: WindowSizes, corpus: str) -> list[Claim]:
    base, overlaps, largest = baseline(sizes), sizes.overlaps, sizes.overlaps[-1]
    ours = {overlap: found.of(recurrent(sizes, sizes.window, overlap), measure()) for overlap in overlaps}
    plain = {overlap: found.of(base, measure(read=base.read_with(overlap))) for overlap in overlaps}
    fourth = overlaps[min(3, len(overlaps) - 1)]
    own = "" if corpus == "books" else " (ours)"  # the paper claims no such thing of Wikipedia
    swapped = found.of(recurrent(sizes, sizes.window), measure(read="swapped"))
    of_constant = found.of(constant(sizes, sizes.window), measure())

    def told(of_plain: int, of_recurrent: int) -> str:
        """The paper's test perplexities with these overlaps."""
        pairs = zip(("plain", "recurrent"), (of_plain, of_recurrent), strict=True)
        places = [(PAPER[corpus][kind], place_in_paper(sizes, overlap)) for kind, overlap in pairs]
        numbers = [f"{paper[i][1]:.2f}" for paper, i in places if i is not None and i < len(paper)]
        return " -> ".join(numbers) if len(numbers) == 2 else NOT_TOLD

    compared = [
        ("Recurrence lowers perplexity at equal windows, without overlap", told(0, 0), plain[0], ours[0]),
        (f"and with the largest overlap ({largest})", told(largest, largest), plain[largest], ours[largest]),
        (
            f"Recurrence without overlap is better than plain windows with an overlap of {fourth}{own}",
            told(fourth, 0),
            plain[fourth],
            ours[0],
        ),
        ("It is the memory's content: another document's is worse (ours)", NOT_TESTED, swapped, ours[0]),
        ("It is more than adaptation: a constant in its place is worse (ours)", NOT_TESTED, of_constant, ours[0]),
    ]
    return judged(compared, "nats per token better")


def place_in_paper(sizes: WindowSizes, overlap: int) -> int | None:
    """The index of the paper's overlap, of windows of 300, that is as large a part of a window; None if none is."""
    wanted = 300 * overlap / sizes.window
    place = min(range(len(PAPER_OVERLAPS)), key=lambda i: abs(PAPER_OVERLAPS[i] - wanted))
    return place if abs(PAPER_OVERLAPS[place] - wanted) <= 150 / sizes.window else None


def _notes(sizes: WindowSizes, swapped: bool) -> list[str]:
    places = {overlap: place_in_paper(sizes, overlap) for overlap in (*sizes.overlaps, *sizes.more_overlaps)}
    listed = ", ".join(f"{ours} for {PAPER_OVERLAPS[i]}" for ours, i in places.items() if i is not None)
    return [
        about_recurrent(sizes),
        f"Windows of {sizes.window} tokens; overlaps stand for the paper's of 300: {listed}. The paper's columns are "
        "of GPT-2 small on its own data, for the shape of the thing: not to be compared as numbers.",
        CLAIMS_PAIRED,
        OVER_SEEDS,
        "Recurrent models are trained with the overlap they are read with; plain windows are trained without.",
        "swapped: every window is read with the memory of another document."
        if swapped
        else "Nothing is swapped: that takes two test documents of two windows or more.",
        "FLOPs/token by the paper's formula, which leaves out recurrence and language model head, and counted with "
        "both, as in the picture.",
    ]


def plot(points: Mapping[str, list[tuple[float, float, int]]]) -> Figure:
    figure, panel = one_panel(5.8, 4, "FLOPs per token, counted (numbers: overlap)", "test perplexity, word level")
    for label, found in points.items():
        if found:
            flops, perplexities, _ = zip(*found, strict=True)
            panel.plot(flops, perplexities, label=label, linewidth=1, markersize=5, **plots.STYLES[label])
        for x, y, overlap in found:
            plots.number_beside(panel, overlap, x, y, below=label == "recurrent")
    panel.legend(frameon=False)
    return figure


STUDIES = [
    Study(f"overlap-{corpus}", CORPORA, SCALES, partial(runs, corpus), partial(report, corpus), check_texts)
    for corpus in ("wikipedia", "books")
]
