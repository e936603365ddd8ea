"""`window-size` and `pareto`: Figures 4 and 5 of "Adding Recurrence to Pretrained Transformers"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from matplotlib.figure import Figure

from onward.evaluation import plots

from ..engine.intervals import FAILS, HOLDS, UNSEEN, Interval, cell, differences, over, verdict
from ..engine.reporting import Claim, Report, Table, summary_of
from ..engine.study import Outcome, Run, Setting, Study
from ..engine.training_runs import check_texts
from .backbone import CORPORA
from .overlap import baseline as overlap_baseline
from .runs import OVER_SEEDS, Readings, Variant, WindowSizes, about_recurrent, plain_windows, recurrent, window_runs
from .runs import SCALES as WINDOW_SCALES

CORPUS = "books"


@dataclass(frozen=True)
class Sizes(WindowSizes):
    """`sizes` are the windows; `read_overlaps`, those that plain windows of every size are read with, too."""

    sizes: tuple[int, ...] = (200, 300, 400, 500, 600)
    read_overlaps: tuple[int, ...] = (10, 30, 50)


def _with(scale: str, **more: Any) -> Sizes:
    return Sizes(**vars(WINDOW_SCALES[scale]) | more)


SCALES = {
    "smoke": _with("smoke", sizes=(16, 24), read_overlaps=(4,)),
    "laptop": _with("laptop", sizes=(43, 64, 128), read_overlaps=(2, 6, 11)),
    "paper": Sizes(),
}


def variants(sizes: Sizes) -> list[Variant]:
    """The window that the overlap tables have is read as there, so that their runs are these."""
    found = []
    for window in sizes.sizes:
        plain = overlap_baseline(sizes) if window == sizes.window else plain_windows(window, sizes.read_overlaps)
        found += [plain, recurrent(sizes, window)]
    return found


def runs_of_sizes(setting: Setting) -> list[Run]:
    return window_runs(setting, CORPUS, variants(setting.sizes))


def runs_of_pareto(setting: Setting) -> list[Run]:
    """Those, and the recurrent models with overlap of Table 2."""
    sizes: Sizes = setting.sizes
    with_overlap = [recurrent(sizes, sizes.window, overlap) for overlap in sizes.overlaps[1:]]
    return window_runs(setting, CORPUS, [*variants(sizes), *with_overlap])


# --- Figure 4 --------------------------------------------------------------------------------------


def report_sizes(setting: Setting, outcomes: Mapping[str, Outcome]) -> Report:
    sizes: Sizes = setting.sizes
    readings = Readings(setting, outcomes, CORPUS)
    rows, gaps = [], {}
    curves: dict[str, list[tuple[int, float]]] = {"plain": [], "recurrent": []}
    pairs = variants(sizes)
    for plain, ours in zip(pairs[::2], pairs[1::2], strict=True):
        losses = {"plain": readings.of(plain), "recurrent": readings.of(ours)}
        gap = differences(losses["plain"], losses["recurrent"])
        if not gap:
            continue
        gaps[plain.window] = gap
        scores = {v.label: readings.of(v, value="word_perplexity") for v in (plain, ours)}
        for label, found in scores.items():
            curves[label].append((plain.window, Interval.of(list(found.values())).mean))
        rows.append([str(plain.window), *(cell(scores[label], 2) for label in curves), cell(gap, 4)])
    claims = []
    if len(gaps) > 1:
        small, large = min(gaps), max(gaps)
        wider = over(gaps[small], gaps[large])
        if wider is not None:
            seen = f"{wider.text(4)} nats per token more at {small} than at {large}"
            claims.append(Claim("The gain grows as windows shrink", "yes (Figure 4)", seen, verdict(wider)))
    return Report(
        "Window size",
        summary_of(claims),
        [Table("Figure 4: perplexity by window size", COLUMNS, rows)],
        {"perplexity_by_window": plot_sizes(curves)} if rows else {},
        claims,
        (
            about_recurrent(sizes),
            "± is half a 95 % interval over seeds (Student); the gain is a paired difference of test losses.",
            OVER_SEEDS,
        ),
    )


COLUMNS = ("window", "plain, test perplexity", "recurrent, test perplexity", "gain, nats per token")


def plot_sizes(curves: Mapping[str, Sequence[tuple[int, float]]]) -> Figure:
    figure = Figure(figsize=(5.4, 3.8), layout="constrained")
    panel = figure.subplots()
    for label, points in curves.items():
        panel.plot(*zip(*points, strict=True), label=label, linewidth=1, markersize=5, **plots.STYLES[label])
    panel.set_xlabel("window (tokens)")
    panel.set_ylabel("test perplexity, word level")
    panel.legend(frameon=False)
    return figure


# --- Figure 5 --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    label: str
    window: int
    overlap: int
    flops: float
    perplexity: Interval
    losses: Mapping[int, float] = field(default_factory=dict)
    on_frontier: bool = False

    @property
    def kind(self) -> str:
        return "recurrent" if self.label.startswith("recurrent") else "plain"


def points(sizes: Sizes, readings: Readings) -> list[Point]:
    found = []
    with_overlap = [recurrent(sizes, sizes.window, overlap) for overlap in sizes.overlaps[1:]]
    for variant in [*variants(sizes), *with_overlap]:
        for overlap in (variant.overlap, *variant.others):
            read = "true" if overlap == variant.overlap else f"overlap {overlap}"
            scores = readings.of(variant, read, value="word_perplexity")
            flops = readings.flops(variant, overlap, "counted_flops")
            if scores and flops is not None:
                label = f"{variant.label}, overlap {overlap}"
                interval, losses = Interval.of(list(scores.values())), readings.of(variant, read)
                found.append(Point(label, variant.window, overlap, flops, interval, losses))
    return frontier(found)


def frontier(found: Sequence[Point]) -> list[Point]:
    """A point is on the frontier if none is both cheaper and better."""

    def beaten(point: Point) -> bool:
        return any(
            other.flops <= point.flops
            and other.perplexity.mean <= point.perplexity.mean
            and (other.flops, other.perplexity.mean) != (point.flops, point.perplexity.mean)
            for other in found
        )

    return [replace(point, on_frontier=not beaten(point)) for point in found]


def judge(found: Sequence[Point]) -> str:
    """Each recurrent point against the best other one that costs no more, if there is one, seed by seed: all must be
    better for the claim to hold, and one that is surely worse is enough for it not to."""
    verdicts = []
    for point in found:
        if point.kind == "plain":
            continue
        as_cheap = [other for other in found if other is not point and other.flops <= point.flops]
        if as_cheap:
            best = min(as_cheap, key=lambda other: other.perplexity.mean)
            gain = over(best.losses, point.losses)
            verdicts.append(UNSEEN if gain is None else verdict(gain))
    if FAILS in verdicts:
        return FAILS
    return HOLDS if verdicts and all(judged == HOLDS for judged in verdicts) else UNSEEN


def report_pareto(setting: Setting, outcomes: Mapping[str, Outcome]) -> Report:
    found = sorted(points(setting.sizes, Readings(setting, outcomes, CORPUS)), key=lambda point: point.flops)
    rows = [
        [p.label, str(p.window), f"{p.flops:.3g}", p.perplexity.text(2), "yes" if p.on_frontier else ""] for p in found
    ]
    claims = []
    if found:
        ours = [point for point in found if point.kind == "recurrent"]
        on = [point for point in ours if point.on_frontier]
        plain_on = sum(point.on_frontier for point in found) - len(on)
        others = len(found) - len(ours)
        seen = f"{len(on)} of {len(ours)} recurrent points and {plain_on} of {others} plain ones are on it"
        judged = judge(found)
        claims.append(Claim("All recurrent models lie on the Pareto frontier", "yes (Figure 5)", seen, judged))
    return Report(
        "Perplexity against FLOPs",
        summary_of(claims),
        [Table("Figure 5: perplexity and FLOPs", COLUMNS_OF_PARETO, rows)],
        {"pareto": plot_pareto(found)} if found else {},
        claims,
        (
            "Means over seeds. FLOPs are counted with recurrence and language model head, which the paper leaves out.",
            OVER_SEEDS,
            about_recurrent(setting.sizes),
            "± is half a 95 % interval over seeds (Student); the frontier is that of the means. The claim is judged by "
            "paired differences of test losses, each recurrent model against the best other one that costs no more.",
        ),
    )


COLUMNS_OF_PARETO = ("model", "window", "FLOPs/token, counted", "test", "on the frontier")


def plot_pareto(found: Sequence[Point]) -> Figure:
    """All points, and beside them, larger, those that cost little: most are there."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    little = sorted(point.flops for point in found)[3 * (len(found) - 1) // 4]
    markers = {window: plots.marker(number) for number, window in enumerate(sorted({p.window for p in found}))}
    look: dict[str, Any] = {"where": "post", "color": "0.0", "linewidth": 0.6, "linestyle": ":", "label": "frontier"}
    cheap = [point for point in found if point.flops <= little]
    for panel, shown in zip(panels, (found, cheap), strict=True):
        _plot_points(panel, shown, markers)
        if edge := sorted((p.flops, p.perplexity.mean) for p in shown if p.on_frontier):
            panel.step(*zip(*edge, strict=True), **look)
        panel.set_xlabel("FLOPs per token, counted")
    for p in cheap:
        plots.number_beside(panels[1], p.overlap, p.flops, p.perplexity.mean, below=p.kind == "recurrent")
    panels[0].set_ylabel("test perplexity, word level")
    panels[1].set_title("those that cost little; numbers: overlap", fontsize="medium")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def _plot_points(panel: Any, found: Sequence[Point], markers: Mapping[int, str]) -> None:
    """Points of one window are joined, from overlap to overlap."""
    for kind, look in (("plain", {"color": "0.5", "fillstyle": "none"}), ("recurrent", {"color": "0.0"})):
        for window, marker in markers.items():
            line = [p for p in found if (p.kind, p.window) == (kind, window)]
            if line:
                line.sort(key=lambda point: point.overlap)
                flops, perplexities = [p.flops for p in line], [p.perplexity.mean for p in line]
                label = f"{kind}, window {window}"
                panel.plot(flops, perplexities, label=label, linewidth=0.8, markersize=5, marker=marker, **look)


STUDIES = [
    Study(
        "window-size",
        CORPORA,
        SCALES,
        runs_of_sizes,
        report_sizes,
        lambda work: check_texts(work, *work.setting.corpora),
    ),
    Study(
        "pareto",
        CORPORA,
        SCALES,
        runs_of_pareto,
        report_pareto,
        lambda work: check_texts(work, *work.setting.corpora),
    ),
]
