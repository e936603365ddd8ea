"""Rows of results -> a table on the terminal, table.md, results.json and plots."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.table import Table

from .cost import Cost
from .perplexity import Difference, Measures

# What is told apart by marker and line, so that it can be read in black and white.
STYLES: dict[str, dict[str, Any]] = {
    "plain": {"marker": "o", "linestyle": "-", "color": "0.55"},
    "constant": {"marker": "s", "linestyle": "--", "color": "0.35"},
    "recurrent": {"marker": "^", "linestyle": "-", "color": "0.0"},
    "swapped": {"marker": "x", "linestyle": ":", "color": "0.2"},
    "full context": {"marker": "D", "linestyle": "-.", "color": "0.45"},
}
BINS = 24  # points of a curve over the positions of a window


@dataclass(frozen=True)
class Row:
    """One model read in one way. Without `measures`, `notes` say why, and what to do."""

    variant: str
    window: int
    overlap: int
    measures: Measures | None = None
    cost: Cost | None = None
    context_recovered: float | None = None
    by_content: float | None = None  # how much of it is lost with another document's memory
    gain: Difference | None = None  # over plain windows of the same overlap
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, variant: str, measures: Measures, cost: Cost, notes: tuple[str, ...] = (), **more: Any
    ) -> Row:
        return cls(variant, measures.window, measures.overlap, measures, cost, notes=notes, **more)

    def as_dict(self) -> dict[str, Any]:
        """Everything there is to know, as JSON takes it."""
        values = {**asdict(self), "measures": _measures_as_dict(self.measures)}
        if self.cost is not None:
            values["cost"]["counted_added"] = self.cost.counted_added
        return _without_infinities(values)


def _measures_as_dict(measures: Measures | None) -> dict[str, Any] | None:
    if measures is None:
        return None
    names = (
        "loss",
        "standard_error",
        "word_perplexity",
        "token_perplexity",
        "bits_per_byte",
        "nll",
        "tokens",
        "words",
        "bytes",
        "tokens_per_second",
    )
    values = {name: getattr(measures, name) for name in names} | asdict(measures)
    values["by_position"]["means"] = measures.by_position.means
    values["by_window"]["means"] = measures.by_window.means
    return values


def _without_infinities(value: Any) -> Any:
    """JSON has no word for what is not a finite number: null stands for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(item) for item in value]
    return value


# --- tables ----------------------------------------------------------------------------------------


def _of_measures(get: Callable[[Measures], float], form: str) -> Callable[[Row], str]:
    return lambda row: "" if row.measures is None else format(get(row.measures), form)


def _of_cost(get: Callable[[Cost], float], form: str) -> Callable[[Row], str]:
    return lambda row: "" if row.cost is None else format(get(row.cost), form)


def _gain(row: Row) -> str:
    if row.gain is None:
        return ""
    error = row.gain.standard_error
    return f"{row.gain.mean:+.3f}" + ("" if error is None else f" ± {error:.3f}")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "model": lambda row: row.variant,
    "window": lambda row: str(row.window),
    "overlap": lambda row: str(row.overlap),
    "word perplexity": _of_measures(lambda m: m.word_perplexity, ".2f"),
    "token perplexity": _of_measures(lambda m: m.token_perplexity, ".3f"),
    "bits/byte": _of_measures(lambda m: m.bits_per_byte, ".4f"),
    "gain over plain, nats/token": _gain,
    "context recovered": lambda row: _percent(row.context_recovered),
    "lost when swapped": lambda row: _percent(row.by_content),
    "FLOPs/token, formula": _of_cost(lambda c: c.formula, ".2e"),
    "FLOPs/token, counted": _of_cost(lambda c: c.counted, ".2e"),
    "parameters added": _of_cost(lambda c: c.parameters_added, ","),
    "tokens/s": _of_measures(lambda m: m.tokens_per_second, ",.0f"),
    "peak memory, MB": _of_measures(lambda m: m.peak_memory / 1e6, ",.0f"),
}


# What goes onto a terminal of 80 columns, and what it is called there.
SHORT = {
    "model": "model",
    "overlap": "over-\nlap",
    "word perplexity": "word\nperpl.",
    "gain over plain, nats/token": "gain, nats\nper token",
    "context recovered": "context\nwon",
    "lost when swapped": "lost if\nswapped",
    "FLOPs/token, counted": "FLOPs\n/token",
    "tokens/s": "tokens\n/s",
}


def _cells(rows: Sequence[Row], columns: Iterable[str]) -> tuple[list[list[str]], list[str]]:
    """The cells of the table, and the notes that its last column refers to by number."""
    notes = list(dict.fromkeys(note for row in rows for note in row.notes))
    numbers = {note: str(number) for number, note in enumerate(notes, start=1)}

    def cells(row: Row) -> list[str]:
        return [*(COLUMNS[name](row) for name in columns), ",".join(numbers[note] for note in row.notes)]

    return [cells(row) for row in rows], notes


def table(rows: Sequence[Row], title: str | None = None) -> Table:
    """For the terminal: `rich.print(table(rows))`. The most important columns only."""
    lines, notes = _cells(rows, SHORT)
    caption = "\n".join(f"{number}: {note}" for number, note in enumerate(notes, start=1))
    result = Table(title=title, caption=caption or None, caption_justify="left", box=SIMPLE_HEAD, padding=0)
    for name in (*SHORT.values(), "note"):
        result.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for before, row, line in zip([None, *rows], rows, lines, strict=False):
        if before is not None and (before.window, before.overlap) != (row.window, row.overlap):
            result.add_section()
        result.add_row(*line)
    return result


def markdown(rows: Sequence[Row]) -> str:
    lines, notes = _cells(rows, COLUMNS)
    names = [*COLUMNS, "note"]
    marks = ["---" if name == "model" else "---:" for name in names]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in (names, marks, *lines))
    listed = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, start=1))
    return f"{text}\n" + (f"\n{listed}\n" if listed else "")


# --- files -----------------------------------------------------------------------------------------


def write(rows: Sequence[Row], folder: str | Path, **facts: Any) -> None:
    """Writes table.md, results.json and the plots. `facts` go into results.json, beside `circumstances`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(markdown(rows), encoding="utf-8")
    results = {**circumstances(), **facts, "rows": [row.as_dict() for row in rows]}
    text = json.dumps(_without_infinities(results), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    measured = [row for row in rows if row.measures is not None]
    _save(plot_by_position(measured), folder / "loss_by_position")
    _save(plot_by_flops(measured), folder / "perplexity_by_flops")


def circumstances() -> dict[str, Any]:
    """How to run this again, and on what it ran."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seed": torch.initial_seed(),
        "versions": {name: _version(name) for name in ("onward", "torch", "transformers", "tokenizers")}
        | {"python": platform.python_version()},
        "machine": {
            "system": platform.platform(),
            "processors": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return getattr(sys.modules.get(package), "__version__", None)


# --- plots -----------------------------------------------------------------------------------------


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
            panel.annotate(str(overlap), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
    panel.set_xlabel("FLOPs per token, counted (numbers: overlap)")
    panel.set_ylabel("word-level perplexity")
    _legend(panel)
    return figure


def _style_of(variant: str) -> dict[str, Any]:
    return STYLES.get(variant, {"marker": ".", "linestyle": "-", "color": "0.3"})


def _legend(panel: Any) -> None:
    if panel.lines:
        panel.legend(frameon=False)


def _save(figure: Figure, path: Path) -> None:
    # A figure made without pyplot draws with Agg; text stays text in the SVG, and no date makes files differ.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "onward"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=150)
