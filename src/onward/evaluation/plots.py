"""Rows of results -> pictures, which can be read in black and white."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FuncFormatter

from ..utils.files import whole_file
from .perplexity import Measures

if TYPE_CHECKING:
    from .report import Row

# Told apart by marker and line.
STYLES: dict[str, dict[str, Any]] = {
    "plain": {"marker": "o", "linestyle": "-", "color": "0.55"},
    "constant": {"marker": "s", "linestyle": "--", "color": "0.35"},
    "recurrent": {"marker": "^", "linestyle": "-", "color": "0.0"},
    "swapped": {"marker": "x", "linestyle": ":", "color": "0.2"},
    "ablated": {"marker": "s", "linestyle": "--", "color": "0.35"},
    "full context": {"marker": "D", "linestyle": "-.", "color": "0.45"},
}
BINS = 24  # points of a curve
MARKERS = "osD^v<>Pp*hX"


def marker(number: int) -> str:
    """For as many things as there are; far from the first they begin again."""
    return MARKERS[number % len(MARKERS)]


def number_beside(panel: Any, number: int, x: float, y: float, below: bool = False) -> None:
    """Above its point or below it: of two lines that lie close, both can then be read."""
    place = (-5, -11) if below else (4, 4)
    panel.annotate(str(number), (x, y), xytext=place, textcoords="offset points", fontsize=7)


def plot_by_position(rows: Sequence[Row]) -> Figure:
    """Loss by the place in the window, one panel for each overlap.

    Places inside the overlap are scored in first windows only, and left out.
    """
    overlaps = list(dict.fromkeys(row.overlap for row in rows if row.variant != "full context"))
    figure = Figure(figsize=(max(5.0, 4.2 * len(overlaps)), 3.6), layout="constrained")
    panels = figure.subplots(1, max(1, len(overlaps)), sharey=True, squeeze=False)[0]
    for panel, overlap in zip(panels, overlaps, strict=False):
        for row in rows:
            if row.overlap == overlap and row.variant != "full context" and row.measures is not None:
                places, losses = _binned(row.measures)
                style = _style_of(row.variant)
                panel.plot(places, losses, label=row.variant, markersize=4, linewidth=1, **style)
        panel.set_title(f"overlap {overlap}")
        panel.set_xlabel("position in the window (tokens)")
    panels[0].set_ylabel("loss (nats per token)")
    _legend(panels[0])
    return figure


def _binned(measures: Measures) -> tuple[list[float], list[float]]:
    curve, first, last = measures.by_position, measures.overlap, measures.window
    size = max(1, math.ceil((last - first) / BINS))
    places, losses = [], []
    for start in range(first, last, size):
        stop = min(start + size, last)
        if count := sum(curve.counts[start:stop]):
            places.append((start + stop - 1) / 2)
            losses.append(sum(curve.sums[start:stop]) / count)
    return places, losses


def plot_by_flops(rows: Sequence[Row]) -> Figure:
    """Word-level perplexity against the counted FLOPs per token, one point for each overlap."""
    figure = Figure(figsize=(5.4, 3.8), layout="constrained")
    panel = figure.subplots()
    for variant in dict.fromkeys(row.variant for row in rows):
        points = sorted(
            (row.cost.counted, row.measures.word_perplexity, row.overlap)
            for row in rows
            if row.variant == variant and row.cost is not None and row.measures is not None
        )
        if not points:
            continue
        flops, perplexities, overlaps = zip(*points, strict=True)
        panel.plot(flops, perplexities, label=variant, linewidth=1, **_style_of(variant))
        for x, y, overlap in points if len(set(overlaps)) > 1 else ():
            number_beside(panel, overlap, x, y)
    panel.set_xlabel("FLOPs per token, counted (numbers: overlap)")
    panel.set_ylabel("word-level perplexity")
    _legend(panel)
    return figure


def plot_by_distance(rows: Sequence[Row]) -> Figure:
    """Loss by how far a block is from its document's start; the further, the fewer documents are left."""
    figure = Figure(figsize=(5.4, 3.8), layout="constrained")
    panel = figure.subplots()
    for row in rows:
        if row.measures is not None:
            style = _style_of(row.variant)
            panel.plot(*by_distance(row.measures), label=row.variant, markersize=4, linewidth=1, **style)
    panel.set_xlabel("distance from the document's start (tokens)")
    panel.set_ylabel("loss (bits per token)")
    _legend(panel)
    return figure


def by_distance(measures: Measures, points: int = BINS) -> tuple[list[float], list[float]]:
    """Distances in tokens, and bits per token there: neighbouring blocks together, where there are many."""
    curve, window = measures.by_window, measures.window
    size = math.ceil(len(curve.counts) / points)
    places, losses = [], []
    for start in range(0, len(curve.counts), size):
        count = sum(curve.counts[start : start + size])
        places.append(window * (start + min(start + size, len(curve.counts))) / 2)
        losses.append(sum(curve.sums[start : start + size]) / count / math.log(2))
    return places, losses


def _style_of(variant: str) -> dict[str, Any]:
    return STYLES.get(variant, {"marker": ".", "linestyle": "-", "color": "0.3"})


def _legend(panel: Any) -> None:
    if panel.lines:
        panel.legend(frameon=False)


@contextlib.contextmanager
def same_on_every_run() -> Iterator[None]:
    """Text stays text in an SVG, and what matplotlib draws at random does not make files differ."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "onward"}):
        yield


def as_written(figure: Figure) -> None:
    """Names are drawn as people write them: matplotlib takes what stands between dollar signs for a formula, and fails
    where it is none. Numbers along an axis are formulas of its own."""
    own = set()
    for axis in (axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)):
        own.add(axis.get_offset_text())
        if not isinstance(axis.get_major_formatter(), FixedFormatter | FuncFormatter):
            own.update(axis.get_ticklabels(which="both"))
    for text in figure.findobj(Text):
        if text not in own:
            text.set_parse_math(False)


def draw(figure: Figure, file: Any, form: str) -> None:
    as_written(figure)
    with same_on_every_run():  # a figure made without pyplot draws with Agg
        more: dict[str, Any] = {"metadata": {"Date": None}} if form == "svg" else {"dpi": 150}
        figure.savefig(file, format=form, **more)


def save(figure: Figure, path: Path) -> None:
    """As SVG and PNG."""
    for form in ("svg", "png"):
        with whole_file(path.with_name(f"{path.name}.{form}")) as unfinished:
            draw(figure, unfinished, form)
