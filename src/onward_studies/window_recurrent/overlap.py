"""`overlap-wikipedia` and `overlap-books`: Tables 1 and 2 of "Adding Recurrence to Pretrained Transformers"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from onward.evaluation import plots

from ..engine.intervals import Interval, cell, over, verdict
from ..engine.reporting import Claim, Report, Table, summary_of
from ..engine.study import Outcome, Run, Setting, Study
from ..engine.training_runs import check_texts
from .backbone import CORPORA
from .runs import (
    OVER_SEEDS,
    SCALES,
    Readings,
    Variant,
    WindowSizes,
    about_recurrent,
    constant,
    plain_windows,
    recurrent,
    window_runs,
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


def runs(corpus: str, setting: Setting) -> list[Run]:
    sizes: WindowSizes = setting.sizes
    if not sizes.overlaps or sizes.overlaps[0] != 0:
        raise ValueError(f"overlaps={sizes.overlaps!r}: they begin with 0, which all others are compared with")
    recurrent_ones = [recurrent(sizes, sizes.window, overlap) for overlap in sizes.overlaps]
    return window_runs(setting, corpus, [baseline(sizes), *recurrent_ones, constant(sizes, sizes.window)])


def baseline(sizes: WindowSizes) -> Variant:
    """Trained without overlap, and read with any."""
    return plain_windows(sizes.window, (*sizes.overlaps[1:], *sizes.more_overlaps))


def report(corpus: str, setting: Setting, outcomes: Mapping[str, Outcome]) -> Report:
    sizes: WindowSizes = setting.sizes
    readings = Readings(setting, outcomes, corpus)
    rows: list[list[str]] = []
    points: dict[str, list[tuple[float, float, int]]] = {"plain": [], "recurrent": [], "swapped": []}

    def row(label: str, variant: Variant, overlap: int, read: str, paper: Sequence[tuple[float, float]]) -> None:
        found = {split: readings.of(variant, read, split, "word_perplexity") for split in ("validation", "test")}
        if not found["test"]:
            return
        flops = [readings.flops(variant, overlap, kind) for kind in ("flops", "counted_flops")]
        place = place_in_paper(sizes, overlap)
        known = place is not None and place < len(paper)
        told = [f"{number:.2f}" for number in paper[place]] if known and place is not None else ["", ""]
        scores = [cell(found[split], 2) for split in ("validation", "test")]
        shown = ["" if count is None else f"{count:.3g}" for count in flops]
        rows.append([label, str(overlap), *scores, *shown, *told])
        if label in points and flops[1] is not None:
            points[label].append((flops[1], Interval.of(list(found["test"].values())).mean, overlap))

    base, paper = baseline(sizes), PAPER[corpus]
    for overlap in (*sizes.overlaps, *sizes.more_overlaps):
        row("plain", base, overlap, "true" if overlap == 0 else f"overlap {overlap}", paper["plain"])
    row("constant", constant(sizes, sizes.window), 0, "true", ())
    for read, label in (("true", "recurrent"), ("swapped", "swapped")):
        for overlap in sizes.overlaps:
            told = paper["recurrent"] if read == "true" else ()
            row(label, recurrent(sizes, sizes.window, overlap), overlap, read, told)
    claims = _claims(readings, sizes, corpus)
    return Report(
        f"Overlap, {corpus}",
        summary_of(claims),
        [Table(TITLES[corpus], COLUMNS, rows)],
        {"perplexity_by_flops": plot(points)} if rows else {},
        claims,
        _notes(sizes, bool(points["swapped"])),
    )


COLUMNS = (
    "model",
    "overlap",
    "validation perplexity",
    "test perplexity",
    "FLOPs/token",
    "FLOPs/token, counted",
    "paper, validation",
    "paper, test",
)


def _claims(readings: Readings, sizes: WindowSizes, corpus: str) -> list[Claim]:
    base = baseline(sizes)
    largest = sizes.overlaps[-1]
    found = {overlap: readings.of(recurrent(sizes, sizes.window, overlap)) for overlap in sizes.overlaps}
    plain = {o: readings.of(base, "true" if o == 0 else f"overlap {o}") for o in sizes.overlaps}
    third = sizes.overlaps[min(3, len(sizes.overlaps) - 1)]
    swapped = readings.of(recurrent(sizes, sizes.window), "swapped")
    places = {overlap: place_in_paper(sizes, overlap) for overlap in sizes.overlaps}
    told = {overlap: _perplexities(corpus, place, place) for overlap, place in places.items()}
    compared = [
        ("Recurrence lowers perplexity at equal windows, without overlap", told[0], plain[0], found[0]),
        (f"and with the largest overlap ({largest})", told[largest], plain[largest], found[largest]),
        (
            f"Recurrence without overlap is better than plain windows with an overlap of {third}"
            f"{'' if corpus == 'books' else ' (ours)'}",  # of Wikipedia the paper claims no such thing
            _perplexities(corpus, places[third], places[0]),
            plain[third],
            found[0],
        ),
        ("It is the memory's content: another document's is worse (ours)", "not tested", swapped, found[0]),
        (
            "It is more than adaptation: a constant in its place is worse (ours)",
            "not tested",
            readings.of(constant(sizes, sizes.window)),
            found[0],
        ),
    ]
    claims = []
    for claim, saw, theirs, ours in compared:
        gain = over(theirs, ours)
        if gain is not None:
            claims.append(Claim(claim, saw, f"{gain.text(4)} nats per token better", verdict(gain)))
    return claims


def place_in_paper(sizes: WindowSizes, overlap: int) -> int | None:
    """Which of the paper's overlaps, of windows of 300, is as large a part of a window; None if none is."""
    wanted = 300 * overlap / sizes.window
    place = min(range(len(PAPER_OVERLAPS)), key=lambda i: abs(PAPER_OVERLAPS[i] - wanted))
    return place if abs(PAPER_OVERLAPS[place] - wanted) <= 150 / sizes.window else None


def _perplexities(corpus: str, of_plain: int | None, of_recurrent: int | None) -> str:
    """Those of the paper's overlaps at these places."""
    plain, ours = (PAPER[corpus][kind] for kind in ("plain", "recurrent"))
    if of_plain is None or of_recurrent is None or of_plain >= len(plain) or of_recurrent >= len(ours):
        return "not told"
    return f"{plain[of_plain][1]:.2f} -> {ours[of_recurrent][1]:.2f}"


def _notes(sizes: WindowSizes, swapped: bool) -> list[str]:
    places = {overlap: place_in_paper(sizes, overlap) for overlap in (*sizes.overlaps, *sizes.more_overlaps)}
    listed = ", ".join(f"{ours} for {PAPER_OVERLAPS[i]}" for ours, i in places.items() if i is not None)
    return [
        about_recurrent(sizes),
        f"Windows of {sizes.window} tokens; overlaps stand for the paper's of 300: {listed}. The paper's columns are "
        "of GPT-2 small on its own data, for the shape of the thing: not to be compared as numbers.",
        "± is half a 95 % interval over seeds (Student); claims are about paired differences of test losses.",
        OVER_SEEDS,
        "Recurrent models are trained with the overlap they are read with; plain windows are trained without.",
        "swapped: every window is read with the memory of another document."
        if swapped
        else "Nothing is swapped: that takes two test documents of two windows or more.",
        "FLOPs/token by the paper's formula, which leaves out recurrence and language model head, and counted with "
        "both, as in the picture.",
    ]


def plot(points: Mapping[str, Sequence[tuple[float, float, int]]]) -> Figure:
    figure = Figure(figsize=(5.8, 4), layout="constrained")
    panel = figure.subplots()
    for label, found in points.items():
        if not found:
            continue
        flops, perplexities, overlaps = zip(*found, strict=True)
        panel.plot(flops, perplexities, label=label, linewidth=1, markersize=5, **plots.STYLES[label])
        for x, y, overlap in zip(flops, perplexities, overlaps, strict=True):
            plots.number_beside(panel, overlap, x, y, below=label == "recurrent")
    panel.set_xlabel("FLOPs per token, counted (numbers: overlap)")
    panel.set_ylabel("test perplexity, word level")
    panel.legend(frameon=False)
    return figure


STUDIES = [
    Study(
        f"overlap-{corpus}",
        CORPORA,
        SCALES,
        partial(runs, corpus),
        partial(report, corpus),
        lambda work: check_texts(work, "books", "wikipedia"),
    )
    for corpus in ("wikipedia", "books")
]
