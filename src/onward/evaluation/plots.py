"""Rows of results -> plots, which stay readable in black and white."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FuncFormatter

from ..utils.files import whole_file
from .measures import Curve, Measures
from .rows import Row

STYLES: dict[str, dict[str, Any]] = {
    "plain": {"marker": "o", "linestyle": "-", "color": "0.55"},
    "kept tokens": {"marker": "v", "linestyle": "-", "color": "0.3"},
    "constant": {"marker": "s", "linestyle": "--", "color": "0.35"},
    "recurrent": {"marker": "^", "linestyle": "-", "color": "0.0"},
    "swapped": {"marker": "x", "linestyle": ":", "color": "0.2"},
    "ablated": {"marker": "s", "linestyle": "--", "color": "0.35"},
    "full context": {"marker": "D", "linestyle": "-.", "color": "0.45"},
}
POINTS = 24  # most points of a curve
MARKERS = "osD^v<>Pp*hX"


def marker(number: int) -> str:
    """A marker for each number; they repeat after the last."""
    return MARKERS[number % len(MARKERS)]


def number_beside(panel: Any, number: int, x: float, y: float, below: bool = False) -> None:
    """Above its point or below it, so that both of two close lines can be numbered."""
    place = (-5, -11) if below else (4, 4)
    panel.annotate(str(number), (x, y), xytext=place, textcoords="offset points", fontsize=7)


# --- plots of an evaluation -------------------------------------------------------------------------


def plot_by_position(rows: Sequence[Row]) -> Figure:
    """Loss by the place in the window, one panel for each overlap."""
    overlaps = list(dict.fromkeys(row.overlap for row in rows if row.variant != "full context"))
    size = (max(5.0, 4.2 * len(overlaps)), 3.6)
    figure, panels = _frame("position in the window (tokens)", "loss (nats per token)", size, max(1, len(overlaps)))
    for panel, overlap in zip(panels, overlaps, strict=False):
        panel.set_title(f"overlap {overlap}")
        _lines(panel, [row for row in rows if row.overlap == overlap and row.variant != "full context"], by_position)
    _legend(panels[0])
    return figure


def plot_by_distance(rows: Sequence[Row]) -> Figure:
    """Loss by how far a block is from its document's start; the further, the fewer documents are left."""
    figure, (panel,) = _frame("distance from the document's start (tokens)", "loss (bits per token)")
    _lines(panel, rows, by_distance)
    _legend(panel)
    return figure


def plot_by_flops(rows: Sequence[Row]) -> Figure:
    """Word-level perplexity against the counted FLOPs per token, one point for each overlap."""
    return _perplexity_by(rows, "FLOPs per token, counted", lambda row: None if row.cost is None else row.cost.counted)


def plot_by_bytes(rows: Sequence[Row]) -> Figure:
    """Word-level perplexity against the bytes of memory, one point for each overlap."""
    figure = _perplexity_by(rows, "bytes of memory", lambda row: row.state_bytes)
    sizes = [row.state_bytes for row in rows if row.state_bytes]
    if sizes:  # plain windows have none, which a logarithm cannot show
        figure.axes[0].set_xscale("symlog", linthresh=min(sizes), linscale=0.5)
        figure.axes[0].set_xlim(left=-min(sizes) / 4)
    return figure


def _perplexity_by(rows: Sequence[Row], name: str, size_of: Callable[[Row], float | None]) -> Figure:
    figure, (panel,) = _frame(f"{name} (numbers: overlap)", "word-level perplexity")
    lines: dict[str, list[tuple[float, float, int]]] = {}
    for row in rows:
        if (size := size_of(row)) is not None and row.measures is not None:
            lines.setdefault(row.variant, []).append((size, row.measures.word_perplexity, row.overlap))
    for variant, points in lines.items():
        sizes, perplexities, overlaps = zip(*sorted(points), strict=True)
        panel.plot(sizes, perplexities, label=variant, linewidth=1, **STYLES[variant])
        for x, y, overlap in points if len(set(overlaps)) > 1 else ():
            number_beside(panel, overlap, x, y)
    _legend(panel)
    return figure


def by_position(measures: Measures) -> tuple[list[float], list[float]]:
    """Positions in the window, and nats per token there. The overlap, scored in first windows only, is left out."""
    return _grouped(measures.by_position, measures.overlap, POINTS)


def by_distance(measures: Measures, points: int = POINTS) -> tuple[list[float], list[float]]:
    """Distances from the document's start in tokens, and bits per token there."""
    numbers, losses = _grouped(measures.by_window, 0, points)
    return [measures.window * (number + 0.5) for number in numbers], [loss / math.log(2) for loss in losses]


def _grouped(curve: Curve, first: int, points: int) -> tuple[list[float], list[float]]:
    """Neighbouring places averaged so that at most `points` are left: the middle of each group, and its mean."""
    end = len(curve.counts)
    size = max(1, math.ceil((end - first) / points))
    groups = [(start, min(start + size, end)) for start in range(first, end, size)]
    scored = [(start, stop) for start, stop in groups if any(curve.counts[start:stop])]
    return [(start + stop - 1) / 2 for start, stop in scored], [curve.mean(*group) for group in scored]


def _frame(x: str, y: str, size: tuple[float, float] = (5.4, 3.8), panels: int = 1) -> tuple[Figure, Any]:
    figure = Figure(figsize=size, layout="constrained")
    made = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
    for panel in made:
        panel.set_xlabel(x)
    made[0].set_ylabel(y)
    return figure, made


def _lines(panel: Any, rows: Sequence[Row], points_of: Callable[[Measures], tuple[list[float], list[float]]]) -> None:
    for row in rows:
        if row.measures is not None:
            panel.plot(*points_of(row.measures), label=row.variant, markersize=4, linewidth=1, **STYLES[row.variant])


def _legend(panel: Any) -> None:
    if panel.lines:
        panel.legend(frameon=False)


# --- files ------------------------------------------------------------------------------------------


def show_names_as_written(figure: Figure) -> None:
    """Switches off formulas: matplotlib takes text between dollar signs for one, and fails where it is none. The
    numbers along an axis stay formulas."""
    numbers = set()
    for axis in (axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)):
        numbers.add(axis.get_offset_text())
        if not isinstance(axis.get_major_formatter(), FixedFormatter | FuncFormatter):
            numbers.update(axis.get_ticklabels(which="both"))
    for text in figure.findobj(Text):
        if text not in numbers:
            text.set_parse_math(False)


def draw(figure: Figure, file: Any, form: str) -> None:
    """Repeatable: the same figure gives the same file. Text stays text in an SVG."""
    show_names_as_written(figure)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "onward"}):
        more: dict[str, Any] = {"metadata": {"Date": None}} if form == "svg" else {"dpi": 150}
        figure.savefig(file, format=form, **more)


def save(figure: Figure, path: Path) -> None:
    """As SVG and PNG."""
    for form in ("svg", "png"):
        with whole_file(path.with_name(f"{path.name}.{form}")) as unfinished:
            draw(figure, unfinished, form)
