"""Rows of results -> a table on the terminal, table.md, results.json and plots."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..utils.files import make_folder, write_text
from ..utils.markdown import markdown_table
from ..utils.provenance import provenance
from ..utils.safe_json import read_json, without_infinities
from . import plots
from .cost import BlockCost, Cost
from .perplexity import Difference, Measures
from .plots import plot_by_distance, plot_by_flops, plot_by_position


@dataclass(frozen=True)
class Row:
    """One model read in one way. Without `measures`, `notes` say why, and what to do."""

    variant: str
    window: int
    overlap: int
    measures: Measures | None = None
    cost: Cost | BlockCost | None = None
    context_recovered: float | None = None
    by_content: float | None = None  # how much of it is lost with another document's memory
    gain: Difference | None = None  # over plain windows of the same overlap, or over ablated states
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, variant: str, measures: Measures, cost: Cost | BlockCost, notes: tuple[str, ...] = (), **more: Any
    ) -> Row:
        return cls(variant, measures.window, measures.overlap, measures, cost, notes=notes, **more)

    def as_dict(self) -> dict[str, Any]:
        """Everything there is to know, as JSON takes it."""
        values = {**asdict(self), "measures": _measures_as_dict(self.measures)}
        if isinstance(self.cost, Cost):
            values["cost"]["counted_added"] = self.cost.counted_added
        return without_infinities(values)


def _measures_as_dict(measures: Measures | None) -> dict[str, Any] | None:
    if measures is None:
        return None
    names = (
        "loss",
        "bits_per_token",
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


# --- tables ----------------------------------------------------------------------------------------


def _of_measures(get: Callable[[Measures], float], form: str) -> Callable[[Row], str]:
    return lambda row: "" if row.measures is None else format(get(row.measures), form)


def _of_cost(get: Callable[[Any], float], form: str) -> Callable[[Row], str]:
    return lambda row: "" if row.cost is None else format(get(row.cost), form)


def short(perplexity: float) -> str:
    """Of models that know little, perplexities have a dozen digits, which mean nothing and squeeze the table."""
    return f"{perplexity:.2f}" if perplexity < 1e5 else f"{perplexity:.1e}"


def _gain(row: Row, unit: float = 1.0) -> str:
    if row.gain is None:
        return ""
    error = row.gain.standard_error
    return f"{row.gain.mean / unit:+.3f}" + ("" if error is None else f" ± {error / unit:.3f}")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "model": lambda row: row.variant,
    "window": lambda row: str(row.window),
    "overlap": lambda row: str(row.overlap),
    "word perplexity": lambda row: "" if row.measures is None else short(row.measures.word_perplexity),
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


BLOCK_COLUMNS: dict[str, Callable[[Row], str]] = {
    "model": COLUMNS["model"],
    "window": COLUMNS["window"],
    "bits/token": _of_measures(lambda m: m.bits_per_token, ".4f"),
    "bits/byte": COLUMNS["bits/byte"],
    "word perplexity": COLUMNS["word perplexity"],
    "gain over ablated, bits/token": lambda row: _gain(row, math.log(2)),
    "FLOPs/token, counted": COLUMNS["FLOPs/token, counted"],
    "parameters": _of_cost(lambda c: c.parameters, ","),
    "tokens/s": COLUMNS["tokens/s"],
    "peak memory, MB": COLUMNS["peak memory, MB"],
}
BLOCK_SHORT = {
    "model": "model",
    "bits/token": "bits\n/token",
    "bits/byte": "bits\n/byte",
    "word perplexity": "word\nperpl.",
    "gain over ablated, bits/token": "gain over ablated,\nbits/token",
    "tokens/s": "tokens\n/s",
    "peak memory, MB": "memory,\nMB",
}


@dataclass(frozen=True)
class Look:
    """How the rows of one kind of model are shown."""

    pieces: str
    columns: Mapping[str, Callable[[Row], str]]
    short: Mapping[str, str]
    figures: Mapping[str, Callable[[Sequence[Row]], Figure]]


WINDOWS = Look(
    "windows",
    COLUMNS,
    SHORT,
    {"loss_by_position": plot_by_position, "perplexity_by_flops": plot_by_flops},
)
BLOCKS = Look("blocks", BLOCK_COLUMNS, BLOCK_SHORT, {"loss_by_distance": plot_by_distance})


def _cells(
    rows: Sequence[Row], names: Iterable[str], columns: Mapping[str, Callable[[Row], str]]
) -> tuple[list[list[str]], list[str]]:
    """The cells of the table, and the notes that its last column refers to by number."""
    notes = list(dict.fromkeys(note for row in rows for note in row.notes))
    numbers = {note: str(number) for number, note in enumerate(notes, start=1)}

    def cells(row: Row) -> list[str]:
        return [*(columns[name](row) for name in names), ",".join(numbers[note] for note in row.notes)]

    return [cells(row) for row in rows], notes


def table(rows: Sequence[Row], title: str | None = None, look: Look = WINDOWS) -> Table:
    """For the terminal: `rich.print(table(rows))`. The most important columns only."""
    lines, notes = _cells(rows, look.short, look.columns)
    caption = "\n".join(f"{number}: {note}" for number, note in enumerate(notes, start=1))
    result = Table(title=title, caption=caption or None, caption_justify="left", box=SIMPLE_HEAD, padding=0)
    for name in (*look.short.values(), "note"):
        result.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for before, row, line in zip([None, *rows], rows, lines, strict=False):
        if before is not None and (before.window, before.overlap) != (row.window, row.overlap):
            result.add_section()
        result.add_row(*line)
    return result


def markdown(rows: Sequence[Row], look: Look = WINDOWS) -> str:
    lines, notes = _cells(rows, look.columns, look.columns)
    text = markdown_table([*look.columns, "note"], lines, words=["model"])
    listed = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, start=1))
    return text + (f"\n{listed}\n" if listed else "")


# --- files -----------------------------------------------------------------------------------------


def refuse_other_results(folder: Path) -> None:
    """Known before anything is read: results of something else are not written over."""
    there = folder / "results.json"
    if there.is_file() and "rows" not in read_json(there, "what an evaluation found", "delete it to write another"):
        raise FileExistsError(f"{there} is of something else, and would be written over: choose another folder")


def write(rows: Sequence[Row], folder: str | Path, look: Look = WINDOWS, **facts: Any) -> None:
    """Writes table.md, results.json and the plots. `facts` go into results.json, beside `circumstances`."""
    folder = Path(folder).expanduser()
    make_folder(folder)
    write_text(folder / "table.md", markdown(rows, look))
    results = {**provenance(), "seed": torch.initial_seed(), **facts, "rows": [row.as_dict() for row in rows]}
    text = json.dumps(without_infinities(results), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(folder / "results.json", text + "\n")
    measured = [row for row in rows if row.measures is not None]
    for name, plot in look.figures.items():
        plots.save(plot(measured), folder / name)
