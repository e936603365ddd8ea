"""`window-size` and `pareto`: Figures 4 and 5 of "Adding Recurrence to Pretrained Transformers"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from matplotlib.figure import Figure

from onward.evaluation import plots

from ..engine.figures import one_panel
from ..engine.intervals import ABOUT_INTERVALS, FAILS, HOLDS, UNSEEN, Interval, cell, differences, over, verdict
from ..engine.outcomes import Outcomes
from ..engine.reporting import Claim, Report, Table, judged, summary_of
from ..engine.sizes import by_scale, scales_of
from ..engine.study import Outcome, Run, Study, StudySetting
from ..engine.texts import check_texts
from .backbone import CORPORA
from .runs import measure, window_outcomes, window_runs
from .variants import OVER_SEEDS, Variant, WindowSizes, about_recurrent, baseline, plain_windows, recurrent

CORPUS = "books"


@dataclass(frozen=True)
class FrontierSizes(WindowSizes):
    """`sizes` are the windows; plain windows of every size are evaluated with `read_overlaps`, too."""

    sizes: tuple[int, ...] = by_scale((16, 24), (43, 64, 128), (200, 300, 400, 500, 600))
    read_overlaps: tuple[int, ...] = by_scale((4,), (2, 6, 11), (10, 30, 50))


SCALES = scales_of(FrontierSizes)


def pairs(sizes: FrontierSizes) -> list[tuple[Variant, Variant]]:
    """Plain and recurrent, by window. The window of the overlap tables has the runs of those."""

    def plain(window: int) -> Variant:
        return baseline(sizes) if window == sizes.window else plain_windows(window, sizes.read_overlaps)

    return [(plain(window), recurrent(sizes, window)) for window in sizes.sizes]


def variants(sizes: FrontierSizes) -> list[Variant]:
    return [variant for pair in pairs(sizes) for variant in pair]


def with_overlaps(sizes: FrontierSizes) -> list[Variant]:
    """All variants, and the recurrent models of Table 2 that overlap."""
    return [*variants(sizes), *(recurrent(sizes, sizes.window, overlap) for overlap in sizes.overlaps[1:])]


def runs_of_sizes(setting: StudySetting) -> list[Run]:
    return window_runs(setting, CORPUS, variants(setting.sizes))


def runs_of_pareto(setting: StudySetting) -> list[Run]:
    return window_runs(setting, CORPUS, with_overlaps(setting.sizes))


# --- Figure 4


def report_sizes(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    found = window_outcomes(setting, outcomes, CORPUS)
    rows: list[dict[str, str]] = []
    gaps: dict[int, dict[int, float]] = {}
    curves: dict[str, list[tuple[int, float]]] = {"plain": [], "recurrent": []}
    for pair in pairs(setting.sizes):
        window = pair[0].window
        gap = differences(*(found.of(variant, measure()) for variant in pair))
        if not gap:
            continue
        gaps[window] = gap
        scores = {variant.label: found.of(variant, measure("word_perplexity")) for variant in pair}
        for label, values in scores.items():
            curves[label].append((window, Interval.of(list(values.values())).mean))
        shown = {f"{label}, test perplexity": cell(values, 2) for label, values in scores.items()}
        rows.append({"window": str(window), **shown, "gain, nats per token": cell(gap, 4)})
    claims = []
    if len(gaps) > 1:
        small, large = min(gaps), max(gaps)
        compared = ("The gain grows as windows shrink", "yes (Figure 4)", gaps[small], gaps[large])
        claims = judged([compared], f"nats per token more at {small} than at {large}")
    return Report(
        "Window size",
        summary_of(claims),
        [Table.of("Figure 4: perplexity by window size", rows)],
        {"perplexity_by_window": plot_sizes(curves)} if rows else {},
        claims,
        (
            about_recurrent(setting.sizes),
            f"{ABOUT_INTERVALS}; the gain is a paired difference of test losses.",
            OVER_SEEDS,
        ),
    )


def plot_sizes(curves: Mapping[str, Sequence[tuple[int, float]]]) -> Figure:
    figure, panel = one_panel(5.4, 3.8, "window (tokens)", "test perplexity, word level")
    for label, points in curves.items():
        panel.plot(*zip(*points, strict=True), label=label, linewidth=1, markersize=5, **plots.STYLES[label])
    panel.legend(frameon=False)
    return figure


# --- Figure 5


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


def points(sizes: FrontierSizes, outcomes: Outcomes) -> list[Point]:
    found = []
    for variant in with_overlaps(sizes):
        for overlap in (variant.overlap, *variant.others):
            read = variant.read_with(overlap)
            scores = outcomes.of(variant, measure("word_perplexity", read))
            flops = outcomes.first(variant, f"counted_flops/{overlap}")
            if scores and flops is not None:
                label, losses = f"{variant.label}, overlap {overlap}", outcomes.of(variant, measure("loss", read))
                interval = Interval.of(list(scores.values()))
                found.append(Point(label, variant.window, overlap, flops, interval, losses))
    return frontier(found)


def frontier(found: Sequence[Point]) -> list[Point]:
    """A point is on the frontier if none is both cheaper and better."""

    def place(point: Point) -> tuple[float, float]:
        return point.flops, point.perplexity.mean

    def beaten(point: Point) -> bool:
        cheaper = (other for other in found if other.flops <= point.flops)
        return any(o.perplexity.mean <= point.perplexity.mean and place(o) != place(point) for o in cheaper)

    return [replace(point, on_frontier=not beaten(point)) for point in found]


def judge(found: Sequence[Point]) -> str:
    """Each recurrent point against the best other one that costs no more, if there is one, seed by seed. The claim
    holds if all are better, and fails if one is surely worse."""
    verdicts = []
    for point in found:
        as_cheap = [other for other in found if other is not point and other.flops <= point.flops]
        if point.kind == "recurrent" and as_cheap:
            best = min(as_cheap, key=lambda other: other.perplexity.mean)
            gain = over(best.losses, point.losses)
            verdicts.append(UNSEEN if gain is None else verdict(gain))
    if FAILS in verdicts:
        return FAILS
    return HOLDS if verdicts and all(one == HOLDS for one in verdicts) else UNSEEN


def report_pareto(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    found = points(setting.sizes, window_outcomes(setting, outcomes, CORPUS))
    found.sort(key=lambda point: point.flops)
    rows = [
        {
            "model": point.label,
            "window": str(point.window),
            "FLOPs/token, counted": f"{point.flops:.3g}",
            "test": point.perplexity.text(2),
            "on the frontier": "yes" if point.on_frontier else "",
        }
        for point in found
    ]
    claims = []
    if found:
        on, of = ({k: sum(p.kind == k for p in some) for k in ("recurrent", "plain")} for some in (_on(found), found))
        seen = (
            f"{on['recurrent']} of {of['recurrent']} recurrent points and {on['plain']} of {of['plain']} plain ones "
            "are on it"
        )
        claims = [Claim("All recurrent models lie on the Pareto frontier", "yes (Figure 5)", seen, judge(found))]
    return Report(
        "Perplexity against FLOPs",
        summary_of(claims),
        [Table.of("Figure 5: perplexity and FLOPs", rows)],
        {"pareto": plot_pareto(found)} if found else {},
        claims,
        (
            "Means over seeds. FLOPs are counted with recurrence and language model head, which the paper leaves out.",
            OVER_SEEDS,
            about_recurrent(setting.sizes),
            f"{ABOUT_INTERVALS}; the frontier is that of the means. The claim is judged by paired differences of test "
            "losses, each recurrent model against the best other one that costs no more.",
        ),
    )


def _on(found: Sequence[Point]) -> list[Point]:
    return [point for point in found if point.on_frontier]


def plot_pareto(found: Sequence[Point]) -> Figure:
    """All points, and beside them, larger, the cheaper three quarters."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    little = sorted(point.flops for point in found)[3 * (len(found) - 1) // 4]
    markers = {window: plots.marker(number) for number, window in enumerate(sorted({p.window for p in found}))}
    look: dict[str, Any] = {"where": "post", "color": "0.0", "linewidth": 0.6, "linestyle": ":", "label": "frontier"}
    cheap = [point for point in found if point.flops <= little]
    for panel, shown in zip(panels, (found, cheap), strict=True):
        _plot_points(panel, shown, markers)
        if edge := sorted((p.flops, p.perplexity.mean) for p in _on(shown)):
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
            line = sorted((p for p in found if (p.kind, p.window) == (kind, window)), key=lambda point: point.overlap)
            if line:
                flops, perplexities = [p.flops for p in line], [p.perplexity.mean for p in line]
                label = f"{kind}, window {window}"
                panel.plot(flops, perplexities, label=label, linewidth=0.8, markersize=5, marker=marker, **look)


STUDIES = [
    Study("window-size", CORPORA, SCALES, runs_of_sizes, report_sizes, check_texts),
    Study("pareto", CORPORA, SCALES, runs_of_pareto, report_pareto, check_texts),
]
