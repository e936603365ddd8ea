"""Figures that reports have in common: one panel with its labels, and rows of means with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from .intervals import Interval


def one_panel(width: float, height: float, x: str = "", y: str = "") -> tuple[Figure, Any]:
    """An empty figure in inches, and its panel with labels of the axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    panel = figure.subplots()
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    return figure, panel


def name_rows(panel: Any, names: Sequence[str]) -> None:
    """The rows of a horizontal panel, from the top."""
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()


def mean_in_row(panel: Any, row: float, values: Mapping[int, float] | Interval | None, **look: Any) -> None:
    """A point at the mean over seeds, with its interval as a bar; nothing if there are no values."""
    if values:
        interval = values if isinstance(values, Interval) else Interval.of(list(values.values()))
        panel.errorbar(interval.mean, row, xerr=interval.half or 0, **{"color": "0.0", "capsize": 3, **look})
