"""What the reports of all studies of block-recurrent models have: a table of controls, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..engine.intervals import ABOUT_INTERVALS, cell, over
from ..engine.outcomes import Outcomes
from ..engine.reporting import Table
from ..engine.study import Outcome
from .rows import BASELINE, RECURRENT, BlockRow, BlockSizes
from .runs import CONTROLS

BITS = "test_bits"
NARROW_VERSIONS = (
    "0.1.0",
)  # versions of onward whose kernels started with 0.77 / fan_in, and z in gates with 0.077 / fan_in
OVER_SEEDS = f"{ABOUT_INTERVALS}; claims are about paired differences of test bits."
ABOUT_CONTROLS = (
    "Lost bits: how much worse a model reads with what another document carries, or with the states that documents "
    "start from and no memories (none). It was not trained to read with none, so Slide:13L is the fairer baseline."
)


def controls_table(found: Mapping[str, Outcomes], rows: Sequence[BlockRow]) -> tuple[list[Table], list[str]]:
    """For each text, what is lost without a document's own states and memories, and a note about it. Neither if
    nothing is carried."""
    known = []
    for row in rows:
        cells = [
            cell(over(of_text.of(row, f"{BITS}_{memory}"), of_text.of(row, BITS)), 3)
            for of_text in found.values()
            for memory in CONTROLS
        ]
        if any(cells):
            known.append([row.name, *cells])
    columns = [f"{text}, {instead}" for text in found for instead in CONTROLS.values()]
    title = "Bits lost with other states and memories than a document's own"
    return ([Table(title, ["model", *columns], known)], [ABOUT_CONTROLS]) if known else ([], [])


def about_trainings(
    found: Mapping[str, Outcomes], rows: Sequence[BlockRow], outcomes: Mapping[str, Outcome]
) -> list[str]:
    return [*about_rates(found, rows), *about_starts(outcomes)]


def about_starts(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Names trainings that started from other weights than today's would."""
    trained = [outcome for outcome in outcomes.values() if "validation_loss" in outcome]
    narrow = [o for o in trained if o.get("circumstances", {}).get("versions", {}).get("onward") in NARROW_VERSIONS]
    if not narrow:
        return []
    which = "All trainings" if len(narrow) == len(trained) else f"{len(narrow)} of {len(trained)} trainings"
    return [
        f"{which} are of onward {NARROW_VERSIONS[-1]}, whose kernels started narrower than the authors': with variance "
        "0.77 / fan_in instead of 1 / fan_in, and those of new states in gates with 0.077 / fan_in."
    ]


def about_rates(found: Mapping[str, Outcomes], rows: Sequence[BlockRow]) -> list[str]:
    """The chosen learning rates, in which rows with states and rows without may differ."""
    chosen, tried = [], set()
    for text, of_text in found.items():
        sizes: BlockSizes = of_text.setting.sizes
        rates: dict[bool, set[float]] = {False: set(), True: set()}
        for row in rows:
            rates[row.has_states(sizes)] |= set(of_text.of(row, "learning_rate").values())
        if all(rates.values()):
            chosen.append(f"{text} {_listed(rates[False])} without states, {_listed(rates[True])} with")
            tried |= set(sizes.rates)
    if not chosen:
        return []
    told = f"Learning rates, the best of {_listed(tried)} on validation: {'; '.join(chosen)}."
    return [f"{told} {BASELINE} and {RECURRENT} were tried; other rows have what was best for one of these."]


def _listed(rates: set[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in sorted(rates))
