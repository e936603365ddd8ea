"""Rows of results -> a table on the terminal, table.md, results.json and plots."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from .measures import Difference
from .rows import Row
from .worth import worth

# --- columns ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    title: str  # in table.md
    attribute: str  # of a row; the cell is empty where it is None
    form: str | Callable[[Any], str] = ""
    short_title: str = ""  # on a terminal of 80 columns; columns without one are not shown there

    def cell(self, row: Row) -> str:
        value: Any = row
        for name in self.attribute.split("."):
            value = None if value is None else getattr(value, name)
        if value is None:
            return ""
        return format(value, self.form) if isinstance(self.form, str) else self.form(value)


def short_perplexity(perplexity: float) -> str:
    """Perplexities of untrained models have a dozen digits, which mean nothing and squeeze the table."""
    return f"{perplexity:.2f}" if perplexity < 1e5 else f"{perplexity:.1e}"


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f}"


def gain_in_bits(difference: Difference) -> str:
    error, nats = difference.standard_error, math.log(2)
    return str(Difference(difference.mean / nats, None if error is None else error / nats))


@dataclass(frozen=True)
class ReportFormat:
    """How the rows of one kind of model are shown."""

    pieces: str
    columns: tuple[Column, ...]
    figures: Mapping[str, Callable[[Sequence[Row]], Figure]]
    conclusion: Callable[[Sequence[Row]], str] = lambda rows: ""


WINDOW_REPORT = ReportFormat(
    "windows",
    (
        Column("model", "variant", short_title="model"),
        Column("window", "window"),
        Column("overlap", "overlap", short_title="over-\nlap"),
        Column("word perplexity", "measures.word_perplexity", short_perplexity, "word\nperpl."),
        Column("token perplexity", "measures.token_perplexity", ".3f"),
        Column("bits/byte", "measures.bits_per_byte", ".4f"),
        Column("gain over plain, nats/token", "gain", str, "gain, nats\nper token"),
        Column("gain over kept tokens, nats/token", "gain_over_kept", str, "over kept\ntokens"),
        Column("context recovered", "context_recovered", ".0%"),
        Column("lost when swapped", "by_content", ".0%"),
        Column("bytes of memory", "state_bytes", ",", "bytes of\nmemory"),
        Column("FLOPs/token, formula", "cost.formula", ".2e"),
        Column("FLOPs/token, counted", "cost.counted", ".2e", "FLOPs\n/token"),
        Column("parameters added", "cost.parameters_added", ","),
        Column("tokens/s", "measures.tokens_per_second", ",.0f"),
        Column("peak memory, MB", "measures.peak_memory", megabytes),
    ),
    {
        "loss_by_position": plots.plot_by_position,
        "perplexity_by_flops": plots.plot_by_flops,
        "perplexity_by_bytes": plots.plot_by_bytes,
    },
    worth,
)

BLOCK_REPORT = ReportFormat(
    "blocks",
    (
        Column("model", "variant", short_title="model"),
        Column("window", "window"),
        Column("bits/token", "measures.bits_per_token", ".4f", "bits\n/token"),
        Column("bits/byte", "measures.bits_per_byte", ".4f", "bits\n/byte"),
        Column("word perplexity", "measures.word_perplexity", short_perplexity, "word\nperpl."),
        Column("gain over ablated, bits/token", "gain", gain_in_bits, "gain over ablated,\nbits/token"),
        Column("FLOPs/token, counted", "cost.counted", ".2e"),
        Column("parameters", "cost.parameters", ","),
        Column("tokens/s", "measures.tokens_per_second", ",.0f", "tokens\n/s"),
        Column("peak memory, MB", "measures.peak_memory", megabytes, "memory,\nMB"),
    ),
    {"loss_by_distance": plots.plot_by_distance},
)


# --- tables -----------------------------------------------------------------------------------------


def _cells(rows: Sequence[Row], columns: Sequence[Column]) -> tuple[list[list[str]], list[str]]:
    """The cells of the table, and its notes; the last column refers to them by number."""
    notes = list(dict.fromkeys(note for row in rows for note in row.notes))
    lines = [
        [*(column.cell(row) for column in columns), ",".join(str(notes.index(note) + 1) for note in row.notes)]
        for row in rows
    ]
    return lines, notes


def table(rows: Sequence[Row], title: str | None = None, form: ReportFormat = WINDOW_REPORT) -> Table:
    """For the terminal: `rich.print(table(rows))`. The most important columns only."""
    columns = [column for column in form.columns if column.short_title]
    lines, notes = _cells(rows, columns)
    caption = "\n".join(f"{number}: {note}" for number, note in enumerate(notes, start=1))
    result = Table(title=title, caption=caption or None, caption_justify="left", box=SIMPLE_HEAD, padding=0)
    for name in (*(column.short_title for column in columns), "note"):
        result.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for before, row, line in zip([None, *rows], rows, lines, strict=False):
        if before is not None and (before.window, before.overlap) != (row.window, row.overlap):
            result.add_section()
        result.add_row(*line)
    return result


def markdown(rows: Sequence[Row], form: ReportFormat = WINDOW_REPORT) -> str:
    lines, notes = _cells(rows, form.columns)
    text = markdown_table([*(column.title for column in form.columns), "note"], lines, words=["model"])
    listed = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, start=1))
    return "\n".join(part for part in (text, form.conclusion(rows) + "\n", listed + "\n") if part.strip())


# --- files ------------------------------------------------------------------------------------------


def refuse_other_results(folder: Path) -> None:
    """Checked before the evaluation, which must not overwrite results of anything else."""
    file = folder / "results.json"
    if file.is_file() and "rows" not in read_json(file, "the results of an evaluation", "delete it to write another"):
        raise FileExistsError(f"{file} is of something else, and would be overwritten: choose another folder")


def write(rows: Sequence[Row], folder: str | Path, form: ReportFormat = WINDOW_REPORT, **facts: Any) -> None:
    """Writes table.md, results.json and the plots. `facts` go into results.json, beside the provenance."""
    folder = Path(folder).expanduser()
    make_folder(folder)
    write_text(folder / "table.md", markdown(rows, form))
    results = {**provenance(), "seed": torch.initial_seed(), **facts, "rows": [row.as_dict() for row in rows]}
    text = json.dumps(without_infinities(results), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(folder / "results.json", text + "\n")
    measured = [row for row in rows if row.measures is not None]
    for name, plot in form.figures.items():
        plots.save(plot(measured), folder / name)
