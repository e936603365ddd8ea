"""`scale`: Table 2 of "Block-Recurrent Transformers", a larger size on books."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from onward.evaluation import plots

from ..engine.figures import name_rows, one_panel
from ..engine.intervals import cell
from ..engine.outcomes import Outcomes
from ..engine.reporting import Report, Table, judged, summary_of
from ..engine.study import Outcome, Run, Study, StudySetting
from ..engine.texts import check_texts
from .notes import BITS, OVER_SEEDS, about_trainings, controls_table
from .rows import SCALES, BlockRow, BlockSizes
from .runs import block_outcomes, block_runs

CORPUS = "books"
CORPORA = {"smoke": {CORPUS: "shakespeare"}, "laptop": {CORPUS: "pg19"}, "paper": {CORPUS: "pg19-all"}}
# Bits per token, word-level perplexity.
PAPER = {
    "Slide:13L:large": (3.39, 34.80),
    "Rec:lstm:single:large": (3.36, 33.72),
    "Rec:fixed:skip:large": (3.32, 32.34),
}
ROWS = [BlockRow(name) for name in PAPER]
LARGE_STEPS = BlockSizes(tokens=200_000 * 4 * 131_072, tokens_per_step=4 * 131_072)


def runs(setting: StudySetting) -> list[Run]:
    return block_runs(setting, CORPUS, ROWS)


def report(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    found = block_outcomes(setting, outcomes, CORPUS)
    bits = {row.name: found.of(row, BITS) for row in ROWS}
    rows = [
        {
            "model": row.name,
            "parameters": f"{found.first(row, 'parameters'):,}",
            "bits per token": cell(bits[row.name], 3),
            "word perplexity": cell(found.of(row, "test_word_perplexity"), 1),
            "paper, bits": f"{PAPER[row.name][0]:g}",
            "paper, word perplexity": f"{PAPER[row.name][1]:g}",
        }
        for row in ROWS
        if bits[row.name]
    ]
    lost, about_lost = controls_table({CORPUS: found}, ROWS)
    base, *others = PAPER
    compared = [
        (
            f"At twice the heads and MLP, {better} is better than one more layer",
            f"{PAPER[base][0]:g} -> {PAPER[better][0]:g}",
            bits[base],
            bits[better],
        )
        for better in reversed(others)
    ]
    claims = judged(compared, "bits per token")
    return Report(
        "A larger size",
        summary_of(claims),
        [Table.of("Table 2", rows), *lost],
        {"bits": plot(found)} if rows else {},
        claims,
        (OVER_SEEDS, *about_trainings({CORPUS: found}, ROWS, outcomes), *about_lost, NOTE_ON_PG19),
    )


NOTE_ON_PG19 = (
    "The paper's columns are of PG19 and models of 320 to 375 million parameters, for the shape of the thing."
)


def plot(found: Outcomes) -> Figure:
    """Every seed of every row: rows differ little beside seeds."""
    figure, panel = one_panel(6, 2.6, "test loss (bits per token); a sign for each seed")
    for place, row in enumerate(ROWS):
        for seed, bits in found.of(row, BITS).items():
            panel.plot(bits, place, color="0.0", marker=plots.marker(seed), fillstyle="none", markersize=6)
    name_rows(panel, list(PAPER))
    panel.set_ylim(len(ROWS) - 0.5, -0.5)
    return figure


STUDIES = [Study("scale", CORPORA, {**SCALES, "paper": LARGE_STEPS}, runs, report, check_texts)]
